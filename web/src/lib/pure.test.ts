import { expect, test } from "vitest";

import { fields, valueOf } from "../components/SchemaForm";
import { frameReader, queryText, type RunDocument, type RunRow, type Task, type TraceStep, type Worker } from "./api";
import { applies, bulkCommand, filterCommand, narrowed } from "./bulk";
import { type Listed, repainted, unseen } from "./changes";
import { changes, duration, limitText, sentence } from "./describe";
import { folded, lines } from "./diff";
import { explained, hasPage, marked } from "./errors";
import { PAGES } from "./errorPages";
import { happened } from "./happened";
import { byWorkflow, fitting, perHour, stretches } from "./history";
import { better, path } from "./layout";
import { pools } from "./pools";
import { isDue, told, urgent } from "./tasks";
import { ago, span, until } from "./time";
import { ticks, timeline } from "./timeline";
import { pieces, title } from "./transcript";
import { canonical, kept, parsed } from "./views";

const NOW = Date.parse("2026-11-15T12:00:00Z");

test("a span has its two largest units", () => {
  expect([0.4, 20, 2400, 65_000, 3_600_000, 187_200_000].map(span)).toEqual(["0.4 ms", "20 ms", "2.4 s", "1 min 5 s", "1 h", "2 d 4 h"]);
});

