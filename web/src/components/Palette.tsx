import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { useNavigate } from "react-router";

import { api } from "../lib/api";
import { useMay } from "../lib/hooks";

interface Choice { label: string; about: string; go: string }

const PAGES: Choice[] = [
  { label: "Runs", about: "g r", go: "/runs" },
  { label: "Failed runs", about: "", go: "/runs?status=failed,stalled" },
  { label: "Waiting runs", about: "", go: "/runs?status=waiting" },
  { label: "Tasks", about: "g t", go: "/tasks" },
  { label: "Definitions", about: "g d", go: "/definitions" },
  { label: "Schedules", about: "g s", go: "/schedules" },
  { label: "Workers and servers", about: "g w", go: "/workers" },
  { label: "Dead letters", about: "g l", go: "/deadletters" },
  { label: "Overview", about: "g o", go: "/" },
  { label: "Compare two runs", about: "", go: "/compare" },
];

const AUDIT: Choice = { label: "Audit", about: "g a", go: "/audit" };

export function Palette({ onClose }: { onClose: () => void }) {
  const [asked, setAsked] = useState("");
  const [at, setAt] = useState(0);
  const mayAudit = useMay("admin");
  const navigate = useNavigate();
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  const runs = useQuery({ queryKey: ["runs", "palette", asked], queryFn: () => api.runs({ search: asked, limit: 8 }), enabled: asked.length > 1 });
  const names = useQuery({ queryKey: ["definitions"], queryFn: api.definitions });
  const choices = useMemo<Choice[]>(() => {
    const wanted = asked.toLowerCase();
    const pages = (mayAudit ? [...PAGES, AUDIT] : PAGES).filter((page) => page.label.toLowerCase().includes(wanted));
    const workflows = (names.data?.items ?? []).filter((row) => wanted !== "" && row.name.toLowerCase().includes(wanted))
      .map((row) => ({ label: row.name, about: "definition", go: `/definitions/${encodeURIComponent(row.name)}` }));
    const found = (runs.data?.items ?? []).map((row) => ({ label: row.id, about: `${row.workflow} · ${row.status}`, go: `/runs/${encodeURIComponent(row.id)}` }));
    return [...pages, ...found, ...workflows].slice(0, 14);
  }, [asked, runs.data, names.data, mayAudit]);
  const choose = (choice: Choice | undefined): void => {
    if (choice === undefined) return;
    ref.current?.close();
    void navigate(choice.go);
  };
  return (
    <dialog ref={ref} onClose={onClose} className="palette" aria-label="Go to">
      <div className="inside">
        <input
          type="text" role="combobox" aria-expanded="true" aria-controls="choices" aria-label="Go to a run, a workflow or a page"
          placeholder="Go to a run, a workflow or a page" value={asked}
          onChange={(event) => { setAsked(event.target.value); setAt(0); }}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") setAt((n) => Math.min(n + 1, choices.length - 1));
            else if (event.key === "ArrowUp") setAt((n) => Math.max(n - 1, 0));
            else if (event.key === "Enter") choose(choices[at]);
            else return;
            event.preventDefault();
          }}
        />
        <div id="choices" role="listbox" aria-label="Choices">
          {choices.map((choice, n) => (
            <div key={choice.go + choice.label} role="option" aria-selected={n === at} onMouseEnter={() => setAt(n)} onClick={() => choose(choice)}>
              <span className="grow nowrap">{choice.label}</span><span className="soft">{choice.about}</span>
            </div>
          ))}
        </div>
      </div>
    </dialog>
  );
}
