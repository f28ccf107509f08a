// A definition's text with what is wrong with it: each problem leads to its line.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useRef } from "react";

import { Failure } from "./bits";
import { api, type Problem } from "../lib/api";
import { useSettled } from "../lib/hooks";

export interface Source { path: string; text: string }

/** What the server says about a text, once one pauses in typing. `clean` is about this very text. */
export function useProblems(file: Source): { problems: Problem[]; clean: boolean; error: unknown } {
  const settled = useSettled(file.text, 250);
  const check = useQuery({
    queryKey: ["check", file.path, settled],
    queryFn: () => api.deploy([{ path: file.path, text: settled }], true),
    enabled: settled.trim() !== "",
    placeholderData: keepPreviousData,
  });
  const known = check.data !== undefined && !check.isPlaceholderData && settled === file.text;
  return { problems: check.data?.problems ?? [], clean: known && check.data?.ok === true, error: check.error };
}

export function SourceEditor({ value, onChange, problems, error, rows = 16 }: {
  value: string; onChange: (text: string) => void; problems: Problem[]; error: unknown; rows?: number;
}) {
  const area = useRef<HTMLTextAreaElement>(null);
  const show = (line: number): void => {
    const box = area.current;
    if (box === null) return;
    const before = value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    const end = value.indexOf("\n", before);
    box.focus();
    box.setSelectionRange(before, end < 0 ? value.length : end);
    box.scrollTop = Math.max(0, (line - 4) * (box.scrollHeight / value.split("\n").length));
  };
  return (
    <>
      <label>YAML<textarea ref={area} rows={rows} value={value} onChange={(event) => onChange(event.target.value)} spellCheck={false} wrap="off" /></label>
      <div role="status" aria-label="Problems" className="problems">
        {problems.map((problem, n) => (
          <button key={n} className="plain" disabled={problem.line === null} onClick={() => show(problem.line ?? 1)}>
            <span className={problem.severity === "error" ? "s-failed" : "s-stalled"}>{problem.severity}{problem.line !== null && `, line ${problem.line}`}:</span>{" "}
            {problem.message} {problem.hint && <em>{problem.hint}</em>}
          </button>
        ))}
      </div>
      {error !== null && error !== undefined && <Failure error={error} />}
    </>
  );
}
