// The public HTTP API, and nothing else.

import { session } from "./session";
import type {
  AuditRow, BulkJob, DeadLetter, DefinitionRow, Graph, History, Insights, Json, JournalRecord, Limit, Login, Me, Page, Problem, RunDocument, RunEvent, RunFilter, RunRow, Said, Schedule,
  ScheduleFields, Server, Stats, Task, TraceStep, Worker,
} from "./shapes";

export type * from "./shapes";

/** A refusal of the API: what went wrong, by its code, with what to do. */
export class Refusal extends Error {
  readonly status: number;
  readonly code: string;
  readonly problems: Problem[];

  constructor(status: number, code: string, message: string, problems: Problem[] = []) {
    super(message);
    this.status = status;
    this.code = code;
    this.problems = problems;
  }
}

const BASE = "/api/v1";

function headers(held: string | null, more: Record<string, string> = {}): Record<string, string> {
  return held === null ? more : { ...more, Authorization: `Bearer ${held}` };
}

async function refusal(answer: Response, shown: string | null): Promise<Refusal> {
  if (answer.status === 401) session.refused(shown);
  try {
    const said = (await answer.json()) as { code?: string; detail?: string; problems?: Problem[] };
    return new Refusal(answer.status, said.code ?? "INTERNAL", said.detail ?? answer.statusText, said.problems);
  } catch {
    return new Refusal(answer.status, "UNREACHABLE", `the server answered ${answer.status}`);
  }
}

async function call<T>(method: string, path: string, body?: unknown, shown: string | null = session.token()): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(BASE + path, {
      method,
      headers: headers(shown, body === undefined ? {} : { "Content-Type": "application/json" }),
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  } catch {
    throw new Refusal(0, "UNREACHABLE", "the server does not answer; it is tried again");
  }
  if (!answer.ok) throw await refusal(answer, shown);
  return (await answer.json()) as T;
}

export type Query = Record<string, string | number | undefined | null>;

