import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import { Empty, Failure, Loading } from "../components/bits";
import { Histogram } from "../components/Histogram";
import { StatusText } from "../components/Status";
import { type Column, Table } from "../components/Table";
import { api, type Cost, type FailureCause, type SlowStep, type Status, type WaitReason } from "../lib/api";
import { money } from "../lib/describe";
import { byWorkflow, fitting, type OfWorkflow, perHour, stretches } from "../lib/history";
import { useParam } from "../lib/hooks";
import { ago, mark, span } from "../lib/time";
import { text } from "../strings";

const SPANS: [string, string][] = [["1h", "last hour"], ["24h", "last day"], ["7d", "last week"], ["30d", "last month"]];
const SHOWN = ["running", "waiting", "stalled", "failed", "completed", "partial", "cancelled", "queued"];

const runsOf = (query: Record<string, string>): string => `/runs?${new URLSearchParams(query).toString()}`;
const runAt = (id: string): string => `/runs/${encodeURIComponent(id)}`;

export function Overview() {
  const [asked, setSince] = useParam("since");
  const day = useQuery({ queryKey: ["history", "24h"], queryFn: () => api.history({ since: "24h" }), enabled: asked === "" });
  const since = asked || fitting(day.data);
  const known = asked !== "" || !day.isPending;
  const stats = useQuery({ queryKey: ["runs", "stats"], queryFn: api.stats });
  const history = useQuery({ queryKey: ["history", since], queryFn: () => api.history({ since }), enabled: known, refetchInterval: 10_000, placeholderData: (old) => old });
  const common = useQuery({ queryKey: ["insights", since], queryFn: () => api.insights({ since }), enabled: known, refetchInterval: 30_000, placeholderData: (old) => old });
  const failure = stats.error ?? history.error ?? common.error;
  const counts = stats.data?.runs ?? {};
  return (
    <div className="page">
      <div className="row">
        <h1 className="grow">{text.overview}</h1>
        <select style={{ width: "auto" }} aria-label="Time" value={since} onChange={(event) => setSince(event.target.value)}>
          {SPANS.map(([value, about]) => <option key={value} value={value}>{about}</option>)}
        </select>
      </div>
      {failure && <Failure error={failure} />}
      {stats.data !== undefined && Object.keys(counts).length === 0 ? <Empty why={text.noRuns} command={text.noRunsCommand} /> : (
        <>
          <div className="tiles" role="list" aria-label="Runs by status">
            {SHOWN.filter((status) => (counts[status] ?? 0) > 0).map((status) => (
              <div role="listitem" key={status}>
                <Link to={runsOf({ status })}><span className="figure tabular">{(counts[status] ?? 0).toLocaleString()}</span><StatusText status={status as Status} /></Link>
              </div>
            ))}
          </div>
          {history.data === undefined ? <Loading /> : (
            <>
              <section className="box" aria-label={text.begun}>
                <header><h2 className="grow">{text.begun}</h2><span className="soft tabular">{rate(perHour(history.data))}</span></header>
                <div className="inside over-time">
                  <Histogram found={stretches(history.data)} label={text.begun} height={96} />
                  <div className="row soft tabular"><span className="grow">{mark(history.data.since)}</span><span>{mark(history.data.until)}</span></div>
                </div>
              </section>
              <section className="box" aria-label={text.workflows}>
                <header><h2>{text.workflows}</h2></header>
                <Table label={text.workflows} columns={workflowColumns(since)} rows={byWorkflow(history.data).slice(0, 12)} keyOf={(row) => row.workflow} />
              </section>
            </>
          )}
          {common.data !== undefined && (
            <div className="two">
              <Part title={text.whyFailed} none={text.noneFailed} columns={FAILURES} rows={common.data.failures} keyOf={(row) => `${row.workflow} ${row.cause}`} about={`${text.amongNewest} ${common.data.sampled.failed.toLocaleString()}`} />
              <Part title={text.waitsFor} none={text.noneWaits} columns={WAITS} rows={common.data.waits} keyOf={(row) => `${row.workflow} ${row.kind} ${row.name}`} about={`${text.amongNewest} ${common.data.sampled.waiting.toLocaleString()}`} />
              <Part title={text.slowSteps} none={text.noSteps} columns={STEPS} rows={common.data.steps.slice(0, 8)} keyOf={(row) => `${row.workflow} ${row.step}`} about={`${text.amongNewest} ${common.data.sampled.runs}`} />
              <Part title={text.cost} none={text.noCost} columns={COSTS} rows={common.data.costs} keyOf={(row) => row.workflow} about={`${text.amongNewest} ${common.data.sampled.runs}`} />
            </div>
          )}
        </>
      )}
    </div>
  );
}

