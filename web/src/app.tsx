import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef, useState } from "react";
import { Navigate, NavLink, Route, Routes, useNavigate } from "react-router";

import { Dialog } from "./components/bits";
import { Boundary } from "./components/Boundary";
import { Palette } from "./components/Palette";
import { api, Refusal, token } from "./lib/api";
import { useKeys, useRunChanges } from "./lib/hooks";
import { zone } from "./lib/time";
import { Compare } from "./pages/Compare";
import { DefinitionPage, Definitions } from "./pages/Definitions";
import { Overview } from "./pages/Overview";
import { RunPage } from "./pages/Run";
import { Runs } from "./pages/Runs";
import { Tasks } from "./pages/Tasks";
import { text } from "./strings";

const KEYS: [string, string][] = [
  ["Ctrl K", "go to anything"], ["j / k", "next, previous row"], ["Enter", "open"], ["/", "search"],
  ["g r", "runs"], ["g t", "tasks"], ["g d", "definitions"], ["g o", "overview"], ["?", "this help"],
];

export function App() {
  const open = useQuery({ queryKey: ["stats-gate"], queryFn: api.stats, retry: false });
  if (open.error instanceof Refusal && open.error.status === 401) return <SignIn />;
  return <Shell />;
}

function Shell() {
  const live = useRunChanges();
  const [palette, setPalette] = useState(false);
  const [help, setHelp] = useState(false);
  const navigate = useNavigate();
  const tasks = useQuery({ queryKey: ["tasks", "", ""], queryFn: () => api.tasks({ limit: 200 }) });
  const going = useRef(0);
  useKeys(useMemo(() => {
    const go = (path: string) => () => {
      if (Date.now() - going.current < 1000) void navigate(path);
    };
    return {
      "mod+k": (event: KeyboardEvent) => {
        event.preventDefault();
        setPalette(true);
      },
      "?": () => setHelp(true),
      g: () => {
        going.current = Date.now();
      },
      r: go("/runs"), t: go("/tasks"), d: go("/definitions"), o: go("/"),
    };
  }, [navigate]));
  const count = tasks.data?.items.length ?? 0;
  return (
    <div className="shell">
      <div>
        <header className="top">
          <NavLink to="/" className="brand">Treadle</NavLink>
          <nav aria-label="Pages">
            <NavLink to="/runs">{text.runs}</NavLink>
            <NavLink to="/tasks">{text.tasks}{count > 0 && ` ${count}`}</NavLink>
            <NavLink to="/definitions">{text.definitions}</NavLink>
          </nav>
          <span className="grow" />
          <span className="soft nowrap wide" title="Times are shown in this zone">{zone}</span>
          <button className="plain nowrap" onClick={() => setPalette(true)} title="Go to anything">Go to… <kbd>Ctrl K</kbd></button>
          <ThemeButton />
        </header>
        {live === "broken" && <div className="notice" role="status">{text.reconnecting}</div>}
      </div>
      <main id="main" tabIndex={-1}>
        <Boundary>
        <Routes>
          <Route path="/" element={<Overview />} />
          <Route path="/runs" element={<Runs />} />
          <Route path="/runs/:id" element={<RunPage />} />
          <Route path="/tasks" element={<Tasks />} />
          <Route path="/definitions" element={<Definitions />} />
          <Route path="/definitions/:name" element={<DefinitionPage />} />
          <Route path="/compare" element={<Compare />} />
          <Route path="*" element={<Navigate to="/runs" replace />} />
        </Routes>
        </Boundary>
      </main>
      {palette && <Palette onClose={() => setPalette(false)} />}
      {help && (
        <Dialog title={text.help} onClose={() => setHelp(false)}>
          <dl style={{ display: "grid", gridTemplateColumns: "auto 1fr", gap: "4px 16px", margin: 0 }}>
            {KEYS.map(([key, about]) => [<dt key={key}><kbd>{key}</kbd></dt>, <dd key={`${key}d`} style={{ margin: 0 }}>{about}</dd>])}
          </dl>
        </Dialog>
      )}
    </div>
  );
}

function ThemeButton() {
  const [theme, setTheme] = useState(() => document.documentElement.dataset["theme"] ?? "system");
  const next = theme === "system" ? "dark" : theme === "dark" ? "light" : "system";
  const change = (): void => {
    if (next === "system") {
      delete document.documentElement.dataset["theme"];
      localStorage.removeItem("treadle.theme");
    } else {
      document.documentElement.dataset["theme"] = next;
      localStorage.setItem("treadle.theme", next);
    }
    setTheme(next);
  };
  return <button className="plain" onClick={change} title={`Theme: ${theme}`}><span aria-hidden="true">◐</span><span className="hidden">Theme: {theme}. Change to {next}</span></button>;
}

function SignIn() {
  const [given, setGiven] = useState("");
  return (
    <main style={{ display: "grid", placeItems: "center", height: "100%" }}>
      <form className="stack" style={{ width: "min(420px, 100%)" }} onSubmit={(event) => { event.preventDefault(); token.set(given.trim()); location.reload(); }}>
        <h1>{text.signIn}</h1>
        <p className="soft">{text.signInWhy} <code>{text.signInCommand}</code></p>
        <label>Token<input type="password" autoComplete="off" value={given} onChange={(event) => setGiven(event.target.value)} /></label>
        <button className="primary" disabled={given.trim() === ""}>{text.signIn}</button>
      </form>
    </main>
  );
}
