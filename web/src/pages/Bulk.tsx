// Many runs at once: what will happen is shown before it does, with the same as a command.

import { useMutation, useQueries, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { Copy, Dialog } from "../components/bits";
import { StatusText } from "../components/Status";
import { api, type RunRow } from "../lib/api";
import { applies, type BulkAction, bulkCommand, parsedJson } from "../lib/bulk";
import { text } from "../strings";

const WORDS: Record<BulkAction, { title: string; go: string; about: string }> = {
  retry: { title: "Retry", go: "Retry them", about: text.bulkRetry },
  cancel: { title: "Cancel", go: "Cancel them", about: text.bulkCancel },
  signal: { title: "Signal", go: "Signal them", about: text.bulkSignal },
};
const AT_ONCE = 8;
const ASKED_MAX = 20;

export function BulkBar({ rows, onDone }: { rows: RunRow[]; onDone: () => void }) {
  const [action, setAction] = useState<BulkAction | null>(null);
  return (
    <div className="bar" role="region" aria-label="Chosen runs">
      <span className="grow">{rows.length.toLocaleString()} chosen</span>
      <button onClick={() => setAction("retry")}>Retry…</button>
      <button onClick={() => setAction("signal")}>Signal…</button>
      <button className="danger" onClick={() => setAction("cancel")}>Cancel…</button>
      <button className="plain" onClick={onDone}>Clear</button>
      {action !== null && <BulkDialog action={action} rows={rows} onClose={(done) => { setAction(null); if (done) onDone(); }} />}
    </div>
  );
}

function BulkDialog({ action, rows, onClose }: { action: BulkAction; rows: RunRow[]; onClose: (done: boolean) => void }) {
  // As they were when it was asked: what changes meanwhile must not change whom it is about.
  const [asked] = useState(() => rows.filter((row) => applies(action, row.status)));
  const left = rows.length - asked.length;
  const [name, setName] = useState("");
  const [written, setWritten] = useState("");
  const [done, setDone] = useState(0);
  const [failed, setFailed] = useState<string[]>([]);
  const client = useQueryClient();
  const data = parsedJson(written);
  const act = useMutation({
    mutationFn: async () => {
      const waiting = [...asked];
      const body = action === "signal" ? { name: name.trim(), ...(written.trim() === "" ? {} : { data: data.value }) } : {};
      const work = async (): Promise<void> => {
        for (let row = waiting.pop(); row !== undefined; row = waiting.pop()) {
          const id = row.id;
          await api.act(id, action, body).catch((error: Error) => setFailed((old) => [...old, `${id}: ${error.message}`]));
          setDone((n) => n + 1);
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, work));
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["runs"] }),
  });
  const ready = act.isIdle && asked.length > 0 && (action !== "signal" || (name.trim() !== "" && data.ok));
  const words = WORDS[action];
  return (
    <Dialog
      title={`${words.title} ${asked.length} ${asked.length === 1 ? "run" : "runs"}?`}
      onClose={() => onClose(act.isSuccess)}
      footer={<button className={action === "cancel" ? "danger" : "primary"} disabled={!ready} onClick={() => act.mutate()}>{words.go}</button>}
    >
      <p>{words.about}</p>
      <ul className="preview">{asked.slice(0, 8).map((row) => <li key={row.id} className="row">{row.id} <StatusText status={row.status} /></li>)}</ul>
      {asked.length > 8 && <p className="soft">and {(asked.length - 8).toLocaleString()} more</p>}
      {left > 0 && <p className="soft">{left.toLocaleString()} {text.leftOut}</p>}
      {action === "signal" && <SignalFields rows={asked} name={name} onName={setName} written={written} onWritten={setWritten} wrong={!data.ok} />}
      <Copy text={bulkCommand(action, asked.map((row) => row.id), name.trim(), written.trim() === "" || !data.ok ? undefined : data.value)} />
      {!act.isIdle && <p role="status">{done} of {asked.length} done</p>}
      {failed.map((line) => <div key={line} className="s-failed">{line}</div>)}
    </Dialog>
  );
}

function SignalFields({ rows, name, onName, written, onWritten, wrong }: {
  rows: RunRow[]; name: string; onName: (name: string) => void; written: string; onWritten: (text: string) => void; wrong: boolean;
}) {
  // What they wait for is what one most likely wants to send.
  const found = useQueries({ queries: rows.slice(0, ASKED_MAX).map((row) => ({ queryKey: ["run", row.id], queryFn: () => api.run(row.id) })) });
  const waits = [...new Set(found.flatMap((one) => one.data?.waiting_for.filter((wait) => wait.kind === "signal").map((wait) => wait.name) ?? []))].sort();
  return (
    <>
      <label>Signal<input type="text" list="awaited" value={name} autoComplete="off" spellCheck={false} onChange={(event) => onName(event.target.value)} /></label>
      <datalist id="awaited">{waits.map((one) => <option key={one} value={one} />)}</datalist>
      {waits.length > 0 && <p className="soft">{text.theyAwait} {waits.join(", ")}</p>}
      <label>Data (JSON)<textarea rows={3} value={written} placeholder="null" spellCheck={false} aria-invalid={wrong} onChange={(event) => onWritten(event.target.value)} /></label>
      {wrong && <span className="s-failed" role="alert">{text.noJson}</span>}
    </>
  );
}

