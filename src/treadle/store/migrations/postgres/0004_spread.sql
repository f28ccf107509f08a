-- Shards spread over several members: runs, timers and messages say on which shard they are, so that each member finds
-- its own. A shard's lease is that of the member who owns it.
CREATE FUNCTION treadle_shard(run TEXT, shard_count INTEGER) RETURNS INTEGER LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  root TEXT := run;
  digest BYTEA;
  found NUMERIC := 0;
BEGIN
  IF run = '' THEN RETURN 0; END IF;
  WHILE length(root) > 13 AND right(root, 13) ~ '^\.[0-9a-f]{12}$' LOOP root := left(root, length(root) - 13); END LOOP;
  digest := sha256(convert_to(root, 'UTF8'));
  FOR at IN 0..7 LOOP found := found * 256 + get_byte(digest, at); END LOOP;
  RETURN mod(found, shard_count)::integer;
END $$;

ALTER TABLE runs ADD COLUMN shard INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET shard = treadle_shard(id, (SELECT count(*) FROM shards)::integer);
DROP INDEX runs_working;
CREATE INDEX runs_working ON runs (shard, no) WHERE working = 1;

ALTER TABLE timers ADD COLUMN shard INTEGER NOT NULL DEFAULT 0;
UPDATE timers SET shard = runs.shard FROM runs WHERE runs.no = timers.run;
DROP INDEX timers_due;
CREATE INDEX timers_due ON timers (due_ns) INCLUDE (shard);

-- Messages of before have no address that SQL could read; those who wrote them were few, and all went to one owner.
ALTER TABLE inbox ADD COLUMN shard INTEGER NOT NULL DEFAULT 0;

CREATE TABLE members (
  name TEXT COLLATE "C" PRIMARY KEY, url TEXT, alone INTEGER NOT NULL, joined_ns BIGINT NOT NULL, until_ns BIGINT NOT NULL
);
ALTER TABLE shards DROP COLUMN until_ns;
