// The token, for as long as the tab is open, and whether the server still takes it.

const TOKEN = "treadle.token";
const RENEWAL = "treadle.renewal";

export type Standing = "in" | "out" | "refused";

/** How a token of an issuer is replaced before it ends. */
export interface Renewal { refresh: string; endpoint: string; client: string; audience: string; after: number }

const listeners = new Set<() => void>();
let standing: Standing = "in";

function become(next: Standing): void {
  standing = next;
  for (const listener of listeners) listener();
}

function forget(): void {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(RENEWAL);
}

export const session = {
  token: (): string | null => sessionStorage.getItem(TOKEN),
  renewal: (): Renewal | null => JSON.parse(sessionStorage.getItem(RENEWAL) ?? "null") as Renewal | null,
  standing: (): Standing => standing,
  enter: (token: string, renewal: Renewal | null = null): void => {
    forget();
    sessionStorage.setItem(TOKEN, token);
    if (renewal !== null) sessionStorage.setItem(RENEWAL, JSON.stringify(renewal));
    become("in");
  },
  leave: (): void => {
    forget();
    become("out");
  },
  /** The server knows nobody by what was shown. A late answer about another token says nothing about this one. */
  refused: (shown: string | null): void => {
    if (shown !== sessionStorage.getItem(TOKEN) || standing !== "in") return;
    forget();
    become(shown === null ? "out" : "refused");
  },
  subscribe: (listener: () => void): (() => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
