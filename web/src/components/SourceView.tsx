import type { Problem } from "../lib/api";

/** A text with its lines numbered, and what was found at them below each. */
export function SourceView({ written, problems }: { written: string; problems: Problem[] }) {
  const elsewhere = problems.filter((problem) => problem.line === null);
  return (
    <>
      {elsewhere.map((problem, n) => <Finding key={n} problem={problem} />)}
      <pre className="source" tabIndex={0} aria-label="Source">
        {written.replace(/\n$/, "").split("\n").map((line, n) => {
          const found = problems.filter((problem) => problem.line === n + 1);
          return (
            <span key={n} className={found.length > 0 ? "found" : ""}>
              <span className="number" aria-hidden="true">{n + 1}</span>{line}{"\n"}
              {found.map((problem, m) => <Finding key={m} problem={problem} />)}
            </span>
          );
        })}
      </pre>
    </>
  );
}

function Finding({ problem }: { problem: Problem }) {
  return (
    <span className="finding" role="note">
      <span className={problem.severity === "error" ? "s-failed" : "s-stalled"}>{problem.severity} {problem.code}:</span> {problem.message} {problem.hint && <em>{problem.hint}</em>}
    </span>
  );
}
