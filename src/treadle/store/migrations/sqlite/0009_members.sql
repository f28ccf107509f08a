-- What a member says of itself, as JSON: the name of its server, its version, how many runs it has in memory.
ALTER TABLE members ADD COLUMN about TEXT;
