// Large graphs, folded: stretches with one way in become one node each, so that a thousand steps can be seen at once.

import type { Graph, GraphEdge, GraphNode } from "./shapes";

/** Above this many nodes a graph is folded, into about this many parts. */
export const FOLD_ABOVE = 120;
const PARTS = 24;
const LEAST = 3;

/** A node of a folded graph that stands for others. */
export interface Folded extends GraphNode { members: GraphNode[] }

export function isFolded(node: GraphNode): node is Folded {
  return "members" in node;
}

/** Nodes in an order in which every edge goes forward but those that close a loop. */
function ordered(graph: Graph): { order: string[]; before: Map<string, string[]> } {
  const after = new Map<string, string[]>(graph.nodes.map((node) => [node.id, []]));
  const entered = new Set<string>();
  for (const edge of graph.edges) {
    if (!after.has(edge.source) || !after.has(edge.target)) continue;
    after.get(edge.source)?.push(edge.target);
    if (edge.source !== edge.target) entered.add(edge.target);
  }
  const seen = new Set<string>();
  const ended: string[] = [];
  // Not by calling itself: a chain of ten thousand is deeper than the stack.
  const walk = (root: string): void => {
    if (seen.has(root)) return;
    seen.add(root);
    const path = [{ id: root, next: 0 }];
    for (let at = path.at(-1); at !== undefined; at = path.at(-1)) {
      const ways = after.get(at.id) ?? [];
      // The last way first: the first one then stands first in the order.
      const way = ways[ways.length - 1 - at.next];
      at.next += 1;
      if (way === undefined) {
        ended.push(at.id);
        path.pop();
      } else if (!seen.has(way)) {
        seen.add(way);
        path.push({ id: way, next: 0 });
      }
    }
  };
  for (const node of graph.nodes.toReversed()) if (!entered.has(node.id)) walk(node.id);
  for (const node of graph.nodes.toReversed()) walk(node.id);
  const order = ended.reverse();
  const place = new Map(order.map((id, n) => [id, n]));
  const before = new Map<string, string[]>(order.map((id) => [id, []]));
  for (const [source, targets] of after) {
    for (const target of targets) if ((place.get(source) ?? 0) < (place.get(target) ?? 0)) before.get(target)?.push(source);
  }
  return { order, before };
}

/** Divides a graph. Each node goes to the last of the parts it is reached from while there is room, else to those who are
 * reached from the same parts: so every edge leads to its own part or to a later one, loops aside. */
export function regions(graph: Graph): string[][] {
  const most = Math.max(8, Math.ceil(graph.nodes.length / PARTS));
  const { order, before } = ordered(graph);
  const parts: string[][] = [];
  const partOf = new Map<string, number>();
  const alike = new Map<string, number>();
  const room = (part: number | undefined): part is number => part !== undefined && (parts[part]?.length ?? most) < most;
  for (const id of order) {
    const from = [...new Set((before.get(id) ?? []).map((one) => partOf.get(one) ?? 0))].sort((a, b) => a - b);
    const key = from.join(" ");
    const last = from.at(-1);
    const kin = alike.get(key);
    const part = room(last) ? last : room(kin) ? kin : parts.push([]) - 1;
    if (part !== last) alike.set(key, part);
    parts[part]?.push(id);
    partOf.set(id, part);
  }
  return parts.filter((part) => part.length >= LEAST);
}

function within(graph: Graph, ids: string[]): Graph {
  const kept = new Set(ids);
  return { ...graph, nodes: graph.nodes.filter((node) => kept.has(node.id)), edges: graph.edges.filter((edge) => kept.has(edge.source) && kept.has(edge.target)) };
}

export function foldId(part: string[]): string {
  return `fold ${part.length} ${part[0]}`;
}

/** The parts that are folded: those of the graph, and in the place of an open one that is large itself, its own. */
export function foldedParts(graph: Graph, open: ReadonlySet<string>): string[][] {
  if (graph.nodes.length <= FOLD_ABOVE) return [];
  return regions(graph).flatMap((part) => (open.has(foldId(part)) ? foldedParts(within(graph, part), open) : [part]));
}

/** What to open so that these nodes are seen. */
export function openFor(graph: Graph, ids: ReadonlySet<string>): string[] {
  if (graph.nodes.length <= FOLD_ABOVE) return [];
  return regions(graph).filter((part) => part.some((id) => ids.has(id))).flatMap((part) => [foldId(part), ...openFor(within(graph, part), ids)]);
}

const WORST = ["failed", "stalled", "running", "waiting", "pending"];

function folded(id: string, members: GraphNode[]): Folded {
  const first = members[0];
  const last = members.at(-1);
  const name = (node: GraphNode | undefined): string => node?.label.split("\n")[0] || node?.shape || "";
  const done = members.filter((node) => node.status === "done").length;
  const status = WORST.find((one) => members.some((node) => node.status === one)) ?? (done > 0 ? "done" : "idle");
  return {
    id, label: `${name(first)} … ${name(last)}\n${members.length} nodes`, shape: "fold", status,
    badge: done > 0 && done < members.length ? `${done} done` : "", members,
  };
}

/** The graph with each of these parts as one node. Edges between the same two nodes become one. */
export function foldGraph(graph: Graph, parts: string[][]): Graph {
  const known = new Map(graph.nodes.map((node) => [node.id, node]));
  const stands = new Map<string, Folded>();
  for (const part of parts) {
    const fold = folded(foldId(part), part.flatMap((id) => known.get(id) ?? []));
    for (const id of part) stands.set(id, fold);
  }
  const nodes = [...new Set(graph.nodes.map((node) => stands.get(node.id) ?? node))];
  const edges: GraphEdge[] = [];
  const merged = new Map<string, GraphEdge>();
  for (const edge of graph.edges) {
    const source = stands.get(edge.source);
    const target = stands.get(edge.target);
    if (source === undefined && target === undefined) {
      edges.push(edge);
      continue;
    }
    if (source === target) continue;
    const ends = { source: source?.id ?? edge.source, target: target?.id ?? edge.target };
    const key = JSON.stringify(ends);
    const old = merged.get(key);
    merged.set(key, { ...ends, label: "", dashed: edge.dashed && (old?.dashed ?? true), taken: Math.max(edge.taken, old?.taken ?? 0) });
  }
  return { ...graph, nodes, edges: [...edges, ...merged.values()] };
}
