import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, lazy, useState } from "react";
import { Link, useNavigate, useParams } from "react-router";

import { Code, Dialog, Empty, Failure, Loading } from "../components/bits";
import { SourceEditor, useProblems } from "../components/SourceEditor";
import { SourceView } from "../components/SourceView";
import { type Column, Table } from "../components/Table";
import { api, type DefinitionRow } from "../lib/api";
import { limitText } from "../lib/describe";
import { folded, lines } from "../lib/diff";
import { useMay, useParam } from "../lib/hooks";
import { text } from "../strings";
import { StartDialog } from "./Start";
import { patient } from "../lib/patient";

const GraphView = lazy(() => patient(() => import("../components/GraphView")));

const nameOf = (row: DefinitionRow): string => (row.version === null ? row.name : `${row.name}@${row.version}`);
const at = (name: string): string => `/definitions/${encodeURIComponent(name)}`;

const COLUMNS: Column<DefinitionRow>[] = [
  { name: "Name", size: "minmax(120px, 1.4fr)", cell: (row) => <Link to={at(nameOf(row))}>{row.name}</Link> },
  { name: "Version", size: "80px", cell: (row) => row.version ?? "—" },
  { name: "Dialect", size: "90px", cell: (row) => <span className="soft">{row.dialect}</span> },
  { name: "Status", size: "minmax(110px, 2fr)", wide: true, cell: (row) => <span className={row.status === "available" ? "soft" : "s-failed"} title={row.reasons.join("\n")}>{row.status}{row.reasons[0] && `: ${row.reasons[0]}`}</span> },
  { name: "Digest", size: "160px", wide: true, cell: (row) => <code className="soft">{row.digest.slice(0, 19)}…</code> },
];

export function Definitions() {
  const found = useQuery({ queryKey: ["definitions"], queryFn: api.definitions });
  const [deploying, setDeploying] = useState(false);
  const mayDeploy = useMay("admin");
  return (
    <div className="page">
      <div className="row">
        <h1 className="grow">{text.definitions}</h1>
        {mayDeploy && <button className="primary" onClick={() => setDeploying(true)}>Deploy</button>}
      </div>
      {found.error && <Failure error={found.error} />}
      {found.data === undefined ? <Loading /> : found.data.items.length === 0 ? <Empty why={text.noDefinitions} command={text.noDefinitionsCommand} /> : (
        <section className="box" aria-label={text.definitions}><Table label={text.definitions} columns={COLUMNS} rows={found.data.items} keyOf={nameOf} /></section>
      )}
      {deploying && <DeployDialog onClose={() => setDeploying(false)} />}
    </div>
  );
}

export function DefinitionPage() {
  const { name = "" } = useParams();
  const row = useQuery({ queryKey: ["definition", name], queryFn: () => api.definition(name) });
  const graph = useQuery({ queryKey: ["definition-graph", name], queryFn: () => api.definitionGraph(name) });
  const source = useQuery({ queryKey: ["definition-source", name], queryFn: () => api.source(name), retry: false });
  const [starting, setStarting] = useState(false);
  const [editing, setEditing] = useState(false);
  const [than, setThan] = useParam("than");
  const mayAct = useMay("operator");
  const mayDeploy = useMay("admin");
  if (row.data === undefined) return row.error ? <Failure error={row.error} /> : <Loading />;
  return (
    <div className="page">
      <div className="row heading">
        <h1 className="grow">{row.data.name} <span className="soft">{row.data.version}</span></h1>
        <Link to={`/runs?workflow=${encodeURIComponent(row.data.name)}`}>Its runs</Link>
        {mayDeploy && source.data !== undefined && <button onClick={() => setEditing(true)}>Mend and deploy</button>}
        {mayAct && <button className="primary" onClick={() => setStarting(true)}>Start a run</button>}
      </div>
      <div className="facts">
        <span>{row.data.dialect}</span><code>{row.data.digest.slice(0, 19)}…</code>
        <Limited workflow={row.data.name} />
        <Versions row={row.data} than={than} onThan={setThan} />
      </div>
      {row.data.description && <p style={{ margin: 0 }}>{row.data.description}</p>}
      {row.data.reasons.map((reason) => <div key={reason} className="error-box" role="status">{reason}</div>)}
      <section className="box" aria-label="Picture">
        {graph.error ? <Failure error={graph.error} /> : graph.data && <Suspense fallback={<Loading />}><GraphView graph={graph.data} /></Suspense>}
      </section>
      {than !== "" && <Changes before={than} after={nameOf(row.data)} />}
      <section className="box" aria-label="Source">
        <header><h2>Source</h2></header>
        {source.data !== undefined ? <Source path={`${row.data.name}.yaml`} written={source.data} /> : !source.isPending && <div className="inside"><Code value={row.data.body} label="Canonical form" /></div>}
      </section>
      {starting && <StartDialog workflow={row.data.name} onClose={() => setStarting(false)} />}
      {editing && <DeployDialog onClose={() => setEditing(false)} text={source.data ?? ""} path={`${row.data.name}.yaml`} />}
    </div>
  );
}

