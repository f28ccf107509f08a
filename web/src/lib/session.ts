// The token, for as long as the tab is open, and whether the server still takes it.

const TOKEN = "treadle.token";

export type Standing = "in" | "out" | "refused";

const listeners = new Set<() => void>();
let standing: Standing = "in";

function become(next: Standing): void {
  standing = next;
  for (const listener of listeners) listener();
}

export const session = {
  token: (): string | null => sessionStorage.getItem(TOKEN),
  standing: (): Standing => standing,
  enter: (token: string): void => {
    sessionStorage.setItem(TOKEN, token);
    become("in");
  },
  leave: (): void => {
    sessionStorage.removeItem(TOKEN);
    become("out");
  },
  /** The server knows nobody by what was shown. A late answer about another token says nothing about this one. */
  refused: (shown: string | null): void => {
    if (shown !== sessionStorage.getItem(TOKEN) || standing !== "in") return;
    sessionStorage.removeItem(TOKEN);
    become(shown === null ? "out" : "refused");
  },
  subscribe: (listener: () => void): (() => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
