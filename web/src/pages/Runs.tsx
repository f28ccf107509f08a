import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";

import { Ago, Empty, Failure, Loading } from "../components/bits";
import { Histogram } from "../components/Histogram";
import { StatusText } from "../components/Status";
import { api, type RunFilter, type RunRow, type Status } from "../lib/api";
import { type Changes, type Listed, repainted, unseen } from "../lib/changes";
import { duration, sentence, toldOf } from "../lib/describe";
import { fitting, stretches } from "../lib/history";
import { useChanges, useKeys, useMay, useNow, useParam, usePhone, useSettled } from "../lib/hooks";
import { ago, clock, mark } from "../lib/time";
import { text } from "../strings";
import { BulkBar, BulkJobs } from "./Bulk";
import { StartDialog } from "./Start";
import { Views } from "./Views";

const STATUSES: Status[] = ["running", "waiting", "stalled", "failed", "completed", "cancelled", "partial", "queued"];

/** The list as it is asked for: page by page, and how far it is behind what happens. */
function useListed(query: Record<string, string | number>) {
  const client = useQueryClient();
  const [fresh, setFresh] = useState(0);
  const atTop = useRef(true);
  const key = useMemo(() => ["runs", "list", query], [query]);
  const found = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam }) => api.runs({ ...query, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
    // Whoever reads on must not have a long list read again behind their back.
    refetchOnWindowFocus: false,
  });
  const renew = useCallback(() => {
    setFresh(0);
    client.setQueryData<Listed>(key, (old) => old && { pages: old.pages.slice(0, 1), pageParams: old.pageParams.slice(0, 1) });
    void client.invalidateQueries({ queryKey: key });
  }, [client, key]);
  useEffect(() => setFresh(0), [key]);
  useChanges(useCallback((changed: Changes) => {
    client.setQueryData<Listed>(key, (old) => old && repainted(old, changed));
    const pages = client.getQueryData<Listed>(key);
    if (atTop.current) renew();
    else if (pages !== undefined) setFresh((n) => n + unseen(pages, changed));
  }, [client, key, renew]));
  const onTop = useCallback((top: boolean) => {
    // One who comes back to the top sees what is new.
    if (top && !atTop.current) renew();
    atTop.current = top;
  }, [renew]);
  return { found, fresh, renew, onTop };
}

export function Runs() {
  const [status, setStatus] = useParam("status");
  const [workflow, setWorkflow] = useParam("workflow");
  const [since, setSince] = useParam("since");
  const [until, setUntil] = useParam("until");
  const [, setParams] = useSearchParams();
  const [search, setSearch] = useParam("search");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [whole, setWhole] = useState(false);
  const [cursor, setCursor] = useState(0);
  const [starting, setStarting] = useState(false);
  const navigate = useNavigate();
  const mayAct = useMay("operator");
  const typed = useSettled(search, 200);
  const query = useMemo(() => ({ status, workflow, since, until, search: typed, limit: 200 }), [status, workflow, since, until, typed]);
  const { found, fresh, renew, onTop } = useListed(query);
  const rows = useMemo(() => found.data?.pages.flatMap((page) => page.items) ?? [], [found.data]);
  // All that match means what one sees: another filter, another choice.
  useEffect(() => setWhole(false), [query]);
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

  const range = (from: number, to: number): void => setParams((old) => {
    const next = new URLSearchParams(old);
    next.set("since", new Date(from).toISOString());
    next.set("until", new Date(to).toISOString());
    return next;
  });
  const picked = status === "" ? [] : status.split(",");
  const toggle = (name: Status): void => {
    const next = picked.includes(name) ? picked.filter((one) => one !== name) : [...picked, name];
    setStatus(next.join(","));
  };
  const none = (): void => {
    setWhole(false);
    setChosen(new Set());
  };
  const filtered = status !== "" || workflow !== "" || since !== "" || until !== "" || search !== "";
  return (
    <div className="page">
      <div className="row">
        <h1>{text.runs}</h1>
        <Views />
        {mayAct && <button className="primary" onClick={() => setStarting(true)}>Start a run</button>}
      </div>
      <BulkJobs />
      <OverTime workflow={workflow} since={since} onRange={range} />
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
          {!["", "1h", "24h", "7d"].includes(since) && <option value={since}>since {clock(since)}</option>}
        </select>
        {until !== "" && <button className="chip" aria-label="Any end" aria-pressed="true" onClick={() => setUntil(null)}>until {clock(until)} ×</button>}
        <div className="chips" role="group" aria-label="Status">
          {STATUSES.map((name) => (
            <button key={name} className="chip" aria-pressed={picked.includes(name)} onClick={() => toggle(name)}>{name}</button>
          ))}
        </div>
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
          whole={whole}
          onWhole={() => (whole ? none() : setWhole(true))}
          onChoose={(id) => setChosen((old) => {
            const next = new Set(old);
            if (!next.delete(id)) next.add(id);
            return next;
          })}
          onOpen={open}
          onTop={onTop}
          fresh={fresh}
          onFresh={renew}
          onEnd={() => { if (found.hasNextPage && !found.isFetchingNextPage) void found.fetchNextPage(); }}
        />
      )}
      {(whole || chosen.size > 0) && (
        <BulkBar
          key={String(whole)}
          target={whole ? { filter: filterOf(picked as Status[], { workflow, since, until, search: typed }) } : { rows: rows.filter((row) => chosen.has(row.id)) }}
          onAll={() => setWhole(true)}
          onDone={none}
        />
      )}
      {starting && <StartDialog onClose={() => setStarting(false)} />}
    </div>
  );
}

