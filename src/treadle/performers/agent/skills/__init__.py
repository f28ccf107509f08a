"""Built-in skills: they work offline, and each says what it may touch.

`files` stays below one folder, `duckdb` too; `http` reaches public addresses only; `shell` is there
when the operator says so; `workflows` starts other Treadle workflows.
"""
