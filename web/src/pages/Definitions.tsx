import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, lazy, useState } from "react";
import { Link, useParams } from "react-router";

import { Code, Dialog, Empty, Failure, Loading } from "../components/bits";
import { SourceEditor, useProblems } from "../components/SourceEditor";
import { api } from "../lib/api";
import { useMay } from "../lib/hooks";
import { text } from "../strings";
import { StartDialog } from "./Start";
import { patient } from "../lib/patient";

const GraphView = lazy(() => patient(() => import("../components/GraphView")));

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
      {found.data?.items.length === 0 ? <Empty why={text.noDefinitions} command={text.noDefinitionsCommand} /> : (
        <div className="list">
          {found.data?.items.map((row) => (
            <Link key={row.digest + row.version} to={`/definitions/${encodeURIComponent(row.version === null ? row.name : `${row.name}@${row.version}`)}`} className="row" style={{ padding: "8px 12px", borderBottom: "1px solid var(--line)" }}>
              <strong>{row.name}</strong><span className="soft">{row.version}</span><span className="soft">{row.dialect}</span>
              <span className={row.status === "available" ? "soft" : "s-failed"}>{row.status}{row.reasons[0] && `: ${row.reasons[0]}`}</span>
              <code className="soft" style={{ marginLeft: "auto" }}>{row.digest.slice(0, 19)}…</code>
            </Link>
          ))}
        </div>
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
  const mayAct = useMay("operator");
  const mayDeploy = useMay("admin");
  if (row.data === undefined) return row.error ? <Failure error={row.error} /> : <Loading />;
  return (
    <div className="page">
      <div className="row">
        <h1 className="grow">{row.data.name} <span className="soft">{row.data.version}</span></h1>
        <Link to={`/runs?workflow=${encodeURIComponent(row.data.name)}`}>Its runs</Link>
        {mayDeploy && source.data !== undefined && <button onClick={() => setEditing(true)}>Mend and deploy</button>}
        {mayAct && <button className="primary" onClick={() => setStarting(true)}>Start a run</button>}
      </div>
      <div className="facts"><span>{row.data.dialect}</span><code>{row.data.digest}</code></div>
      <section className="box" aria-label="Picture">
        {graph.data && <Suspense fallback={<Loading />}><GraphView graph={graph.data} /></Suspense>}
      </section>
      <section className="box" aria-label="Source">
        <header><h2>Source</h2></header>
        <div className="inside">{source.data === undefined ? <Code value={row.data.body} label="Canonical form" /> : <pre tabIndex={0}>{source.data}</pre>}</div>
      </section>
      {starting && <StartDialog workflow={row.data.name} onClose={() => setStarting(false)} />}
      {editing && <DeployDialog onClose={() => setEditing(false)} text={source.data ?? ""} path={`${row.data.name}.yaml`} />}
    </div>
  );
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
