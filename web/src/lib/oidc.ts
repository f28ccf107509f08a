// Logging in at an OIDC issuer: the authorization code flow with PKCE. What is only read here the server verifies.

import type { OidcLogin } from "./shapes";
import { type Renewal, session } from "./session";
import { text } from "../strings";

const PENDING = "treadle.login";
/** Where the issuer sends people back to; it must know this address of the client. */
export const RETURN = "/login";

interface Pending { login: OidcLogin; endpoint: string; verifier: string; state: string; nonce: string; to: string }
interface About { issuer: string; authorization_endpoint: string; token_endpoint: string }
export interface Tokens { access_token?: string; id_token?: string; refresh_token?: string; expires_in?: number }
type Claims = Record<string, unknown>;

export class LoginFailed extends Error {}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function random(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/** What the issuer is shown first of what proves later who asks for the token (RFC 7636, S256). */
export async function challengeOf(verifier: string): Promise<string> {
  return base64url(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier))));
}

/** What a token says; nothing where it is none that can be read. */
export function claimsOf(token: string | undefined): Claims | null {
  const body = token?.split(".")[1];
  if (body === undefined) return null;
  try {
    const bytes = Uint8Array.from(atob(body.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.codePointAt(0) ?? 0);
    return JSON.parse(new TextDecoder().decode(bytes)) as Claims;
  } catch {
    return null;
  }
}

/** The token that is meant for the server: the one of access, or where that is for somebody else, the one of identity. */
export function meantFor(audience: string, given: Tokens): string | null {
  for (const token of [given.access_token, given.id_token]) {
    const aud = claimsOf(token)?.["aud"];
    if (token !== undefined && (Array.isArray(aud) ? aud : [aud]).includes(audience)) return token;
  }
  return null;
}

/** Goes to the issuer; what comes back is taken up by `arrive`. */
export async function depart(login: OidcLogin, to: string): Promise<void> {
  const about = await discovered(login.issuer);
  const pending: Pending = { login, endpoint: about.token_endpoint, verifier: random(), state: random(), nonce: random(), to };
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  const asked = new URL(about.authorization_endpoint);
  const query = {
    response_type: "code", client_id: login.client, redirect_uri: location.origin + RETURN, scope: login.scope, audience: login.audience,
    state: pending.state, nonce: pending.nonce, code_challenge: await challengeOf(pending.verifier), code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(query)) asked.searchParams.set(name, value);
  location.assign(asked);
}

async function discovered(issuer: string): Promise<About> {
  let about: About;
  try {
    const answer = await fetch(`${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`);
    about = (await answer.json()) as About;
  } catch {
    throw new LoginFailed(text.issuerAway);
  }
  // The policy of this page lets it ask the issuer's own origin, and nobody else.
  if (about.issuer !== issuer || new URL(about.token_endpoint).origin !== new URL(issuer).origin) throw new LoginFailed(text.issuerOther);
  return about;
}

/** Takes up what the issuer sent along: whom the token is about, and where one wanted to go. */
export async function arrive(search: string): Promise<{ token: string; renewal: Renewal | null; to: string }> {
  const said = new URLSearchParams(search);
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? "null") as Pending | null;
  sessionStorage.removeItem(PENDING);
  if (pending === null || said.get("state") !== pending.state) throw new LoginFailed(text.loginNotBegun);
  const code = said.get("code");
  if (code === null) throw new LoginFailed(`${text.issuerRefused} ${said.get("error_description") ?? said.get("error") ?? ""}`.trim());
  const { login, endpoint } = pending;
  const given = await exchanged(endpoint, {
    grant_type: "authorization_code", code, redirect_uri: location.origin + RETURN, client_id: login.client, code_verifier: pending.verifier,
  });
  const identity = claimsOf(given.id_token);
  if (identity !== null && identity["nonce"] !== pending.nonce) throw new LoginFailed(text.loginNotBegun);
  return { ...kept(given, { endpoint, client: login.client, audience: login.audience }), to: pending.to };
}

async function exchanged(endpoint: string, form: Record<string, string>): Promise<Tokens> {
  let answer: Response;
  try {
    answer = await fetch(endpoint, { method: "POST", body: new URLSearchParams(form) });
  } catch {
    throw new LoginFailed(text.issuerAway);
  }
  const given = (await answer.json().catch(() => ({}))) as Tokens & { error?: string; error_description?: string };
  if (!answer.ok) throw new LoginFailed(`${text.issuerRefused} ${given.error_description ?? given.error ?? answer.status}`);
  return given;
}

function kept(given: Tokens, at: { endpoint: string; client: string; audience: string }): { token: string; renewal: Renewal | null } {
  const token = meantFor(at.audience, given);
  if (token === null) throw new LoginFailed(`${text.noTokenFor} ${at.audience}.`);
  if (given.refresh_token === undefined) return { token, renewal: null };
  return { token, renewal: { ...at, refresh: given.refresh_token, after: Date.now() + early(given.expires_in ?? 300) } };
}

/** Milliseconds after which a token is replaced: a minute before its end, or half its life where that is short. */
export function early(seconds: number): number {
  return Math.min(Math.max(seconds - 60, seconds / 2) * 1000, 2 ** 31 - 1);
}

let timer: ReturnType<typeof setTimeout> | undefined;

/** Replaces the token before it ends, as long as somebody is logged in. */
export function keepFresh(): () => void {
  const plan = (): void => {
    clearTimeout(timer);
    const held = session.renewal();
    if (held !== null) timer = setTimeout(() => void renew(held), Math.max(0, held.after - Date.now()));
  };
  plan();
  return session.subscribe(plan);
}

async function renew(held: Renewal): Promise<void> {
  const { refresh, endpoint, client, audience } = held;
  const current = (): boolean => session.renewal()?.refresh === refresh;
  try {
    const given = await exchanged(endpoint, { grant_type: "refresh_token", refresh_token: refresh, client_id: client });
    const next = kept({ refresh_token: refresh, ...given }, { endpoint, client, audience });
    if (current()) session.enter(next.token, next.renewal);
  } catch {
    // The token goes on until it ends, and then leads to the login.
  }
}
