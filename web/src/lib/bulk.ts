// What is done to many runs at once: to which, and as what command.

import type { Json, Status } from "./shapes";

export type BulkAction = "retry" | "cancel" | "signal";

const OVER = new Set<Status>(["completed", "failed", "cancelled", "partial"]);

/** Whether an action does anything to a run in that status; the others are left out and counted. */
export function applies(action: BulkAction, status: Status): boolean {
  return action === "retry" ? status === "failed" || status === "stalled" : !OVER.has(status);
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

export function parsedJson(written: string): { ok: boolean; value: Json } {
  if (written.trim() === "") return { ok: true, value: null };
  try {
    return { ok: true, value: JSON.parse(written) as Json };
  } catch {
    return { ok: false, value: null };
  }
}
