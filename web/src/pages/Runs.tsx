import { keepPreviousData, useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useMemo, useRef, useState } from "react";
import { useNavigate } from "react-router";

import { Ago, Dialog, Empty, Failure, Loading } from "../components/bits";
import { StatusText } from "../components/Status";
import { api, type RunRow, type Status } from "../lib/api";
import { cause, duration, sentence } from "../lib/describe";
import { useKeys, useMay, useNow, useParam } from "../lib/hooks";
import { text } from "../strings";
import { StartDialog } from "./Start";

const STATUSES: Status[] = ["running", "waiting", "stalled", "failed", "completed", "cancelled", "partial", "queued"];
const PHONE = 760;

export function Runs() {
  const [status, setStatus] = useParam("status");
  const [workflow, setWorkflow] = useParam("workflow");
  const [since, setSince] = useParam("since");
  const [search, setSearch] = useParam("search");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [cursor, setCursor] = useState(0);
  const [starting, setStarting] = useState(false);
  const navigate = useNavigate();
  const mayAct = useMay("operator");
  const query = { status, workflow, since, search, limit: 200 };
  const found = useInfiniteQuery({
    queryKey: ["runs", query],
    queryFn: ({ pageParam }) => api.runs({ ...query, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
  });
  const rows = useMemo(() => found.data?.pages.flatMap((page) => page.items) ?? [], [found.data]);
  const names = useQuery({ queryKey: ["definitions"], queryFn: api.definitions });

  const open = useCallback((id: string) => void navigate(`/runs/${encodeURIComponent(id)}`), [navigate]);
  useKeys(useMemo(() => ({
    j: () => setCursor((at) => Math.min(at + 1, rows.length - 1)),
    k: () => setCursor((at) => Math.max(at - 1, 0)),
    enter: () => {
      const row = rows[cursor];
      if (row !== undefined) open(row.id);
    },
    "/": (event: KeyboardEvent) => {
      event.preventDefault();
      document.getElementById("search")?.focus();
    },
  }), [rows, cursor, open]));

  const picked = status === "" ? [] : status.split(",");
  const toggle = (name: Status): void => {
    const next = picked.includes(name) ? picked.filter((one) => one !== name) : [...picked, name];
    setStatus(next.join(","));
  };
  const filtered = status !== "" || workflow !== "" || since !== "" || search !== "";
  return (
    <div className="page">
      <div className="row">
        <h1 className="grow">{text.runs}</h1>
        {mayAct && <button className="primary" onClick={() => setStarting(true)}>Start a run</button>}
      </div>
      <div className="row" role="search">
        <input id="search" style={{ maxWidth: 300 }} type="search" placeholder={text.search} aria-label={text.search} value={search} onChange={(e) => setSearch(e.target.value)} />
        <select style={{ width: "auto" }} aria-label="Workflow" value={workflow} onChange={(e) => setWorkflow(e.target.value)}>
          <option value="">all workflows</option>
          {[...new Set(names.data?.items.map((row) => row.name) ?? [])].map((name) => <option key={name}>{name}</option>)}
        </select>
        <select style={{ width: "auto" }} aria-label="Started since" value={since} onChange={(e) => setSince(e.target.value)}>
          <option value="">any time</option>
          <option value="1h">last hour</option>
          <option value="24h">last day</option>
          <option value="7d">last week</option>
        </select>
        {STATUSES.map((name) => (
          <button key={name} className="chip" aria-pressed={picked.includes(name)} onClick={() => toggle(name)}>{name}</button>
        ))}
        {filtered && <button className="plain" onClick={() => void navigate("/runs")}>Clear</button>}
      </div>
      {found.error && <Failure error={found.error} />}
      {found.isPending ? <Loading /> : rows.length === 0 ? (
        filtered ? <Empty why={text.noMatch} /> : <Empty why={text.noRuns} command={text.noRunsCommand} />
      ) : (
        <RunTable
          rows={rows}
          cursor={cursor}
          chosen={chosen}
          choosing={mayAct}
          onChoose={(id) => setChosen((old) => {
            const next = new Set(old);
            if (!next.delete(id)) next.add(id);
            return next;
          })}
          onOpen={open}
          onEnd={() => { if (found.hasNextPage && !found.isFetchingNextPage) void found.fetchNextPage(); }}
        />
      )}
      {chosen.size > 0 && <BulkBar rows={rows.filter((row) => chosen.has(row.id))} onDone={() => setChosen(new Set())} />}
      {starting && <StartDialog onClose={() => setStarting(false)} />}
    </div>
  );
}

function RunTable({ rows, cursor, chosen, choosing, onChoose, onOpen, onEnd }: {
  rows: RunRow[]; cursor: number; chosen: ReadonlySet<string>; choosing: boolean; onChoose: (id: string) => void; onOpen: (id: string) => void; onEnd: () => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const high = window.innerWidth <= PHONE ? 52 : 32;
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => box.current, estimateSize: () => high, overscan: 12 });
  const shown = virtual.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  if (last >= rows.length - 20) queueMicrotask(onEnd);
  return (
    <div className="table" ref={box} role="table" aria-label={text.runs} aria-rowcount={rows.length} tabIndex={0}>
      <div role="row" className="head runs-grid">
        <span role="columnheader"><span className="hidden">Choose</span></span>
        <span role="columnheader">Run</span>
        <span role="columnheader" className="wide">Workflow</span>
        <span role="columnheader">Status</span>
        <span role="columnheader" className="wide">Why</span>
        <span role="columnheader" className="wide">Started</span>
        <span role="columnheader" className="wide">Took</span>
      </div>
      <div role="rowgroup" style={{ height: virtual.getTotalSize(), position: "relative" }}>
        {shown.map((item) => {
          const row = rows[item.index];
          return row === undefined ? null : (
            <Row
              key={row.id}
              row={row}
              top={item.start}
              focused={item.index === cursor}
              chosen={chosen.has(row.id)}
              choosing={choosing}
              onChoose={() => onChoose(row.id)}
              onOpen={() => onOpen(row.id)}
            />
          );
        })}
      </div>
    </div>
  );
}

function Row({ row, top, focused, chosen, choosing, onChoose, onOpen }: {
  row: RunRow; top: number; focused: boolean; chosen: boolean; choosing: boolean; onChoose: () => void; onOpen: () => void;
}) {
  const now = useNow();
  return (
    <div role="row" className="runs-grid" aria-selected={focused} style={{ position: "absolute", top, left: 0, right: 0 }}>
      <span role="cell">
        {choosing && <input type="checkbox" style={{ width: 16, minHeight: 16 }} aria-label={`Choose ${row.id}`} checked={chosen} onChange={onChoose} />}
      </span>
      <span role="cell">
        <a href={`/runs/${encodeURIComponent(row.id)}`} onClick={(event) => { event.preventDefault(); onOpen(); }} title={row.id}>{row.id}</a>
      </span>
      <span role="cell" className="wide soft">{row.workflow}{row.version && `@${row.version}`}</span>
      <span role="cell"><StatusText status={row.status} /></span>
      <span role="cell" className="why soft"><Why row={row} now={now} /></span>
      <span role="cell" className="wide soft"><Ago at={row.started_at} /></span>
      <span role="cell" className="wide soft tabular">{duration(row, now)}</span>
    </div>
  );
}

function Why({ row, now }: { row: RunRow; now: number }) {
  const waits = row.status === "waiting" || row.status === "running" || row.status === "queued";
  const found = useQuery({ queryKey: ["run", row.id], queryFn: () => api.run(row.id), enabled: waits });
  const said = waits ? (found.data ? sentence(found.data, now) : "") : cause(row.error);
  return <span title={said}>{said}</span>;
}

function BulkBar({ rows, onDone }: { rows: RunRow[]; onDone: () => void }) {
  const [action, setAction] = useState<"cancel" | "retry" | null>(null);
  const client = useQueryClient();
  const [done, setDone] = useState(0);
  const [failed, setFailed] = useState<string[]>([]);
  const act = useMutation({
    mutationFn: async (what: "cancel" | "retry") => {
      const waiting = [...rows];
      const work = async (): Promise<void> => {
        for (let row = waiting.pop(); row !== undefined; row = waiting.pop()) {
          const id = row.id;
          await api.act(id, what).catch((error: Error) => setFailed((old) => [...old, `${id}: ${error.message}`]));
          setDone((n) => n + 1);
        }
      };
      await Promise.all(Array.from({ length: 8 }, work));
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["runs"] }),
  });
  return (
    <div className="bar" role="region" aria-label="Chosen runs">
      <span className="grow">{rows.length} chosen</span>
      <button onClick={() => setAction("retry")}>Retry…</button>
      <button className="danger" onClick={() => setAction("cancel")}>Cancel…</button>
      <button className="plain" onClick={onDone}>Clear</button>
      {action !== null && (
        <Dialog
          title={`${action === "cancel" ? "Cancel" : "Retry"} ${rows.length} runs?`}
          onClose={() => { setAction(null); if (act.isSuccess) onDone(); }}
          footer={<button className={action === "cancel" ? "danger" : "primary"} disabled={!act.isIdle} onClick={() => act.mutate(action)}>{action === "cancel" ? "Cancel them" : "Retry them"}</button>}
        >
          <ul>{rows.slice(0, 8).map((row) => <li key={row.id}>{row.id} <span className="soft">{row.status}</span></li>)}</ul>
          {rows.length > 8 && <p className="soft">and {rows.length - 8} more</p>}
          <pre>treadle {action} {rows.slice(0, 3).map((row) => row.id).join(" ")}{rows.length > 3 ? " …" : ""}</pre>
          {!act.isIdle && <p role="status">{done} of {rows.length} done</p>}
          {failed.map((line) => <div key={line} className="s-failed">{line}</div>)}
        </Dialog>
      )}
    </div>
  );
}
