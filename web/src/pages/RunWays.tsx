// The ways out of where a run is: each says what it will do before it does it, with the same as a command.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";

import { Copy, Dialog, Failure } from "../components/bits";
import { api, type RunDocument } from "../lib/api";
import { quoted } from "../lib/bulk";
import { useMay, useParam } from "../lib/hooks";
import { MendDialog } from "./Mend";

const TERMINAL = new Set(["completed", "failed", "cancelled", "partial"]);
const MENDED = new Set(["playbook", "process", "agent"]);

type Way = { name: string; title: string; about: string; command: string; action: string; body: object; danger?: boolean };

function ways(run: RunDocument, at: number | null, step: string): Way[] {
  const id = run.id;
  const word = quoted(id);
  const found: Way[] = [];
  if (run.status === "failed" || run.status === "stalled") {
    found.push({ name: "Retry", title: `Retry ${id}?`, about: "It goes on where it failed; what is settled is not done again.", command: `treadle retry ${word}`, action: "retry", body: {} });
    if (step !== "" && run.dialect === "playbook") found.push({ name: `Retry from ${step}`, title: `Retry ${id} from ${step}?`, about: "The step and what follows it are done again.", command: `treadle retry ${word} --from ${quoted(step)}`, action: "retry", body: { from: step } });
    if (run.status === "stalled") found.push({ name: "Skip", title: `Skip what failed in ${id}?`, about: "The failed call counts as done, without a value.", command: `treadle retry ${word} --skip`, action: "retry", body: { skip: true } });
  }
  const record = at ?? run.version_no;
  found.push({ name: at === null ? "Fork" : `Fork from record ${record}`, title: `Fork ${id} at record ${record}?`, about: "A new run goes on from this state. This one stays as it is.", command: `treadle fork ${word} --at ${record}`, action: "fork", body: { at: record } });
  if (!TERMINAL.has(run.status)) found.push({ name: "Cancel", title: `Cancel ${id}?`, about: "Open work is cancelled, its children too. This cannot be undone; a fork can go on from before.", command: `treadle cancel ${word}`, action: "cancel", body: {}, danger: true });
  return found;
}

export function Actions({ run, at }: { run: RunDocument; at: number | null }) {
  const [step] = useParam("step");
  // A mended definition brings code, so it needs who may deploy. Code that is deployed as such is not mended here.
  const mayMend = useMay("admin") && (run.status === "failed" || run.status === "stalled") && MENDED.has(run.dialect);
  const [mending, setMending] = useState(false);
  const [way, setWay] = useState<Way | null>(null);
  const client = useQueryClient();
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: (asked: Way) => api.act(run.id, asked.action, asked.body),
    onSuccess: (answer, asked) => {
      setWay(null);
      void client.invalidateQueries();
      if (asked.action === "fork") void navigate(`/runs/${encodeURIComponent(answer.id)}`);
    },
  });
  return (
    <div className="row">
      {ways(run, at, step).map((one) => (
        <button key={one.name} className={one.danger ? "danger" : ""} onClick={() => { act.reset(); setWay(one); }}>{one.name}</button>
      ))}
      {mayMend && <button onClick={() => setMending(true)}>Mend and retry</button>}
      {mending && <MendDialog run={run} onClose={() => setMending(false)} />}
      {way && (
        <Dialog
          title={way.title}
          onClose={() => setWay(null)}
          footer={<button className={way.danger ? "danger" : "primary"} disabled={act.isPending} onClick={() => act.mutate(way)}>{way.name}</button>}
        >
          <p>{way.about}</p>
          <Copy text={way.command} />
          {act.error && <Failure error={act.error} />}
        </Dialog>
      )}
    </div>
  );
}
