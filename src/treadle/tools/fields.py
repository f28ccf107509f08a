"""The fields of the built-in tools, one declaration each.

They stand here, apart from the tools, so that `treadle check` and `treadle schema` need no database
driver to know what a `postgres` task looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treadle.lang.fields import Field, Fields, Type


def _field(
    name: str,
    types: Type | tuple[Type, ...],
    about: str,
    *,
    also: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
) -> Field:
    return Field(name, (types,) if isinstance(types, str) else types, about, also, choices)


_AUTH: Final = _field("auth", ("text", "mapping"), "the name of a credential", also=("credential",))
_CWD: Final = _field("cwd", "text", "the working folder; else the definition's")
_ENV: Final = _field("env", "mapping", "variables of the environment")
_ONCE: Final = _field(
    "once", ("boolean", "text"), "exactly once: by the task's idempotency key, or by this one"
)
_AUTOCOMMIT: Final = _field("autocommit", "boolean", "each statement is a transaction of its own")

_SQL_NAMES: Final = ("command", "commands", "query", "queries", "sql")
_SQL: Final = (
    *(_field(name, ("text", "list"), "one or more statements") for name in _SQL_NAMES),
    *(_field(f"{name}_b64", ("text", "list"), "statements in base64") for name in _SQL_NAMES),
    _field("script", ("text", "mapping"), "a file of statements, or the statements"),
    _field("params", ("list", "mapping"), "values bound to the statements", also=("parameters",)),
    _AUTOCOMMIT,
)
_STATEMENTS: Final = (*_SQL_NAMES, *(f"{name}_b64" for name in _SQL_NAMES), "script")
_IS_SQL: Final = dict.fromkeys(_SQL_NAMES, "sql")

NOOP: Final = Fields(
    "does nothing, so that a policy can decide, patch or route",
    (_field("result", "any", "what it gives instead of {status: noop}"),),
)

PYTHON: Final = Fields(
    "inline code in a process of its own, or a function in this one",
    (
        _field("code", "text", "the code"),
        _field("code_b64", "text", "the code in base64"),
        _field("script", ("text", "mapping"), "a file or an address: {uri, source: {type: file | http}}"),
        _field("callable", "text", "a registered function, or module:function beside the definition"),
        _field("libs", ("mapping", "list", "text"), "modules to import: {pd: pandas}, or [math]"),
        _field("deps", "mapping", "{sys_path, venv_path, packages}"),
        _ENV,
        _CWD,
        _field("memory_mb", "integer", "the limit of its address space"),
        _field("isolated", "boolean", "a process used by nothing before or after"),
        _field("context", "mapping", "what of the run the code sees; the compiler fills it in"),
    ),
    required=(("code", "code_b64", "script", "callable"),),
    spec=(_field("memory_mb", "integer", "the limit of its address space"),),
    languages={"code": "python"},
)

SHELL: Final = Fields(
    "commands, until one fails",
    (
        _field("cmds", ("text", "list"), "the commands", also=("cmd", "command", "commands")),
        _ENV,
        _CWD,
        _field("stdin", "text", "what the commands read"),
        _field("shell", "text", "another shell: /bin/zsh"),
        _field("output_limit", "integer", "bytes kept of each stream"),
    ),
    required=(("cmds",),),
)

HTTP: Final = Fields(
    "one request",
    (
        _field("method", "text", "GET, or POST if there is something to send"),
        _field("url", "text", "the address", also=("endpoint",)),
        _field("params", "mapping", "the query", also=("query",)),
        _field("headers", "mapping", "the headers"),
        _field("json", "any", "sent as JSON"),
        _field("body", "any", "sent as JSON, text as it is", also=("payload", "data")),
        _field("form", "mapping", "sent as a form"),
        _AUTH,
        _field("verify_ssl", ("boolean", "text"), "false, or a file of certificates"),
        _field("follow_redirects", "boolean", "true by default, at most 10"),
        _field("response", "text", "how the answer is read", choices=("auto", "json", "text", "bytes")),
        _field("max_bytes", "integer", "the largest answer"),
        _field("idempotency_key", ("text", "boolean"), "another one, or false for none"),
        _field("ssrf_safe", "boolean", "reach public addresses only"),
    ),
    required=(("url",),),
    spec=(_field("retries", "integer", "tries inside the tool, before there is an outcome"),),
)

_CONNECTION: Final = (
    _AUTH,
    _field("connection", "mapping", "the fields of the connection"),
    _field("db_conn_string", "text", "the whole connection", also=("conn_string", "connection_string", "dsn", "uri", "url")),
    _field("db_host", "text", "the server", also=("host", "hostname")),
    _field("db_port", "text", "its port", also=("port",)),
    _field("db_user", "text", "the user", also=("user", "username")),
    _field("db_password", "text", "the password; better in a credential", also=("password",)),
    _field("db_name", "text", "the database", also=("dbname", "database")),
    _field("sslmode", "text", "as PostgreSQL has it", also=("db_sslmode",)),
    _field("options", "text", "options of the session"),
    _field("application_name", "text", "how the server knows the session"),
)  # fmt: skip

POSTGRES: Final = Fields(
    "statements in one transaction, exactly once if asked",
    (*_SQL, *_CONNECTION, _ONCE, _field("pool", "mapping", "{min_size, max_size, timeout, max_waiting}")),
    required=(_STATEMENTS,),
    languages=_IS_SQL,
)

DUCKDB: Final = Fields(
    "statements on a file or in memory",
    (
        *_SQL,
        _field("database", "text", "a file, or :memory:", also=("db", "db_path")),
        _field("attachments", ("list", "mapping"), "[{path | auth, alias, type, read_only}]"),
        _field("read_only", "boolean", "open the file for reading"),
        _AUTH,
    ),
    required=(_STATEMENTS,),
    languages=_IS_SQL,
)

NATS: Final = Fields(
    "messages, key-value and object buckets, streams",
    (
        _field("operation", "text", "kv_get, kv_put, object_get, js_publish, publish, …", also=("action",)),
        _field("url", ("text", "list"), "the server", also=("servers", "server", "nats_url")),
        _field("user", "text", "the user", also=("nats_user", "username")),
        _field("password", "text", "better in a credential", also=("nats_password",)),
        _field("token", "text", "better in a credential", also=("nats_token",)),
        _AUTH,
        _field("bucket", "text", "of keys or objects"),
        _field("key", "text", "in the bucket", also=("name_in_bucket",)),
        _field("value", "any", "what to store or send", also=("data", "payload")),
        _field("subject", "text", "of a message"),
        _field("headers", "mapping", "of a message"),
        _field("stream", "text", "of JetStream"),
        _field("seq", "integer", "a message's number", also=("sequence",)),
        _field("create", "boolean", "make a missing bucket or stream"),
        _field("history", "integer", "revisions a new bucket keeps"),
        _field("ttl", "duration", "how long a new bucket keeps values"),
        _field("revision", "integer", "of kv_put: only if it is still the last one"),
        _field("format", "text", "how values are read", choices=("auto", "json", "text", "bytes")),
    ),
    required=(("operation",),),
)

ARTIFACT: Final = Fields(
    "puts a payload into a store, gets the payload of a reference",
    (
        _field("action", "text", "get, or put", choices=("get", "put")),
        _field("result_ref", "any", "of get: a reference or its address", also=("ref",)),
        _field("uri", "text", "file:///…, a path, treadle://…", also=("path",)),
        _field("data", "any", "of put"),
        _field("compress", ("boolean", "text"), "gzip"),
        _field("format", "text", "of get", choices=("auto", "json", "jsonl", "text", "bytes")),
        _field("schema_hint", "text", "kept in the reference"),
        _AUTH,
    ),
    required=(("result_ref", "uri", "data"),),
    in_args=True,
)

TRANSFER: Final = Fields(
    "rows from an API or a database into a database",
    (
        _field("source", "mapping", "{tool: http | postgres | duckdb, …, data_path}"),
        _field("target", "mapping", "{tool: postgres | duckdb, table | query, key, mapping}"),
        _field("mapping", "mapping", "column to field of the source"),
        _field(
            "mode", "text", "what happens to rows that are there", choices=("append", "replace", "upsert")
        ),
        _field("chunk_size", "integer", "rows at a time"),
        _ONCE,
    ),
    required=(("source",), ("target",)),
)

BUILT_IN: Final[Mapping[str, Fields]] = {
    "noop": NOOP,
    "python": PYTHON,
    "shell": SHELL,
    "http": HTTP,
    "postgres": POSTGRES,
    "duckdb": DUCKDB,
    "nats": NATS,
    "artifact": ARTIFACT,
    "transfer": TRANSFER,
}
