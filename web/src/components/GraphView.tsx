import {
  BaseEdge, Controls, EdgeLabelRenderer, Handle, MarkerType, MiniMap, Panel, Position, ReactFlow, useReactFlow, type Edge, type EdgeProps, type FitViewOptions, type Node, type NodeProps,
} from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { memo, useCallback, useEffect, useMemo, useRef, useState } from "react";

import type { Graph, GraphNode } from "../lib/api";
import { FOLD_ABOVE, foldedParts, foldGraph, isFolded, openFor } from "../lib/fold";
import { layout, path, type Placed as Spots, warm } from "../lib/layout";
import { text } from "../strings";
import { Loading } from "./bits";
import { StatusMark } from "./Status";
import { VirtualList } from "./VirtualList";

warm();

type Placed = Node<{ node: GraphNode; chosen: boolean }, "step">;
type Line = Edge<{ points: { x: number; y: number }[]; text: string; at: { x: number; y: number } | null }, "line">;

/** What one sees of it, and what its colour says. */
function spoken(node: GraphNode): string {
  const said = [node.label.split("\n").join(" ").trim() || node.shape, node.badge].filter((part) => part !== "").join(" ");
  const state = node.status === "idle" ? "" : `, ${node.status}`;
  return isFolded(node) ? `${said}${state}, ${text.unfold}` : `${said}${state}`;
}

function Inside({ node }: { node: GraphNode }) {
  const [name, kind] = node.label.split("\n");
  return (
    <>
      <StatusMark status={node.status} />
      <span className="nowrap">{name || node.shape}</span>{" "}
      {kind && <span className="soft nowrap">{kind}</span>}{" "}
      {node.badge && <span className="badge">{node.badge}</span>}
    </>
  );
}

const StepNode = memo(function StepNode({ data: { node, chosen } }: NodeProps<Placed>) {
  return (
    <button className={`node n-${node.status} shape-${node.shape}${chosen ? " selected" : ""}`} aria-label={spoken(node)} title={node.label}>
      <Handle type="target" position={Position.Left} isConnectable={false} style={{ opacity: 0 }} />
      <Inside node={node} />
      <Handle type="source" position={Position.Right} isConnectable={false} style={{ opacity: 0 }} />
    </button>
  );
});

function LineEdge({ id, data, markerEnd, style }: EdgeProps<Line>) {
  return (
    <>
      <BaseEdge id={id} path={path(data?.points ?? [])} {...(markerEnd ? { markerEnd } : {})} {...(style ? { style } : {})} />
      {data?.text && data.at && (
        <EdgeLabelRenderer>
          <span className="edge-label soft nowrap" title={data.text} style={{ transform: `translate(-50%, -50%) translate(${data.at.x}px, ${data.at.y}px)` }}>{data.text}</span>
        </EdgeLabelRenderer>
      )}
    </>
  );
}

const READABLE = 0.75;
// A large graph that is folded is looked at as a whole.
const OVERVIEW = 0.5;
const COLOURS: Record<string, string> = { done: "var(--completed)", failed: "var(--failed)", running: "var(--running)", waiting: "var(--waiting)", stalled: "var(--stalled)" };
const ACTIVE = new Set(["failed", "running", "stalled", "waiting", "pending"]);

// Room for the buttons at the top and at the left.
const INSET = { top: 52, left: 52, right: 20, bottom: 16 };
const PADDING = { top: `${INSET.top}px`, left: `${INSET.left}px`, right: `${INSET.right}px`, bottom: `${INSET.bottom}px` } as const;

function boxOf(place: HTMLElement | null): { width: number; height: number } {
  return { width: (place?.clientWidth || 900) - INSET.left - INSET.right, height: (place?.clientHeight || 380) - INSET.top - INSET.bottom };
}

const WHOLE: FitViewOptions = { maxZoom: 1.1, padding: PADDING };
const nodeTypes = { step: StepNode };
const edgeTypes = { line: LineEdge };

/** A large graph, folded but for what one opened, and where something went wrong or is chosen. */
function useFolding(graph: Graph, selected: string | undefined) {
  const large = graph.nodes.length > FOLD_ABOVE;
  const [whole, setWhole] = useState(false);
  const [open, setOpen] = useState<ReadonlySet<string>>(() => {
    const wrong = graph.nodes.filter((node) => node.status === "failed" || node.status === "stalled").map((node) => node.id);
    return new Set(openFor(graph, new Set(selected === undefined ? wrong.slice(0, 1) : [selected])));
  });
  const unfold = useCallback((id: string) => setOpen((old) => new Set(old).add(id)), []);
  const turn = (): void => {
    setOpen(new Set());
    setWhole(!whole);
  };
  const shown = useMemo(() => (!large || whole ? graph : foldGraph(graph, foldedParts(graph, open))), [graph, large, whole, open]);
  return { shown, unfold, large, whole, turn, foldAgain: open.size > 0 && !whole ? () => setOpen(new Set()) : null };
}

function structureOf(graph: Graph): string {
  return JSON.stringify([graph.nodes.map((n) => [n.id, n.label]), graph.edges.map((e) => [e.source, e.target, e.label])]);
}

function nodesOf(graph: Graph, spots: Spots | undefined, selected: string | undefined): Placed[] {
  const known = new Map(graph.nodes.map((node) => [node.id, node]));
  return (spots?.nodes ?? []).flatMap((spot) => {
    const node = known.get(spot.id);
    return node === undefined ? [] : [{
      id: spot.id, type: "step" as const, position: { x: spot.x, y: spot.y }, width: spot.width, height: spot.height,
      data: { node, chosen: spot.id === selected }, draggable: false,
    }];
  });
}

