import { useEffect, useRef, useState } from "react";

import { type Json, Refusal } from "../lib/api";
import { hasPage } from "../lib/errors";
import { useNow } from "../lib/hooks";
import { ago, exact } from "../lib/time";

export function Ago({ at }: { at: string }) {
  const now = useNow();
  return <time dateTime={at} title={exact(at)} className="tabular">{ago(at, now)}</time>;
}

export function Code({ value, label }: { value: Json | undefined; label: string }) {
  const [full, setFull] = useState(false);
  const whole = value === undefined ? "—" : typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const shown = full ? whole : whole.slice(0, 4000);
  return (
    <div>
      <pre tabIndex={0} aria-label={label}>{shown}</pre>
      {shown.length < whole.length && (
        <button className="plain" onClick={() => setFull(true)}>Show all {whole.length.toLocaleString()} characters</button>
      )}
    </div>
  );
}

const PLAIN_MAX = 16;

/** A value as people read it: what is a few plain fields, name by name; else as JSON. */
export function Plain({ value, label }: { value: Json; label: string }) {
  const fields = typeof value === "object" && value !== null && !Array.isArray(value) ? Object.entries(value) : [];
  if (fields.length === 0 || fields.length > PLAIN_MAX || fields.some(([, one]) => typeof one === "object" && one !== null)) return <Code value={value} label={label} />;
  return <dl className="plain-fields" aria-label={label}>{fields.map(([name, one]) => <div key={name}><dt>{name}</dt><dd>{String(one ?? "—")}</dd></div>)}</dl>;
}

export function Fold({ title, open = false, children }: { title: string; open?: boolean; children: React.ReactNode }) {
  return (
    <details open={open}>
      <summary><strong>{title}</strong></summary>
      {children}
    </details>
  );
}

export function Copy({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  return (
    <span className="row">
      <code className="nowrap grow">{text}</code>
      <button
        className="plain"
        onClick={() => void navigator.clipboard.writeText(text).then(() => setDone(true))}
      >
        {done ? "Copied" : "Copy"}
      </button>
    </span>
  );
}

/** A code of ours leads to what it means and what to do; what a program raised by itself is only named. */
export function CodeLink({ code }: { code: string }) {
  return hasPage(code) ? <a href={`/docs/errors/${code}`} target="_blank" rel="noreferrer">{code}</a> : <span className="soft">{code}</span>;
}

export function Failure({ error }: { error: unknown }) {
  const refusal = error instanceof Refusal ? error : new Refusal(0, "INTERNAL", String(error));
  return (
    <div className="error-box" role="alert">
      <strong>{refusal.message}</strong>{" "}
      <CodeLink code={refusal.code} />
      {refusal.problems.map((problem, n) => (
        <div key={n}>
          <code>{problem.file}:{problem.line}</code> {problem.message} {problem.hint && <em>{problem.hint}</em>}
        </div>
      ))}
    </div>
  );
}

export function Empty({ why, command }: { why: string; command?: string }) {
  return (
    <div className="empty">
      <span>{why}</span>
      {command && <code>{command}</code>}
    </div>
  );
}

/** Nothing for a moment, then a quiet word: a skeleton that flashes is worse than none. */
export function Loading() {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return <div className="soft" role="status">{late ? "Loading…" : ""}</div>;
}

export function Dialog({ title, onClose, children, footer, wide = false }: {
  title: string; onClose: () => void; children: React.ReactNode; footer?: React.ReactNode; wide?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  return (
    <dialog ref={ref} onClose={onClose} aria-label={title} className={wide ? "wide" : ""}>
      <div className="inside">
        <h2>{title}</h2>
        {children}
      </div>
      <footer>
        <button onClick={() => ref.current?.close()}>Close</button>
        {footer}
      </footer>
    </dialog>
  );
}
