import { useRef, useState } from "react";

import { STACK, type Stretch } from "../lib/history";
import { exact } from "../lib/time";

/** Runs over time, stacked by what became of them. With `onRange`, dragging over it chooses a time. */
export function Histogram({ found, label, height = 72, onRange }: {
  found: Stretch[]; label: string; height?: number; onRange?: (from: number, to: number) => void;
}) {
  const [range, setRange] = useState<[number, number] | null>(null);
  const box = useRef<SVGSVGElement>(null);
  const most = Math.max(1, ...found.map((one) => one.total));
  const total = found.reduce((sum, one) => sum + one.total, 0);
  const at = (event: React.PointerEvent): number => {
    const { left, width } = box.current?.getBoundingClientRect() ?? { left: 0, width: 1 };
    return Math.max(0, Math.min(found.length - 1, Math.floor(((event.clientX - left) / width) * found.length)));
  };
  const end = (): void => {
    if (range === null) return;
    setRange(null);
    const [from, to] = [found[Math.min(...range)], found[Math.max(...range)]];
    if (from !== undefined && to !== undefined) onRange?.(from.from, to.to);
  };
  return (
    <svg
      ref={box} className={`histogram${onRange ? " brush" : ""}`} role="img" aria-label={`${label}: ${total.toLocaleString()} runs, at most ${most.toLocaleString()} at a time`}
      viewBox={`0 0 ${found.length} ${most}`} preserveAspectRatio="none" style={{ height }}
      {...(onRange === undefined ? {} : {
        onPointerDown: (event: React.PointerEvent) => { const n = at(event); setRange([n, n]); },
        onPointerMove: (event: React.PointerEvent) => { if (range !== null) setRange([range[0], at(event)]); },
        onPointerUp: end,
        onPointerLeave: end,
      })}
    >
      {range !== null && <rect className="chosen" x={Math.min(...range)} y={0} width={Math.abs(range[1] - range[0]) + 1} height={most} />}
      {found.map((stretch, n) => <Bar key={stretch.from} stretch={stretch} x={n} most={most} />)}
    </svg>
  );
}

function Bar({ stretch, x, most }: { stretch: Stretch; x: number; most: number }) {
  if (stretch.total === 0) return null;
  const parts = STACK.filter((status) => (stretch.counts[status] ?? 0) > 0);
  let top = most;
  return (
    <g>
      <title>{`${exact(new Date(stretch.from).toISOString())}: ${parts.map((status) => `${stretch.counts[status]} ${status}`).join(", ")}`}</title>
      {parts.map((status) => {
        const high = stretch.counts[status] ?? 0;
        top -= high;
        return <rect key={status} className={`s-${status}`} x={x + 0.08} width={0.84} y={top} height={high} fill="currentColor" />;
      })}
    </g>
  );
}
