// The answer before the click: why a run is where it is, in one sentence.

import type { ApiError, Json, RunDocument, RunRow, ScheduleFields, Usage, Wait } from "./api";
import { span, until } from "./time";

export function cause(error: ApiError | null): string {
  if (error === null) return "";
  return (error.message.split("\n")[0] ?? "").trim() || error.code;
}

/** Why a run that ended is as it is, where that says more than its status. */
export function toldOf(run: RunRow): string {
  const said = cause(run.error);
  return said === run.status ? "" : said;
}

/** The cause where the step is named already. */
function causeIn(error: ApiError | null): string {
  return cause(error).replace(/^step '[^']*' failed: /, "");
}

export function waitText(wait: Wait, now: number): string {
  const due = wait.due ? `, ${until(wait.due, now)}` : "";
  switch (wait.kind) {
    case "task":
      return `waiting for ${wait.roles?.length ? wait.roles.join(" or ") : "somebody"}: ${wait.name}${due}`;
    case "timer":
      return wait.due ? `sleeping, wakes ${until(wait.due, now)}` : `sleeping`;
    case "signal":
      return `waiting for the signal ${wait.name}${due}`;
    case "child":
      return `waiting for ${wait.name}`;
    case "gate":
      return `waiting at ${wait.name}`;
    default:
      return wait.reason ?? `working on ${wait.name || wait.kind}`;
  }
}

/** A page's title is a sentence. */
export function sentence(run: RunDocument, now: number): string {
  switch (run.status) {
    case "completed":
      return "completed";
    case "failed":
    case "stalled":
      return `${run.status}${run.error?.where ? ` in ${run.error.where}: ${causeIn(run.error)}` : `: ${cause(run.error)}`}`;
    case "cancelled":
      return `cancelled${toldOf(run) ? `: ${toldOf(run)}` : ""}`;
    case "queued":
      return run.queued ? `in line at place ${run.queued.position.toLocaleString()} since ${span(Math.max(0, now - Date.parse(run.queued.since)))}` : "in line";
    default: {
      const first = run.waiting_for[0];
      const more = run.waiting_for.length - 1;
      return first === undefined ? run.status : `${waitText(first, now)}${more > 0 ? ` and ${more} more` : ""}`;
    }
  }
}

const OVER = new Set(["completed", "failed", "cancelled", "partial"]);

/** How long a run took, or takes so far; nothing where it has just ended and nobody said when yet. */
export function duration(run: RunRow, now: number): string {
  if (run.ended_at === null && OVER.has(run.status)) return "";
  const end = run.ended_at === null ? now : Date.parse(run.ended_at);
  return span(Math.max(0, end - Date.parse(run.started_at)));
}

export interface Change { path: string; before: Json | undefined; after: Json | undefined }

/** What differs between two states, leaf by leaf, in the order of their keys. */
export function changes(before: Json | undefined, after: Json | undefined, path = ""): Change[] {
  if (same(before, after)) return [];
  if (isMap(before) && isMap(after)) {
    const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
    return keys.flatMap((key) => changes(before[key], after[key], path === "" ? key : `${path}.${key}`));
  }
  if (Array.isArray(before) && Array.isArray(after) && before.length + after.length < 2000) {
    const length = Math.max(before.length, after.length);
    return Array.from({ length }, (_, n) => changes(before[n], after[n], `${path}[${n}]`)).flat();
  }
  return [{ path, before, after }];
}

function isMap(value: Json | undefined): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function same(one: Json | undefined, other: Json | undefined): boolean {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}

/** When a schedule starts runs, in words. */
export function whenText(schedule: ScheduleFields): string {
  if (schedule.every !== undefined) return `every ${schedule.every}`;
  if (schedule.cron !== undefined) return `${schedule.cron} (${schedule.timezone ?? "UTC"})`;
  return `once, ${schedule.at ?? "at no time"}`;
}

/** What was used of models, and what it cost where prices are known. */
export function usageText(usage: Usage): string {
  const tokens = `${usage.input_tokens.toLocaleString()} in, ${usage.output_tokens.toLocaleString()} out`;
  return usage.usd > 0 ? `${tokens} · ${money(usage.usd)}` : `${tokens} tokens`;
}

export function money(usd: number): string {
  return `$${usd.toFixed(usd > 0 && usd < 0.1 ? 4 : 2)}`;
}

/** What limits a workflow, in words. */
export function limitText(limits: { [key: string]: Json } | null): string {
  if (limits === null) return "not limited";
  const { concurrency, rate, queue, per } = limits;
  const said = [
    concurrency !== undefined && concurrency !== null && `${concurrency} at once`,
    rate !== undefined && rate !== null && `${rate} begin`,
    queue !== undefined && queue !== null && `${queue} in line`,
  ].filter((part) => part !== false);
  return `${said.join(", ")}${typeof per === "string" ? `, for each ${per.replace(/^\{\{\s*|\s*\}\}$/g, "")}` : ""}`;
}