/** The filter of the list as bulk work takes it: nothing chosen means all, and has to be said. */
function filterOf(status: Status[], texts: Record<"workflow" | "since" | "until" | "search", string>): RunFilter {
  const given = Object.fromEntries(Object.entries(texts).filter(([, value]) => value !== "")) as RunFilter;
  const found = { ...given, ...(status.length === 0 ? {} : { status }) };
  return Object.keys(found).length === 0 ? { all: true } : found;
}

/** When they began, to choose a time by dragging; only for who looks at all of them. */
function OverTime({ workflow, since, onRange }: { workflow: string; since: string; onRange: (from: number, to: number) => void }) {
  const day = useQuery({ queryKey: ["history", "24h", workflow], queryFn: () => api.history({ since: "24h", workflow }), enabled: since === "" });
  const shown = since || fitting(day.data);
  const history = useQuery({ queryKey: ["history", shown, workflow], queryFn: () => api.history({ since: shown, workflow }), refetchInterval: 10_000, placeholderData: keepPreviousData });
  const found = history.data && stretches(history.data);
  if (found === undefined || found.every((one) => one.total === 0)) return null;
  return (
    <div className="over-time">
      <Histogram found={found} label={text.begun} height={48} onRange={onRange} />
      <div className="row soft tabular"><span className="grow">{mark(history.data?.since ?? "")}</span><span>{mark(history.data?.until ?? "")}</span></div>
    </div>
  );
}

function RunTable({ rows, cursor, chosen, choosing, whole, onWhole, onChoose, onOpen, onEnd, onTop, fresh, onFresh }: {
  rows: RunRow[]; cursor: number; chosen: ReadonlySet<string>; choosing: boolean; whole: boolean; onWhole: () => void; onChoose: (id: string) => void; onOpen: (id: string) => void; onEnd: () => void;
  onTop: (top: boolean) => void; fresh: number; onFresh: () => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const high = usePhone() ? 52 : 32;
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => box.current, estimateSize: () => high, overscan: 12 });
  useEffect(() => virtual.measure(), [virtual, high]);
  useEffect(() => virtual.scrollToIndex(cursor), [virtual, cursor]);
  const shown = virtual.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  if (last >= rows.length - 20) queueMicrotask(onEnd);
  const show = (): void => {
    box.current?.scrollTo({ top: 0 });
    onFresh();
  };
  return (
    <div className="table-place">
    {fresh > 0 && <button className="chip fresh" onClick={show}>{fresh.toLocaleString()} new ↑</button>}
    <div className="table" ref={box} onScroll={(event) => onTop(event.currentTarget.scrollTop < high)} role="table" aria-label={text.runs} aria-rowcount={rows.length} tabIndex={0}>
      <div role="row" className="head runs-grid">
        <span role="columnheader">
          {choosing ? <input type="checkbox" className="choose" aria-label={text.chooseAllLabel} title={text.chooseAllLabel} checked={whole} onChange={onWhole} /> : <span className="hidden">Choose</span>}
        </span>
        <span role="columnheader">Run</span>
        <span role="columnheader" className="wide">Workflow</span>
        <span role="columnheader">Status</span>
        <span role="columnheader" className="wide">Why</span>
        <span role="columnheader" className="wide">Reference</span>
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
              chosen={whole || chosen.has(row.id)}
              choosing={choosing && !whole}
              marked={choosing}
              onChoose={() => onChoose(row.id)}
              onOpen={() => onOpen(row.id)}
            />
          );
        })}
      </div>
    </div>
    </div>
  );
}

function Row({ row, top, focused, chosen, choosing, marked, onChoose, onOpen }: {
  row: RunRow; top: number; focused: boolean; chosen: boolean; choosing: boolean; marked: boolean; onChoose: () => void; onOpen: () => void;
}) {
  const now = useNow();
  const phone = usePhone();
  return (
    <div role="row" className="runs-grid" aria-selected={focused} style={{ position: "absolute", top, left: 0, right: 0 }}>
      <span role="cell">
        {marked && <input type="checkbox" className="choose" aria-label={`Choose ${row.id}`} checked={chosen} disabled={!choosing} onChange={onChoose} />}
      </span>
      <span role="cell">
        <a href={`/runs/${encodeURIComponent(row.id)}`} onClick={(event) => { event.preventDefault(); onOpen(); }} title={row.id}>{row.id}</a>
      </span>
      <span role="cell" className="wide soft">{row.workflow}{row.version && `@${row.version}`}</span>
      <span role="cell"><StatusText status={row.status} /></span>
      <span role="cell" className="why soft"><Why row={row} now={now} phone={phone} /></span>
      <span role="cell" className="wide soft" title={row.reference ?? ""}>{row.reference ?? ""}</span>
      <span role="cell" className="wide soft"><Ago at={row.started_at} /></span>
      <span role="cell" className="wide soft tabular">{duration(row, now)}</span>
    </div>
  );
}

/** Why a run is where it is; where there is nothing to say, a phone has room for which it is. */
function Why({ row, now, phone }: { row: RunRow; now: number; phone: boolean }) {
  const waits = row.status === "waiting" || row.status === "running" || row.status === "queued";
  const found = useQuery({ queryKey: ["run", row.id], queryFn: () => api.run(row.id), enabled: waits });
  const said = waits ? (found.data ? sentence(found.data, now) : "") : toldOf(row);
  return <span title={said}>{said || (phone ? `${row.workflow} · ${ago(row.started_at, now)}` : "")}</span>;
}
