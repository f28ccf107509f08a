import {
  BaseEdge, Controls, EdgeLabelRenderer, Handle, MarkerType, MiniMap, Position, ReactFlow, type Edge, type EdgeProps, type Node, type NodeProps,
} from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";

import type { Graph, GraphNode } from "../lib/api";
import { layout, path } from "../lib/layout";
import { Loading } from "./bits";
import { StatusMark } from "./Status";

type Placed = Node<{ node: GraphNode; chosen: boolean }, "step">;
type Line = Edge<{ points: { x: number; y: number }[]; text: string; at: { x: number; y: number } | null }, "line">;

function StepNode({ data }: NodeProps<Placed>) {
  const { node, chosen } = data;
  const [name, kind] = node.label.split("\n");
  const said = node.status === "idle" ? name || node.shape : `${name || node.shape}, ${node.status}`;
  return (
    <div className={`node n-${node.status} shape-${node.shape}${chosen ? " selected" : ""}`} role="group" aria-label={said} title={node.label}>
      <Handle type="target" position={Position.Left} isConnectable={false} style={{ opacity: 0 }} />
      <StatusMark status={node.status} />
      <span className="nowrap">{name || node.shape}</span>
      {kind && <span className="soft nowrap">{kind}</span>}
      {node.badge && <span className="badge">{node.badge}</span>}
      <Handle type="source" position={Position.Right} isConnectable={false} style={{ opacity: 0 }} />
    </div>
  );
}

function LineEdge({ id, data, markerEnd, style }: EdgeProps<Line>) {
  return (
    <>
      <BaseEdge id={id} path={path(data?.points ?? [])} {...(markerEnd ? { markerEnd } : {})} {...(style ? { style } : {})} />
      {data?.text && data.at && (
        <EdgeLabelRenderer>
          <span
            className="soft nowrap"
            title={data.text}
            style={{
              position: "absolute", transform: `translate(-50%, -50%) translate(${data.at.x}px, ${data.at.y}px)`, fontSize: 11,
              background: "var(--bg)", padding: "0 3px", maxWidth: 180,
            }}
          >
            {data.text}
          </span>
        </EdgeLabelRenderer>
      )}
    </>
  );
}

const READABLE = 0.75;
const COLOURS: Record<string, string> = { done: "var(--completed)", failed: "var(--failed)", running: "var(--running)", waiting: "var(--waiting)", stalled: "var(--stalled)" };
const ACTIVE = new Set(["failed", "running", "stalled", "waiting", "pending"]);

function boxOf(place: HTMLElement | null): { width: number; height: number } {
  return { width: place?.clientWidth || 900, height: place?.clientHeight || 380 };
}

const nodeTypes = { step: StepNode };
const edgeTypes = { line: LineEdge };

/** A definition or a run as a picture. The layout is made once per structure; states only repaint. */
export default function GraphView({ graph, selected, onSelect }: {
  graph: Graph; selected?: string | undefined; onSelect?: (id: string) => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  const structure = useMemo(
    () => JSON.stringify([graph.nodes.map((n) => [n.id, n.label]), graph.edges.map((e) => [e.source, e.target, e.label])]),
    [graph],
  );
  const placed = useQuery({ queryKey: ["layout", structure], queryFn: () => layout(graph, boxOf(place.current)), staleTime: Infinity });
  const nodes = useMemo<Placed[]>(
    () => {
      const known = new Map(graph.nodes.map((node) => [node.id, node]));
      return (placed.data?.nodes ?? []).flatMap((spot) => {
        const node = known.get(spot.id);
        return node === undefined
          ? []
          : [{
              id: spot.id, type: "step" as const, position: { x: spot.x, y: spot.y }, width: spot.width, height: spot.height,
              data: { node, chosen: spot.id === selected }, draggable: false,
            }];
      });
    },
    [placed.data, graph, selected],
  );
  const edges = useMemo<Line[]>(
    () => {
      const spots = new Map((placed.data?.edges ?? []).map((spot) => [spot.id, spot]));
      return graph.edges.flatMap((edge, n) => {
        const spot = spots.get(`e${n}`);
        if (spot === undefined) return [];
        const colour = edge.taken > 0 ? "var(--accent)" : "var(--text-soft)";
        const text = edge.taken > 1 && !edge.label.includes("taken") ? `${edge.label} ×${edge.taken}`.trim() : edge.label;
        return [{
          id: `e${n}`, type: "line" as const, source: edge.source, target: edge.target, focusable: false,
          data: { points: spot.points, text, at: spot.label ?? spot.points[Math.floor(spot.points.length / 2)] ?? null },
          markerEnd: { type: MarkerType.ArrowClosed, color: colour },
          style: { stroke: colour, strokeWidth: edge.taken > 0 ? 2 : 1.2, ...(edge.dashed ? { strokeDasharray: "5 4" } : {}) },
        }];
      });
    },
    [placed.data, graph],
  );
  if (placed.data === undefined) return <div ref={place} className="graph" role="status" aria-label="The picture is being laid out"><Loading /></div>;
  const here = graph.nodes.filter((node) => ACTIVE.has(node.status)).map((node) => ({ id: node.id }));
  const { width, height } = boxOf(place.current);
  // What would be too small to read begins where something happens; one zooms out for the rest.
  const small = Math.min(width / placed.data.width, height / placed.data.height) < READABLE;
  return (
    <div className="graph" ref={place}>
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={nodeTypes}
        edgeTypes={edgeTypes}
        onNodeClick={(_, node) => onSelect?.(node.id)}
        fitView
        fitViewOptions={small ? { minZoom: READABLE, maxZoom: READABLE, padding: 0.05, nodes: here.length > 0 ? here.slice(0, 1) : nodes.slice(0, 1).map(({ id }) => ({ id })) } : { maxZoom: 1.1, padding: 0.08 }}
        minZoom={0.1}
        nodesConnectable={false}
        onlyRenderVisibleElements={graph.nodes.length > 150}
      >
        <Controls showInteractive={false} />
        {small && <MiniMap pannable zoomable ariaLabel="The whole picture" style={{ width: 160, height: 90 }} nodeColor={(node) => COLOURS[(node as Placed).data.node.status] ?? "var(--line)"} />}
      </ReactFlow>
    </div>
  );
}
