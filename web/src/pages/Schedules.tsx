import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate } from "react-router";

import { Copy, Dialog, Empty, Failure, Loading } from "../components/bits";
import { StatusText } from "../components/Status";
import { api, type Schedule, type ScheduleFields } from "../lib/api";
import { parsedJson } from "../lib/bulk";
import { whenText } from "../lib/describe";
import { useMay, useNow } from "../lib/hooks";
import { clock, exact, until, zone } from "../lib/time";
import { text } from "../strings";

type Asked = { action: "trigger" | "remove"; schedule: Schedule };

export function Schedules() {
  const found = useQuery({ queryKey: ["schedules"], queryFn: api.schedules, refetchInterval: 5000 });
  const [adding, setAdding] = useState(false);
  const [asked, setAsked] = useState<Asked | null>(null);
  const mayAct = useMay("operator");
  return (
    <div className="page">
      <div className="row">
        <h1 className="grow">{text.schedules}</h1>
        {mayAct && <button className="primary" onClick={() => setAdding(true)}>New schedule</button>}
      </div>
      {found.error && <Failure error={found.error} />}
      {found.isPending ? <Loading /> : found.data?.items.length === 0 ? <Empty why={text.noSchedules} command={text.noSchedulesCommand} /> : (
        <div className="list" role="list" aria-label={text.schedules}>
          {found.data?.items.map((row) => <Row key={row.name} row={row} mayAct={mayAct} onAsk={(action) => setAsked({ action, schedule: row })} />)}
        </div>
      )}
      {adding && <NewDialog onClose={() => setAdding(false)} />}
      {asked && <AskDialog asked={asked} onClose={() => setAsked(null)} />}
    </div>
  );
}

function Row({ row, mayAct, onAsk }: { row: Schedule; mayAct: boolean; onAsk: (action: Asked["action"]) => void }) {
  const now = useNow();
  const client = useQueryClient();
  const pause = useMutation({
    mutationFn: () => api.scheduleChange(row.name, { paused: !row.paused }),
    onSuccess: () => void client.invalidateQueries({ queryKey: ["schedules"] }),
  });
  const next = row.next[0];
  return (
    <div role="listitem" className="schedule-grid" aria-label={row.name}>
      <span className="nowrap"><strong>{row.name}</strong></span>
      <Link className="nowrap" to={`/definitions/${encodeURIComponent(row.workflow)}`}>{row.workflow}</Link>
      <span className="nowrap soft" title={whenText(row)}>{whenText(row)}</span>
      <span className="nowrap tabular" title={row.next.map(exact).join("\n")}>
        {row.paused ? <span className="s-stalled">paused</span> : next === undefined ? <span className="soft">{text.noMoreTicks}</span> : `next ${until(next, now)}`}
      </span>
      <LastRun row={row} />
      {mayAct && (
        <span className="row acts">
          <button disabled={pause.isPending} onClick={() => pause.mutate()}>{row.paused ? "Resume" : "Pause"}</button>
          <button onClick={() => onAsk("trigger")}>Trigger now</button>
          <button className="danger" onClick={() => onAsk("remove")}>Delete</button>
        </span>
      )}
      {pause.error && <Failure error={pause.error} />}
    </div>
  );
}

function LastRun({ row: { last } }: { row: Schedule }) {
  if (last === null) return <span className="soft">{text.neverTicked}</span>;
  if (!last.run) return <span className="soft nowrap" title={exact(last.at)}>{last.outcome} at {clock(last.at)}</span>;
  return (
    <span className="row last-run">
      {last.status && <StatusText status={last.status} />}
      <Link className="nowrap" to={`/runs/${encodeURIComponent(last.run)}`} title={last.run}>{clock(last.at)}</Link>
    </span>
  );
}

function AskDialog({ asked: { action, schedule }, onClose }: { asked: Asked; onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: async () => {
      if (action === "remove") await api.scheduleRemove(schedule.name);
      else void navigate(`/runs/${encodeURIComponent((await api.scheduleTrigger(schedule.name)).id)}`);
    },
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["schedules"] });
      onClose();
    },
  });
  const triggers = action === "trigger";
  return (
    <Dialog
      title={triggers ? `Start ${schedule.workflow} now?` : `Delete ${schedule.name}?`}
      onClose={onClose}
      footer={<button className={triggers ? "primary" : "danger"} disabled={act.isPending} onClick={() => act.mutate()}>{triggers ? "Trigger" : "Delete"}</button>}
    >
      <p>{triggers ? text.triggerAbout : text.removeAbout}</p>
      <Copy text={`treadle schedule ${action} ${schedule.name}`} />
      {act.error && <Failure error={act.error} />}
    </Dialog>
  );
}

