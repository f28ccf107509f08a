import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { Ago, Dialog, Empty, Failure, Plain } from "../components/bits";
import { SchemaForm } from "../components/SchemaForm";
import { api, type Json, type Task } from "../lib/api";
import { useMe, useNow, useParam } from "../lib/hooks";
import { isDue, mayAnswer, mayAssign, told, urgent } from "../lib/tasks";
import { exact, until } from "../lib/time";
import { text } from "../strings";

// What others do with a task is no change of its run, so no stream tells of it.
const OFTEN = 4000;

export function Tasks() {
  const [role, setRole] = useParam("role");
  const [status, setStatus] = useParam("status");
  const [whose, setWhose] = useParam("assignee");
  const [due, setDue] = useParam("due");
  const [chosen, setChosen] = useParam("task");
  const now = useNow();
  const { me } = useMe();
  const found = useQuery({ queryKey: ["tasks", role, status, whose], queryFn: () => api.tasks({ role, status, assignee: whose, limit: 200 }), refetchInterval: OFTEN });
  const all = found.data?.items ?? [];
  const tasks = urgent(all.filter((task) => isDue(task, due, now)));
  const roles = [...new Set([...all.flatMap((task) => task.roles), ...(role ? [role] : [])])].sort();
  const at = tasks.findIndex((task) => task.id === chosen);
  const next = (): void => setChosen(tasks[at + 1]?.id ?? tasks.find((task) => task.id !== chosen)?.id ?? null);
  return (
    <div className="page">
      <h1>{text.tasks}</h1>
      {found.error && <Failure error={found.error} />}
      <div className="three">
        <div className="stack filters-side" role="search">
          <label>
            Whose
            <select value={whose} onChange={(event) => setWhose(event.target.value)}>
              <option value="">everybody's</option>
              {me && <option value={me.user}>mine</option>}
              {whose !== "" && whose !== me?.user && <option value={whose}>{whose}'s</option>}
            </select>
          </label>
          <label>
            Role
            <select value={role} onChange={(event) => setRole(event.target.value)}>
              <option value="">any</option>
              {roles.map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <label>
            Due
            <select value={due} onChange={(event) => setDue(event.target.value)}>
              <option value="">any time</option><option value="overdue">overdue</option><option value="today">within a day</option><option value="none">no deadline</option>
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
          {tasks.length === 0 && !found.isPending && <div role="listitem"><Empty why={text.noTasks} /></div>}
          {tasks.map((task) => (
            <div role="listitem" key={task.id}>
              <button aria-current={task.id === chosen} onClick={() => setChosen(task.id)}>
                <span className="row"><strong className="grow nowrap">{task.title ?? task.name}</strong>{task.assignee && <span className="soft nowrap">{task.assignee}</span>}</span>
                <span className="soft">{task.reference ?? task.workflow} · {task.roles.join(", ") || "anybody"}{task.due && <> · <DueText at={task.due} now={now} /></>}</span>
              </button>
            </div>
          ))}
        </div>
        {chosen === "" ? (tasks.length > 0 && <Empty why={text.chooseTask} />) : <TaskView key={chosen} id={chosen} onDone={next} />}
      </div>
    </div>
  );
}

function DueText({ at, now }: { at: string; now: number }) {
  return <time dateTime={at} title={exact(at)} className={Date.parse(at) < now ? "s-failed" : ""}>due {until(at, now)}</time>;
}

function TaskView({ id, onDone }: { id: string; onDone: () => void }) {
  const client = useQueryClient();
  const task = useQuery({ queryKey: ["tasks", "one", id], queryFn: () => api.task(id), refetchInterval: OFTEN });
  const [assigning, setAssigning] = useState(false);
  const now = useNow();
  const act = useMutation({
    mutationFn: async ({ action, body }: { action: string; body?: object }) => {
      if (action === "complete" && task.data?.status === "open") await api.taskAct(id, "claim");
      return api.taskAct(id, action, body ?? {});
    },
    onSuccess: (_, { action }) => {
      void client.invalidateQueries({ queryKey: ["tasks"] });
      if (action === "complete") onDone();
    },
  });
  const { me } = useMe();
  if (task.error) return <Failure error={task.error} />;
  if (task.data === undefined) return null;
  const { data } = task;
  const open = data.status === "open" || data.status === "claimed";
  const theirs = mayAnswer(data, me);
  const going = open && theirs;
  return (
    <section className="box" aria-label={data.title ?? data.name}>
      <header>
        <h2 className="grow">{data.title ?? data.name}</h2>
        {going && data.status === "open" && <button onClick={() => act.mutate({ action: "claim" })}>Claim</button>}
        {open && mayAssign(data, me) && <button onClick={() => setAssigning(true)}>Assign…</button>}
        {going && data.status === "claimed" && <button onClick={() => act.mutate({ action: "release" })}>Release</button>}
      </header>
      <div className="inside stack">
        {data.description && <span>{data.description}</span>}
        <div className="facts">
          <span>{data.status}{data.assignee && ` by ${data.assignee}`}</span>
          <span>for {data.roles.join(", ") || "anybody"}</span>
          {data.due && <DueText at={data.due} now={now} />}
          <span>asked <Ago at={data.created_at} /></span>
          <span>run <Link to={`/runs/${encodeURIComponent(data.run)}`}>{data.run}</Link></span>
          {data.reference && <span>reference {data.reference}</span>}
        </div>
        {data.payload !== null && <div className="payload"><Plain value={data.payload} label="What it is about" /></div>}
        {going && <SchemaForm schema={data.schema} submit="Complete" busy={act.isPending} onSubmit={(value: Json) => act.mutate({ action: "complete", body: { data: value } })} />}
        {open && !going && <span className="soft">{text.notYours} {data.roles.join(", ")}</span>}
        {!open && data.answer !== undefined && data.answer !== null && <div className="payload"><Plain value={data.answer} label="Answer" /></div>}
        {act.error && <Failure error={act.error} />}
        <History task={data} />
        {theirs && <CommentForm id={id} />}
      </div>
      {assigning && <AssignDialog task={data} onClose={() => setAssigning(false)} />}
    </section>
  );
}

function AssignDialog({ task, onClose }: { task: Task; onClose: () => void }) {
  const [to, setTo] = useState("");
  const client = useQueryClient();
  const assign = useMutation({
    mutationFn: () => api.taskAct(task.id, "assign", { to: to.trim() }),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["tasks"] });
      onClose();
    },
  });
  return (
    <Dialog
      title={`Give ${task.title ?? task.name} to somebody`}
      onClose={onClose}
      footer={<button className="primary" disabled={to.trim() === "" || assign.isPending} onClick={() => assign.mutate()}>Assign</button>}
    >
      <label>User<input type="text" value={to} autoComplete="off" spellCheck={false} onChange={(event) => setTo(event.target.value)} /></label>
      <p className="soft">{text.assignAbout}</p>
      {assign.error && <Failure error={assign.error} />}
    </Dialog>
  );
}

function CommentForm({ id }: { id: string }) {
  const [said, setSaid] = useState("");
  const client = useQueryClient();
  const add = useMutation({
    mutationFn: () => api.taskAct(id, "comment", { text: said.trim() }),
    onSuccess: () => {
      setSaid("");
      void client.invalidateQueries({ queryKey: ["tasks"] });
    },
  });
  return (
    <form className="row" onSubmit={(event) => { event.preventDefault(); add.mutate(); }}>
      <input className="grow" type="text" aria-label="Comment" placeholder="Comment" value={said} onChange={(event) => setSaid(event.target.value)} />
      <button disabled={said.trim() === "" || add.isPending}>Add</button>
      {add.error && <Failure error={add.error} />}
    </form>
  );
}

function History({ task }: { task: Task }) {
  if (task.history.length === 0) return null;
  return (
    <section aria-label="History">
      <h3>History</h3>
      <ol className="history">
        {task.history.map((entry, n) => (
          <li key={n}><span>{told(entry)}</span> {typeof entry["at"] === "string" && <span className="soft"><Ago at={entry["at"]} /></span>}</li>
        ))}
      </ol>
    </section>
  );
}