function Part<T>({ title, none, about, columns, rows, keyOf }: {
  title: string; none: string; about?: string; columns: Column<T>[]; rows: T[]; keyOf: (row: T) => string;
}) {
  return (
    <section className="box" aria-label={title}>
      <header><h2 className="grow">{title}</h2>{about && rows.length > 0 && <span className="soft">{about}</span>}</header>
      {rows.length === 0 ? <div className="inside soft">{none}</div> : <Table label={title} columns={columns} rows={rows} keyOf={keyOf} />}
    </section>
  );
}

function rate(found: number): string {
  if (found >= 3600) return `${Math.round(found / 3600).toLocaleString()} a second`;
  if (found >= 60) return `${Math.round(found / 60).toLocaleString()} a minute`;
  return `${found.toFixed(found < 10 ? 1 : 0)} an hour`;
}

function workflowColumns(since: string): Column<OfWorkflow>[] {
  return [
    { name: "Workflow", size: "minmax(110px, 1fr)", cell: (row) => <Link to={runsOf({ workflow: row.workflow, since })}>{row.workflow}</Link> },
    { name: "Runs", size: "72px", cell: (row) => <span className="tabular">{row.runs.toLocaleString()}</span> },
    {
      name: "Failed", size: "92px", cell: (row) => (row.failed === 0 ? <span className="soft">—</span>
        : <Link className="s-failed tabular" to={runsOf({ workflow: row.workflow, since, status: "failed,stalled" })}>{row.failed.toLocaleString()} <span className="soft">({Math.round((row.failed / row.runs) * 100)} %)</span></Link>),
    },
    { name: "Took", size: "84px", wide: true, cell: (row) => <span className="tabular soft">{row.meanMs === null ? "—" : span(row.meanMs)}</span> },
    { name: "Over time", size: "minmax(120px, 2fr)", wide: true, cell: (row) => <Histogram found={row.stretches} label={row.workflow} height={22} /> },
  ];
}

const FAILURES: Column<FailureCause>[] = [
  { name: "Cause", size: "minmax(120px, 2.4fr)", cell: (row) => <Link to={runAt(row.run)} title={row.cause}>{row.cause}</Link> },
  { name: "Workflow", size: "minmax(70px, 1fr)", wide: true, cell: (row) => <span className="soft">{row.workflow}</span> },
  { name: "Runs", size: "56px", cell: (row) => <Link className="tabular" to={runsOf({ workflow: row.workflow, status: "failed,stalled" })}>{row.count.toLocaleString()}</Link> },
];

const WAITS: Column<WaitReason>[] = [
  { name: "For", size: "minmax(110px, 1.6fr)", cell: (row) => <span title={row.name}>{row.kind} {row.name}</span> },
  { name: "Workflow", size: "minmax(70px, 1fr)", wide: true, cell: (row) => <span className="soft">{row.workflow}</span> },
  { name: "Runs", size: "48px", cell: (row) => <Link className="tabular" to={runsOf({ workflow: row.workflow, status: "waiting" })}>{row.count.toLocaleString()}</Link> },
  { name: "Oldest", size: "108px", cell: (row) => <Link to={runAt(row.run)} title={row.run}>{ago(row.since, Date.now())}</Link> },
];

const STEPS: Column<SlowStep>[] = [
  { name: "Step", size: "minmax(90px, 1.2fr)", cell: (row) => <Link to={`${runAt(row.run)}?step=${encodeURIComponent(row.step)}`}>{row.step}</Link> },
  { name: "Workflow", size: "minmax(70px, 1fr)", wide: true, cell: (row) => <span className="soft">{row.workflow}</span> },
  { name: "Times", size: "52px", wide: true, cell: (row) => <span className="tabular soft">{row.count.toLocaleString()}</span> },
  { name: "Mean", size: "76px", cell: (row) => <span className="tabular">{span(row.mean_ms)}</span> },
  { name: "Longest", size: "76px", cell: (row) => <span className="tabular soft">{span(row.max_ms)}</span> },
];

const COSTS: Column<Cost>[] = [
  { name: "Workflow", size: "minmax(90px, 1.4fr)", cell: (row) => <Link to={runsOf({ workflow: row.workflow })}>{row.workflow}</Link> },
  { name: "Runs", size: "48px", wide: true, cell: (row) => <span className="tabular soft">{row.runs.toLocaleString()}</span> },
  { name: "Tokens", size: "minmax(90px, 1fr)", cell: (row) => <span className="tabular">{(row.input_tokens + row.output_tokens).toLocaleString()}</span> },
  { name: "Cost", size: "84px", cell: (row) => <span className="tabular">{money(row.usd)}</span> },
];
