-- Where what is found by itself belongs: runs, timers and messages say on which shard they are, so that each of several
-- owners finds its own. A file has one shard.
ALTER TABLE runs ADD COLUMN shard INTEGER NOT NULL DEFAULT 0;
ALTER TABLE timers ADD COLUMN shard INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox ADD COLUMN shard INTEGER NOT NULL DEFAULT 0;
CREATE TABLE members (
  name TEXT PRIMARY KEY, url TEXT, alone INTEGER NOT NULL, joined_ns INTEGER NOT NULL, until_ns INTEGER NOT NULL
);
