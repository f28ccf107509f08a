// Many runs at once: what will happen is shown before it does, with the same as a command. A server does it, page or no page.

import { useMutation, useQueries, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";

import { Copy, Dialog, Failure } from "../components/bits";
import { StatusText } from "../components/Status";
import { api, type BulkJob, type Json, type RunFilter, type RunRow } from "../lib/api";
import { applies, type BulkAction, bulkCommand, filterCommand, narrowed, parsedJson, quoted } from "../lib/bulk";
import { useMay } from "../lib/hooks";
import { text } from "../strings";

const WORDS: Record<BulkAction, { title: string; go: string; about: string; doing: string }> = {
  retry: { title: "Retry", go: "Retry them", about: text.bulkRetry, doing: "Retrying" },
  cancel: { title: "Cancel", go: "Cancel them", about: text.bulkCancel, doing: "Cancelling" },
  signal: { title: "Signal", go: "Signal them", about: text.bulkSignal, doing: "Signalling" },
};
const ASKED_MAX = 20;
const SHOWN_MAX = 8;
const OFTEN = 500;

const runs = (count: number): string => `${count.toLocaleString()} ${count === 1 ? "run" : "runs"}`;

/** Whom it is about: those who were chosen, or all that match. */
export type Target = { rows: RunRow[] } | { filter: RunFilter };

export function BulkBar({ target, onAll, onDone }: { target: Target; onAll: () => void; onDone: () => void }) {
  const [action, setAction] = useState<BulkAction | null>(null);
  const whole = "filter" in target;
  return (
    <div className="bar" role="region" aria-label="Chosen runs">
      <span className="grow">{whole ? text.allMatching : `${target.rows.length.toLocaleString()} chosen`}</span>
      {!whole && <button className="plain" onClick={onAll}>{text.chooseAll}</button>}
      <button onClick={() => setAction("retry")}>Retry…</button>
      <button onClick={() => setAction("signal")}>Signal…</button>
      <button className="danger" onClick={() => setAction("cancel")}>Cancel…</button>
      <button className="plain" onClick={onDone}>Clear</button>
      {action !== null && <BulkDialog action={action} target={target} onClose={(done) => { setAction(null); if (done) onDone(); }} />}
    </div>
  );
}

interface Meant { filter: RunFilter | null; count: number | undefined; sample: string[]; rows: RunRow[]; left: number; error: unknown }

/** Whom an action is about, as it was when it was asked: what changes meanwhile must not change that. */
function useMeant(action: BulkAction, target: Target): Meant {
  const [fixed] = useState(target);
  const filter = "filter" in fixed ? narrowed(action, fixed.filter) : null;
  const found = useQuery({
    queryKey: ["bulk", "preview", action, filter],
    queryFn: () => api.bulk({ action, filter: filter ?? {}, dry_run: true, ...(action === "signal" ? { arguments: { name: "any" } } : {}) }),
    enabled: filter !== null, gcTime: 0,
  });
  if ("rows" in fixed) {
    const rows = fixed.rows.filter((row) => applies(action, row.status));
    const ids = rows.map((row) => row.id);
    return { filter: { ids }, count: ids.length, sample: ids, rows, left: fixed.rows.length - rows.length, error: null };
  }
  return { filter, count: filter === null ? 0 : found.data?.matched, sample: found.data?.sample ?? [], rows: [], left: 0, error: found.error };
}

function BulkDialog({ action, target, onClose }: { action: BulkAction; target: Target; onClose: (done: boolean) => void }) {
  const { filter, count, sample, rows, left, error } = useMeant(action, target);
  const [name, setName] = useState("");
  const [written, setWritten] = useState("");
  const data = parsedJson(written);
  const client = useQueryClient();
  const given: Record<string, Json> | undefined = action === "signal" ? { name: name.trim(), ...(written.trim() === "" ? {} : { data: data.value }) } : undefined;
  const asked = { action, filter: filter ?? {}, ...(given === undefined ? {} : { arguments: given }) };
  const act = useMutation({
    mutationFn: () => api.bulk(asked),
    onSuccess: () => void client.invalidateQueries({ queryKey: ["bulk", "jobs"] }),
  });
  const ready = act.isIdle && count !== undefined && count > 0 && (action !== "signal" || (name.trim() !== "" && data.ok));
  const words = WORDS[action];
  const value = written.trim() === "" || !data.ok ? undefined : data.value;
  const command = filter?.ids ? bulkCommand(action, filter.ids, name.trim(), value) : filterCommand(action, filter ?? {});
  return (
    <Dialog
      title={count === undefined ? `${words.title} all that match?` : `${words.title} ${runs(count)}?`}
      onClose={() => onClose(act.isSuccess)}
      footer={<button className={action === "cancel" ? "danger" : "primary"} disabled={!ready} onClick={() => act.mutate()}>{words.go}</button>}
    >
      <p>{words.about}</p>
      {error !== null && error !== undefined && <Failure error={error} />}
      <ul className="preview">{sample.slice(0, SHOWN_MAX).map((id, n) => <li key={id} className="row">{id} {rows[n] && <StatusText status={rows[n].status} />}</li>)}</ul>
      {(count ?? 0) > SHOWN_MAX && <p className="soft">and {((count ?? 0) - SHOWN_MAX).toLocaleString()} more</p>}
      {count === 0 && <p className="soft">{text.changesNothing}</p>}
      {left > 0 && <p className="soft">{left.toLocaleString()} {text.leftOut}</p>}
      {action === "signal" && <SignalFields ids={sample} name={name} onName={setName} written={written} onWritten={setWritten} wrong={!data.ok} />}
      <Copy text={command ?? `curl ${location.origin}/api/v1/bulk -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(asked))}`} />
      {act.error && <Failure error={act.error} />}
      {act.data?.id !== undefined && <Progress id={act.data.id} matched={act.data.matched} />}
    </Dialog>
  );
}

function useJob(id: string) {
  const client = useQueryClient();
  const job = useQuery({
    queryKey: ["bulk", "job", id], queryFn: () => api.bulkJob(id), refetchInterval: ({ state }) => (state.data === undefined || state.data.status === "running" ? OFTEN : false),
  });
  const over = job.data !== undefined && job.data.status !== "running";
  useEffect(() => {
    if (over) void client.invalidateQueries({ predicate: ({ queryKey: [part, kind] }) => part === "runs" || (part === "bulk" && kind === "jobs") });
  }, [over, client]);
  return job;
}

function Progress({ id, matched }: { id: string; matched: number }) {
  const job = useJob(id);
  const done = (job.data?.done ?? 0) + (job.data?.failed ?? 0);
  return (
    <div className="stack">
      <div className="row">
        <progress className="grow" max={Math.max(matched, 1)} value={matched === 0 ? 1 : done} aria-label="Progress" />
        <span role="status" className="tabular">{done.toLocaleString()} of {matched.toLocaleString()} done</span>
        {job.data?.status === "running" && <Stop job={job.data} />}
      </div>
      {job.data?.status === "cancelled" && <span className="soft">{text.stopped}</span>}
      {job.error && <Failure error={job.error} />}
      {job.data?.errors.map((one) => <div key={one.id} className="s-failed">{one.id}: {one.error.message}</div>)}
    </div>
  );
}

function Stop({ job }: { job: BulkJob }) {
  const client = useQueryClient();
  const stop = useMutation({ mutationFn: () => api.bulkStop(job.id), onSuccess: () => void client.invalidateQueries({ queryKey: ["bulk"] }) });
  return <button disabled={stop.isPending} onClick={() => stop.mutate()}>Stop</button>;
}

/** Jobs that are under way, whoever began them. */
export function BulkJobs() {
  const mayAct = useMay("operator");
  const found = useQuery({
    queryKey: ["bulk", "jobs"], queryFn: api.bulkJobs, refetchInterval: ({ state }) => (state.data?.items.some((job) => job.status === "running") ? 1000 : false),
  });
  return found.data?.items.filter((job) => job.status === "running").map((job) => (
    <div key={job.id} className="row" role="status">
      <span>{job.action in WORDS ? WORDS[job.action as BulkAction].doing : "Deleting"} {runs(job.matched)} for {job.by}</span>
      <progress max={job.matched} value={job.done + job.failed} aria-label="Progress" />
      <span className="soft tabular">{(job.done + job.failed).toLocaleString()} done</span>
      {mayAct && <Stop job={job} />}
    </div>
  ));
}

function SignalFields({ ids, name, onName, written, onWritten, wrong }: {
  ids: string[]; name: string; onName: (name: string) => void; written: string; onWritten: (text: string) => void; wrong: boolean;
}) {
  // What they wait for is what one most likely wants to send.
  const found = useQueries({ queries: ids.slice(0, ASKED_MAX).map((id) => ({ queryKey: ["run", id], queryFn: () => api.run(id) })) });
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
