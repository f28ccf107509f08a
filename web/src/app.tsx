import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ComponentType, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { Navigate, NavLink, Route, Routes, useLocation, useNavigate } from "react-router";

import { Dialog, Failure, Loading } from "./components/bits";
import { Boundary } from "./components/Boundary";
import { Palette } from "./components/Palette";
import { api, type Leave, type Me } from "./lib/api";
import { type Live, useKeys, useMe, useRunChanges } from "./lib/hooks";
import { keepFresh, RETURN } from "./lib/oidc";
import { session } from "./lib/session";
import { exact, zone } from "./lib/time";
import { Audit } from "./pages/Audit";
import { Compare } from "./pages/Compare";
import { DeadLetters } from "./pages/DeadLetters";
import { DefinitionPage, Definitions } from "./pages/Definitions";
import { ErrorPage } from "./pages/ErrorPage";
import { Overview } from "./pages/Overview";
import { RunPage } from "./pages/Run";
import { Runs } from "./pages/Runs";
import { Schedules } from "./pages/Schedules";
import { Arriving, SignIn } from "./pages/SignIn";
import { Tasks } from "./pages/Tasks";
import { Workers } from "./pages/Workers";
import { text } from "./strings";

/** A page; those with a label stand at the top. `for` is who may see it, where that is not everybody who looks. */
interface Place { path: string; shows: ComponentType; label?: string; for?: Leave }

const INBOX: Place = { path: "/tasks", shows: Tasks, label: text.tasks };
const PAGES: Place[] = [
  { path: "/", shows: Overview },
  { path: "/runs", shows: Runs, label: text.runs },
  { path: "/runs/:id", shows: RunPage },
  INBOX,
  { path: "/definitions", shows: Definitions, label: text.definitions },
  { path: "/schedules", shows: Schedules, label: text.schedules },
  { path: "/workers", shows: Workers, label: text.workers },
  { path: "/deadletters", shows: DeadLetters, label: text.deadLetters },
  { path: "/audit", shows: Audit, label: text.audit, for: "admin" },
  { path: "/definitions/:name", shows: DefinitionPage },
  { path: "/compare", shows: Compare },
];

const KEYS: [string, string][] = [
  ["Ctrl K", "go to anything"], ["j / k", "next, previous row"], ["Enter", "open"], ["/", "search"],
  ["g r", "runs"], ["g t", "tasks"], ["g d", "definitions"], ["g s", "schedules"], ["g w", "workers"], ["g l", "dead letters"], ["g a", "audit"], ["g o", "overview"], ["?", "this help"],
];

export function App() {
  const standing = useSyncExternalStore(session.subscribe, session.standing);
  const client = useQueryClient();
  const { pathname } = useLocation();
  useEffect(keepFresh, []);
  // Another token may mean other roles.
  useEffect(() => session.subscribe(() => void client.invalidateQueries({ queryKey: ["me"] })), [client]);
  if (pathname === RETURN) return <Arriving />;
  return standing === "in" ? <Inside /> : <SignIn refused={standing === "refused"} />;
}

function Inside() {
  const { me, error } = useMe();
  if (me === undefined) return <main>{error ? <Failure error={error} /> : <Loading />}</main>;
  // Who only answers tasks sees tasks, and nothing that would be refused.
  return me.may.includes("viewer") ? <Watching me={me} /> : <Shell me={me} live="live" pages={[INBOX]} home="/tasks" />;
}

function Watching({ me }: { me: Me }) {
  const pages = PAGES.filter((page) => page.for === undefined || me.may.includes(page.for));
  return <Shell me={me} live={useRunChanges()} pages={pages} home="/runs" />;
}

function Shell({ me, live, pages, home }: { me: Me; live: Live; pages: Place[]; home: string }) {
  const watching = me.may.includes("viewer");
  const [palette, setPalette] = useState(false);
  const [help, setHelp] = useState(false);
  const navigate = useNavigate();
  const tasks = useQuery({ queryKey: ["tasks", "", "", ""], queryFn: () => api.tasks({ limit: 200 }), refetchInterval: 15_000 });
  const going = useRef(0);
  useKeys(useMemo(() => {
    const go = (path: string) => () => {
      if (Date.now() - going.current < 1000) void navigate(path);
    };
    return {
      "mod+k": (event: KeyboardEvent) => {
        event.preventDefault();
        setPalette(watching);
      },
      "?": () => setHelp(true),
      g: () => {
        going.current = Date.now();
      },
      r: go("/runs"), t: go("/tasks"), d: go("/definitions"), s: go("/schedules"), w: go("/workers"), l: go("/deadletters"), a: go("/audit"), o: go("/"),
    };
  }, [navigate, watching]));
  const count = tasks.data?.items.length ?? 0;
  const counted = tasks.data?.next ? `${count}+` : String(count);
  return (
    <div className="shell">
      <div>
        <header className="masthead">
          <NavLink to="/" className="brand">Treadle</NavLink>
          <nav aria-label="Pages">
            {pages.filter((page) => page.label !== undefined).map((page) => (
              <NavLink key={page.path} to={page.path}>{page.label}{page.path === "/tasks" && count > 0 && ` ${counted}`}</NavLink>
            ))}
          </nav>
          <span className="grow" />
          <span className="soft nowrap wide" title="Times are shown in this zone">{zone}</span>
          {watching && <button className="plain nowrap" onClick={() => setPalette(true)} title="Go to anything">Go to… <kbd>Ctrl K</kbd></button>}
          {me.token !== null && <WhoButton me={me} />}
          <ThemeButton />
        </header>
        {live === "broken" && <div className="notice" role="status">{text.reconnecting}</div>}
      </div>
      <main id="main" tabIndex={-1}>
        <Boundary>
        <Routes>
          {pages.map((page) => <Route key={page.path} path={page.path} element={<page.shows />} />)}
          <Route path="/docs/errors/:code" element={<ErrorPage />} />
          <Route path="*" element={<Navigate to={home} replace />} />
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

function WhoButton({ me }: { me: Me }) {
  const [open, setOpen] = useState(false);
  const client = useQueryClient();
  const leave = (): void => {
    session.leave();
    client.clear();
  };
  return (
    <>
      <button className="plain nowrap" onClick={() => setOpen(true)} aria-haspopup="dialog">{me.user}</button>
      {open && (
        <Dialog title={me.user} onClose={() => setOpen(false)} footer={<button className="primary" onClick={leave}>{text.logOut}</button>}>
          <p>
            {text.roles} {me.roles.join(", ")}
            {me.workflow !== null && <>; {text.onlyWorkflows} <code>{me.workflow}</code></>}
          </p>
          {!me.may.includes("operator") && <p className="soft">{text.mayLook}</p>}
          {me.expires_at !== null && <p className="soft">{text.tokenUntil} {exact(me.expires_at)}</p>}
        </Dialog>
      )}
    </>
  );
}
