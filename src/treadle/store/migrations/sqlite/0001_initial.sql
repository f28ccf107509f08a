-- The first schema. A row exists only for what cannot be derived from the journal in time:
-- timers (what is due?), tasks (whose inbox?), runs (what is there?). Times are nanoseconds.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE definitions (
  digest TEXT PRIMARY KEY, dialect TEXT NOT NULL, name TEXT NOT NULL, version TEXT, path TEXT, file TEXT,
  body BLOB NOT NULL, created_ns INTEGER NOT NULL
);
CREATE TABLE versions (
  name TEXT NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL, path TEXT, status TEXT NOT NULL, reasons TEXT NOT NULL,
  created_ns INTEGER NOT NULL, PRIMARY KEY (name, version)
);
CREATE INDEX versions_path ON versions (path);

CREATE TABLE runs (
  no INTEGER PRIMARY KEY, id TEXT NOT NULL, dialect TEXT NOT NULL, workflow TEXT NOT NULL, version TEXT,
  definition TEXT NOT NULL, cell_key BLOB, parent TEXT, parent_intent TEXT, continued_from TEXT, reference TEXT,
  status TEXT NOT NULL, working INTEGER NOT NULL, started_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL,
  ended_ns INTEGER, retain_ns INTEGER, seq INTEGER NOT NULL, error BLOB
);
CREATE UNIQUE INDEX runs_id ON runs (id);
CREATE INDEX runs_working ON runs (no) WHERE working = 1;
CREATE INDEX runs_status ON runs (status, no);
CREATE INDEX runs_workflow ON runs (workflow, no);
CREATE INDEX runs_reference ON runs (reference) WHERE reference IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX runs_retain ON runs (retain_ns) WHERE retain_ns IS NOT NULL;

-- `opens` and `closes` are the 16-byte ids of the intents a record opened and closed: an index over the
-- body, so that recovery finds open work without decoding records. `event_no` is the number of the
-- run's last event after this record; it is outside the digested bytes.
CREATE TABLE journal (
  run INTEGER NOT NULL, seq INTEGER NOT NULL, event_no INTEGER NOT NULL, opens BLOB, closes BLOB,
  digest BLOB NOT NULL, body BLOB NOT NULL
);
CREATE UNIQUE INDEX journal_run ON journal (run, seq);

CREATE TABLE snapshots (
  run INTEGER NOT NULL, seq INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL, PRIMARY KEY (run, seq)
);

-- Keyed by run first: run numbers grow, so rows that are written together lie together.
CREATE TABLE timers (
  run INTEGER NOT NULL, intent TEXT NOT NULL, due_ns INTEGER NOT NULL, fires INTEGER NOT NULL, PRIMARY KEY (run, intent)
) WITHOUT ROWID;
CREATE INDEX timers_due ON timers (due_ns);

CREATE TABLE tasks (
  no INTEGER PRIMARY KEY, id TEXT NOT NULL, run INTEGER NOT NULL, run_id TEXT NOT NULL, workflow TEXT NOT NULL,
  name TEXT NOT NULL, type TEXT, roles TEXT NOT NULL, payload BLOB, task_schema BLOB, reference TEXT, status TEXT NOT NULL,
  assignee TEXT, created_ns INTEGER NOT NULL, due_ns INTEGER, history BLOB NOT NULL
);
CREATE UNIQUE INDEX tasks_id ON tasks (id);
CREATE INDEX tasks_run ON tasks (run);
CREATE INDEX tasks_status ON tasks (status, no);
CREATE INDEX tasks_assignee ON tasks (assignee, status, no) WHERE assignee IS NOT NULL;
CREATE INDEX tasks_reference ON tasks (reference) WHERE reference IS NOT NULL;
CREATE TABLE task_roles (role TEXT NOT NULL, status TEXT NOT NULL, task INTEGER NOT NULL);
CREATE UNIQUE INDEX task_roles_inbox ON task_roles (role, status, task);
CREATE INDEX task_roles_task ON task_roles (task);

CREATE TABLE inbox (no INTEGER PRIMARY KEY, key TEXT NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX inbox_key ON inbox (key);

CREATE TABLE checkpoints (intent TEXT PRIMARY KEY, run INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX checkpoints_run ON checkpoints (run);

CREATE TABLE frames (run INTEGER NOT NULL, event_no INTEGER NOT NULL, at_ns INTEGER NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX frames_run ON frames (run, event_no);

CREATE TABLE diagnostics (
  no INTEGER PRIMARY KEY, run TEXT NOT NULL, at_ns INTEGER NOT NULL, code TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX diagnostics_run ON diagnostics (run, no);

CREATE TABLE submissions (
  scope TEXT NOT NULL, id TEXT NOT NULL, at_ns INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (scope, id)
);

CREATE TABLE blobs (digest TEXT PRIMARY KEY, size INTEGER NOT NULL, at_ns INTEGER NOT NULL, body BLOB);
CREATE TABLE blob_refs (run INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (run, digest));
CREATE INDEX blob_refs_digest ON blob_refs (digest);

CREATE TABLE documents (
  kind TEXT NOT NULL, id TEXT NOT NULL, at_ns INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, id)
);
