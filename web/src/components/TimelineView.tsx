import type { TraceStep } from "../lib/api";
import { useNow } from "../lib/hooks";
import { span } from "../lib/time";
import { ticks, timeline } from "../lib/timeline";

export function TimelineView({ steps, failed, at, onSelect }: {
  steps: TraceStep[]; failed: ReadonlySet<string>; at: number | null; onSelect: (name: string) => void;
}) {
  const now = useNow();
  const found = timeline(steps, now, at, failed);
  const wide = found.end - found.begin;
  const place = (time: number): string => `${((time - found.begin) / wide) * 100}%`;
  if (found.rows.length === 0) return <p className="soft">Nothing was asked of the outside yet.</p>;
  return (
    <div className="timeline" role="group" aria-label="Timeline of steps">
      <span />
      <div className="axis" aria-hidden="true">
        {ticks(wide).map((tick) => (
          <span key={tick} style={{ left: place(found.begin + tick) }}>{tick === 0 ? "0" : span(tick)}</span>
        ))}
      </div>
      {found.rows.slice(0, 200).map((row) => (
        <TimelineRow key={row.name} name={row.name} onSelect={onSelect}>
          {row.bars.map((bar) => {
            const took = span(Math.max(0, bar.to - bar.from));
            const said = `${row.name}: ${bar.kind}, ${bar.status}, ${took}`;
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
        </TimelineRow>
      ))}
      {found.rows.length > 200 && <span className="soft">and {found.rows.length - 200} more</span>}
    </div>
  );
}

function TimelineRow({ name, onSelect, children }: {
  name: string; onSelect: (name: string) => void; children: React.ReactNode;
}) {
  return (
    <>
      <button className="plain nowrap" style={{ textAlign: "left" }} onClick={() => onSelect(name)} title={name}>{name}</button>
      <div className="track">{children}</div>
    </>
  );
}
