// Runs over time, from the counts of `/stats/history`.

import type { Begun, History } from "./shapes";

export interface Stretch { from: number; to: number; counts: Record<string, number>; total: number }
export interface OfWorkflow { workflow: string; runs: number; failed: number; meanMs: number | null; stretches: Stretch[] }

/** From the bottom up: what is over, what goes on, and what needs somebody on top, where eyes go first. */
export const STACK = ["completed", "partial", "cancelled", "queued", "running", "waiting", "stalled", "failed"];

/** Every stretch since the beginning, those without a run among them. */
export function stretches(history: History, items: Begun[] = history.items): Stretch[] {
  const begin = Date.parse(history.since);
  const width = history.width_s * 1000;
  const length = Math.max(1, Math.floor((Date.parse(history.until) - begin) / width) + 1);
  const found = Array.from({ length }, (_, n): Stretch => ({ from: begin + n * width, to: begin + (n + 1) * width, counts: {}, total: 0 }));
  for (const item of items) {
    const one = found[Math.floor((Date.parse(item.at) - begin) / width)];
    if (one === undefined) continue;
    one.counts[item.status] = (one.counts[item.status] ?? 0) + item.count;
    one.total += item.count;
  }
  return found;
}

/** One line a workflow, the busiest first. */
export function byWorkflow(history: History): OfWorkflow[] {
  const found = new Map<string, Begun[]>();
  for (const item of history.items) found.set(item.workflow, [...(found.get(item.workflow) ?? []), item]);
  const lines = [...found].map(([workflow, items]) => {
    const ended = items.filter((item) => item.mean_ms !== null);
    const count = ended.reduce((sum, item) => sum + item.count, 0);
    return {
      workflow,
      runs: items.reduce((sum, item) => sum + item.count, 0),
      failed: items.reduce((sum, item) => sum + (item.status === "failed" || item.status === "stalled" ? item.count : 0), 0),
      meanMs: count === 0 ? null : ended.reduce((sum, item) => sum + (item.mean_ms ?? 0) * item.count, 0) / count,
      stretches: stretches(history, items),
    };
  });
  return lines.sort((a, b) => b.runs - a.runs || a.workflow.localeCompare(b.workflow));
}

/** How many began in an hour, on average. */
export function perHour(history: History): number {
  const hours = (Date.parse(history.until) - Date.parse(history.since)) / 3_600_000;
  return history.items.reduce((sum, item) => sum + item.count, 0) / Math.max(hours, 1 / 60);
}

/** The time that shows what a day's counts hold: an hour, where nothing of them is older. */
export function fitting(day: History | undefined): "1h" | "24h" {
  if (day === undefined || day.items.length === 0) return "24h";
  const since = Date.parse(day.until) - 3_600_000;
  // A stretch that begins before the hour may hold runs of it only; it is as good as within.
  return day.items.every((item) => Date.parse(item.at) + day.width_s * 1000 > since) ? "1h" : "24h";
}
