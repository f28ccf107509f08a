import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useMemo, useRef } from "react";

import type { TraceStep } from "../lib/api";
import { useNow } from "../lib/hooks";
import { span } from "../lib/time";
import { type Row, ticks, timeline } from "../lib/timeline";

const HIGH = 24;

/** When each step was at work, waited and was tried again. Of a long run only the rows in view are there. */
export const TimelineView = memo(function TimelineView({ steps, failed, at, live, onSelect }: {
  steps: TraceStep[]; failed: ReadonlySet<string>; at: number | null; live: boolean; onSelect: (name: string) => void;
}) {
  return live ? <Moving steps={steps} failed={failed} at={at} onSelect={onSelect} /> : <Bars steps={steps} failed={failed} at={at} now={0} onSelect={onSelect} />;
});

function Moving(shown: { steps: TraceStep[]; failed: ReadonlySet<string>; at: number | null; onSelect: (name: string) => void }) {
  return <Bars {...shown} now={useNow()} />;
}

function Bars({ steps, failed, at, now, onSelect }: {
  steps: TraceStep[]; failed: ReadonlySet<string>; at: number | null; now: number; onSelect: (name: string) => void;
}) {
  const found = useMemo(() => timeline(steps, now, at, failed), [steps, now, at, failed]);
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: found.rows.length, getScrollElement: () => box.current, estimateSize: () => HIGH, overscan: 8 });
  const wide = found.end - found.begin;
  const place = (time: number): string => `${((time - found.begin) / wide) * 100}%`;
  if (found.rows.length === 0) return <p className="soft">Nothing was asked of the outside yet.</p>;
  return (
    <div className="timeline" role="group" aria-label="Timeline of steps" ref={box} tabIndex={found.rows.length > 12 ? 0 : undefined}>
      <div className="trow head" aria-hidden="true">
        <span />
        <div className="axis">
          {ticks(wide).map((tick) => (
            <span key={tick} style={{ left: place(found.begin + tick) }}>{tick === 0 ? "0" : span(tick)}</span>
          ))}
        </div>
      </div>
      <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
        {virtual.getVirtualItems().map((item) => {
          const row = found.rows[item.index];
          return row === undefined ? null : (
            <div key={row.name} className="trow" style={{ position: "absolute", top: item.start, left: 0, right: 0 }}>
              <button className="plain nowrap" onClick={() => onSelect(row.name)} title={row.name}>{row.name}</button>
              <Track row={row} place={place} wide={wide} onSelect={onSelect} />
            </div>
          );
        })}
      </div>
    </div>
  );
}

function Track({ row, place, wide, onSelect }: { row: Row; place: (time: number) => string; wide: number; onSelect: (name: string) => void }) {
  return (
    <div className="track">
      {row.bars.map((bar) => {
        const said = `${row.name}: ${bar.kind}, ${bar.status}, ${span(Math.max(0, bar.to - bar.from))}`;
        return (
          <button
            key={bar.id}
            className={`tbar b-${bar.status} k-${bar.kind}`}
            style={{ left: place(bar.from), width: `${((bar.to - bar.from) / wide) * 100}%` }}
            title={said}
            aria-label={said}
            onClick={() => onSelect(row.name)}
          />
        );
      })}
    </div>
  );
}
