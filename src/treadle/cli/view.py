"""A run as people read it: how it stands, what it waits for, and the command that moves it on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from treadle.lang.json_text import to_json

from .moments import moment
from .output import STATUS_STYLES, Output, elapsed, exit_code
from .tracing import shortened_trace, traceback_of

# How much is shown of what a person is asked.
PROMPT_CHARS = 200
# What workers do: a run that is left with it waits for a tool or a package, not for a person.
_WORK = frozenset({"step", "call", "node", "effect"})


def outcome(out: Output, document: Mapping[str, Any], *, quiet: bool = False) -> int:
    """Reports the state a run was left in; gives the exit code. `quiet`: only what is unusual."""
    if out.as_json:
        out.document(document)
    else:
        for line in summary(document):
            out.note(line)
        if document.get("result") is not None and not quiet:
            out.value(shortened(_brief(document)) if out.is_terminal else _brief(document))
    return exit_code(document)


def _brief(document: Mapping[str, Any]) -> Any:
    """The result as people want it: of an agent, what each node said, without the trace."""
    result = document["result"]
    if document.get("dialect") == "agent" and isinstance(result, Mapping) and "results" in result:
        return {node: said.get("data") for node, said in result["results"].items()}
    return result


def summary(document: Mapping[str, Any]) -> Iterator[str]:
    """The last lines after a command that drove a run: Rich markup."""
    from rich.markup import escape

    status = document["status"]
    if status == "deleted":
        yield f"deleted [dim]{escape(document['id'])}[/]"
        return
    style = STATUS_STYLES.get(status, "default")
    took = _took(document)
    stale = " [yellow](stale: nothing changed)[/]" if document.get("stale") else ""
    yield f"[bold {style}]{status}[/] {escape(document['workflow'])} [dim]{escape(document['id'])}{took}{_used(document)}[/]{stale}"
    if error := document.get("error"):
        yield f"  [red]{escape(error_line(error))}[/]"
        for line in shortened_trace(traceback_of(document) or ""):
            yield f"  [dim]{escape(line)}[/]"
    yield from waits(document)
    if place := document.get("queued"):
        yield f"  [dim]place in line:[/] {place['position']} [dim]since {moment(place['since'])}; look:[/] treadle limit list"
    if status == "running" and any(wait.get("kind") in _WORK for wait in document.get("waiting_for") or ()):
        id = escape(document["id"])
        yield f"  [dim]nobody here can do it; when what is missing is there:[/] treadle resume {id}   [dim]or give it up:[/] treadle cancel {id}"
    if status == "failed" and document.get("dialect") == "process":
        # Its definition is pinned and its error decided: only an earlier point of it can go another way.
        id = escape(document["id"])
        yield f"  [dim]look:[/] treadle show {id}   [dim]go on from before it:[/] treadle fork {id} --at SEQ --definition FILE"
    elif status == "failed":
        spent = "budget exceeded" in str((document.get("error") or {}).get("message"))
        more = " --budget usd=N (or tokens=N)" if spent else ""
        yield f"  [dim]look:[/] treadle show {escape(document['id'])}   [dim]again:[/] treadle retry {escape(document['id'])}{more}"
    if status == "stalled":
        yield f"  [dim]after the fix:[/] treadle retry {escape(document['id'])}   [dim]or:[/] treadle retry {escape(document['id'])} --skip"


def waits(document: Mapping[str, Any]) -> Iterator[str]:
    """What a run waits for, each with the command that continues it. A child is not what holds it up:
    what the child waits for is."""
    yield from _waits(document["id"], document.get("waiting_for") or (), "")


def _waits(run: str, found: Sequence[Mapping[str, Any]], whose: str) -> Iterator[str]:
    from rich.markup import escape

    for wait in found:
        name = str(wait.get("name") or wait.get("id") or "")
        if wait.get("waiting_for") and wait.get("status") != "stalled":
            yield from _waits(wait["run"], wait["waiting_for"], f"{whose}{name} › ")
            continue
        due = f" [dim]due {moment(wait['due'])}[/]" if wait.get("due") else ""
        how = _how(run, wait)
        arrow = f"  [cyan]{escape(how)}[/]" if how else ""
        stuck = " [dark_orange]stalled[/]" if wait.get("status") == "stalled" else ""
        yield f"  waits for {wait.get('kind')} [dim]{escape(whose)}[/][bold]{escape(name)}[/]{stuck}{due}{arrow}"
        if wait.get("prompt"):
            yield f"    [dim]{escape(_short(wait['prompt']))}[/]"


def _how(run: str, wait: Mapping[str, Any]) -> str:
    """The command that ends a wait."""
    match wait.get("kind"):
        case "task":
            role = next(iter(wait.get("roles") or ()), "ROLE")
            return (
                f"treadle task claim {wait.get('id')} --user YOU --role {role} && "
                f"treadle task complete {wait.get('id')} --user YOU --data '{_sample(wait.get('schema'))}'"
            )
        case "signal":
            return f"treadle signal {run} {wait.get('name')} --data '{{…}}'"
        case "gate":
            return f"treadle patch {run} key=value"
        case "child" if wait.get("status") == "stalled":
            return f"treadle retry {wait['run']}"
        case "child":
            # The ids of children begin with their parent's.
            return f"treadle show {wait['run']}" if wait.get("run") else f"treadle list {run}."
        case _:
            return ""


def _sample(schema: Any) -> str:
    """Data that a schema asks for, to be changed where it says `…` or names several."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("required"), list):
        return "{…}"
    known = schema.get("properties") or {}
    return to_json({name: _value(known.get(name) or {}) for name in schema["required"]})