export function queryText(query: Query): string {
  const parts = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(parts.map(([key, value]) => [key, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}

const segment = encodeURIComponent;

export const api = {
  me: () => call<Me>("GET", "/me"),
  /** How one proves who one is; nothing is shown for it. */
  login: () => call<Login>("GET", "/login", undefined, null),
  /** Whose a token is that is not yet kept. */
  prove: (token: string) => call<Me>("GET", "/me", undefined, token),
  runs: (query: Query) => call<Page<RunRow>>("GET", `/runs${queryText(query)}`),
  run: (id: string) => call<RunDocument>("GET", `/runs/${segment(id)}`),
  state: (id: string, at?: number) => call<Json>("GET", `/runs/${segment(id)}/state${queryText({ at })}`),
  journal: (id: string, after = 0, limit = 1000) =>
    call<JournalRecord[]>("GET", `/runs/${segment(id)}/journal${queryText({ after, limit })}`),
  steps: (id: string) => call<{ items: TraceStep[] }>("GET", `/runs/${segment(id)}/steps`),
  graph: (id: string, at?: number) => call<Graph>("GET", `/runs/${segment(id)}/graph${queryText({ at })}`),
  events: (id: string, after = 0) =>
    call<{ items: RunEvent[]; next: number | null }>("GET", `/runs/${segment(id)}/events${queryText({ after })}`),
  transcript: (id: string) => call<Said[]>("GET", `/runs/${segment(id)}/transcript`),
  diff: (a: string, b: string) =>
    call<{ equal: boolean; differences: { path: string; left: Json; right: Json }[] }>("GET", `/diff${queryText({ a, b })}`),
  start: (body: { workflow: string; input?: Json; id?: string; reference?: string }) =>
    call<RunDocument>("POST", "/runs", body),
  act: (id: string, action: string, body: object = {}) =>
    call<RunDocument>("POST", `/runs/${segment(id)}/${action}`, body),
  bulk: (body: { action: string; filter: RunFilter; arguments?: Json; dry_run?: boolean }) =>
    call<{ matched: number; id?: string; sample?: string[] }>("POST", "/bulk", body),
  bulkJob: (id: string) => call<BulkJob>("GET", `/bulk/${segment(id)}`),
  bulkJobs: () => call<Page<BulkJob>>("GET", "/bulk"),
  bulkStop: (id: string) => call<BulkJob>("DELETE", `/bulk/${segment(id)}`),
  limits: () => call<Page<Limit>>("GET", "/limits"),
  definitions: () => call<Page<DefinitionRow>>("GET", "/definitions?limit=1000"),
  definition: (name: string) =>
    call<DefinitionRow & { body: Json; description: string | null; input_schema: Json }>("GET", `/definitions/${segment(name)}`),
  definitionGraph: (name: string) => call<Graph>("GET", `/definitions/${segment(name)}/graph`),
  source: async (name: string): Promise<string> => {
    const shown = session.token();
    const answer = await fetch(`${BASE}/definitions/${segment(name)}/export?format=yaml`, { headers: headers(shown) });
    if (!answer.ok) throw await refusal(answer, shown);
    return answer.text();
  },
  deploy: (files: { path: string; text: string }[], dryRun = false) =>
    call<{ items?: DefinitionRow[]; problems?: Problem[]; ok?: boolean }>(
      "POST", `/definitions${queryText({ dry_run: dryRun ? "true" : undefined })}`, { files }),
  tasks: (query: Query) => call<Page<Task>>("GET", `/tasks${queryText(query)}`),
  task: (id: string) => call<Task>("GET", `/tasks/${segment(id)}`),
  taskAct: (id: string, action: string, body: object = {}) =>
    call<Task>("POST", `/tasks/${segment(id)}/${action}`, body),
  schedules: () => call<Page<Schedule>>("GET", "/schedules"),
  scheduleAdd: (body: ScheduleFields & { name: string; workflow: string; input?: Json }) => call<Schedule>("POST", "/schedules", body),
  schedulePreview: (body: ScheduleFields) => call<{ next: string[] }>("POST", "/schedules/preview", body),
  scheduleChange: (name: string, body: ScheduleFields) => call<Schedule>("PATCH", `/schedules/${segment(name)}`, body),
  scheduleRemove: (name: string) => call<Json>("DELETE", `/schedules/${segment(name)}`),
  scheduleTrigger: (name: string) => call<RunDocument>("POST", `/schedules/${segment(name)}/trigger`),
  servers: () => call<Page<Server>>("GET", "/servers"),
  workers: () => call<Page<Worker>>("GET", "/workers"),
  stats: () => call<Stats>("GET", "/stats"),
  history: (query: Query) => call<History>("GET", `/stats/history${queryText(query)}`),
  insights: (query: Query) => call<Insights>("GET", `/stats/insights${queryText(query)}`),
  deadLetters: (query: Query) => call<Page<DeadLetter>>("GET", `/deadletters${queryText(query)}`),
  deadLetterAct: (id: string, action: "discard" | "replay") => call<Json>("POST", `/deadletters/${segment(id)}/${action}`),
  audit: (query: Query) => call<Page<AuditRow>>("GET", `/audit${queryText(query)}`),
};

export interface Frame { id: string | null; event: string; data: string }

/** Takes server-sent events apart, however the network cut them. */
export function frameReader(): (chunk: string) => Frame[] {
  let rest = "";
  return (chunk) => {
    const found: Frame[] = [];
    const parts = (rest + chunk).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const frame: Frame = { id: null, event: "message", data: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("id: ")) frame.id = line.slice(4);
        else if (line.startsWith("event: ")) frame.event = line.slice(7);
        else if (line.startsWith("data: ")) frame.data += line.slice(6);
      }
      if (frame.id !== null || frame.data !== "") found.push(frame);
    }
    return found;
  };
}

/** Follows a stream until `stop` is called, and goes on where it was when the connection breaks. `EventSource` cannot
 * carry a token, so this is fetch. */
export function follow(path: string, took: (frame: Frame) => void, live?: (connected: boolean) => void): () => void {
  const control = new AbortController();
  let last: string | null = null;
  let ended = false;

  const once = async (): Promise<void> => {
    const more: Record<string, string> = { Accept: "text/event-stream" };
    if (last !== null) more["Last-Event-ID"] = last;
    const shown = session.token();
    const answer = await fetch(BASE + path, { headers: headers(shown, more), signal: control.signal });
    if (!answer.ok || answer.body === null) throw await refusal(answer, shown);
    live?.(true);
    const read = frameReader();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const frame of read(value)) {
        if (frame.id !== null) last = frame.id;
        if (frame.event === "end") ended = true;
        if (frame.data !== "") took(frame);
      }
    }
  };

  void (async () => {
    let pause = 250;
    while (!control.signal.aborted && !ended) {
      try {
        await once();
        pause = 250;
      } catch (error) {
        if (control.signal.aborted || (error instanceof Refusal && error.status === 401)) return;
      }
      if (ended) return;
      live?.(false);
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, 5000);
    }
  })();
  return () => control.abort();
}
