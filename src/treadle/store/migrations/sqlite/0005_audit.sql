-- Who did what: one row a change, written by the commit that makes it. Never bodies, never values.
CREATE TABLE audit (
  no INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, "user" TEXT NOT NULL, token TEXT NOT NULL, action TEXT NOT NULL,
  target TEXT NOT NULL, status TEXT NOT NULL, code TEXT, server TEXT NOT NULL, request TEXT NOT NULL
);
CREATE INDEX audit_at ON audit (at_ns);
CREATE INDEX audit_user ON audit ("user", no);
CREATE INDEX audit_target ON audit (target, no);
