// What is done to many runs at once: to which, and as what command.

import type { Json, RunFilter, Status } from "./shapes";

export type BulkAction = "retry" | "cancel" | "signal";

const OPEN: Status[] = ["running", "waiting", "stalled", "queued"];
const APPLIES: Record<BulkAction, Status[]> = { retry: ["failed", "stalled"], cancel: OPEN, signal: OPEN };

/** Whether an action does anything to a run in that status; the others are left out and counted. */
export function applies(action: BulkAction, status: Status): boolean {
  return APPLIES[action].includes(status);
}

/** A filter of the list, narrowed to what an action does something to; null if that leaves nothing. */
export function narrowed(action: BulkAction, filter: RunFilter): RunFilter | null {
  const asked = filter.status ?? [];
  const status = APPLIES[action].filter((one) => asked.length === 0 || asked.includes(one));
  return status.length === 0 ? null : { ...filter, status };
}

/** One argument of a shell, quoted where it must be. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** The same from a terminal, whole: it can be copied. */
export function bulkCommand(action: BulkAction, ids: string[], name = "", data?: Json): string {
  const words = ["treadle", action, ...ids.map(quoted)];
  if (action !== "signal") return words.join(" ");
  return [...words, quoted(name || "NAME"), ...(data === undefined ? [] : ["--data", quoted(JSON.stringify(data))])].join(" ");
}

/** The same for all that match; nothing where the command knows no such filter. */
export function filterCommand(action: BulkAction, { search, status = [], workflow, since, until }: RunFilter): string | null {
  if (search !== undefined || action === "signal") return null;
  const named = Object.entries({ workflow, since, until }).flatMap(([option, value]) => (value === undefined ? [] : [`--${option}`, quoted(value)]));
  return ["treadle", action, ...status.flatMap((one) => ["--status", one]), ...named].join(" ");
}

export function parsedJson(written: string): { ok: boolean; value: Json } {
  if (written.trim() === "") return { ok: true, value: null };
  try {
    return { ok: true, value: JSON.parse(written) as Json };
  } catch {
    return { ok: false, value: null };
  }
}
