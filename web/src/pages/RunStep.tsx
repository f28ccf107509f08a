// One step of a run: its attempts, what went in, what came out, what it said, and why it failed.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { Code, CodeLink, Failure, Fold, Loading } from "../components/bits";
import { StatusMark } from "../components/Status";
import { api, type ApiError, type Json, type JournalRecord, type RunDocument, type RunEvent, type TraceFrame, type TraceStep } from "../lib/api";
import { cause, waitText } from "../lib/describe";
import { useNow } from "../lib/hooks";
import { span } from "../lib/time";

export function ErrorBox({ error }: { error: ApiError }) {
  const trace = error.details?.traceback;
  return (
    <div className="error-box" role="alert">
      <div><strong>{cause(error)}</strong> <CodeLink code={error.code} />{error.where && <span className="soft"> at {error.where}</span>}</div>
      {trace && <Fold title="Traceback" open><pre tabIndex={0}>{typeof trace === "string" ? trace : (trace as TraceFrame[]).map((frame) => `${frame.file}:${frame.line} in ${frame.function}\n    ${frame.text}`).join("\n")}</pre></Fold>}
    </div>
  );
}

export function StepPanel({ run, name, steps, events }: { run: RunDocument; name: string; steps: TraceStep[]; events: RunEvent[] }) {
  if (name === "") {
    return (
      <section className="box" aria-label="Waiting for">
        <header><h2>{run.waiting_for.length > 0 ? "Waiting for" : "Result"}</h2></header>
        <div className="inside stack">
          {run.waiting_for.length > 0 ? <Waits run={run} /> : <Code value={run.result} label="Result" />}
          <span className="soft">Choose a step in the picture to see what it did.</span>
        </div>
      </section>
    );
  }
  const state = run.state as { steps?: Record<string, { status?: string; result?: Json; error?: ApiError | null; runs?: number }> } | null;
  const known = state?.steps?.[name];
  const mine = steps.filter((step) => step.name === name || step.name.startsWith(`${name}/`) || step.name.startsWith(`${name}#`));
  const told = events.filter((event) => event.step === name);
  const logs = told.flatMap(logged);
  const failed = known?.error ?? mine.findLast((step) => step.error !== null)?.error ?? null;
  return (
    <section className="box" aria-label={`Step ${name}`}>
      <header>
        {known?.status && <StatusMark status={known.status} />}
        <h2 className="grow nowrap">{name}</h2>
        {mine.length > 0 && <span className="soft tabular">{mine.length.toLocaleString()} {mine.length === 1 ? "attempt" : "attempts"}</span>}
      </header>
      <div className="inside stack">
        {mine.slice(-ATTEMPTS_SHOWN).map((step) => (
          <Attempt key={step.id} id={run.id} step={step} mark={step.status === "open" ? "running" : step.status === "ok" && !(failed && step === mine.at(-1)) ? "completed" : "failed"} />
        ))}
        {failed && <ErrorBox error={failed} />}
        {known !== undefined && <Fold title="Output" open={!failed}><Code value={known.result} label={`Output of ${name}`} /></Fold>}
        {logs.length > 0 && <Fold title={`Logs (${logs.length})`}><pre tabIndex={0} aria-label={`Logs of ${name}`}>{logs.slice(-500).join("\n")}</pre></Fold>}
        <Fold title={`Events (${told.length})`}><Code value={told as unknown as Json} label={`Events of ${name}`} /></Fold>
      </div>
    </section>
  );
}

const ATTEMPTS_SHOWN = 50;

/** What a step wrote while it worked, line by line. */
function logged(event: RunEvent): string[] {
  if (!/log|output|progress|print/.test(event.type)) return [];
  const { data } = event;
  const said = typeof data === "object" && data !== null && !Array.isArray(data) ? data["text"] ?? data["message"] ?? data["line"] ?? data : data;
  return said === undefined || said === null ? [] : [typeof said === "string" ? said : JSON.stringify(said)];
}

/** One attempt; what went in and what came back are read when it is opened. */
function Attempt({ id, step, mark }: { id: string; step: TraceStep; mark: string }) {
  const [open, setOpen] = useState(false);
  return (
    <details className="attempt" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className="row">
          <StatusMark status={mark} />
          <span className="grow nowrap">{step.kind}</span>
          <span className="soft tabular">{step.ms === null ? "under way" : span(step.ms)}</span>
        </span>
      </summary>
      {open && <Exchange id={id} step={step} />}
    </details>
  );
}

function Exchange({ id, step }: { id: string; step: TraceStep }) {
  const asked = useRecord(id, step.seq);
  const came = useRecord(id, step.settled);
  if (asked.error) return <Failure error={asked.error} />;
  if (asked.record === undefined) return <Loading />;
  const params = asked.record.opened.find((one) => one.id === step.id)?.params;
  return (
    <div className="stack">
      <div><h3>Input</h3><Code value={params} label="Input" /></div>
      {came.record !== undefined && <div><h3>Came back</h3><Code value={came.record.event["value"] ?? came.record.event["error"]} label="Came back" /></div>}
      <div><h3>Idempotency key</h3><code>{step.id}</code></div>
    </div>
  );
}

function useRecord(id: string, seq: number | null): { record: JournalRecord | undefined; error: unknown } {
  const found = useQuery({ queryKey: ["record", id, seq], queryFn: () => api.journal(id, (seq ?? 1) - 1, 1), enabled: seq !== null, staleTime: Infinity });
  return { record: found.data?.[0], error: found.error };
}

function Waits({ run }: { run: RunDocument }) {
  const now = useNow();
  return (
    <ul style={{ margin: 0, paddingLeft: 18 }}>
      {run.waiting_for.slice(0, 50).map((wait) => (
        <li key={wait.id}>{wait.kind === "task" ? <Link to={`/tasks?task=${encodeURIComponent(wait.id)}`}>{waitText(wait, now)}</Link> : waitText(wait, now)}</li>
      ))}
    </ul>
  );
}

