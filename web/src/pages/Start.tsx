import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";

import { Copy, Dialog, Failure } from "../components/bits";
import { SchemaForm } from "../components/SchemaForm";
import { api, type Json } from "../lib/api";
import { text } from "../strings";

export function StartDialog({ onClose, workflow: given }: { onClose: () => void; workflow?: string }) {
  const navigate = useNavigate();
  const [workflow, setWorkflow] = useState(given ?? "");
  const [id, setId] = useState("");
  const names = useQuery({ queryKey: ["definitions"], queryFn: api.definitions });
  const chosen = workflow || names.data?.items[0]?.name || "";
  const definition = useQuery({ queryKey: ["definition", chosen], queryFn: () => api.definition(chosen), enabled: chosen !== "" });
  const start = useMutation({
    mutationFn: (input: Json) => api.start({ workflow: chosen, input, ...(id === "" ? {} : { id }) }),
    onSuccess: (run) => {
      onClose();
      void navigate(`/runs/${encodeURIComponent(run.id)}`);
    },
  });
  return (
    <Dialog title="Start a run" onClose={onClose}>
      {names.data?.items.length === 0 ? <p>{text.noDefinitions} <code>{text.noDefinitionsCommand}</code></p> : (
        <>
          <label>
            Workflow
            <select value={chosen} onChange={(event) => setWorkflow(event.target.value)}>
              {[...new Set(names.data?.items.map((row) => row.name) ?? [])].map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <label>
            Id (the same id again is the same run)
            <input type="text" value={id} onChange={(event) => setId(event.target.value)} placeholder="one is made" />
          </label>
          <SchemaForm key={chosen} schema={definition.data?.input_schema ?? null} submit="Start" busy={start.isPending} onSubmit={(input) => start.mutate(input)} />
          <Copy text={`treadle run ${chosen}${id === "" ? "" : ` --id ${id}`}`} />
        </>
      )}
      {start.error && <Failure error={start.error} />}
    </Dialog>
  );
}
