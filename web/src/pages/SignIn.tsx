import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";

import { Failure } from "../components/bits";
import { api, Refusal } from "../lib/api";
import { session } from "../lib/session";
import { text } from "../strings";

/** Asks for a token and tries it. The address stays, so that one gets where one wanted to go. */
export function SignIn({ refused }: { refused: boolean }) {
  const [given, setGiven] = useState("");
  const client = useQueryClient();
  const enter = useMutation({
    mutationFn: () => api.prove(given.trim()),
    onSuccess: (me) => {
      client.clear();
      client.setQueryData(["me"], me);
      session.enter(given.trim());
    },
  });
  useEffect(() => {
    document.title = `${text.signIn} · Treadle`;
  }, []);
  const wrong = enter.error instanceof Refusal && enter.error.status === 401;
  return (
    <main className="sign-in">
      <form className="stack" onSubmit={(event) => { event.preventDefault(); enter.mutate(); }}>
        <span className="brand">Treadle</span>
        <h1>{text.signIn}</h1>
        {refused && enter.isIdle && <p className="error-box" role="alert">{text.tokenEnded}</p>}
        <label>
          {text.token}
          <input type="password" name="token" autoComplete="off" autoFocus spellCheck={false} placeholder="tdl_…" value={given} onChange={(event) => setGiven(event.target.value)} />
        </label>
        <button className="primary" disabled={given.trim() === "" || enter.isPending}>{text.signIn}</button>
        {wrong ? <p className="error-box" role="alert">{text.tokenWrong}</p> : enter.error && <Failure error={enter.error} />}
        <div className="soft stack" style={{ gap: 4 }}>
          <span>{text.signInWhy}</span>
          <code>{text.signInCommand}</code>
        </div>
      </form>
    </main>
  );
}
