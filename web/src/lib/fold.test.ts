import { expect, test } from "vitest";

import { foldedParts, foldGraph, foldId, FOLD_ABOVE, isFolded, openFor, regions } from "./fold";
import type { Graph } from "./shapes";

function graph(count: number, edges: [number, number][], status: (n: number) => string = () => "idle"): Graph {
  return {
    title: "",
    nodes: Array.from({ length: count }, (_, n) => ({ id: `s${n}`, label: `s${n}\nnoop`, shape: "box", status: status(n), badge: "" })),
    edges: edges.map(([a, b]) => ({ source: `s${a}`, target: `s${b}`, label: "if", dashed: false, taken: a === 0 ? 2 : 0 })),
  };
}

const chain = (count: number): [number, number][] => Array.from({ length: count - 1 }, (_, n) => [n, n + 1]);

/** A long chain with a short cut at every tenth node, and a way back at every fiftieth. */
const long = (count: number): Graph => graph(count, [
  ...chain(count),
  ...Array.from({ length: Math.floor(count / 10) - 1 }, (_, n): [number, number] => [n * 10, n * 10 + 5]),
  ...Array.from({ length: Math.floor(count / 50) }, (_, n): [number, number] => [n * 50 + 9, n * 50]),
]);

/** How far one gets along edges that do not lead back: twice the same node would be a circle. */
function circles(found: Graph, order: Map<string, number>): number {
  return found.edges.filter((edge) => (order.get(edge.source) ?? 0) > (order.get(edge.target) ?? 0)).length;
}

test("a thousand nodes become a few dozen, and none is lost", () => {
  const whole = long(1000);
  const shown = foldGraph(whole, foldedParts(whole, new Set()));
  expect(shown.nodes.length).toBeLessThanOrEqual(40);
  const held = shown.nodes.flatMap((node) => (isFolded(node) ? node.members.map((one) => one.id) : [node.id]));
  expect(new Set(held)).toEqual(new Set(whole.nodes.map((node) => node.id)));
  expect(held).toHaveLength(1000);
  // The way stays: in the order of what they hold only loops that are open lead back.
  const order = new Map(shown.nodes.map((node, n) => [node.id, n]));
  expect(circles(shown, order)).toBe(0);
  expect(new Set(shown.edges.map((edge) => `${edge.source}>${edge.target}`)).size).toBe(shown.edges.length);
});

test("many branches of one node fold as well, and so do many that come from the same two", () => {
  const fan = graph(602, Array.from({ length: 600 }, (_, n): [number, number][] => [[0, n + 1], [n + 1, 601]]).flat());
  expect(foldGraph(fan, regions(fan)).nodes.length).toBeLessThanOrEqual(30);
  const layers = graph(600, Array.from({ length: 200 }, (_, n): [number, number][] => [[0, 200 + n], [1, 200 + n], [200 + n, 400 + n]]).flat());
  expect(foldGraph(layers, regions(layers)).nodes.length).toBeLessThanOrEqual(80);
});

test("a folded part says what is worst in it, and opens to what it holds", () => {
  const whole = graph(500, chain(500), (n) => (n < 250 ? "done" : n === 250 ? "failed" : "idle"));
  const open = new Set(openFor(whole, new Set(["s250"])));
  const closed = foldGraph(whole, foldedParts(whole, new Set()));
  expect(closed.nodes.filter((node) => node.status === "failed")).toHaveLength(1);
  expect(closed.nodes[0]).toMatchObject({ status: "done", label: "s0 … s20\n21 nodes" });
  const shown = foldGraph(whole, foldedParts(whole, open));
  expect(shown.nodes.some((node) => node.id === "s250")).toBe(true);
  expect(shown.nodes.length).toBeLessThan(60);
});

test("a part that is large itself opens to parts of its own", () => {
  const whole = graph(10_000, chain(10_000));
  const [first] = foldedParts(whole, new Set());
  expect(first?.length).toBeGreaterThan(FOLD_ABOVE);
  const opened = foldGraph(whole, foldedParts(whole, new Set([foldId(first ?? [])])));
  expect(opened.nodes.length).toBeLessThan(80);
  const deep = foldGraph(whole, foldedParts(whole, new Set(openFor(whole, new Set(["s5000"])))));
  expect(deep.nodes.some((node) => node.id === "s5000")).toBe(true);
  expect(deep.nodes.length).toBeLessThan(120);
});

test("what is small is not folded", () => {
  const whole = graph(FOLD_ABOVE, chain(FOLD_ABOVE));
  expect(foldedParts(whole, new Set())).toEqual([]);
  expect(openFor(whole, new Set(["s1"]))).toEqual([]);
});