def _value(schema: Mapping[str, Any]) -> object:
    if isinstance(schema.get("enum"), list):
        return "|".join(map(str, schema["enum"]))
    return {"boolean": True, "integer": 1, "number": 1}.get(str(schema.get("type")), "…")


def _short(text: str) -> str:
    return _cut(text, PROMPT_CHARS)


def error_line(error: Mapping[str, Any]) -> str:
    label = (error.get("details") or {}).get("step")
    where = f"{label} ({error['where']})" if label and error.get("where") else error.get("where")
    place = f"{where}: " if where else ""
    return f"{place}{error.get('message') or ''} [{error.get('class')}/{error.get('code')}]"


def _took(document: Mapping[str, Any]) -> str:
    begin, end = document.get("started_at"), document.get("ended_at")
    if not begin or not end:
        return ""
    return f", {elapsed((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())}"


def listed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `treadle list` for people: how long it took, or has been going, and why it failed."""
    begin = datetime.fromisoformat(row["started_at"])
    end = datetime.fromisoformat(row["ended_at"]) if row.get("ended_at") else datetime.now(UTC)
    error = row.get("error") or {}
    failure = f"{error.get('code')}: {error.get('message') or ''}" if error else ""
    took = elapsed(max(0.0, (end - begin).total_seconds()))
    return {**row, "took": took if row.get("ended_at") else f"{took}…", "failure": _cut(failure, 60)}


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _used(document: Mapping[str, Any]) -> str:
    """What a run cost, if it asked models."""
    spent = spending((document.get("stats") or {}).get("usage") or {})
    return f", {spent}" if spent else ""


def spending(usage: Mapping[str, Any]) -> str:
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    return f"{tokens:,} tokens, ${usage.get('usd') or 0:.4f}" if tokens else ""


def describe(out: Output, document: Mapping[str, Any], *, full: bool = False) -> None:
    """`treadle show` for people; long values are cut unless all of it is asked for."""
    from rich.markup import escape
    from rich.table import Table

    console = out.console
    version = f"@{document['version']}" if document.get("version") else ""
    style = STATUS_STYLES.get(document["status"], "default")
    console.print(f"[bold]{escape(document['id'])}[/]  [{style}]{document['status']}[/]{_took(document)}")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    rows: list[tuple[str, str | None]] = [
        ("workflow", f"{document['workflow']}{version}"),
        ("dialect", document.get("dialect")),
        ("definition", document.get("digest")),
        ("reference", document.get("reference")),
        ("started", moment(document["started_at"]) if document.get("started_at") else None),
        ("ended", moment(document["ended_at"]) if document.get("ended_at") else None),
        ("parent", document.get("parent")),
        ("children", ", ".join(document.get("children") or ()) or None),
        ("forked from", _text(document.get("forked_from"))),
        ("continued from", document.get("continued_from")),
        ("records", _text(document.get("version_no"))),
        ("stats", _pairs(document.get("stats") or {})),
    ]
    for heading, text in rows:
        if text:
            facts.add_row(heading, escape(text))
    console.print(facts)
    trace = traceback_of(document)
    if document.get("error"):
        console.print(f"[red]error[/]  {escape(error_line(document['error']))}")
    if trace:
        console.print(f"[dim]{escape(trace)}[/]")
    for line in waits(document):
        console.print(line)
    for part in ("input", "state", "results", "result", "engine"):
        # What an agent has come to is its result.
        again = part == "result" and document["result"] == document.get("state")
        if document.get(part) not in (None, {}, []) and not again:
            console.print(f"[bold dim]{part}[/]")
            _json(console, document[part] if full else shortened(document[part]))


# So many items of a list, or characters of a text, are shown unless all of it is asked for.
ITEMS_MAX = 20
CHARS_MAX = 2_000


def shortened(value: Any) -> Any:
    """A value for people: long lists and texts cut, and said so."""
    if isinstance(value, str) and len(value) > CHARS_MAX:
        return f"{value[:CHARS_MAX]}… ({len(value)} characters; --full shows all)"
    if isinstance(value, Mapping):
        kept = {key: shortened(part) for key, part in list(value.items())[: ITEMS_MAX * 5]}
        return (
            {**kept, "…": f"{len(value) - len(kept)} more; --full shows all"}
            if len(kept) < len(value)
            else kept
        )
    if isinstance(value, list):
        items = [shortened(part) for part in value[:ITEMS_MAX]]
        return (
            [*items, f"… {len(value) - ITEMS_MAX} more; --full shows all"]
            if len(value) > ITEMS_MAX
            else items
        )
    return value


def _json(console: Any, value: object) -> None:
    if console.is_terminal:
        console.print_json(to_json(value))
    else:
        console.out(to_json(value, indent=2))


def _text(value: object) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else to_json(value)


def _pairs(values: Mapping[str, Any]) -> str:
    return "  ".join(
        f"{key} {value if not isinstance(value, dict) else to_json(value)}" for key, value in values.items()
    )


# --- events -------------------------------------------------------------------------------------

# Fields shown in their own columns, or of no interest to people.
_HIDDEN = frozenset(["seq", "at", "type", "record", "run"])


def event_line(event: Mapping[str, Any], *, wide: int = 160) -> str:
    """One event on one line: Rich markup."""
    from rich.markup import escape

    kind = str(event.get("type"))
    if kind.endswith(("failed", "error", "rejected")):
        style = "red"
    elif kind.endswith(("done", "completed", ":exit", "finished")):
        style = "green"
    else:
        style = "cyan"
    rest = " ".join(
        f"{key}={value if isinstance(value, str) else to_json(value)}"
        for key, value in event.items()
        if key not in _HIDDEN and value not in (None, "", {}, [])
    )
    rest = rest.replace("\n", "\\n")
    if len(rest) > wide:
        rest = rest[: wide - 1] + "…"
    clock = moment(str(event.get("at") or ""))
    return f"[dim]{event.get('seq', ''):>5}  {clock}[/]  [{style}]{escape(kind):<22}[/] {escape(rest)}"
