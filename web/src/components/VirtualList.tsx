import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef } from "react";

/** A long list of which only what is in view is there. Rows may open and grow. */
export function VirtualList<T>({ rows, label, keyOf, estimate = 29, children }: {
  rows: T[]; label: string; keyOf: (row: T) => string | number; estimate?: number; children: (row: T) => React.ReactNode;
}) {
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => estimate,
    overscan: 16,
    getItemKey: (n) => {
      const row = rows[n];
      return row === undefined ? n : keyOf(row);
    },
  });
  return (
    <div className="events" ref={box} tabIndex={0} role="region" aria-label={label}>
      <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          return row === undefined ? null : (
            <div key={item.key} data-index={item.index} ref={virtual.measureElement} style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${item.start}px)` }}>
              {children(row)}
            </div>
          );
        })}
      </div>
    </div>
  );
}
