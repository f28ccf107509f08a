import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, lazy, useEffect, useMemo, useState } from "react";
import { Link, useNavigate, useParams } from "react-router";

import { Ago, Code, Copy, Dialog, Empty, Failure, Fold, Loading } from "../components/bits";
import { StatusMark, StatusText } from "../components/Status";
import { TimelineView } from "../components/TimelineView";
import { api, follow, type ApiError, type Json, type JournalRecord, type RunDocument, type RunEvent, type TraceFrame, type TraceStep } from "../lib/api";
import { cause, changes, duration, sentence, waitText } from "../lib/describe";
import { useMay, useNow, useParam } from "../lib/hooks";
import { clock, exact, span } from "../lib/time";
import { patient } from "../lib/patient";
import { MendDialog } from "./Mend";

const GraphView = lazy(() => patient(() => import("../components/GraphView")));
const TERMINAL = new Set(["completed", "failed", "cancelled", "partial"]);
const MENDED = new Set(["playbook", "process", "agent"]);
const TABS = ["events", "state", "journal", "transcript", "children", "input"] as const;

export function RunPage() {
  const { id = "" } = useParams();
  const run = useQuery({ queryKey: ["run", id], queryFn: () => api.run(id) });
  // What was seen stays on the page while the server is away.
  if (run.data === undefined) return run.error ? <Failure error={run.error} /> : <Loading />;
  return <RunView key={id} run={run.data} />;
}

