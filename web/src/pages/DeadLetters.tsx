import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { Ago, Code, Copy, Dialog, Empty, Failure, Fold, Loading } from "../components/bits";
import { api, type DeadLetter, Refusal } from "../lib/api";
import { cause } from "../lib/describe";
import { useMay } from "../lib/hooks";
import { text } from "../strings";

type Act = "replay" | "discard";
type Asked = { action: Act; letter: DeadLetter };

const ABOUT: Record<Act, string> = { replay: text.replayAbout, discard: text.discardAbout };
const WORDS: Record<Act, string> = { replay: "Replay", discard: "Discard" };

/** What workers sent back and nobody could use. */
export function DeadLetters() {
  const found = useQuery({ queryKey: ["deadletters"], queryFn: () => api.deadLetters({}), refetchInterval: 10_000 });
  const mayAct = useMay("operator");
  const [asked, setAsked] = useState<Asked | null>(null);
  return (
    <div className="page">
      <h1>{text.deadLetters}</h1>
      {found.error && <Failure error={found.error} />}
      {found.isPending ? <Loading /> : found.data?.items.length === 0 ? <Empty why={text.noDeadLetters} /> : (
        <div className="list" role="list" aria-label={text.deadLetters}>
          {found.data?.items.map((letter) => (
            <div key={letter.id} role="listitem" className="letter" aria-label={letter.id}>
              <div className="row">
                <strong className="grow">{cause(letter.error) || letter.reason}</strong>
                {mayAct && <button onClick={() => setAsked({ action: "replay", letter })}>Replay</button>}
                {mayAct && <button className="danger" onClick={() => setAsked({ action: "discard", letter })}>Discard</button>}
              </div>
              <div className="facts">
                <span>{letter.reason}</span>
                <span>run <Link to={`/runs/${encodeURIComponent(letter.run)}`}>{letter.run}</Link></span>
                <span>worker {letter.worker}</span>
                <Ago at={letter.at} />
                <span className="tabular">{letter.size.toLocaleString()} characters</span>
              </div>
              <Fold title={text.whatCame}><Code value={letter.sample} label={text.whatCame} /></Fold>
            </div>
          ))}
        </div>
      )}
      {asked && <AskDialog asked={asked} onClose={() => setAsked(null)} />}
    </div>
  );
}

function AskDialog({ asked: { action, letter }, onClose }: { asked: Asked; onClose: () => void }) {
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: () => api.deadLetterAct(letter.id, action),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["deadletters"] });
      onClose();
    },
  });
  return (
    <Dialog
      title={action === "replay" ? `Offer the work of ${letter.run} again?` : `Discard what ${letter.worker} sent?`}
      onClose={onClose}
      footer={<button className={action === "discard" ? "danger" : "primary"} disabled={act.isPending} onClick={() => act.mutate()}>{WORDS[action]}</button>}
    >
      <p>{ABOUT[action]}</p>
      <Copy text={`treadle deadletter ${action} ${letter.id}`} />
      {act.error && <Failure error={act.error} />}
      {act.error instanceof Refusal && act.error.code === "INTENT_NOT_OPEN" && <p>{text.replayLate} <Link to={`/runs/${encodeURIComponent(letter.run)}`}>{letter.run}</Link></p>}
    </Dialog>
  );
}
