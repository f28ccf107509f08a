import { expect, test } from "vitest";

import { fields, valueOf } from "../components/SchemaForm";
import { tally } from "../pages/Overview";
import { frameReader, queryText, type RunDocument, type Task, type TraceStep, type Worker } from "./api";
import { changes, sentence } from "./describe";
import { path } from "./layout";
import { pools } from "./pools";
import { isDue, told, urgent } from "./tasks";
import { span, until } from "./time";
import { ticks, timeline } from "./timeline";

const NOW = Date.parse("2026-11-15T12:00:00Z");

test("a span has its two largest units", () => {
  expect([0.4, 20, 2400, 65_000, 3_600_000, 187_200_000].map(span)).toEqual(["0.4 ms", "20 ms", "2.4 s", "1 min 5 s", "1 h", "2 d 4 h"]);
});

test("what is due is ahead or overdue", () => {
  expect(until("2026-11-15T12:01:00Z", NOW)).toBe("in 1 min");
  expect(until("2026-11-15T11:00:00Z", NOW)).toBe("1 h overdue");
});

test("frames are read however the network cuts them", () => {
  const read = frameReader();
  const text = ': still here\n\nid: 7\nevent: step.done\ndata: {"a":1}\n\nevent: end\ndata: {}\n\n';
  const found = [...text].flatMap((letter) => read(letter));
  expect(found).toEqual([{ id: "7", event: "step.done", data: '{"a":1}' }, { id: null, event: "end", data: "{}" }]);
});

test("empty filters are not in the address", () => {
  expect(queryText({ status: "failed", workflow: "", since: undefined })).toBe("?status=failed");
});

test("changes are told leaf by leaf", () => {
  expect(changes({ a: 1, b: { c: [1, 2] } }, { a: 1, b: { c: [1, 3] }, d: 4 })).toEqual([
    { path: "b.c[1]", before: 2, after: 3 },
    { path: "d", before: undefined, after: 4 },
  ]);
});

test("a title is a sentence", () => {
  const run = { status: "waiting", error: null, waiting_for: [{ kind: "task", id: "1", name: "review", roles: ["boss"] }, { kind: "timer", id: "2", name: "" }] };
  expect(sentence(run as unknown as RunDocument, NOW)).toBe("waiting for boss: review and 1 more");
  const failed = { status: "failed", error: { message: "card declined\nmore", code: "X", class: "user", where: "charge" }, waiting_for: [] };
  expect(sentence(failed as unknown as RunDocument, NOW)).toBe("failed in charge: card declined");
});

const step = (name: string, seq: number, from: string, to: string | null): TraceStep => ({
  id: `${name}${seq}`, kind: "step", name, seq, opened_at: from, status: to === null ? "open" : "ok", settled: to === null ? null : seq + 1, settled_at: to, ms: null, error: null,
});

test("a timeline has one row a step and one bar an attempt; a failed step ends red", () => {
  const found = timeline([
    step("a", 1, "2026-11-15T11:59:00Z", "2026-11-15T11:59:10Z"),
    step("a", 3, "2026-11-15T11:59:20Z", "2026-11-15T11:59:30Z"),
    step("b", 5, "2026-11-15T11:59:30Z", null),
  ], NOW, null, new Set(["a"]));
  expect(found.rows.map((row) => [row.name, row.bars.map((bar) => bar.status)])).toEqual([["a", ["ok", "error"]], ["b", ["open"]]]);
  expect(found.end).toBe(NOW);
});

test("a timeline of the past shows what was open then", () => {
  const found = timeline([step("a", 1, "2026-11-15T11:59:00Z", "2026-11-15T11:59:10Z"), step("b", 4, "2026-11-15T11:59:30Z", null)], NOW, 1);
  expect(found.rows.map((row) => [row.name, row.bars[0]?.status])).toEqual([["a", "open"]]);
});

test("an axis has a few round marks", () => {
  expect(ticks(430)).toEqual([0, 100, 200, 300, 400]);
  expect(ticks(60_000).length).toBeLessThan(8);
});

test("a form has a field for each simple property and refuses what is missing", () => {
  const found = fields({ type: "object", required: ["ok", "name"], properties: { ok: { type: "boolean" }, name: { type: "string" }, age: { type: "integer" }, tags: { type: "array" }, size: { enum: ["s", "m"] } } });
  expect(found.map((field) => field.kind)).toEqual(["boolean", "text", "number", "json", "choice"]);
  expect(valueOf(found, { age: "x", tags: "[", size: "m" })).toEqual({ value: { ok: false, size: "m" }, wrong: { name: "is needed", age: "is a number", tags: "is JSON" } });
  expect(valueOf(found, { ok: true, name: "ann", age: "7", tags: "[1]" }).value).toEqual({ ok: true, name: "ann", age: 7, tags: [1] });
});

test("the most frequent come first", () => {
  expect(tally(["a", "b", "b"])).toEqual([{ name: "b", count: 2 }, { name: "a", count: 1 }]);
});

test("a line turns its corners softly", () => {
  expect(path([{ x: 0, y: 0 }, { x: 20, y: 0 }, { x: 20, y: 20 }])).toBe("M0 0L14 0Q20 0 20 6L20 20");
});

const worker = (name: string, served: string[], busy: number, status = "live"): Worker => ({ id: name, name, pools: served, concurrency: 4, busy, status });

test("a pool has the workers that serve it; one that takes everything counts everywhere, a lost one nowhere", () => {
  const found = pools([worker("in", ["*"], 1), worker("gpu-1", ["gpu"], 3), worker("gone", ["gpu"], 4, "lost")], { gpu: 7, mail: 2 });
  expect(found).toEqual([
    { name: "default", workers: 1, busy: 1, slots: 4, queued: 0 },
    { name: "gpu", workers: 2, busy: 4, slots: 8, queued: 7 },
    { name: "mail", workers: 1, busy: 1, slots: 4, queued: 2 },
  ]);
});

test("work that waits in a pool that nobody serves is seen", () => {
  expect(pools([], { gpu: 1 })).toEqual([{ name: "gpu", workers: 0, busy: 0, slots: 0, queued: 1 }]);
});

const task = (id: string, due: string | null, created = "2026-11-15T10:00:00Z"): Task =>
  ({ id, due, created_at: created, roles: [], assignee: null, status: "open", history: [] }) as unknown as Task;

test("the most urgent task comes first, what has no deadline last", () => {
  const found = [task("c", null), task("b", "2026-11-17T00:00:00Z"), task("a", "2026-11-15T11:00:00Z")];
  expect(urgent(found).map((one) => one.id)).toEqual(["a", "b", "c"]);
  expect(found.filter((one) => isDue(one, "overdue", NOW)).map((one) => one.id)).toEqual(["a"]);
  expect(found.filter((one) => isDue(one, "none", NOW)).map((one) => one.id)).toEqual(["c"]);
});

test("what happened to a task is told in words", () => {
  expect([{ event: "claimed", by: "ann" }, { event: "assigned", by: "ann", to: "bob" }, { event: "commented", by: "bob", text: "why?" }, { event: "expired" }].map(told))
    .toEqual(["claimed by ann", "ann gave it to bob", "bob: why?", "expired"]);
});