/** How many of its runs go on at once, where that is limited. */
function Limited({ workflow }: { workflow: string }) {
  const found = useQuery({ queryKey: ["limits"], queryFn: api.limits });
  const row = found.data?.items.find((one) => one.workflow === workflow && one.limits !== null);
  return row && <span>at most {limitText(row.limits)}: {row.running} running, <Link to={`/runs?status=queued&workflow=${encodeURIComponent(workflow)}`}>{row.queued} in line</Link></span>;
}

/** The versions of this name: go to one, or see what changed since. */
function Versions({ row, than, onThan }: { row: DefinitionRow; than: string; onThan: (name: string | null) => void }) {
  const navigate = useNavigate();
  const found = useQuery({ queryKey: ["definitions"], queryFn: api.definitions });
  const all = (found.data?.items ?? []).filter((one) => one.name === row.name && one.version !== null);
  if (all.length < 2) return null;
  return (
    <span className="row versions">
      <select aria-label="Version" value={nameOf(row)} onChange={(event) => void navigate(at(event.target.value))}>
        {all.map((one) => <option key={nameOf(one)} value={nameOf(one)}>version {one.version}</option>)}
      </select>
      <select aria-label="Compare with" value={than} onChange={(event) => onThan(event.target.value)}>
        <option value="">compare with…</option>
        {all.filter((one) => one.version !== row.version).map((one) => <option key={nameOf(one)} value={nameOf(one)}>version {one.version}</option>)}
      </select>
    </span>
  );
}

function Changes({ before, after }: { before: string; after: string }) {
  const old = useQuery({ queryKey: ["definition-source", before], queryFn: () => api.source(before), retry: false });
  const now = useQuery({ queryKey: ["definition-source", after], queryFn: () => api.source(after), retry: false });
  const error = old.error ?? now.error;
  return (
    <section className="box" aria-label="Changes">
      <header><h2>{before} → {after}</h2></header>
      {error ? <Failure error={error} /> : old.data === undefined || now.data === undefined ? <Loading /> : old.data === now.data ? <div className="inside soft">Nothing changed.</div> : (
        <pre className="changes" tabIndex={0}>
          {folded(lines(old.data, now.data)).map((line, n) => (line === null ? <span key={n} className="soft">⋯{"\n"}</span>
            : <span key={n} className={line.kind}>{line.kind === "was" ? "− " : line.kind === "is" ? "+ " : "  "}{line.text}{"\n"}</span>))}
        </pre>
      )}
    </section>
  );
}

/** The text with what is known to be wrong with it in the margin. Only who may deploy may have it checked. */
function Source({ path, written }: { path: string; written: string }) {
  return useMay("admin") ? <CheckedSource path={path} written={written} /> : <SourceView written={written} problems={[]} />;
}

function CheckedSource({ path, written }: { path: string; written: string }) {
  const { problems } = useProblems({ path, text: written });
  return <SourceView written={written} problems={problems} />;
}

function DeployDialog({ onClose, text: given = "", path: named = "flow.yaml" }: { onClose: () => void; text?: string; path?: string }) {
  const [source, setSource] = useState(given);
  const [path, setPath] = useState(named);
  const client = useQueryClient();
  const file = { path, text: source };
  const { problems, error } = useProblems(file);
  const deploy = useMutation({
    mutationFn: () => api.deploy([file]),
    onSuccess: () => {
      void client.invalidateQueries();
      onClose();
    },
  });
  return (
    <Dialog wide title="Deploy a definition" onClose={onClose} footer={<button className="primary" disabled={deploy.isPending || source.trim() === ""} onClick={() => deploy.mutate()}>Deploy</button>}>
      <label>File name<input type="text" value={path} onChange={(event) => setPath(event.target.value)} /></label>
      <SourceEditor value={source} onChange={setSource} problems={problems} error={error} />
      {deploy.error && <Failure error={deploy.error} />}
    </Dialog>
  );
}
