// Where nodes stand: ELK's layered layout, loaded when the first graph is shown, in a worker of its own.

import type { ELK, ElkNode } from "elkjs/lib/elk-api";

import type { Graph } from "./api";
import { isFolded } from "./fold";
import { patient } from "./patient";

export interface Size { width: number; height: number }

export interface Placed extends Size {
  nodes: { id: string; x: number; y: number; width: number; height: number }[];
  edges: { id: string; points: { x: number; y: number }[]; label: { x: number; y: number } | null }[];
}

export const NODE_HEIGHT = 40;

export function widthOf(label: string, badge: string): number {
  return Math.min(320, Math.max(120, 64 + label.length * 7.4 + badge.length * 6.5));
}

let engine: Promise<ELK> | null = null;

async function elk(): Promise<ELK> {
  engine ??= (async () => {
    const [{ default: Elk }, { default: address }] = await patient(() =>
      Promise.all([import("elkjs/lib/elk-api.js"), import("elkjs/lib/elk-worker.min.js?url")]));
    return new Elk({ workerUrl: address, workerFactory: (url?: string) => new Worker(url ?? address) });
  })();
  return engine;
}

const TRIAL: Graph = {
  title: "",
  nodes: ["a", "b", "c", "d"].map((id) => ({ id, label: id, shape: "", status: "idle", badge: "" })),
  edges: ["ab", "bc", "cd", "ac"].map((ends) => ({ source: ends.charAt(0), target: ends.charAt(1), label: "", dashed: false, taken: 0 })),
};

/** Loads the engine and lays something small out, so that it is ready when the first graph has come: its first layout takes
 * several times as long as its second. */
export function warm(): void {
  void placed(TRIAL, "WRAPPED", { width: 4, height: 2 });
}

// Above this many nodes one layout is work enough.
const BOTH_MAX = 80;
// And above this many it is made with less care: a thousand nodes in one second rather than four.
const MANY = 300;
const QUICK = { "elk.layered.nodePlacement.strategy": "BRANDES_KOEPF", "elk.layered.layering.strategy": "LONGEST_PATH", "elk.layered.thoroughness": "1" };

/** Whether the other layout shows its nodes larger in a box; a little larger is not worth reading downwards. */
export function better(first: Size, other: Size, box: Size): boolean {
  const zoom = (size: Size): number => Math.min(box.width / size.width, box.height / size.height, 1.1);
  return zoom(other) > zoom(first) * 1.15;
}

type Way = "RIGHT" | "DOWN" | "WRAPPED";

/** From left to right, as one reads, or downwards where that is easier to see. What is folded is long, and is wrapped as
 * lines of text are. */
export async function layout(graph: Graph, box: Size): Promise<Placed> {
  if (graph.nodes.length > BOTH_MAX) return placed(graph, "DOWN", box);
  if (graph.nodes.some(isFolded)) return placed(graph, "WRAPPED", box);
  const [right, down] = await Promise.all([placed(graph, "RIGHT", box), placed(graph, "DOWN", box)]);
  return better(right, down, box) ? down : right;
}

async function placed(graph: Graph, way: Way, box: Size): Promise<Placed> {
  const asked: ElkNode = {
    id: "root",
    layoutOptions: {
      ...(graph.nodes.length > MANY ? QUICK : {}),
      "elk.algorithm": "layered",
      "elk.direction": way === "DOWN" ? "DOWN" : "RIGHT",
      ...(way === "WRAPPED" ? { "elk.layered.wrapping.strategy": "MULTI_EDGE", "elk.aspectRatio": String(box.width / box.height) } : {}),
      "elk.edgeRouting": "ORTHOGONAL",
      "elk.layered.spacing.nodeNodeBetweenLayers": "56",
      "elk.spacing.nodeNode": "28",
      "elk.spacing.edgeLabel": "6",
      "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
    },
    children: graph.nodes.map((node) => ({ id: node.id, width: widthOf(node.label, node.badge) + (isFolded(node) ? 28 : 0), height: NODE_HEIGHT })),
    edges: graph.edges.map((edge, n) => ({
      id: `e${n}`,
      sources: [edge.source],
      targets: [edge.target],
      labels: edge.label === "" ? [] : [{ text: edge.label, width: Math.min(180, edge.label.length * 6.4 + 8), height: 16 }],
    })),
  };
  const found = await (await elk()).layout(asked);
  return {
    width: found.width ?? 1,
    height: found.height ?? 1,
    nodes: (found.children ?? []).map((node) => ({
      id: node.id, x: node.x ?? 0, y: node.y ?? 0, width: node.width ?? 120, height: node.height ?? NODE_HEIGHT,
    })),
    edges: (found.edges ?? []).map((edge) => {
      const section = edge.sections?.[0];
      const label = edge.labels?.[0];
      return {
        id: edge.id,
        points: section === undefined ? [] : [section.startPoint, ...(section.bendPoints ?? []), section.endPoint],
        label: label?.x === undefined || label.y === undefined
          ? null : { x: label.x + (label.width ?? 0) / 2, y: label.y + (label.height ?? 0) / 2 },
      };
    }),
  };
}

/** A line through points with rounded corners. */
export function path(points: { x: number; y: number }[], radius = 6): string {
  const [first, ...rest] = points;
  if (first === undefined) return "";
  let text = `M${first.x} ${first.y}`;
  rest.forEach((point, n) => {
    const before = points[n] ?? first;
    const after = rest[n + 1];
    if (after === undefined) {
      text += `L${point.x} ${point.y}`;
      return;
    }
    const into = Math.min(radius, Math.hypot(point.x - before.x, point.y - before.y) / 2);
    const out = Math.min(radius, Math.hypot(after.x - point.x, after.y - point.y) / 2);
    const near = towards(point, before, into);
    const far = towards(point, after, out);
    text += `L${near.x} ${near.y}Q${point.x} ${point.y} ${far.x} ${far.y}`;
  });
  return text;
}

function towards(from: { x: number; y: number }, to: { x: number; y: number }, by: number): { x: number; y: number } {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) * by) / length, y: from.y + ((to.y - from.y) * by) / length };
}
