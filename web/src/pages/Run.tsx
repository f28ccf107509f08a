import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, lazy, useCallback, useEffect, useMemo } from "react";
import { Link, useParams } from "react-router";

import { Ago, Code, Empty, Failure, Loading } from "../components/bits";
import { StatusMark } from "../components/Status";
import { TimelineView } from "../components/TimelineView";
import { api, type RunDocument } from "../lib/api";
import { changes, duration, sentence, usageText } from "../lib/describe";
import { awaited, happened } from "../lib/happened";
import { useMay, useNow, useParam } from "../lib/hooks";
import { clock, exact } from "../lib/time";
import { patient } from "../lib/patient";
import { Events, Journal, useEvents } from "./RunEvents";
import { ErrorBox, StepPanel } from "./RunStep";
import { Transcript } from "./RunTranscript";
import { Actions } from "./RunWays";

const picture = () => patient(() => import("../components/GraphView"));
const GraphView = lazy(picture);
const TABS = ["events", "state", "journal", "transcript", "children", "input"] as const;

const graphOf = (id: string, at: number | null) => ({ queryKey: ["graph", id, at], queryFn: () => api.graph(id, at ?? undefined), structuralSharing: false });

export function RunPage() {
  const { id = "" } = useParams();
  const [at] = useParam("at");
  const client = useQueryClient();
  // Loaded beside the run, not after it.
  useEffect(() => {
    void picture();
    void client.prefetchQuery(graphOf(id, at === "" ? null : Number(at)));
  }, [id, at, client]);
  const run = useQuery({ queryKey: ["run", id], queryFn: () => api.run(id) });
  // What was seen stays on the page while the server is away.
  if (run.data === undefined) return run.error ? <Failure error={run.error} /> : <Loading />;
  return <RunView key={id} run={run.data} />;
}

function RunView({ run }: { run: RunDocument }) {
  const now = useNow();
  const mayAct = useMay("operator");
  const [atText, setAt] = useParam("at");
  const [step, setStep] = useParam("step");
  const [tab, setTab] = useParam("tab");
  const at = atText === "" ? null : Number(atText);
  const graph = useQuery({ ...graphOf(run.id, at), placeholderData: (old) => old });
  // One thing after the other: of a long run the picture is what one sees first.
  const pictured = !graph.isPending;
  const events = useEvents(run, pictured);
  const trace = useQuery({ queryKey: ["trace", run.id], queryFn: () => api.steps(run.id), structuralSharing: false, enabled: pictured });
  const steps = useMemo(() => trace.data?.items ?? [], [trace.data]);
  const live = run.dialect === "function";
  const shown = useMemo(() => (live && graph.data ? happened(graph.data, steps, at) : graph.data), [live, graph.data, steps, at]);
  // What is chosen is known by its name; what a function awaited has a number in the picture.
  const choose = useCallback((id: string) => {
    const node = live ? graph.data?.nodes.find((one) => one.id === id) : undefined;
    setStep(node === undefined ? id : awaited(node.label));
  }, [live, graph.data, setStep]);
  const chosen = live ? graph.data?.nodes.find((node) => awaited(node.label) === step)?.id : step;
  const failed = useMemo(() => new Set((graph.data?.nodes ?? []).filter((node) => node.status === "failed").map((node) => node.id)), [graph.data]);
  const shownTab = (TABS as readonly string[]).includes(tab) ? tab : "events";
  useEffect(() => {
    document.title = `${run.id} ${run.status} · Treadle`;
  }, [run.id, run.status]);
  return (
    <div className="page">
      <div className="row heading">
        <StatusMark status={run.status} />
        <h1 className="grow">
          {run.id} <span className="soft" style={{ fontWeight: 400 }}>{sentence(run, now)}</span>
        </h1>
        <div className="row">
          {mayAct && <Actions run={run} at={at} steps={steps} />}
          <Link to={`/compare?a=${encodeURIComponent(run.id)}`}>Compare</Link>
        </div>
      </div>
      <Facts run={run} now={now} />
      {run.error && <ErrorBox error={run.error} />}
      <div className="split">
        <section className="box" aria-label="Picture of the run">
          {shown && shown.nodes.length > 0 ? (
            <Suspense fallback={<Loading />}>
              <GraphView graph={shown} selected={chosen || undefined} onSelect={choose} />
            </Suspense>
          ) : graph.error ? <Failure error={graph.error} /> : <Empty why="This run has no picture yet." />}
        </section>
        <StepPanel run={run} name={step} steps={steps} events={events} />
      </div>
      <section className="box" aria-label="Timeline">
        <div className="inside stack">
          <TimelineView steps={steps} failed={failed} at={at} live={run.ended_at === null} onSelect={setStep} />
          <Slider at={at} onChange={(seq) => setAt(seq === null ? null : String(seq))} run={run} />
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
          {shownTab === "journal" && <Journal id={run.id} at={at} />}
          {shownTab === "transcript" && <Transcript run={run} />}
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
      <span className="tabular">{run.ended_at === null ? "for" : "took"} {duration(run, now)}</span>
      <span className="tabular">{run.stats.steps.toLocaleString()} {run.stats.steps === 1 ? "step" : "steps"}{run.stats.retries > 0 && `, ${run.stats.retries} ${run.stats.retries === 1 ? "retry" : "retries"}`}</span>
      {run.stats.usage && <span className="tabular">{usageText(run.stats.usage)}</span>}
      {run.reference && <span>reference {run.reference}</span>}
      {run.parent && <span>called by <Link to={`/runs/${encodeURIComponent(run.parent)}`}>{run.parent}</Link></span>}
      {run.forked_from && <span>forked from <Link to={`/runs/${encodeURIComponent(run.forked_from.run)}`}>{run.forked_from.run}</Link> at {run.forked_from.seq}</span>}
    </div>
  );
}

function Slider({ at, onChange, run }: { at: number | null; onChange: (seq: number | null) => void; run: RunDocument }) {
  const last = Math.max(run.version_no, 1);
  const shown = at ?? last;
  const found = useQuery({ queryKey: ["record", run.id, shown], queryFn: () => api.journal(run.id, shown - 1, 1), enabled: at !== null, staleTime: Infinity, placeholderData: (old) => old });
  const record = found.data?.[0];
  return (
    <div className="slider">
      <button aria-label="One record back" disabled={shown <= 1} onClick={() => onChange(shown - 1)}>◀</button>
      <input type="range" min={1} max={last} value={shown} aria-label="Record shown" aria-valuetext={`record ${shown} of ${last}`} onChange={(event) => onChange(Number(event.target.value) >= last ? null : Number(event.target.value))} />
      <button aria-label="One record on" disabled={shown >= last} onClick={() => onChange(shown + 1 >= last ? null : shown + 1)}>▶</button>
      <span className="soft tabular where">
        {at === null ? `now, ${last.toLocaleString()} ${last === 1 ? "record" : "records"}` : `record ${shown} of ${last}`}{at !== null && record && ` · ${record.kind} · ${clock(record.at)}`}
      </span>
      {at !== null && <button onClick={() => onChange(null)}>Now</button>}
    </div>
  );
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

function Children({ run }: { run: RunDocument }) {
  if (run.children.length === 0) return <Empty why="This run called no other." />;
  return (
    <ul>
      {run.children.slice(0, 500).map((child) => <li key={child}><Link to={`/runs/${encodeURIComponent(child)}`}>{child}</Link></li>)}
    </ul>
  );
}
