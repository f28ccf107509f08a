"""Built-in skills: they work offline, and each says what it may touch."""