/** The events of a run: what is there at once, then live until it ends. */
function useEvents(run: RunDocument): RunEvent[] {
  const [events, setEvents] = useState<RunEvent[]>([]);
  const client = useQueryClient();
  useEffect(() => {
    let kept: RunEvent[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const paint = (): void => {
      timer = undefined;
      setEvents(kept);
      for (const part of ["run", "trace", "graph", "journal", "state"]) void client.invalidateQueries({ queryKey: [part, run.id] });
    };
    const stop = follow(`/runs/${encodeURIComponent(run.id)}/events`, (frame) => {
      if (frame.event !== "end") kept = [...kept, JSON.parse(frame.data) as RunEvent];
      // A busy run changes thousands of times a second; eyes do not.
      timer ??= setTimeout(paint, 120);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [run.id, client]);
  return events;
}

async function wholeJournal(id: string): Promise<JournalRecord[]> {
  const found: JournalRecord[] = [];
  for (;;) {
    const page = await api.journal(id, found.at(-1)?.seq ?? 0);
    found.push(...page);
    if (page.length < 1000 || found.length >= 20_000) return found;
  }
}

function RunView({ run }: { run: RunDocument }) {
  const now = useNow();
  const mayAct = useMay("operator");
  const [atText, setAt] = useParam("at");
  const [step, setStep] = useParam("step");
  const [tab, setTab] = useParam("tab");
  const at = atText === "" ? null : Number(atText);
  const events = useEvents(run);
  const trace = useQuery({ queryKey: ["trace", run.id], queryFn: () => api.trace(run.id) });
  const graph = useQuery({ queryKey: ["graph", run.id, at], queryFn: () => api.graph(run.id, at ?? undefined), placeholderData: (old) => old });
  const journal = useQuery({ queryKey: ["journal", run.id], queryFn: () => wholeJournal(run.id) });
  const steps = useMemo(() => trace.data?.steps ?? [], [trace.data]);
  const failed = useMemo(() => new Set((graph.data?.nodes ?? []).filter((node) => node.status === "failed").map((node) => node.id)), [graph.data]);
  const shownTab = (TABS as readonly string[]).includes(tab) ? tab : "events";
  useEffect(() => {
    document.title = `${run.id} ${run.status} · Treadle`;
  }, [run.id, run.status]);
  return (
    <div className="page">
      <div className="row">
        <StatusText status={run.status} />
        <h1 className="grow" style={{ overflowWrap: "anywhere" }}>
          {run.id} <span className="soft" style={{ fontWeight: 400 }}>{sentence(run, now)}</span>
        </h1>
        <div className="row">
          {mayAct && <Actions run={run} at={at} />}
          <Link to={`/compare?a=${encodeURIComponent(run.id)}`}>Compare</Link>
        </div>
      </div>
      <Facts run={run} now={now} />
      {run.error && <ErrorBox error={run.error} />}
      <div className="split">
        <section className="box" aria-label="Picture of the run">
          {graph.data && graph.data.nodes.length > 0 ? (
            <Suspense fallback={<Loading />}>
              <GraphView graph={graph.data} selected={step || undefined} onSelect={setStep} />
            </Suspense>
          ) : graph.error ? <Failure error={graph.error} /> : <Empty why="This run has no picture yet." />}
        </section>
        <StepPanel run={run} name={step} steps={steps} events={events} />
      </div>
      <section className="box" aria-label="Timeline">
        <div className="inside stack">
          <TimelineView steps={steps} failed={failed} at={at} onSelect={setStep} />
          <Slider journal={journal.data ?? []} at={at} onChange={(seq) => setAt(seq === null ? null : String(seq))} run={run} />
        </div>
      </section>
      <section className="box">
        <div className="tabs" role="tablist">
          {TABS.filter((name) => name !== "transcript" || run.dialect === "agent").map((name) => (
            <button key={name} role="tab" aria-selected={shownTab === name} onClick={() => setTab(name)}>{name[0]?.toUpperCase()}{name.slice(1)}</button>
          ))}
        </div>
        <div role="tabpanel" aria-label={shownTab}>
          {shownTab === "events" && <Events events={at === null ? events : events.filter((event) => (event.record ?? 0) <= at)} />}
          {shownTab === "state" && <StateView run={run} at={at} />}
          {shownTab === "journal" && <Journal records={at === null ? journal.data ?? [] : (journal.data ?? []).filter((record) => record.seq <= at)} />}
          {shownTab === "transcript" && <Transcript id={run.id} />}
          {shownTab === "children" && <Children run={run} />}
          {shownTab === "input" && <div className="inside" style={{ padding: 12 }}><Code value={run.input} label="Input" /></div>}
        </div>
      </section>
    </div>
  );
}

function Facts({ run, now }: { run: RunDocument; now: number }) {
  return (
    <div className="facts">
      <Link to={`/definitions/${encodeURIComponent(run.workflow)}`}>{run.workflow}{run.version && `@${run.version}`}</Link>
      <span>{run.dialect}</span>
      <span title={exact(run.started_at)}>started <Ago at={run.started_at} /></span>
      <span className="tabular">took {duration(run, now)}</span>
      <span className="tabular">{run.stats.steps} records{run.stats.retries > 0 && `, ${run.stats.retries} retries`}</span>
      {run.reference && <span>reference {run.reference}</span>}
      {run.parent && <span>called by <Link to={`/runs/${encodeURIComponent(run.parent)}`}>{run.parent}</Link></span>}
      {run.forked_from && <span>forked from <Link to={`/runs/${encodeURIComponent(run.forked_from.run)}`}>{run.forked_from.run}</Link> at {run.forked_from.seq}</span>}
    </div>
  );
}

function ErrorBox({ error }: { error: ApiError }) {
  const trace = error.details?.traceback;
  return (
    <div className="error-box" role="alert">
      <div><strong>{cause(error)}</strong> <a href={`/docs/errors/${error.code}`} target="_blank" rel="noreferrer">{error.code}</a>{error.where && <span className="soft"> at {error.where}</span>}</div>
      {trace && <Fold title="Traceback" open><pre tabIndex={0}>{typeof trace === "string" ? trace : (trace as TraceFrame[]).map((frame) => `${frame.file}:${frame.line} in ${frame.function}\n    ${frame.text}`).join("\n")}</pre></Fold>}
    </div>
  );
}

function StepPanel({ run, name, steps, events }: { run: RunDocument; name: string; steps: TraceStep[]; events: RunEvent[] }) {
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
  const failed = known?.error ?? mine.findLast((step) => step.error !== null)?.error ?? null;
  return (
    <section className="box" aria-label={`Step ${name}`}>
      <header>
        {known?.status && <StatusMark status={known.status} />}
        <h2 className="grow nowrap">{name}</h2>
        {mine.length > 0 && <span className="soft tabular">{mine.length} {mine.length === 1 ? "attempt" : "attempts"}</span>}
      </header>
      <div className="inside stack" style={{ maxHeight: 330 }}>
        {mine.map((step) => (
          <div key={step.id} className="row">
            <StatusMark status={step.status === "open" ? "running" : step.status === "ok" && !(failed && step === mine.at(-1)) ? "completed" : "failed"} />
            <span className="grow nowrap">{step.kind}</span>
            <span className="soft tabular">{step.ms === null ? "under way" : span(step.ms)}</span>
          </div>
        ))}
        {failed && <ErrorBox error={failed} />}
        {known !== undefined && <Fold title="Output" open={!failed}><Code value={known.result} label={`Output of ${name}`} /></Fold>}
        <Fold title={`Events (${told.length})`}><Code value={told as unknown as Json} label={`Events of ${name}`} /></Fold>
      </div>
    </section>
  );
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

function Slider({ journal, at, onChange, run }: {
  journal: JournalRecord[]; at: number | null; onChange: (seq: number | null) => void; run: RunDocument;
}) {
  const last = Math.max(run.version_no, journal.at(-1)?.seq ?? 0, 1);
  const shown = at ?? last;
  const record = journal.find((one) => one.seq === shown);
  return (
    <div className="slider">
      <button aria-label="One record back" disabled={shown <= 1} onClick={() => onChange(shown - 1)}>◀</button>
      <input type="range" min={1} max={last} value={shown} aria-label="Record shown" aria-valuetext={`record ${shown} of ${last}`} onChange={(event) => onChange(Number(event.target.value) >= last ? null : Number(event.target.value))} />
      <button aria-label="One record on" disabled={shown >= last} onClick={() => onChange(shown + 1 >= last ? null : shown + 1)}>▶</button>
      <span className="soft tabular" style={{ minWidth: 190 }}>
        {at === null ? "now" : `record ${shown} of ${last}`}{record && ` · ${record.kind} · ${clock(record.at)}`}
      </span>
      {at !== null && <button onClick={() => onChange(null)}>Now</button>}
    </div>
  );
}

const EVENTS_SHOWN = 2000;

function Events({ events }: { events: RunEvent[] }) {
  const [filter, setFilter] = useState("");
  const matching = filter === "" ? events : events.filter((event) => JSON.stringify(event).toLowerCase().includes(filter.toLowerCase()));
  return (
    <>
      <div className="row" style={{ padding: 8 }}>
        <input type="search" style={{ maxWidth: 280 }} placeholder="Filter events" aria-label="Filter events" value={filter} onChange={(event) => setFilter(event.target.value)} />
        <span className="soft tabular">{matching.length.toLocaleString()} events{matching.length > EVENTS_SHOWN && `, the last ${EVENTS_SHOWN.toLocaleString()} shown`}</span>
      </div>
      <div className="events" tabIndex={0} role="region" aria-label="Events">
        {matching.slice(-EVENTS_SHOWN).map((event) => (
          <div className="event" key={event.seq}>
            <span className="soft tabular">{event.seq}</span>
            <time className="soft tabular" dateTime={event.at} title={exact(event.at)}>{clock(event.at)}</time>
            <span>{event.type}</span>
            <span className="soft nowrap" title={detail(event)}>{detail(event)}</span>
          </div>
        ))}
      </div>
    </>
  );
}

function detail(event: RunEvent): string {
  const { seq: _seq, at: _at, type: _type, record: _record, ...rest } = event;
  return Object.entries(rest).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ");
}

function StateView({ run, at }: { run: RunDocument; at: number | null }) {
  const [from, setFrom] = useParam("from");
  const state = useQuery({ queryKey: ["state", run.id, at], queryFn: () => api.state(run.id, at ?? undefined), placeholderData: (old) => old });
  const before = useQuery({ queryKey: ["state", run.id, from], queryFn: () => api.state(run.id, Number(from)), enabled: from !== "" });
  const differing = from === "" ? [] : changes(before.data, state.data);
  return (
    <div className="stack" style={{ padding: 12 }}>
      <div className="row">
        <button onClick={() => setFrom(String(at ?? run.version_no))}>Compare from here</button>
        {from !== "" && <span className="soft">since record {from} <button className="plain" onClick={() => setFrom(null)}>Clear</button></span>}
      </div>
      {state.error && <Failure error={state.error} />}
      {from === "" ? <Code value={state.data} label="State" /> : differing.length === 0 ? <span className="soft">Nothing changed.</span> : (
        <div className="diff">
          <strong>where</strong><strong>before</strong><strong>after</strong>
          {differing.slice(0, 500).map((change) => [
            <code key={`${change.path}p`}>{change.path}</code>,
            <code key={`${change.path}b`} className="was">{JSON.stringify(change.before) ?? "—"}</code>,
            <code key={`${change.path}a`} className="is">{JSON.stringify(change.after) ?? "—"}</code>,
          ])}
        </div>
      )}
    </div>
  );
}

function Journal({ records }: { records: JournalRecord[] }) {
  return (
    <div className="events" tabIndex={0} role="region" aria-label="Journal">
      {records.slice(-EVENTS_SHOWN).map((record) => (
        <details key={record.seq} style={{ borderBottom: "1px solid var(--line)", padding: "4px 12px" }}>
          <summary className="tabular">
            {record.seq} · {record.kind} · {clock(record.at)} {record.status && `· ${record.status}`}
            {record.opened.length > 0 && ` · opened ${record.opened.length}`} <span className="soft mono">{record.digest.slice(0, 19)}…</span>
          </summary>
          <Code value={record as unknown as Json} label={`Record ${record.seq}`} />
        </details>
      ))}
    </div>
  );
}

function Transcript({ id }: { id: string }) {
  const found = useQuery({ queryKey: ["run", id, "transcript"], queryFn: () => api.transcript(id) });
  if (found.error) return <Failure error={found.error} />;
  const entries = Array.isArray(found.data) ? found.data : ((found.data as { entries?: Json[] } | undefined)?.entries ?? []);
  return (
    <div className="stack" style={{ padding: 12 }}>
      {entries.map((entry, n) => {
        const said = entry as { node?: string; kind?: string; role?: string };
        return <Fold key={n} title={[said.node, said.kind ?? said.role].filter(Boolean).join(" · ") || `entry ${n + 1}`} open={n < 4}><Code value={entry} label={`Entry ${n + 1}`} /></Fold>;
      })}
    </div>
  );
}

function Children({ run }: { run: RunDocument }) {
  if (run.children.length === 0) return <Empty why="This run called no other." />;
  return (
    <ul>
      {run.children.slice(0, 500).map((child) => <li key={child}><Link to={`/runs/${encodeURIComponent(child)}`}>{child}</Link></li>)}
    </ul>
  );
}

type Way = { name: string; title: string; about: string; command: string; action: string; body: object; danger?: boolean };

function ways(run: RunDocument, at: number | null, step: string): Way[] {
  const id = run.id;
  const found: Way[] = [];
  if (run.status === "failed" || run.status === "stalled") {
    found.push({ name: "Retry", title: `Retry ${id}?`, about: "It goes on where it failed; what is settled is not done again.", command: `treadle retry ${id}`, action: "retry", body: {} });
    if (step !== "" && run.dialect === "playbook") found.push({ name: `Retry from ${step}`, title: `Retry ${id} from ${step}?`, about: "The step and what follows it are done again.", command: `treadle retry ${id} --from ${step}`, action: "retry", body: { from: step } });
    if (run.status === "stalled") found.push({ name: "Skip", title: `Skip what failed in ${id}?`, about: "The failed call counts as done, without a value.", command: `treadle retry ${id} --skip`, action: "retry", body: { skip: true } });
  }
  const record = at ?? run.version_no;
  found.push({ name: at === null ? "Fork" : `Fork from record ${record}`, title: `Fork ${id} at record ${record}?`, about: "A new run goes on from this state. This one stays as it is.", command: `treadle fork ${id} --at ${record}`, action: "fork", body: { at: record } });
  if (!TERMINAL.has(run.status)) found.push({ name: "Cancel", title: `Cancel ${id}?`, about: "Open work is cancelled, its children too. This cannot be undone; a fork can go on from before.", command: `treadle cancel ${id}`, action: "cancel", body: {}, danger: true });
  return found;
}

function Actions({ run, at }: { run: RunDocument; at: number | null }) {
  const [step] = useParam("step");
  // A mended definition brings code, so it needs who may deploy. Code that is deployed as such is not mended here.
  const mayMend = useMay("admin") && (run.status === "failed" || run.status === "stalled") && MENDED.has(run.dialect);
  const [mending, setMending] = useState(false);
  const [way, setWay] = useState<Way | null>(null);
  const client = useQueryClient();
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: (asked: Way) => api.act(run.id, asked.action, asked.body),
    onSuccess: (answer, asked) => {
      setWay(null);
      void client.invalidateQueries();
      if (asked.action === "fork") void navigate(`/runs/${encodeURIComponent(answer.id)}`);
    },
  });
  return (
    <div className="row">
      {ways(run, at, step).map((one) => (
        <button key={one.name} className={one.danger ? "danger" : ""} onClick={() => { act.reset(); setWay(one); }}>{one.name}</button>
      ))}
      {mayMend && <button onClick={() => setMending(true)}>Mend and retry</button>}
      {mending && <MendDialog run={run} onClose={() => setMending(false)} />}
      {way && (
        <Dialog
          title={way.title}
          onClose={() => setWay(null)}
          footer={<button className={way.danger ? "danger" : "primary"} disabled={act.isPending} onClick={() => act.mutate(way)}>{way.name}</button>}
        >
          <p>{way.about}</p>
          <Copy text={way.command} />
          {act.error && <Failure error={act.error} />}
        </Dialog>
      )}
    </div>
  );
}
