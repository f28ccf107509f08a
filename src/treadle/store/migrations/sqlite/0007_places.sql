-- Who is in line for a workflow that is limited: a row from the commit that starts a run to the one that ends it.
-- `held` says whether it has its place or waits for it; whoever owns the first shard gives places away.
CREATE TABLE places (
  run TEXT PRIMARY KEY, workflow TEXT NOT NULL, lane TEXT NOT NULL, held INTEGER NOT NULL, priority INTEGER NOT NULL,
  since_ns INTEGER NOT NULL, quota BLOB NOT NULL
);
CREATE INDEX places_line ON places (workflow, lane, held, priority DESC, since_ns, run);