function linesOf(graph: Graph, spots: Spots | undefined): Line[] {
  const placed = new Map((spots?.edges ?? []).map((spot) => [spot.id, spot]));
  return graph.edges.flatMap((edge, n) => {
    const spot = placed.get(`e${n}`);
    if (spot === undefined) return [];
    const colour = edge.taken > 0 ? "var(--accent)" : "var(--text-soft)";
    const said = edge.taken > 1 && !edge.label.includes("taken") ? `${edge.label} ×${edge.taken}`.trim() : edge.label;
    return [{
      id: `e${n}`, type: "line" as const, source: edge.source, target: edge.target, focusable: false,
      data: { points: spot.points, text: said, at: spot.label ?? spot.points[Math.floor(spot.points.length / 2)] ?? null },
      markerEnd: { type: MarkerType.ArrowClosed, color: colour },
      style: { stroke: colour, strokeWidth: edge.taken > 0 ? 2 : 1.2, ...(edge.dashed ? { strokeDasharray: "5 4" } : {}) },
    }];
  });
}

/** A definition or a run as a picture, or as a list of the same. The layout is made once per structure; states only repaint. */
export default memo(function GraphView({ graph, selected, onSelect }: {
  graph: Graph; selected?: string | undefined; onSelect?: (id: string) => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  const [listed, setListed] = useState(false);
  const { shown, unfold, large, whole, turn, foldAgain } = useFolding(graph, selected);
  const seen = useMemo(() => structureOf(shown), [shown]);
  const placed = useQuery({
    queryKey: ["layout", seen], queryFn: async () => ({ of: seen, spots: await layout(shown, boxOf(place.current)) }), staleTime: Infinity, placeholderData: keepPreviousData,
  });
  const spots = placed.data?.spots;
  // While another layout is made, what was there stays.
  const current = placed.data?.of === seen;
  const drawn = useRef<{ nodes: Placed[]; edges: Line[] }>({ nodes: [], edges: [] });
  const picture = useMemo(
    () => (current ? { nodes: nodesOf(shown, spots, selected), edges: linesOf(shown, spots) } : drawn.current),
    [current, shown, spots, selected],
  );
  useEffect(() => {
    drawn.current = picture;
  }, [picture]);
  const click = useCallback((_: unknown, { data: { node } }: Placed) => (isFolded(node) ? unfold(node.id) : onSelect?.(node.id)), [unfold, onSelect]);
  const acts = (
    <>
      {foldAgain && !listed && <button onClick={foldAgain}>{text.fold}</button>}
      {large && !listed && <button onClick={turn}>{whole ? text.fold : `${text.showAll} ${graph.nodes.length.toLocaleString()}`}</button>}
      <button onClick={() => setListed(!listed)}>{listed ? text.picture : text.list}</button>
    </>
  );
  if (listed) return <div className="graph listed"><div className="graph-acts">{acts}</div><NodeList graph={graph} selected={selected} onSelect={onSelect} /></div>;
  if (spots === undefined) return <div ref={place} className="graph" role="status" aria-label="The picture is being laid out"><Loading /></div>;
  const { width, height } = boxOf(place.current);
  // What would be too small to read begins where something happens; one zooms out for the rest.
  const small = Math.min(width / spots.width, height / spots.height) < (large && !whole ? OVERVIEW : READABLE);
  const here = picture.nodes.filter(({ data }) => ACTIVE.has(data.node.status));
  const start = (here.length > 0 ? here : picture.nodes).slice(0, 1).map(({ id }) => ({ id }));
  const fit: FitViewOptions = small ? { minZoom: READABLE, maxZoom: READABLE, padding: PADDING, nodes: start } : WHOLE;
  return (
    <div className="graph" ref={place}>
      <ReactFlow
        nodes={picture.nodes}
        edges={picture.edges}
        nodeTypes={nodeTypes}
        edgeTypes={edgeTypes}
        onNodeClick={click}
        fitView
        fitViewOptions={fit}
        minZoom={0.1}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        onlyRenderVisibleElements={picture.nodes.length > 150}
      >
        <Controls showInteractive={false} fitViewOptions={WHOLE} />
        <Panel position="top-right" className="graph-acts">{acts}</Panel>
        <Refit place={place} fit={fit} />
        {small && <MiniMap pannable zoomable ariaLabel="The whole picture" style={{ width: 160, height: 90 }} nodeColor={(node) => COLOURS[(node as Placed).data.node.status] ?? "var(--line)"} />}
      </ReactFlow>
    </div>
  );
});

/** Fits the picture again when its box has another width: a phone that is turned, a window that is pulled. */
function Refit({ place, fit }: { place: React.RefObject<HTMLDivElement | null>; fit: FitViewOptions }) {
  const { fitView } = useReactFlow();
  const how = useRef(fit);
  useEffect(() => {
    how.current = fit;
  }, [fit]);
  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    let wide = box.clientWidth;
    const watch = new ResizeObserver(() => {
      if (Math.abs(box.clientWidth - wide) < 40) return;
      wide = box.clientWidth;
      requestAnimationFrame(() => void fitView(how.current));
    });
    watch.observe(box);
    return () => watch.disconnect();
  }, [place, fitView]);
  return null;
}

/** The same without a picture: for who reads by ear, and for who looks for a name. */
function NodeList({ graph, selected, onSelect }: { graph: Graph; selected: string | undefined; onSelect: ((id: string) => void) | undefined }) {
  return (
    <VirtualList rows={graph.nodes} label={text.steps} keyOf={(node) => node.id} estimate={32}>
      {(node) => <button className="node-row" aria-current={node.id === selected} aria-label={spoken(node)} disabled={onSelect === undefined} onClick={() => onSelect?.(node.id)}><Inside node={node} /></button>}
    </VirtualList>
  );
}
