import type { Status } from "../lib/api";

// A shape for each status, so that no one has to tell colours apart.
const SHAPES: Record<string, React.ReactNode> = {
  running: <circle cx="7" cy="7" r="5" fill="none" stroke="currentColor" strokeWidth="2.4" strokeDasharray="22 9" />,
  waiting: <g fill="none" stroke="currentColor" strokeWidth="1.6"><circle cx="7" cy="7" r="5.5" /><path d="M7 4v3.4l2.2 1.4" /></g>,
  stalled: <path d="M7 1.5 13 12.5H1z" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinejoin="round" />,
  completed: <path d="m2 7.5 3.4 3.5L12 3.5" fill="none" stroke="currentColor" strokeWidth="2.2" />,
  failed: <path d="m3 3 8 8m0-8-8 8" fill="none" stroke="currentColor" strokeWidth="2.2" />,
  cancelled: <g fill="none" stroke="currentColor" strokeWidth="1.6"><circle cx="7" cy="7" r="5.5" /><path d="m3.4 10.6 7.2-7.2" /></g>,
  partial: <g stroke="currentColor" strokeWidth="1.6"><circle cx="7" cy="7" r="5.5" fill="none" /><path d="M7 1.5a5.5 5.5 0 0 1 0 11z" fill="currentColor" /></g>,
  queued: <g fill="currentColor"><circle cx="2.5" cy="7" r="1.6" /><circle cx="7" cy="7" r="1.6" /><circle cx="11.5" cy="7" r="1.6" /></g>,
};
const OF_NODE: Record<string, string> = { done: "completed", pending: "queued", skipped: "cancelled", idle: "" };

export function StatusMark({ status }: { status: string }) {
  const name = OF_NODE[status] ?? status;
  const shape = SHAPES[name];
  if (shape === undefined) return null;
  return (
    <span className={`s-${name}`}>
      <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">{shape}</svg>
    </span>
  );
}

export function StatusText({ status }: { status: Status }) {
  return (
    <span className={`status s-${status}`}>
      <StatusMark status={status} />
      {status}
    </span>
  );
}