test("how long ago is told in one unit", () => {
  expect(["2026-11-15T11:59:15Z", "2026-11-15T11:57:10Z", "2026-11-14T08:00:00Z"].map((at) => ago(at, NOW))).toEqual(["45 s ago", "2 min ago", "1 d ago"]);
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
  const queued = { status: "queued", error: null, waiting_for: [], queued: { position: 3, since: "2026-11-15T11:58:00Z" } };
  expect(sentence(queued as unknown as RunDocument, NOW)).toBe("in line at place 3 since 2 min");
  const failed = { status: "failed", error: { message: "step 'charge' failed: card declined\nmore", code: "X", class: "user", where: "charge" }, waiting_for: [] };
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

test("what is needed and not described has a field; what is no JSON is text", () => {
  const found = fields({ type: "object", required: ["id", "lines"], properties: { lines: { type: "array" } } });
  expect(found.map((field) => [field.name, field.kind, field.required])).toEqual([["lines", "json", true], ["id", "any", true]]);
  expect(valueOf(found, { lines: "[1]", id: "o-7" }).value).toEqual({ lines: [1], id: "o-7" });
  expect(valueOf(found, { lines: "[1]", id: "7" }).value).toEqual({ lines: [1], id: 7 });
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

const HISTORY = {
  since: "2026-11-15T11:00:00Z", until: "2026-11-15T11:02:30Z", width_s: 60,
  items: [
    { at: "2026-11-15T11:00:00Z", workflow: "a", status: "completed", count: 3, mean_ms: 10 },
    { at: "2026-11-15T11:02:00Z", workflow: "a", status: "failed", count: 1, mean_ms: 50 },
    { at: "2026-11-15T11:02:00Z", workflow: "b", status: "waiting", count: 6, mean_ms: null },
  ],
};

test("time goes on where nothing began", () => {
  expect(stretches(HISTORY).map((one) => one.total)).toEqual([3, 0, 7]);
  expect(stretches(HISTORY)[2]?.counts).toEqual({ failed: 1, waiting: 6 });
});

test("workflows are counted, the busiest first; what has not ended took no time yet", () => {
  const found = byWorkflow(HISTORY);
  expect(found.map((one) => [one.workflow, one.runs, one.failed, one.meanMs])).toEqual([["b", 6, 0, null], ["a", 4, 1, 20]]);
  expect(perHour(HISTORY)).toBeCloseTo(240);
});

test("a view is the same whatever the order of its filters, and its name stands for one", () => {
  expect(canonical("since=24h&status=failed&search=")).toBe(canonical("status=failed&since=24h"));
  const first = kept([], { name: "mine", query: "status=failed" });
  expect(kept(first, { name: "mine", query: "since=1h" })).toEqual([{ name: "mine", query: "since=1h" }]);
});

test("what somebody else wrote into the storage is no view", () => {
  expect([parsed(null), parsed("{"), parsed('{"a":1}'), parsed('[{"name":1},{"name":"x","query":"status=failed"}]')]).toEqual([[], [], [], [{ name: "x", query: "status=failed" }]]);
});

const row = (id: string, status: string): RunRow => ({ id, status, started_at: "2026-11-15T11:59:00Z", ended_at: null }) as unknown as RunRow;
const listed = (...rows: RunRow[]): Listed => ({ pages: [{ items: rows, next: null }], pageParams: [undefined] });

test("a changed run is repainted in its place; what did not change stays the same object", () => {
  const pages = listed(row("a", "running"), row("b", "running"));
  const next = repainted(pages, new Map([["b", "failed"]]));
  expect(next.pages[0]?.items.map((one) => one.status)).toEqual(["running", "failed"]);
  expect(next.pages[0]?.items[0]).toBe(pages.pages[0]?.items[0]);
  expect(repainted(pages, new Map([["c", "failed"]]))).toBe(pages);
  expect(unseen(pages, new Map([["b", "failed"], ["c", "failed"]]))).toBe(1);
});

test("a run that has just ended has no duration until it is known", () => {
  expect([duration(row("a", "running"), NOW), duration(row("a", "completed"), NOW)]).toEqual(["1 min", ""]);
});

test("an action leaves out whom it does nothing to, and its command is quoted", () => {
  expect([applies("cancel", "completed"), applies("cancel", "stalled"), applies("retry", "failed"), applies("retry", "waiting"), applies("signal", "waiting")]).toEqual([false, true, true, false, true]);
  expect(bulkCommand("cancel", ["a", "it's"])).toBe("treadle cancel a 'it'\\''s'");
  expect(bulkCommand("signal", ["a"], "go", { x: 1 })).toBe(`treadle signal a go --data '{"x":1}'`);
});

test("what began lately is shown over an hour, the rest over a day", () => {
  const begun = (at: string) => ({ ...HISTORY, until: "2026-11-15T12:00:00Z", items: [{ at, workflow: "a", status: "completed", count: 1, mean_ms: 1 }] });
  expect([begun("2026-11-15T11:30:00Z"), begun("2026-11-15T03:00:00Z"), undefined].map(fitting)).toEqual(["1h", "24h", "24h"]);
});

test("a layout is chosen by how large its nodes are shown", () => {
  expect(better({ width: 3000, height: 100 }, { width: 300, height: 900 }, { width: 900, height: 380 })).toBe(true);
  expect(better({ width: 800, height: 100 }, { width: 300, height: 900 }, { width: 900, height: 380 })).toBe(false);
});

test("an answer of a model is read piece by piece, and what is empty is left out", () => {
  const said = { seq: 1, at: "", kind: "turn", node: "gather", turn: 2, instruction: "look", context: {}, answer: { text: "", calls: [{ tool: "read", input: { path: "a" } }], data: null } };
  expect(title(said)).toBe("gather · turn 2");
  expect(pieces(said)).toEqual({ asked: [{ name: "instruction", value: "look" }], more: [], answered: [{ name: "calls read", value: { path: "a" } }] });
});

test("two texts are told apart line by line, with both numbers", () => {
  const found = lines("a\nb\nc\nd", "a\nx\nc\nd\ne");
  expect(found.map((line) => `${line.kind} ${line.text} ${line.before ?? "-"} ${line.after ?? "-"}`)).toEqual([
    "same a 1 1", "was b 2 -", "is x - 2", "same c 3 3", "same d 4 4", "is e - 5",
  ]);
  expect(lines("a", "a").every((line) => line.kind === "same")).toBe(true);
});

test("what did not change is folded away but for a few lines around", () => {
  const long = Array.from({ length: 20 }, (_, n) => String(n));
  const found = folded(lines(long.join("\n"), [...long.slice(0, 10), "new", ...long.slice(10)].join("\n")), 1);
  expect(found.map((line) => line?.text ?? null)).toEqual([null, "9", "new", "10", null]);
});

test("a code is explained by its own page, or by its row in a table", () => {
  expect(explained(PAGES, "STORE_FULL")?.parts.map((part) => part.heading)).toEqual(["Cause", "Remedy"]);
  const pages = { "x/server.md": "| code | cause | remedy |\n|---|---|---|\n| `A_B` | it `broke` | mend a \\| b |" };
  expect(explained(pages, "A_B")?.parts).toEqual([{ heading: "cause", text: "it `broke`" }, { heading: "remedy", text: "mend a | b" }]);
  expect(explained(pages, "NOBODY")).toBeNull();
  expect([hasPage("A_B"), hasPage("ValueError")]).toEqual([true, false]);
  expect(marked("it `broke` twice")).toEqual([{ code: false, text: "it " }, { code: true, text: "broke" }, { code: false, text: " twice" }]);
});

test("the codes that the server refuses with have pages", () => {
  for (const code of ["INPUT_INVALID", "RUN_NOT_FOUND", "DEFINITION_NOT_FOUND", "FORBIDDEN", "DRAINING"]) expect(explained(PAGES, code), code).not.toBeNull();
});

test("bulk work by a filter is about those it changes, and has its command where there is one", () => {
  expect(narrowed("retry", { workflow: "order" })).toEqual({ workflow: "order", status: ["failed", "stalled"] });
  expect(narrowed("retry", { status: ["stalled", "completed"] })).toEqual({ status: ["stalled"] });
  expect(narrowed("cancel", { status: ["completed"] })).toBeNull();
  expect(filterCommand("cancel", { workflow: "a b", status: ["waiting"], since: "24h" })).toBe("treadle cancel --status waiting --workflow 'a b' --since 24h");
  expect(filterCommand("cancel", { search: "x" })).toBeNull();
});

test("limits are told in words", () => {
  expect(limitText({ concurrency: 2, rate: "10/s", queue: 0, per: "{{ input.customer }}" })).toBe("2 at once, 10/s begin, 0 in line, for each input.customer");
  expect(limitText(null)).toBe("not limited");
});

test("the picture of a function shows how each of its awaits came out, also then", () => {
  const node = (id: string, label: string, shape = "step") => ({ id, label, shape, status: "idle", badge: "" });
  const graph = { title: "f", nodes: [node("start", "f", "start"), node("0", "step pay"), node("1", "step pay"), node("2", "step ship")], edges: [{ source: "1", target: "2", label: "", dashed: false, taken: 0 }] };
  const steps = [step("pay", 1, "2026-11-15T11:59:00Z", "2026-11-15T11:59:10Z"), step("pay", 3, "2026-11-15T11:59:20Z", null)];
  const states = (at: number | null): string[] => happened(graph, steps, at).nodes.map((one) => one.status);
  expect(states(null)).toEqual(["done", "done", "running", "idle"]);
  expect(states(1)).toEqual(["done", "running", "idle", "idle"]);
  expect(happened(graph, steps, null).edges[0]?.taken).toBe(0);
});
