// An entry of an agent's transcript, taken apart for reading.

import type { Json, Said } from "./shapes";

export interface Piece { name: string; value: Json }

const HEAD = new Set(["seq", "at", "answered_at", "kind", "node", "iteration", "attempt", "turn", "model", "answer", "error", "open", "usage", "by", "run", "tool"]);
// What is long and mostly the same is folded away.
const GIVEN = new Set(["context", "tools", "output_schema"]);

export function title(said: Said): string {
  const what = said.kind === "tool" && typeof said["tool"] === "string" ? `tool ${said["tool"]}` : said.kind === "turn" ? `turn ${said.turn ?? 1}` : said.kind;
  const again = (said.iteration ?? 1) > 1 ? `, visit ${said.iteration}` : "";
  return `${said.node ? `${said.node} · ` : ""}${what}${again}`;
}

/** What was asked, what was answered, and what was given along with the question. Empty parts are left out. */
export function pieces(said: Said): { asked: Piece[]; answered: Piece[]; more: Piece[] } {
  const rest = Object.entries(said).filter(([key, value]) => !HEAD.has(key) && !empty(value));
  const named = ([name, value]: [string, Json | undefined]): Piece => ({ name, value: value ?? null });
  return {
    asked: rest.filter(([key]) => !GIVEN.has(key)).map(named),
    more: rest.filter(([key]) => GIVEN.has(key)).map(named),
    answered: answer(said),
  };
}

function answer(said: Said): Piece[] {
  const given = said.answer;
  if (given === undefined || given === null) return [];
  const by = typeof said["by"] === "string" ? `answered by ${said["by"]}` : "";
  if (said.kind !== "turn" || typeof given !== "object" || Array.isArray(given)) return [{ name: by, value: given }];
  const { text, calls, data } = given;
  const called = Array.isArray(calls) ? calls.map((call): Piece => {
    const { tool, name, input } = call as { tool?: string; name?: string; input?: Json };
    return { name: `calls ${tool ?? name ?? "a tool"}`, value: input ?? null };
  }) : [];
  const found: Piece[] = [{ name: "", value: text ?? null }, ...called, { name: "result", value: data ?? null }];
  return found.filter((piece) => !empty(piece.value));
}

function empty(value: Json | undefined): boolean {
  if (value === undefined || value === null || value === "") return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}

/** The ways a route may be chosen from. */
export function isChoices(value: Json): value is { id: string; description: string }[] {
  return Array.isArray(value) && value.length > 0 && value.every((one) => typeof one === "object" && one !== null && !Array.isArray(one) && typeof one["id"] === "string" && typeof one["description"] === "string");
}

/** A few names with plain values: read better as lines than as JSON. */
export function isFlat(value: Json): value is { [key: string]: Json } {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const parts = Object.values(value);
  return parts.length > 0 && parts.length <= 12 && parts.every((part) => typeof part !== "object" || part === null);
}
