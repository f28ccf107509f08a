// What happened in a run: its events, live, and the journal, which is its truth.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";

import { Code, Failure, Loading } from "../components/bits";
import { VirtualList } from "../components/VirtualList";
import { api, follow, type Json, type JournalRecord, type RunDocument, type RunEvent } from "../lib/api";
import { clock, exact } from "../lib/time";

const PAINT_MS = 120;
// A long run is painted less often while it comes: what one came for is above its events.
const PAINT_LONG_MS = 600;
const MANY = 2000;
const RECORDS_MAX = 20_000;

/** The events of a run: what is there at once, then live until it ends. */
export function useEvents(run: RunDocument, begun: boolean): RunEvent[] {
  const [events, setEvents] = useState<RunEvent[]>([]);
  const [known] = useState({ records: run.version_no, at: Date.now(), over: run.ended_at !== null });
  const client = useQueryClient();
  useEffect(() => {
    if (!begun) return undefined;
    const kept: RunEvent[] = [];
    let painting: ReturnType<typeof setTimeout> | undefined;
    let renewing: ReturnType<typeof setTimeout> | undefined;
    const paint = (): void => {
      painting = undefined;
      setEvents([...kept]);
    };
    const renew = (): void => {
      renewing = undefined;
      for (const part of ["run", "trace", "graph", "journal", "state"]) void client.invalidateQueries({ queryKey: [part, run.id] });
    };
    const stop = follow(`/runs/${encodeURIComponent(run.id)}/events`, (frame) => {
      const event = frame.event === "end" ? null : (JSON.parse(frame.data) as RunEvent);
      if (event !== null) kept.push(event);
      // A busy run changes thousands of times a second; eyes do not.
      painting ??= setTimeout(paint, kept.length > MANY / 10 ? PAINT_LONG_MS : PAINT_MS);
      // What the page began with is there already; only what came later makes it read again.
      const later = event === null ? !known.over : (event.record === null ? Date.parse(event.at) > known.at : event.record > known.records);
      if (later) renewing ??= setTimeout(renew, kept.length > MANY ? 1500 : PAINT_MS);
    });
    return () => {
      stop();
      clearTimeout(painting);
      clearTimeout(renewing);
    };
  }, [run.id, client, known, begun]);
  return events;
}

export function Events({ events }: { events: RunEvent[] }) {
  const [filter, setFilter] = useState("");
  const wanted = filter.toLowerCase();
  const matching = wanted === "" ? events : events.filter((event) => JSON.stringify(event).toLowerCase().includes(wanted));
  return (
    <>
      <div className="row" style={{ padding: 8 }}>
        <input type="search" style={{ maxWidth: 280 }} placeholder="Filter events" aria-label="Filter events" value={filter} onChange={(event) => setFilter(event.target.value)} />
        <span className="soft tabular">{matching.length.toLocaleString()} events</span>
      </div>
      <VirtualList rows={matching} label="Events" keyOf={(event) => event.seq}>{(event) => <EventRow event={event} />}</VirtualList>
    </>
  );
}

function EventRow({ event }: { event: RunEvent }) {
  const said = detail(event);
  return (
    <details className="event">
      <summary>
        <span className="soft tabular">{event.seq}</span>
        <time className="soft tabular" dateTime={event.at} title={exact(event.at)}>{clock(event.at)}</time>
        <span className="nowrap">{event.type}</span>
        <span className="soft nowrap" title={said}>{said}</span>
      </summary>
      <Code value={event as unknown as Json} label={`Event ${event.seq}`} />
    </details>
  );
}

function detail(event: RunEvent): string {
  const { seq: _seq, at: _at, type: _type, record: _record, ...rest } = event;
  return Object.entries(rest).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ");
}

async function wholeJournal(id: string): Promise<JournalRecord[]> {
  const found: JournalRecord[] = [];
  for (;;) {
    const page = await api.journal(id, found.at(-1)?.seq ?? 0);
    found.push(...page);
    if (page.length < 1000 || found.length >= RECORDS_MAX) return found;
  }
}

export function Journal({ id, at }: { id: string; at: number | null }) {
  const found = useQuery({ queryKey: ["journal", id], queryFn: () => wholeJournal(id) });
  if (found.data === undefined) return found.error ? <Failure error={found.error} /> : <Loading />;
  const records = at === null ? found.data : found.data.filter((record) => record.seq <= at);
  return (
    <>
      {found.data.length >= RECORDS_MAX && <p className="soft" style={{ padding: "0 12px" }}>The first {RECORDS_MAX.toLocaleString()} records.</p>}
      <VirtualList rows={records} label="Journal" keyOf={(record) => record.seq}>{(record) => <RecordRow record={record} />}</VirtualList>
    </>
  );
}

function RecordRow({ record }: { record: JournalRecord }) {
  return (
    <details className="record">
      <summary className="tabular">
        {record.seq} · {record.kind} · {clock(record.at)} {record.status && `· ${record.status}`}
        {record.opened.length > 0 && ` · opened ${record.opened.length}`} <span className="soft mono">{record.digest.slice(0, 19)}…</span>
      </summary>
      <Code value={record as unknown as Json} label={`Record ${record.seq}`} />
    </details>
  );
}
