import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { Ago, Code, Empty, Failure, Fold } from "../components/bits";
import { SchemaForm } from "../components/SchemaForm";
import { api, type Json, type Me, type Task } from "../lib/api";
import { useMe, useNow, useParam } from "../lib/hooks";
import { until } from "../lib/time";
import { text } from "../strings";

export function Tasks() {
  const [role, setRole] = useParam("role");
  const [status, setStatus] = useParam("status");
  const [chosen, setChosen] = useParam("task");
  const now = useNow();
  const found = useQuery({ queryKey: ["tasks", role, status], queryFn: () => api.tasks({ role, status, limit: 200 }) });
  const tasks = found.data?.items ?? [];
  const roles = [...new Set(tasks.flatMap((task) => task.roles))].sort();
  const at = tasks.findIndex((task) => task.id === chosen);
  const next = (): void => setChosen(tasks[at + 1]?.id ?? tasks.find((task) => task.id !== chosen)?.id ?? null);
  return (
    <div className="page">
      <h1>{text.tasks}</h1>
      {found.error && <Failure error={found.error} />}
      <div className="three">
        <div className="stack" style={{ alignContent: "start" }}>
          <label>
            Role
            <select value={role} onChange={(event) => setRole(event.target.value)}>
              <option value="">any</option>
              {[...new Set([...roles, ...(role ? [role] : [])])].map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <label>
            Status
            <select value={status} onChange={(event) => setStatus(event.target.value)}>
              <option value="">open and claimed</option>
              <option>open</option><option>claimed</option><option>completed</option><option>cancelled</option><option>expired</option>
            </select>
          </label>
        </div>
        <div className="list" role="list" aria-label={text.tasks}>
          {tasks.length === 0 && <Empty why={text.noTasks} />}
          {tasks.map((task) => (
            <div role="listitem" key={task.id}>
              <button aria-current={task.id === chosen} onClick={() => setChosen(task.id)}>
                <span><strong>{task.title ?? task.name}</strong> {task.assignee && <span className="soft">{task.assignee}</span>}</span>
                <span className="soft">{task.reference ?? task.workflow} · {task.roles.join(", ") || "anybody"} {task.due && `· due ${until(task.due, now)}`}</span>
              </button>
            </div>
          ))}
        </div>
        {chosen === "" ? <Empty why="Choose a task to see what is asked." /> : <TaskView key={chosen} id={chosen} onDone={next} />}
      </div>
    </div>
  );
}

/** Whether a task is for somebody; the server judges again. */
function mayAnswer(task: Task, me: Me | undefined): boolean {
  if (me === undefined || !me.may.includes("task")) return false;
  return me.may.includes("admin") || task.roles.length === 0 || task.assignee === me.user || task.roles.some((role) => me.roles.includes(role));
}

function TaskView({ id, onDone }: { id: string; onDone: () => void }) {
  const client = useQueryClient();
  const task = useQuery({ queryKey: ["tasks", "one", id], queryFn: () => api.task(id) });
  const [comment, setComment] = useState("");
  const act = useMutation({
    mutationFn: async ({ action, body }: { action: string; body?: object }) => {
      if (action === "complete" && task.data?.status === "open") await api.taskAct(id, "claim");
      return api.taskAct(id, action, body ?? {});
    },
    onSuccess: (_, { action }) => {
      void client.invalidateQueries({ queryKey: ["tasks"] });
      if (action === "complete") onDone();
      if (action === "comment") setComment("");
    },
  });
  const { me } = useMe();
  if (task.error) return <Failure error={task.error} />;
  if (task.data === undefined) return null;
  const { data } = task;
  const open = data.status === "open" || data.status === "claimed";
  const going = open && mayAnswer(data, me);
  return (
    <section className="box" aria-label={data.title ?? data.name}>
      <header>
        <h2 className="grow">{data.title ?? data.name}</h2>
        {going && data.status === "open" && <button onClick={() => act.mutate({ action: "claim" })}>Claim</button>}
        {going && data.status === "claimed" && <button onClick={() => act.mutate({ action: "release" })}>Release</button>}
      </header>
      <div className="inside stack">
        <span className="soft">{data.description}</span>
        <span className="soft">{data.status}{data.assignee && ` by ${data.assignee}`} · made <Ago at={data.created_at} /> · run <Link to={`/runs/${encodeURIComponent(data.run)}`}>{data.run}</Link></span>
        {data.payload !== null && <Code value={data.payload} label="What it is about" />}
        {going && <SchemaForm schema={data.schema} submit="Complete" busy={act.isPending} onSubmit={(value: Json) => act.mutate({ action: "complete", body: { data: value } })} />}
        {open && !going && <span className="soft">{text.notYours} {data.roles.join(", ")}</span>}
        {act.error && <Failure error={act.error} />}
        <History task={data} />
        {going && (
          <form className="row" onSubmit={(event) => { event.preventDefault(); act.mutate({ action: "comment", body: { text: comment } }); }}>
            <input className="grow" type="text" aria-label="Comment" placeholder="Comment" value={comment} onChange={(event) => setComment(event.target.value)} />
            <button disabled={comment === ""}>Add</button>
          </form>
        )}
      </div>
    </section>
  );
}

function History({ task }: { task: Task }) {
  if (task.history.length === 0) return null;
  return (
    <Fold title={`History (${task.history.length})`}>
      {task.history.map((entry, n) => <div key={n} className="soft">{Object.entries(entry).map(([key, value]) => `${key} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(" · ")}</div>)}
    </Fold>
  );
}