type When = "every" | "cron" | "at";
const EXAMPLES: Record<When, string> = { every: "15m", cron: "30 2 * * *", at: "2030-01-31T09:00:00Z" };
const LABELS: Record<When, string> = { every: "Interval", cron: "Cron", at: "Instant" };

function NewDialog({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const names = useQuery({ queryKey: ["definitions"], queryFn: api.definitions });
  const [name, setName] = useState("");
  const [workflow, setWorkflow] = useState("");
  const [when, setWhen] = useState<When>("every");
  const [said, setSaid] = useState("");
  const [timezone, setTimezone] = useState(zone);
  const [overlap, setOverlap] = useState("skip");
  const [catchUp, setCatchUp] = useState("last");
  const [input, setInput] = useState("");
  const chosen = workflow || names.data?.items[0]?.name || "";
  const ticks: ScheduleFields = { [when]: said.trim(), ...(when === "cron" && timezone !== "" ? { timezone } : {}) };
  const given = parsedJson(input);
  const preview = useQuery({
    queryKey: ["schedule-preview", ticks],
    queryFn: () => api.schedulePreview(ticks),
    enabled: said.trim() !== "",
    retry: false,
  });
  const add = useMutation({
    mutationFn: () => api.scheduleAdd({ ...ticks, name, workflow: chosen, overlap, catch_up: catchUp, ...(input.trim() === "" ? {} : { input: given.value }) }),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["schedules"] });
      onClose();
    },
  });
  const ready = name !== "" && chosen !== "" && preview.data !== undefined && given.ok;
  return (
    <Dialog title="New schedule" onClose={onClose} footer={<button className="primary" disabled={!ready || add.isPending} onClick={() => add.mutate()}>Create</button>}>
      <label>Name<input type="text" value={name} onChange={(event) => setName(event.target.value)} placeholder="nightly" /></label>
      <label>
        Workflow
        <select value={chosen} onChange={(event) => setWorkflow(event.target.value)}>
          {[...new Set(names.data?.items.map((row) => row.name) ?? [])].map((one) => <option key={one}>{one}</option>)}
        </select>
      </label>
      <div className="pair">
        <label>
          When
          <select value={when} onChange={(event) => { setWhen(event.target.value as When); setSaid(""); }}>
            <option value="every">every so often</option><option value="cron">times on a clock</option><option value="at">once</option>
          </select>
        </label>
        <label>{LABELS[when]}<input type="text" value={said} placeholder={EXAMPLES[when]} onChange={(event) => setSaid(event.target.value)} /></label>
      </div>
      {when === "cron" && <label>Time zone<input type="text" value={timezone} onChange={(event) => setTimezone(event.target.value)} /></label>}
      <div role="status" aria-label="Next runs" className="preview">
        {said.trim() === "" ? <span className="soft">{text.previewEmpty}</span> : preview.error ? <Failure error={preview.error} /> : preview.data && <Ticks next={preview.data.next} />}
      </div>
      <div className="pair">
        <label>
          While the last one goes on
          <select value={overlap} onChange={(event) => setOverlap(event.target.value)}>
            <option value="skip">skip</option><option value="allow">start beside it</option><option value="queue">start after it</option><option value="cancel">cancel it</option>
          </select>
        </label>
        <label>
          Missed ones
          <select value={catchUp} onChange={(event) => setCatchUp(event.target.value)}>
            <option value="last">the last one is started</option><option value="all">all are started</option><option value="none">are left out</option>
          </select>
        </label>
      </div>
      <label>Input (JSON)<textarea rows={3} value={input} placeholder="{}" spellCheck={false} aria-invalid={!given.ok} onChange={(event) => setInput(event.target.value)} /></label>
      {!given.ok && <span className="s-failed" role="alert">{text.noJson}</span>}
      <Copy text={`treadle schedule add ${name || "NAME"} ${chosen || "WORKFLOW"} --${when} '${said || EXAMPLES[when]}'${when === "cron" && timezone ? ` --timezone ${timezone}` : ""}`} />
      {add.error && <Failure error={add.error} />}
    </Dialog>
  );
}

function Ticks({ next }: { next: string[] }) {
  const now = useNow();
  if (next.length === 0) return <span className="soft">{text.noMoreTicks}</span>;
  return (
    <ol>
      {next.map((tick) => <li key={tick} className="tabular" title={exact(tick)}>{new Date(tick).toLocaleString()} <span className="soft">{until(tick, now)}</span></li>)}
    </ol>
  );
}
