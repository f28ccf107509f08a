// A form from a JSON Schema: what is simple gets a field of its own, the rest is JSON. The server checks it again.

import { useState } from "react";

import type { Json } from "../lib/api";

type Schema = { [key: string]: Json };

export interface Field { name: string; kind: "text" | "long" | "number" | "boolean" | "choice" | "json" | "any"; required: boolean; schema: Schema }

export function fields(schema: Json): Field[] {
  if (!isMap(schema)) return [];
  const properties = isMap(schema["properties"] ?? null) ? (schema["properties"] as Schema) : {};
  const required = (Array.isArray(schema["required"]) ? schema["required"] : []).filter((name) => typeof name === "string");
  // What is needed and not described gets a field as well.
  const undescribed = required.filter((name) => !(name in properties)).map((name): [string, Json] => [name, {}]);
  return [...Object.entries(properties), ...undescribed].flatMap(([name, part]) =>
    isMap(part) ? [{ name, kind: kindOf(part), required: required.includes(name), schema: part }] : []);
}

function kindOf(schema: Schema): Field["kind"] {
  if (Array.isArray(schema["enum"])) return "choice";
  switch (schema["type"]) {
    case "boolean": return "boolean";
    case "integer":
    case "number": return "number";
    case "string": return typeof schema["maxLength"] === "number" && schema["maxLength"] > 200 ? "long" : "text";
    case "array":
    case "object": return "json";
    default: return "any";
  }
}

/** What stands in an empty field: what is taken where nothing is given. */
function fallback(field: Field): string {
  const value = field.schema["default"];
  if (value === undefined || value === null || value === "") return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function isMap(value: Json): value is Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export type Draft = Record<string, string | boolean>;

/** The value a draft stands for, or what is wrong with it by field. */
export function valueOf(found: Field[], draft: Draft): { value: { [key: string]: Json }; wrong: Record<string, string> } {
  const value: { [key: string]: Json } = {};
  const wrong: Record<string, string> = {};
  for (const field of found) {
    const given = draft[field.name];
    if (field.kind === "boolean") {
      if (given !== undefined || field.required) value[field.name] = given === true;
      continue;
    }
    const written = typeof given === "string" ? given : "";
    if (written === "") {
      if (field.required) wrong[field.name] = "is needed";
      continue;
    }
    if (field.kind === "number") {
      const number = Number(written);
      if (Number.isFinite(number)) value[field.name] = number;
      else wrong[field.name] = "is a number";
    } else if (field.kind === "choice") {
      const options = field.schema["enum"] as Json[];
      value[field.name] = options.find((option) => String(option) === written) ?? written;
    } else if (field.kind === "json") {
      try {
        value[field.name] = JSON.parse(written) as Json;
      } catch {
        wrong[field.name] = "is JSON";
      }
    } else if (field.kind === "any") {
      // JSON if it parses, else text: as on the command line.
      try {
        value[field.name] = JSON.parse(written) as Json;
      } catch {
        value[field.name] = written;
      }
    } else value[field.name] = written;
  }
  return { value, wrong };
}

export function SchemaForm({ schema, submit, onSubmit, busy }: {
  schema: Json; submit: string; onSubmit: (value: Json) => void; busy: boolean;
}) {
  const found = fields(schema);
  const [draft, setDraft] = useState<Draft>({});
  const [raw, setRaw] = useState("{}");
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const send = (event: React.FormEvent): void => {
    event.preventDefault();
    if (found.length === 0) {
      try {
        onSubmit(raw.trim() === "" ? null : (JSON.parse(raw) as Json));
      } catch {
        setWrong({ "": "This is not JSON." });
      }
      return;
    }
    const made = valueOf(found, draft);
    setWrong(made.wrong);
    if (Object.keys(made.wrong).length === 0) onSubmit(made.value);
  };
  return (
    <form className="stack" onSubmit={send}>
      {found.length === 0 && (
        <label>
          JSON
          <textarea rows={4} value={raw} onChange={(event) => setRaw(event.target.value)} aria-invalid={"" in wrong} />
          {wrong[""] && <span className="s-failed">{wrong[""]}</span>}
        </label>
      )}
      {found.map((field) => (
        <FieldInput
          key={field.name}
          field={field}
          value={draft[field.name]}
          wrong={wrong[field.name]}
          onChange={(value) => setDraft((old) => ({ ...old, [field.name]: value }))}
        />
      ))}
      <div><button className="primary" disabled={busy}>{submit}</button></div>
    </form>
  );
}

function FieldInput({ field, value, wrong, onChange }: {
  field: Field; value: string | boolean | undefined; wrong: string | undefined; onChange: (value: string | boolean) => void;
}) {
  const title = typeof field.schema["title"] === "string" ? field.schema["title"] : field.name;
  const about = typeof field.schema["description"] === "string" ? field.schema["description"] : "";
  const shared = { "aria-invalid": wrong !== undefined, "aria-required": field.required };
  const written = typeof value === "string" ? value : "";
  const control = (() => {
    switch (field.kind) {
      case "boolean":
        return <input type="checkbox" checked={value === undefined ? field.schema["default"] === true : value === true} onChange={(e) => onChange(e.target.checked)} {...shared} />;
      case "choice":
        return (
          <select value={written} onChange={(e) => onChange(e.target.value)} {...shared}>
            <option value="" />
            {(field.schema["enum"] as Json[]).map((option) => <option key={String(option)}>{String(option)}</option>)}
          </select>
        );
      case "long":
      case "json":
        return <textarea rows={3} value={written} placeholder={fallback(field)} onChange={(e) => onChange(e.target.value)} {...shared} />;
      default:
        return <input type="text" inputMode={field.kind === "number" ? "decimal" : "text"} placeholder={fallback(field)} value={written} onChange={(e) => onChange(e.target.value)} {...shared} />;
    }
  })();
  return (
    <label className={field.kind === "boolean" ? "check" : ""}>
      <span>{title}{field.required && <span aria-hidden="true"> *</span>} {about && <span className="soft">— {about}</span>}</span>
      {control}
      {wrong && <span className="s-failed">{title} {wrong}</span>}
    </label>
  );
}
