import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { Copy, Dialog, Failure, Loading } from "../components/bits";
import { SourceEditor, useProblems } from "../components/SourceEditor";
import { api, type RunDocument } from "../lib/api";
import { cause } from "../lib/describe";
import { text } from "../strings";

/** The definition that a run stopped under, to be mended for this run alone. */
export function MendDialog({ run, onClose }: { run: RunDocument; onClose: () => void }) {
  const source = useQuery({ queryKey: ["definition-source", run.digest], queryFn: () => api.source(run.digest), retry: false });
  if (source.data !== undefined) return <Mending run={run} given={source.data} onClose={onClose} />;
  return (
    <Dialog title={`Mend ${run.workflow} and retry ${run.id}`} onClose={onClose}>
      {source.error ? <Failure error={source.error} /> : <Loading />}
    </Dialog>
  );
}

function Mending({ run, given, onClose }: { run: RunDocument; given: string; onClose: () => void }) {
  const [source, setSource] = useState(given);
  const client = useQueryClient();
  const file = { path: "mended.yaml", text: source };
  const { problems, clean, error } = useProblems(file);
  const retry = useMutation({
    mutationFn: () => api.act(run.id, "retry", { files: [file] }),
    onSuccess: () => {
      void client.invalidateQueries();
      onClose();
    },
  });
  return (
    <Dialog
      wide
      title={`Mend ${run.workflow} and retry ${run.id}`}
      onClose={onClose}
      footer={<button className="primary" disabled={!clean || source === given || retry.isPending} onClick={() => retry.mutate()}>Retry with this</button>}
    >
      {run.error && <div className="error-box"><strong>{cause(run.error)}</strong>{run.error.where && <span className="soft"> at {run.error.where}</span>}</div>}
      <SourceEditor value={source} onChange={setSource} problems={problems} error={error} rows={20} />
      <p className="soft">{text.mendAbout}</p>
      <Copy text={`treadle retry ${run.id} --definition mended.yaml`} />
      {retry.error && <Failure error={retry.error} />}
    </Dialog>
  );
}
