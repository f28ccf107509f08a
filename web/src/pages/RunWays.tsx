// The ways out of where a run is: each says what it will do before it does it, with the same as a command.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";

import { Copy, Dialog, Failure } from "../components/bits";
import { api, type RunDocument, type TraceStep } from "../lib/api";
import { parsedJson, quoted } from "../lib/bulk";
import { useMay, useParam } from "../lib/hooks";
import { text } from "../strings";
import { MendDialog } from "./Mend";

const TERMINAL = new Set(["completed", "failed", "cancelled", "partial"]);
const MENDED = new Set(["playbook", "process", "agent"]);

/** `asks` is what somebody writes for it, as JSON or as text; under which name it is sent, and as which option of the command. */
type Asks = { label: string; key: "input" | "value" | "fail"; option: string; json: boolean; needed: boolean };
type Way = { name: string; title: string; about: string; command: string; action: string; body: object; danger?: boolean; asks?: Asks };

function ways(run: RunDocument, at: number | null, step: string): Way[] {
  const id = run.id;
  const word = quoted(id);
  const found: Way[] = [];
  if (run.status === "failed" || run.status === "stalled") {
    found.push({ name: "Retry", title: `Retry ${id}?`, about: "It goes on where it failed; what is settled is not done again.", command: `treadle retry ${word}`, action: "retry", body: {} });
    if (step !== "" && run.dialect === "playbook") found.push({ name: `Retry from ${step}`, title: `Retry ${id} from ${step}?`, about: "The step and what follows it are done again.", command: `treadle retry ${word} --from ${quoted(step)}`, action: "retry", body: { from: step } });
    if (run.status === "stalled") found.push(
      { name: "Edit and retry", title: `Retry ${id} with another payload?`, about: "The failed call is made again with what you write. It counts for this call alone.", command: `treadle retry ${word}`, action: "retry", body: {}, asks: { label: "Payload (JSON)", key: "input", option: "--input", json: true, needed: true } },
      { name: "Skip", title: `Skip what failed in ${id}?`, about: "The failed call counts as done, with the result you write, or without one.", command: `treadle retry ${word} --skip`, action: "retry", body: { skip: true }, asks: { label: "Result (JSON)", key: "value", option: "--value", json: true, needed: false } },
      { name: "Give up", title: `Give up on ${id}?`, about: "The run fails with what you write. What it has to undo is undone.", command: `treadle retry ${word}`, action: "retry", body: {}, danger: true, asks: { label: "Why", key: "fail", option: "--fail", json: false, needed: true } },
    );
  }
  const record = at ?? run.version_no;
  found.push({ name: at === null ? "Fork" : `Fork from record ${record}`, title: `Fork ${id} at record ${record}?`, about: "A new run goes on from this state. This one stays as it is.", command: `treadle fork ${word} --at ${record}`, action: "fork", body: { at: record } });
  if (!TERMINAL.has(run.status)) found.push({ name: "Cancel", title: `Cancel ${id}?`, about: "Open work is cancelled, its children too. This cannot be undone; a fork can go on from before.", command: `treadle cancel ${word}`, action: "cancel", body: {}, danger: true });
  return found;
}

export function Actions({ run, at, steps }: { run: RunDocument; at: number | null; steps: TraceStep[] }) {
  const [step] = useParam("step");
  // A mended definition brings code, so it needs who may deploy. Code that is deployed as such is not mended here.
  const mayMend = useMay("admin") && (run.status === "failed" || run.status === "stalled") && MENDED.has(run.dialect);
  const [mending, setMending] = useState(false);
  const [way, setWay] = useState<Way | null>(null);
  return (
    <div className="row">
      {ways(run, at, step).map((one) => <button key={one.name} className={one.danger ? "danger" : ""} onClick={() => setWay(one)}>{one.name}</button>)}
      {mayMend && <button onClick={() => setMending(true)}>Mend and retry</button>}
      {mending && <MendDialog run={run} onClose={() => setMending(false)} />}
      {way && <WayDialog key={way.name} run={run} way={way} failed={steps.findLast((one) => one.error !== null)} onClose={() => setWay(null)} />}
    </div>
  );
}

function WayDialog({ run, way, failed, onClose }: { run: RunDocument; way: Way; failed: TraceStep | undefined; onClose: () => void }) {
  const [written, setWritten] = useState<string | null>(null);
  const client = useQueryClient();
  const navigate = useNavigate();
  const { asks } = way;
  // What was sent is what one mends.
  const sent = useQuery({
    queryKey: ["record", run.id, failed?.seq], queryFn: () => api.journal(run.id, (failed?.seq ?? 1) - 1, 1), staleTime: Infinity, enabled: asks?.key === "input" && failed !== undefined,
  });
  const payload = sent.data?.[0]?.opened.find((one) => one.id === failed?.id)?.params?.["payload"];
  const shown = written ?? (asks?.key === "input" && payload !== undefined ? JSON.stringify(payload, null, 2) : "");
  const parsed = asks?.json ? parsedJson(shown) : { ok: true, value: shown };
  const given = asks !== undefined && shown.trim() !== "" && parsed.ok ? asks : null;
  const act = useMutation({
    mutationFn: () => api.act(run.id, way.action, { ...way.body, ...(given === null ? {} : { [given.key]: parsed.value }) }),
    onSuccess: (answer) => {
      onClose();
      void client.invalidateQueries();
      if (way.action === "fork") void navigate(`/runs/${encodeURIComponent(answer.id)}`);
    },
  });
  const ready = !act.isPending && parsed.ok && (asks === undefined || !asks.needed || given !== null);
  return (
    <Dialog title={way.title} onClose={onClose} footer={<button className={way.danger ? "danger" : "primary"} disabled={!ready} onClick={() => act.mutate()}>{way.name}</button>}>
      <p>{way.about}</p>
      {asks && <label>{asks.label}<textarea rows={asks.json ? 6 : 2} value={shown} spellCheck={!asks.json} aria-invalid={!parsed.ok} onChange={(event) => setWritten(event.target.value)} /></label>}
      {!parsed.ok && <span className="s-failed" role="alert">{text.noJson}</span>}
      <Copy text={given === null ? way.command : `${way.command} ${given.option} ${quoted(given.json ? JSON.stringify(parsed.value) : shown)}`} />
      {act.error && <Failure error={act.error} />}
    </Dialog>
  );
}
