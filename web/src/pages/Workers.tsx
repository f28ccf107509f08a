import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import { Ago, Empty, Failure, Loading } from "../components/bits";
import { StatusMark } from "../components/Status";
import { type Column, Table } from "../components/Table";
import { api, type Limit, type Server, type Worker } from "../lib/api";
import { limitText } from "../lib/describe";
import { type Pool, pools } from "../lib/pools";
import { text } from "../strings";

const OFTEN = 3000;

/** Who decides, who works, and how much waits. */
export function Workers() {
  const servers = useQuery({ queryKey: ["servers"], queryFn: api.servers, refetchInterval: OFTEN });
  const workers = useQuery({ queryKey: ["workers"], queryFn: api.workers, refetchInterval: OFTEN });
  const stats = useQuery({ queryKey: ["runs", "stats"], queryFn: api.stats, refetchInterval: OFTEN });
  const limits = useQuery({ queryKey: ["limits"], queryFn: api.limits, refetchInterval: OFTEN });
  const failure = servers.error ?? workers.error ?? stats.error ?? limits.error;
  const limited = limits.data?.items.filter((row) => row.limits !== null) ?? [];
  const rows = workers.data?.items ?? [];
  const undone = stats.data?.unavailable ?? 0;
  return (
    <div className="page">
      <h1>{text.workers}</h1>
      {failure && <Failure error={failure} />}
      {undone > 0 && <div className="error-box" role="status">{undone === 1 ? text.oneUndone : `${undone} ${text.moreUndone}`}</div>}
      <section className="box" aria-label={text.members}>
        <header><h2>{text.members}</h2></header>
        {servers.data === undefined ? <Loading /> : <Table label={text.members} columns={SERVER} rows={servers.data.items} keyOf={(row) => row.name} />}
      </section>
      <section className="box" aria-label={text.pools}>
        <header><h2>{text.pools}</h2></header>
        <Table label={text.pools} columns={POOL} rows={pools(rows, stats.data?.queue ?? {})} keyOf={(row) => row.name} />
      </section>
      {limited.length > 0 && (
        <section className="box" aria-label={text.limits}>
          <header><h2>{text.limits}</h2></header>
          <Table label={text.limits} columns={LIMIT} rows={limited} keyOf={(row) => row.workflow} />
        </section>
      )}
      <section className="box" aria-label={text.workers}>
        <header><h2>{text.workers}</h2></header>
        {workers.data?.items.length === 0
          ? <Empty why={text.noWorkers} command={text.noWorkersCommand} />
          : <Table label={text.workers} columns={WORKER} rows={rows} keyOf={(row) => row.name} />}
      </section>
    </div>
  );
}

const MARKS: Record<string, string> = { live: "completed", draining: "waiting", lost: "failed", gone: "failed" };

function Standing({ status }: { status: string }) {
  return <span className={`status s-${MARKS[status] ?? "queued"}`}><StatusMark status={MARKS[status] ?? "queued"} />{status}</span>;
}

function Load({ busy, slots, of }: { busy: number; slots: number; of: string }) {
  const said = `${busy.toLocaleString()} of ${slots.toLocaleString()}`;
  return (
    <span className="row load">
      <span className="meter" role="meter" aria-label={`Load of ${of}`} aria-valuemin={0} aria-valuemax={Math.max(slots, 1)} aria-valuenow={busy} aria-valuetext={said}>
        <span style={{ width: `${slots === 0 ? 0 : Math.min(100, (busy / slots) * 100)}%` }} />
      </span>
      <span className="tabular soft nowrap">{said}</span>
    </span>
  );
}

function shardsText(shards: Server["shards"]): string {
  if (shards === undefined) return "—";
  if (typeof shards === "number") return shards.toLocaleString();
  return Array.isArray(shards) ? shards.length.toLocaleString() : `${shards.held.toLocaleString()} of ${shards.of.toLocaleString()}`;
}

const SERVER: Column<Server>[] = [
  { name: "Name", size: "minmax(120px, 1.2fr)", cell: (row) => <strong>{row.name}</strong> },
  { name: "Status", size: "96px", cell: (row) => <Standing status={row.status} /> },
  { name: "Address", size: "minmax(150px, 1.4fr)", wide: true, cell: (row) => row.url || "—" },
  { name: "Shards", size: "90px", cell: (row) => <span className="tabular">{shardsText(row.shards)}</span> },
  { name: "Version", size: "90px", wide: true, cell: (row) => row.version ?? "—" },
  { name: "Started", size: "110px", wide: true, cell: (row) => (row.started_at ? <Ago at={row.started_at} /> : "—") },
  { name: "Seen", size: "110px", wide: true, cell: (row) => (row.seen_at ? <Ago at={row.seen_at} /> : "—") },
];

const POOL: Column<Pool>[] = [
  { name: "Pool", size: "minmax(100px, 1fr)", cell: (row) => <strong>{row.name}</strong> },
  { name: "Queued", size: "80px", cell: (row) => <span className={`tabular ${row.queued > 0 ? "s-waiting" : "soft"}`}>{row.queued.toLocaleString()}</span> },
  { name: "Workers", size: "80px", wide: true, cell: (row) => <span className={`tabular ${row.workers === 0 ? "s-failed" : ""}`}>{row.workers}</span> },
  { name: "Load", size: "minmax(130px, 1.6fr)", cell: (row) => <Load busy={row.busy} slots={row.slots} of={`the pool ${row.name}`} /> },
];

const LIMIT: Column<Limit>[] = [
  { name: "Workflow", size: "minmax(100px, 1fr)", cell: (row) => <Link to={`/definitions/${encodeURIComponent(row.workflow)}`}>{row.workflow}</Link> },
  { name: "In line", size: "80px", cell: (row) => <Link className={`tabular ${row.queued > 0 ? "s-waiting" : "soft"}`} to={`/runs?status=queued&workflow=${encodeURIComponent(row.workflow)}`}>{row.queued.toLocaleString()}</Link> },
  { name: "Running", size: "80px", cell: (row) => <span className="tabular">{row.running.toLocaleString()}</span> },
  { name: "At most", size: "minmax(130px, 1.6fr)", wide: true, cell: (row) => limitText(row.limits) },
  { name: text.limitFrom, size: "96px", wide: true, cell: (row) => row.origin ?? "—" },
];

const WORKER: Column<Worker>[] = [
  { name: "Name", size: "minmax(110px, 1.2fr)", cell: (row) => <strong>{row.name}</strong> },
  { name: "Status", size: "96px", cell: (row) => <Standing status={row.status} /> },
  { name: "Pools", size: "minmax(90px, 1fr)", wide: true, cell: (row) => (row.pools.includes("*") ? "every pool" : row.pools.join(", ")) },
  { name: "Load", size: "minmax(110px, 1.2fr)", cell: (row) => <Load busy={row.busy} slots={row.concurrency} of={row.name} /> },
  { name: "Code", size: "minmax(90px, 1fr)", wide: true, cell: (row) => [...(row.apps ?? []), ...(row.tools ?? [])].join(", ") || "—" },
  { name: "Over", size: "72px", wide: true, cell: (row) => row.bus ?? "—" },
  { name: "User", size: "90px", wide: true, cell: (row) => row.user || "—" },
  { name: "Seen", size: "100px", wide: true, cell: (row) => (row.seen_at ? <Ago at={row.seen_at} /> : "here") },
];
