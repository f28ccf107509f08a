-- Answers for those who ask from another process: written by the commit that decides, under the key of the
-- message, taken away by whoever asked, or by age.
CREATE TABLE replies (key TEXT PRIMARY KEY, at_ns INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX replies_at ON replies (at_ns);
