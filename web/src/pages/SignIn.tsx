import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useLocation, useNavigate } from "react-router";

import { Failure, Loading } from "../components/bits";
import { api, type OidcLogin, Refusal } from "../lib/api";
import { arrive, depart } from "../lib/oidc";
import { type Renewal, session } from "../lib/session";
import { text } from "../strings";

interface Proof { token: string; renewal: Renewal | null; to?: string }

/** Tries what proves who one is; whoever it is about is in, and goes where one wanted to go. */
function useEntering<T>(proof: (given: T) => Proof | Promise<Proof>) {
  const client = useQueryClient();
  const navigate = useNavigate();
  return useMutation({
    mutationFn: async (given: T) => {
      const found = await proof(given);
      return { ...found, me: await api.prove(found.token) };
    },
    onSuccess: ({ token, renewal, to, me }) => {
      client.clear();
      client.setQueryData(["me"], me);
      session.enter(token, renewal);
      if (to !== undefined) void navigate(to, { replace: true });
    },
  });
}

function useTitle(): void {
  useEffect(() => {
    document.title = `${text.signIn} · Treadle`;
  }, []);
}

/** Asks who one is. The address stays, so that one gets where one wanted to go. */
export function SignIn({ refused }: { refused: boolean }) {
  const [given, setGiven] = useState("");
  const enter = useEntering((token: string) => ({ token, renewal: null }));
  const login = useQuery({ queryKey: ["login"], queryFn: api.login, staleTime: Infinity });
  useTitle();
  const wrong = enter.error instanceof Refusal && enter.error.status === 401;
  const issuer = login.data?.oidc ?? null;
  return (
    <main className="sign-in">
      <form className="stack" onSubmit={(event) => { event.preventDefault(); enter.mutate(given.trim()); }}>
        <span className="brand">Treadle</span>
        <h1>{text.signIn}</h1>
        {refused && enter.isIdle && <p className="error-box" role="alert">{text.tokenEnded}</p>}
        {issuer !== null && <AtIssuer login={issuer} />}
        <label>
          {text.token}
          <input type="password" name="token" autoComplete="off" autoFocus={issuer === null} spellCheck={false} placeholder="tdl_…" value={given} onChange={(event) => setGiven(event.target.value)} />
        </label>
        <button className={issuer === null ? "primary" : ""} disabled={given.trim() === "" || enter.isPending}>{issuer === null ? text.signIn : text.signInToken}</button>
        {wrong ? <p className="error-box" role="alert">{text.tokenWrong}</p> : enter.error && <Failure error={enter.error} />}
        <div className="soft stack" style={{ gap: 4 }}>
          <span>{text.signInWhy}</span>
          <code>{text.signInCommand}</code>
        </div>
      </form>
    </main>
  );
}

function AtIssuer({ login }: { login: OidcLogin }) {
  const { pathname, search, hash } = useLocation();
  const go = useMutation({ mutationFn: () => depart(login, pathname + search + hash) });
  return (
    <>
      <button type="button" className="primary" autoFocus disabled={go.isPending} onClick={() => go.mutate()}>{text.signInAt} {new URL(login.issuer).host}</button>
      {go.error && <p className="error-box" role="alert">{go.error.message}</p>}
      <div className="or soft"><span>{text.orToken}</span></div>
    </>
  );
}

/** Back from the issuer, with what it sent along. */
export function Arriving() {
  const { search } = useLocation();
  const navigate = useNavigate();
  const { mutate, error } = useEntering(arrive);
  // What was sent along is good for one time.
  const begun = useRef(false);
  useTitle();
  useEffect(() => {
    if (!begun.current) mutate(search);
    begun.current = true;
  }, [mutate, search]);
  return (
    <main className="sign-in">
      <div className="stack">
        <span className="brand">Treadle</span>
        <h1>{error === null ? text.signingIn : text.signIn}</h1>
        {error === null ? <Loading /> : error instanceof Refusal ? <Failure error={error} /> : <p className="error-box" role="alert">{error.message}</p>}
        {error !== null && <button className="primary" onClick={() => { session.leave(); void navigate("/", { replace: true }); }}>{text.tryAgain}</button>}
      </div>
    </main>
  );
}
