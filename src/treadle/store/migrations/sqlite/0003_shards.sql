-- Ownership by shard: a number, an epoch and a lease. One file is one shard; its epoch was a row of `meta`.
CREATE TABLE shards (shard INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, owner TEXT, until_ns INTEGER NOT NULL DEFAULT 0);
INSERT INTO shards (shard, epoch) SELECT 0, coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'epoch'), 0);
DELETE FROM meta WHERE key = 'epoch';
