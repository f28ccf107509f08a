import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";

import { Ago, Empty, Failure, Loading } from "../components/bits";
import { type Column, Table } from "../components/Table";
import { api, type AuditRow } from "../lib/api";
import { useParam, useSettled } from "../lib/hooks";
import { text } from "../strings";

const FAMILIES = ["run", "task", "definition", "schedule", "token", "secret", "hook", "deadletter", "event", "request"];

/** Who did what, newest first. The address holds the filters. */
export function Audit() {
  const [user, setUser] = useParam("user");
  const [action, setAction] = useParam("action");
  const [target, setTarget] = useParam("target");
  const [status, setStatus] = useParam("status");
  const [since, setSince] = useParam("since");
  const query = useSettled(JSON.stringify({ user, action, target, status, since, limit: 100 }), 200);
  const found = useInfiniteQuery({
    queryKey: ["audit", query],
    queryFn: ({ pageParam }) => api.audit({ ...(JSON.parse(query) as Record<string, string>), cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
    refetchInterval: 10_000,
  });
  const rows = found.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <div className="page">
      <h1>{text.audit}</h1>
      <div className="row filters" role="search">
        <input type="search" aria-label="User" placeholder="User" value={user} onChange={(event) => setUser(event.target.value)} />
        <input type="search" aria-label="Target" placeholder="Run, task or name" value={target} onChange={(event) => setTarget(event.target.value)} />
        <select aria-label="What was done" value={action} onChange={(event) => setAction(event.target.value)}>
          <option value="">everything done</option>
          {FAMILIES.map((family) => <option key={family} value={family}>{family}.*</option>)}
          {action !== "" && !FAMILIES.includes(action) && <option>{action}</option>}
        </select>
        <select aria-label="Outcome" value={status} onChange={(event) => setStatus(event.target.value)}>
          <option value="">any outcome</option><option>ok</option><option>stale</option><option>refused</option>
        </select>
        <select aria-label="Since" value={since} onChange={(event) => setSince(event.target.value)}>
          <option value="">any time</option><option value="1h">last hour</option><option value="24h">last day</option><option value="7d">last week</option>
        </select>
      </div>
      {found.error && <Failure error={found.error} />}
      {found.isPending ? <Loading /> : rows.length === 0 ? <Empty why={text.noAudit} /> : (
        <section className="box" aria-label={text.audit}><Table label={text.audit} columns={COLUMNS} rows={rows} keyOf={(row) => `${row.at} ${row.request ?? ""} ${row.action} ${row.target}`} /></section>
      )}
      {found.hasNextPage && <div><button disabled={found.isFetchingNextPage} onClick={() => void found.fetchNextPage()}>{text.more}</button></div>}
    </div>
  );
}

const OUTCOME: Record<AuditRow["status"], string> = { ok: "soft", stale: "s-stalled", refused: "s-failed" };

const COLUMNS: Column<AuditRow>[] = [
  { name: "When", size: "76px", cell: (row) => <Ago at={row.at} /> },
  { name: "Who", size: "minmax(52px, 0.8fr)", cell: (row) => <strong>{row.user}</strong> },
  { name: "Did", size: "minmax(84px, 1fr)", cell: (row) => <span title={row.action}>{row.action}</span> },
  { name: "To", size: "minmax(120px, 2fr)", wide: true, cell: (row) => <span title={row.target}>{row.target || "—"}</span> },
  { name: "Outcome", size: "minmax(64px, 1fr)", cell: (row) => <span className={OUTCOME[row.status]} title={row.code ?? row.status}>{row.status}{row.code && `: ${row.code}`}</span> },
  { name: "Server", size: "minmax(80px, 0.8fr)", wide: true, cell: (row) => row.server ?? "—" },
  { name: "Request", size: "minmax(80px, 0.8fr)", wide: true, cell: (row) => <code>{row.request ?? "—"}</code> },
];
