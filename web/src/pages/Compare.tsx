import { useQuery } from "@tanstack/react-query";

import { Empty, Failure } from "../components/bits";
import { api, type Json } from "../lib/api";
import { useParam } from "../lib/hooks";
import { text } from "../strings";

export function Compare() {
  const [a, setA] = useParam("a");
  const [b, setB] = useParam("b");
  const found = useQuery({ queryKey: ["diff", a, b], queryFn: () => api.diff(a, b), enabled: a !== "" && b !== "", retry: false });
  return (
    <div className="page">
      <h1>{text.compare}</h1>
      <div className="row">
        <label className="grow">One run<input type="text" value={a} onChange={(event) => setA(event.target.value)} /></label>
        <label className="grow">The other<input type="text" value={b} onChange={(event) => setB(event.target.value)} /></label>
      </div>
      {found.error && <Failure error={found.error} />}
      {found.data?.equal && <Empty why="They went the same way and came to the same end." />}
      {found.data && !found.data.equal && (
        <div className="diff">
          <strong>where</strong><strong>{a}</strong><strong>{b}</strong>
          {found.data.differences.slice(0, 1000).map((one) => [
            <code key={`${one.path}p`}>{one.path}</code>,
            <Side key={`${one.path}l`} value={one.left} />,
            <Side key={`${one.path}r`} value={one.right} />,
          ])}
        </div>
      )}
    </div>
  );
}

const ABSENT = "(absent)";

/** Neither side is the right one: no colours. */
function Side({ value }: { value: Json }) {
  if (value === ABSENT) return <span className="soft">absent</span>;
  const simple = typeof value !== "object" || value === null;
  return simple ? <code>{JSON.stringify(value)}</code> : <pre tabIndex={0}>{JSON.stringify(value, null, 2)}</pre>;
}
