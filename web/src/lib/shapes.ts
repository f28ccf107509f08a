// Shapes of the public HTTP API, those of INTERFACES.md; only what the console reads is typed.

export type Status =
  | "running" | "waiting" | "stalled" | "completed" | "failed" | "cancelled" | "partial" | "queued";

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface ApiError {
  class: string;
  code: string;
  message: string;
  where?: string | null;
  details?: { traceback?: string | TraceFrame[]; [key: string]: unknown };
}

export interface TraceFrame { file: string; line: number; function: string; text: string }

export interface RunRow {
  id: string;
  workflow: string;
  version: string | null;
  dialect: string;
  status: Status;
  reference: string | null;
  parent: string | null;
  started_at: string;
  ended_at: string | null;
  error: ApiError | null;
  /** Its place in the line of a workflow that is limited. */
  queued?: { position: number; since: string } | null;
}

export interface Wait {
  kind: string;
  id: string;
  name: string;
  due?: string | null;
  reason?: string;
  roles?: string[];
}

/** What models were asked for; money only where prices are known. */
export interface Usage { input_tokens: number; output_tokens: number; usd: number }

export interface RunDocument extends RunRow {
  digest: string;
  key?: Json;
  input: Json;
  result: Json;
  version_no: number;
  waiting_for: Wait[];
  state: Json;
  children: string[];
  stats: { steps: number; intents: number; retries: number; usage?: Usage };
  stale?: boolean;
  forked_from?: { run: string; seq: number };
}

export interface RunEvent {
  seq: number;
  at: string;
  type: string;
  record: number | null;
  step?: string;
  data?: Json;
  [key: string]: Json | undefined;
}

export interface JournalRecord {
  seq: number;
  kind: string;
  at: string;
  status?: string;
  event: { [key: string]: Json };
  events: Json[];
  opened: { id: string; kind: string; ref?: string; params?: { [key: string]: Json } }[];
  cancelled: string[];
  digest: string;
}

export interface TraceStep {
  id: string;
  kind: string;
  name: string;
  seq: number;
  opened_at: string;
  status: string;
  settled: number | null;
  settled_at: string | null;
  ms: number | null;
  error: ApiError | null;
}

export interface GraphNode { id: string; label: string; shape: string; status: string; badge: string }
export interface GraphEdge { source: string; target: string; label: string; dashed: boolean; taken: number }
export interface Graph { title: string; nodes: GraphNode[]; edges: GraphEdge[] }

export interface DefinitionRow {
  name: string;
  version: string | null;
  dialect: string;
  digest: string;
  status: string;
  reasons: string[];
}

export interface Task {
  id: string;
  run: string;
  workflow: string;
  name: string;
  title?: string | null;
  description?: string | null;
  type: string | null;
  roles: string[];
  payload: Json;
  schema: Json;
  reference: string | null;
  status: string;
  assignee: string | null;
  created_at: string;
  due: string | null;
  answer?: Json;
  history: { [key: string]: Json }[];
}

/** What somebody may do here: look, steer runs, answer tasks, keep the house. */
export type Leave = "viewer" | "operator" | "task" | "admin";

export interface Me {
  user: string;
  roles: string[];
  workflow: string | null;
  token: string | null;
  expires_at: string | null;
  access: "open" | "tokens";
  may: Leave[];
}

/** The issuer at which people log in, and as which client of it the console asks. */
export interface OidcLogin { issuer: string; client: string; audience: string; scope: string }
export interface Login { access: "open" | "tokens"; oidc: OidcLogin | null }

/** When a schedule starts runs, and what it does about those that are missed or still going on. */
export interface ScheduleFields {
  cron?: string;
  every?: string;
  at?: string;
  timezone?: string;
  overlap?: string;
  catch_up?: string;
  paused?: boolean;
}

export interface Schedule extends ScheduleFields {
  name: string;
  workflow: string;
  input: Json;
  paused: boolean;
  next: string[];
  last: { tick: string; at: string; outcome: string; run?: string; status?: Status | null } | null;
  origin: string | null;
}

/** Which runs: as the list is filtered, or by their ids, or all. */
export interface RunFilter { ids?: string[]; all?: boolean; status?: Status[]; workflow?: string; since?: string; until?: string; search?: string }

/** One action on many runs, and how far it has come. */
export interface BulkJob {
  id: string;
  action: string;
  status: "running" | "completed" | "cancelled";
  matched: number;
  done: number;
  failed: number;
  errors: { id: string; error: ApiError }[];
  by: string;
  at: string;
}

/** How many runs of a workflow go on at once, and who is in line. */
export interface Limit {
  workflow: string;
  limits: { [key: string]: Json } | null;
  origin: string | null;
  running: number;
  queued: number;
  lines: { key: string; running: number; queued: number }[];
}

export interface Page<T> { items: T[]; next: string | null }

export interface Problem {
  severity: "error" | "warning";
  code: string;
  message: string;
  hint: string;
  file: string | null;
  line: number | null;
  column: number | null;
}

export interface Server {
  id: string;
  name: string;
  url: string | null;
  version?: string;
  started_at?: string | null;
  seen_at?: string | null;
  status: string;
  shards?: number | number[] | { held: number; of: number };
}

export interface Worker {
  id: string;
  name: string;
  pools: string[];
  concurrency: number;
  busy: number;
  tools?: string[];
  apps?: string[];
  version?: string;
  bus?: string;
  user?: string;
  started_at?: string;
  seen_at?: string;
  status: string;
}

export interface Stats {
  runs: Record<string, number>;
  streams: number;
  queue: Record<string, number>;
  unavailable: number;
}

export interface AuditRow {
  at: string;
  user: string;
  token: string | null;
  action: string;
  target: string;
  status: "ok" | "stale" | "refused";
  code?: string;
  server: string | null;
  request: string | null;
}

/** What a worker sent back and nobody could use. */
export interface DeadLetter {
  id: string;
  at: string;
  run: string;
  intent: string;
  worker: string;
  reason: string;
  error: ApiError;
  size: number;
  sample: string;
}

/** Runs that began in one stretch of time. */
export interface Begun { at: string; workflow: string; status: string; count: number; mean_ms: number | null }
export interface History { since: string; until: string; width_s: number; items: Begun[] }

export interface FailureCause { workflow: string; cause: string; count: number; run: string }
export interface WaitReason { workflow: string; kind: string; name: string; count: number; run: string; since: string }
export interface SlowStep { workflow: string; step: string; count: number; mean_ms: number; max_ms: number; run: string }
export interface Cost { workflow: string; runs: number; input_tokens: number; output_tokens: number; usd: number }
export interface Insights {
  failures: FailureCause[];
  waits: WaitReason[];
  steps: SlowStep[];
  costs: Cost[];
  sampled: { failed: number; waiting: number; runs: number };
}

/** One question of an agent's run and its answer. */
export interface Said {
  seq: number;
  at: string;
  answered_at?: string;
  kind: string;
  node: string;
  iteration?: number;
  attempt?: number;
  turn?: number;
  model?: Json;
  answer?: Json;
  error?: Json;
  open?: boolean;
  [key: string]: Json | undefined;
}
