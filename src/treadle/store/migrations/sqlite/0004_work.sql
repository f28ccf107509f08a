-- What leases of work are sealed with: the same for every owner of the store, so that leases outlive owners.
INSERT INTO meta (key, value) VALUES ('work_key', lower(hex(randomblob(32))));
