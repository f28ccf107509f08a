-- Ended runs by how and when they ended, for what operators say of how long they are kept.
CREATE INDEX runs_ended ON runs (status, ended_ns, workflow) WHERE retain_ns IS NOT NULL;
