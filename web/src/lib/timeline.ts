// Bars of a run's timeline, from its trace: one row a step, one bar an attempt.

import type { TraceStep } from "./api";

export interface Bar { id: string; from: number; to: number; status: string; seq: number; settled: number | null; kind: string }
export interface Row { name: string; kind: string; bars: Bar[] }
export interface Timeline { begin: number; end: number; rows: Row[] }

/** `failed` are the names of steps whose last attempt did not succeed, though it came back: a receipt may hold a failure. */
export function timeline(steps: TraceStep[], now: number, upTo: number | null = null, failed: ReadonlySet<string> = new Set()): Timeline {
  const shown = upTo === null ? steps : steps.filter((step) => step.seq <= upTo);
  const rows = new Map<string, Row>();
  let begin = Infinity;
  let end = -Infinity;
  for (const step of shown) {
    const open = step.settled_at === null || (upTo !== null && (step.settled ?? Infinity) > upTo);
    const from = Date.parse(step.opened_at);
    const to = open ? (upTo === null ? now : from) : Date.parse(step.settled_at ?? step.opened_at);
    const name = step.name || step.kind;
    const row = rows.get(name) ?? { name, kind: step.kind, bars: [] };
    row.bars.push({
      id: step.id, from, to, status: open ? "open" : step.status, seq: step.seq, settled: step.settled, kind: step.kind,
    });
    rows.set(name, row);
    begin = Math.min(begin, from);
    end = Math.max(end, to);
  }
  for (const row of rows.values()) {
    const last = row.bars.at(-1);
    if (last !== undefined && last.status === "ok" && failed.has(row.name)) last.status = "error";
  }
  if (rows.size === 0) return { begin: now, end: now + 1, rows: [] };
  return { begin, end: Math.max(end, begin + 1), rows: [...rows.values()] };
}

/** About six round distances from the beginning, for the axis. */
export function ticks(wide: number): number[] {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 18e5, 36e5, 108e5, 216e5, 864e5, 6048e5, 2592e6];
  const step = steps.find((size) => wide / size <= 6) ?? 31_536e6;
  return Array.from({ length: Math.floor(wide / step) + 1 }, (_, n) => n * step);
}
