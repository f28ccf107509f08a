// The picture of a durable function is what happened: what it awaited, in order. How each came out stands in its trace.

import type { Graph, TraceStep } from "./shapes";

const WAITS = new Set(["timer", "task", "signal", "child"]);

/** What a node of such a picture is called in the trace: its label without its kind. */
export function awaited(label: string): string {
  return label.slice(label.indexOf(" ") + 1);
}

function stateOf(step: TraceStep | undefined, at: number | null): string {
  if (step === undefined || (at !== null && step.seq > at)) return "idle";
  if (step.settled === null || (at !== null && step.settled > at)) return WAITS.has(step.kind) ? "waiting" : "running";
  return step.status === "ok" ? "done" : step.status === "cancelled" ? "cancelled" : "failed";
}

/** The picture with states. The second await of a name is the second of that name in the trace. */
export function happened(graph: Graph, steps: TraceStep[], at: number | null): Graph {
  const byName = new Map<string, TraceStep[]>();
  for (const step of steps) byName.set(step.name, [...(byName.get(step.name) ?? []), step]);
  const nodes = graph.nodes.map((node) => {
    if (node.shape === "start") return { ...node, status: "done" };
    const step = byName.get(awaited(node.label))?.shift();
    return { ...node, status: stateOf(step, at) };
  });
  const known = new Map(nodes.map((node) => [node.id, node]));
  return { ...graph, nodes, edges: graph.edges.map((edge) => ({ ...edge, taken: known.get(edge.target)?.status === "idle" ? 0 : 1 })) };
}
