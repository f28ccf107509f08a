import {
  BaseEdge, Controls, EdgeLabelRenderer, Handle, MarkerType, MiniMap, Panel, Position, ReactFlow, useReactFlow, type Edge, type EdgeProps, type FitViewOptions, type Node, type NodeProps, type Viewport,
} from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { memo, useCallback, useEffect, useMemo, useRef, useState } from "react";

import type { Graph, GraphNode } from "../lib/api";
import { usePhone } from "../lib/hooks";
import { FOLD_ABOVE, type Folded, foldedParts, foldGraph, isFolded, openFor } from "../lib/fold";
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

// What is smaller cannot be read: then one begins at one place, this large.
const READABLE = 0.5;
const CLOSE = 0.75;
const COLOURS: Record<string, string> = { done: "var(--completed)", failed: "var(--failed)", running: "var(--running)", waiting: "var(--waiting)", stalled: "var(--stalled)" };
const ACTIVE = new Set(["failed", "running", "stalled", "waiting", "pending"]);

// Room for the buttons at the top and at the left.
const INSET = { top: 52, left: 52, right: 20, bottom: 16 };
const PADDING = { top: `${INSET.top}px`, left: `${INSET.left}px`, right: `${INSET.right}px`, bottom: `${INSET.bottom}px` } as const;

function boxOf(place: HTMLElement | null): { width: number; height: number } {
  return { width: (place?.clientWidth || 900) - INSET.left - INSET.right, height: (place?.clientHeight || 380) - INSET.top - INSET.bottom };
}

function zoomOf(place: HTMLElement | null, spots: Spots): number {
  const { width, height } = boxOf(place);
  return Math.min(width / spots.width, height / spots.height, 1.1);
}

/** Where a picture begins: all of it if that can be read, else close to one node, without showing what lies beyond its edges. */
function viewOf(place: HTMLElement | null, spots: Spots, start: Spots["nodes"][number] | undefined): Viewport {
  const { width, height } = boxOf(place);
  const whole = zoomOf(place, spots);
  const zoom = whole < READABLE ? CLOSE : whole;
  const along = (room: number, inset: number, size: number, middle: number): number => {
    const free = room - size * zoom;
    return inset + (free >= 0 ? free / 2 : Math.max(free, Math.min(0, room / 2 - middle * zoom)));
  };
  return {
    x: along(width, INSET.left, spots.width, (start?.x ?? 0) + (start?.width ?? 0) / 2),
    y: along(height, INSET.top, spots.height, (start?.y ?? 0) + (start?.height ?? 0) / 2),
    zoom,
  };
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
  // How often somebody folded or opened something, and what was opened last: there the picture goes.
  const [turns, setTurns] = useState({ count: 0, at: "" });
  const turned = useCallback((at: string) => setTurns(({ count }) => ({ count: count + 1, at })), []);
  const unfold = useCallback((fold: Folded) => {
    setOpen((old) => new Set(old).add(fold.id));
    turned(fold.members[0]?.id ?? "");
  }, [turned]);
  const close = (): void => {
    setOpen(new Set());
    turned("");
  };
  const turn = (): void => {
    close();
    setWhole(!whole);
  };
  const shown = useMemo(() => (!large || whole ? graph : foldGraph(graph, foldedParts(graph, open))), [graph, large, whole, open]);
  return { shown, unfold, large, whole, turn, turns, foldAgain: open.size > 0 && !whole ? close : null };
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
  const phone = usePhone();
  const { shown, unfold, large, whole, turn, turns, foldAgain } = useFolding(graph, selected);
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
  const click = useCallback((_: unknown, { data: { node } }: Placed) => (isFolded(node) ? unfold(node) : onSelect?.(node.id)), [unfold, onSelect]);
  const active = useMemo(() => new Set(shown.nodes.filter((node) => ACTIVE.has(node.status)).map((node) => node.id)), [shown]);
  const acts = (
    <>
      {foldAgain && !listed && <button onClick={foldAgain}>{text.fold}</button>}
      {large && !listed && <button onClick={turn}>{whole ? text.fold : `${text.showAll} ${graph.nodes.length.toLocaleString()}`}</button>}
      <button onClick={() => setListed(!listed)}>{listed ? text.picture : text.list}</button>
    </>
  );
  if (listed) return <div className="graph listed"><div className="graph-acts">{acts}</div><NodeList graph={graph} selected={selected} onSelect={onSelect} /></div>;
  if (spots === undefined) return <div ref={place} className="graph" role="status" aria-label="The picture is being laid out"><Loading /></div>;
  // A column of a thousand is a line on a map, and a phone has no room for one.
  const mapped = !phone && zoomOf(place.current, spots) < READABLE && spots.height < spots.width * 6 && spots.width < spots.height * 12;
  const view = (): Viewport => {
    const start = spots.nodes.find(({ id }) => id === turns.at) ?? spots.nodes.find(({ id }) => active.has(id)) ?? spots.nodes[0];
    return viewOf(place.current, spots, start);
  };
  return (
    <div className="graph" ref={place}>
      <ReactFlow
        nodes={picture.nodes}
        edges={picture.edges}
        nodeTypes={nodeTypes}
        edgeTypes={edgeTypes}
        onNodeClick={click}
        defaultViewport={view()}
        minZoom={0.1}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        onlyRenderVisibleElements={picture.nodes.length > 150}
      >
        <Controls showInteractive={false} fitViewOptions={WHOLE} />
        <Panel position="top-right" className="graph-acts">{acts}</Panel>
        <Refit place={place} view={view} turn={current ? turns.count : -1} />
        {mapped && <MiniMap pannable zoomable ariaLabel="The whole picture" style={{ width: 160, height: 90 }} nodeColor={(node) => COLOURS[(node as Placed).data.node.status] ?? "var(--line)"} />}
      </ReactFlow>
    </div>
  );
});

/** Fits the picture again when its box has another width (a phone that is turned, a window that is pulled) and when something
 * was folded or opened, once that is laid out. */
function Refit({ place, view, turn }: { place: React.RefObject<HTMLDivElement | null>; view: () => Viewport; turn: number }) {
  const { setViewport } = useReactFlow();
  const how = useRef(view);
  const seen = useRef(0);
  useEffect(() => {
    how.current = view;
  }, [view]);
  useEffect(() => {
    if (turn < 0 || turn === seen.current) return;
    seen.current = turn;
    requestAnimationFrame(() => void setViewport(how.current()));
  }, [turn, setViewport]);
  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    let wide = box.clientWidth;
    const watch = new ResizeObserver(() => {
      if (Math.abs(box.clientWidth - wide) < 40) return;
      wide = box.clientWidth;
      requestAnimationFrame(() => void setViewport(how.current()));
    });
    watch.observe(box);
    return () => watch.disconnect();
  }, [place, setViewport]);
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
