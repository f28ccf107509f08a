-- Who is in line for a workflow that is limited: a row from the commit that starts a run to the one that ends it.
-- `held` says whether it has its place or waits for it; whoever owns the first shard gives places away.
CREATE TABLE places (
  run TEXT COLLATE "C" PRIMARY KEY, workflow TEXT COLLATE "C" NOT NULL, lane TEXT COLLATE "C" NOT NULL, held INTEGER NOT NULL,
  priority INTEGER NOT NULL, since_ns BIGINT NOT NULL, quota BYTEA NOT NULL
);
CREATE INDEX places_line ON places (workflow, lane, held, priority DESC, since_ns, run);
