import { useState } from "react";
import { useNavigate, useSearchParams } from "react-router";

import { Dialog } from "../components/bits";
import { canonical, GIVEN, kept, saved, type View } from "../lib/views";
import { text } from "../strings";

/** Views of the list of runs: those that come with it, and those that somebody kept. */
export function Views() {
  const [views, setViews] = useState<View[]>(saved.read);
  const [naming, setNaming] = useState(false);
  const [params] = useSearchParams();
  const navigate = useNavigate();
  const now = canonical(params.toString());
  const all = [...GIVEN, ...views];
  const shown = all.find((view) => canonical(view.query) === now);
  const change = (next: View[]): void => {
    saved.write(next);
    setViews(next);
  };
  return (
    <div className="chips grow" role="group" aria-label={text.views}>
      {all.map((view) => (
        <button key={view.name} className="chip" aria-pressed={view === shown} onClick={() => void navigate(view === shown ? "/runs" : `/runs?${view.query}`)}>{view.name}</button>
      ))}
      {now !== "" && shown === undefined && <button className="plain" onClick={() => setNaming(true)}>{text.keepView}</button>}
      {shown !== undefined && views.includes(shown) && <button className="plain" onClick={() => change(views.filter((view) => view !== shown))}>Forget {shown.name}</button>}
      {naming && <NameDialog onClose={() => setNaming(false)} onName={(name) => change(kept(views, { name, query: now }))} />}
    </div>
  );
}

function NameDialog({ onClose, onName }: { onClose: () => void; onName: (name: string) => void }) {
  const [name, setName] = useState("");
  const keep = (): void => {
    onName(name.trim());
    onClose();
  };
  return (
    <Dialog title={text.keepView} onClose={onClose} footer={<button className="primary" disabled={name.trim() === ""} onClick={keep}>Keep</button>}>
      <label>Name<input type="text" value={name} maxLength={60} onChange={(event) => setName(event.target.value)} /></label>
      <p className="soft">{text.keepViewAbout}</p>
    </Dialog>
  );
}
