// What an agent's run asked its models, tools and people, and what they answered, as one reads a conversation.

import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import { Ago, Code, Empty, Failure, Fold, Loading } from "../components/bits";
import { api, type RunDocument, type Said, type Usage } from "../lib/api";
import { usageText } from "../lib/describe";
import { isChoices, isFlat, type Piece, pieces, title } from "../lib/transcript";
import { span } from "../lib/time";

export function Transcript({ run }: { run: RunDocument }) {
  const found = useQuery({ queryKey: ["run", run.id, "transcript"], queryFn: () => api.transcript(run.id) });
  if (found.error) return <Failure error={found.error} />;
  if (found.data === undefined) return <Loading />;
  if (found.data.length === 0) return <Empty why="Nothing was asked yet." />;
  return (
    <div className="transcript">
      {run.stats.usage && <p className="soft tabular">{found.data.length} questions · {usageText(run.stats.usage)}</p>}
      <ol aria-label="Transcript">
        {found.data.map((said, n) => <Entry key={n} said={said} />)}
      </ol>
    </div>
  );
}

function Entry({ said }: { said: Said }) {
  const took = said.answered_at === undefined ? null : Date.parse(said.answered_at) - Date.parse(said.at);
  const usage = said["usage"] as Usage | undefined;
  const { asked, answered, more } = pieces(said);
  return (
    <li className={`said k-${said.kind}`}>
      <header className="row">
        <strong>{title(said)}</strong>
        {said.model && <span className="soft">{typeof said.model === "string" ? said.model : JSON.stringify(said.model)}</span>}
        <span className="grow" />
        {usage && usage.input_tokens + usage.output_tokens > 0 && <span className="soft tabular">{usageText(usage)}</span>}
        {took !== null && <span className="soft tabular">{span(Math.max(0, took))}</span>}
        <span className="soft"><Ago at={said.at} /></span>
      </header>
      {asked.map((piece) => <Words key={piece.name} piece={piece} />)}
      {more.length > 0 && <Fold title="What it was given">{more.map((piece) => <Words key={piece.name} piece={piece} />)}</Fold>}
      {said.open && <p className="s-running">waiting for the answer</p>}
      {said.error !== undefined && <p className="s-failed">{typeof said.error === "string" ? said.error : JSON.stringify(said.error)}</p>}
      {answered.length > 0 && <div className="answer">{answered.map((piece) => <Words key={piece.name} piece={piece} />)}</div>}
      {said.kind === "child" && typeof said["run"] === "string" && <Link to={`/runs/${encodeURIComponent(said["run"])}`}>{said["run"]}</Link>}
    </li>
  );
}

function Words({ piece: { name, value } }: { piece: Piece }) {
  return (
    <div className="words">
      {name !== "" && <span className="soft">{name}</span>}
      {typeof value === "string" ? <p>{value}</p> : isChoices(value) ? (
        <ul>{value.map((choice) => <li key={choice.id}><strong>{choice.id}</strong> <span className="soft">{choice.description}</span></li>)}</ul>
      ) : isFlat(value) ? (
        <dl>{Object.entries(value).map(([key, one]) => <div key={key}><dt className="soft">{key}</dt><dd>{typeof one === "string" ? one : JSON.stringify(one)}</dd></div>)}</dl>
      ) : <Code value={value} label={name || "Answer"} />}
    </div>
  );
}
