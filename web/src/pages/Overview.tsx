import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import { Empty, Failure } from "../components/bits";
import { StatusText } from "../components/Status";
import { api, type RunRow, type Status } from "../lib/api";
import { cause } from "../lib/describe";
import { text } from "../strings";

export interface Bucket { name: string; count: number }

/** How often each value occurs, most frequent first. */
export function tally(values: string[]): Bucket[] {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].map(([name, count]) => ({ name, count })).sort((a, b) => b.count - a.count || a.name.localeCompare(b.name));
}

export function Overview() {
  const stats = useQuery({ queryKey: ["runs", "stats"], queryFn: api.stats });
  const recent = useQuery({ queryKey: ["runs", "recent"], queryFn: () => api.runs({ since: "24h", limit: 1000 }) });
  const rows = recent.data?.items ?? [];
  const counts = Object.entries(stats.data?.runs ?? {});
  const failed = rows.filter((row) => row.status === "failed" || row.status === "stalled");
  return (
    <div className="page">
      <h1>{text.overview}</h1>
      {stats.error && <Failure error={stats.error} />}
      {counts.length === 0 && !stats.isPending ? <Empty why={text.noRuns} command={text.noRunsCommand} /> : (
        <div className="row" style={{ gap: 24 }}>
          {counts.map(([status, count]) => (
            <Link key={status} to={`/runs?status=${status}`} style={{ display: "grid" }}>
              <span className="tabular" style={{ fontSize: 24, lineHeight: "32px", color: "var(--text)" }}>{count.toLocaleString()}</span>
              <StatusText status={status as Status} />
            </Link>
          ))}
        </div>
      )}
      <Bars title="Runs of the last day, by workflow" found={tally(rows.map((row) => row.workflow))} to={(name) => `/runs?since=24h&workflow=${encodeURIComponent(name)}`} colour="running" />
      <Bars title="Why they failed" found={tally(failed.map((row) => cause(row.error) || row.error?.code || "unknown"))} to={() => "/runs?since=24h&status=failed,stalled"} colour="failed" />
      <Slowest rows={rows} />
    </div>
  );
}

function Bars({ title, found, to, colour }: { title: string; found: Bucket[]; to: (name: string) => string; colour: string }) {
  if (found.length === 0) return null;
  const most = found[0]?.count ?? 1;
  return (
    <section className="box">
      <header><h2>{title}</h2></header>
      <div className="inside bars">
        {found.slice(0, 10).map((bucket) => [
          <Link key={`${bucket.name}l`} to={to(bucket.name)} className="nowrap" title={bucket.name}>{bucket.name}</Link>,
          <span key={`${bucket.name}b`} className={`b s-${colour}`} style={{ width: `${(bucket.count / most) * 100}%` }} aria-hidden="true" />,
          <span key={`${bucket.name}n`} className="tabular soft">{bucket.count.toLocaleString()}</span>,
        ])}
      </div>
    </section>
  );
}

function Slowest({ rows }: { rows: RunRow[] }) {
  const took = (row: RunRow): number => Date.parse(row.ended_at ?? row.started_at) - Date.parse(row.started_at);
  const slow = rows.filter((row) => row.ended_at !== null).sort((a, b) => took(b) - took(a)).slice(0, 5);
  if (slow.length === 0) return null;
  return (
    <section className="box">
      <header><h2>Slowest</h2></header>
      <div className="inside">
        {slow.map((row) => <div key={row.id} className="row"><Link to={`/runs/${encodeURIComponent(row.id)}`}>{row.id}</Link><span className="soft">{row.workflow}</span><span className="soft tabular" style={{ marginLeft: "auto" }}>{(took(row) / 1000).toFixed(2)} s</span></div>)}
      </div>
    </section>
  );
}
