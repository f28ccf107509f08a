"""Spelling B read as spelling A: `input`, `output`, `set`, `call.done`.

The payload is not a plain rename (`output.data` is the body for http and the whole result
otherwise), so `output` stays a name of its own in templates; only the structure is rewritten here.
"""

from __future__ import annotations

import re

from treadle.kernel.values import Value
from treadle.lang.text import Path

from .reading import Reader, kind_of

# Names of scopes that nothing writes to.
_SCOPES = frozenset({"workload", "keychain", "args", "input", "event", "outcome", "output", "job", "loop"})
_CALL_EVENT = re.compile(r"""(?P<quote>['"])call\.(?P<what>done|error)(?P=quote)""")


def canonical_event_names(reader: Reader, text: Value, path: Path) -> Value:
    """`'call.done'` and `'call.error'` in a guard are `'step.done'` and `'step.failed'`."""
    if not isinstance(text, str) or not _CALL_EVENT.search(text):
        return text
    reader.spelled_b(path, "call.done / call.error", "step.done / step.failed")
    return _CALL_EVENT.sub(
        lambda m: f"{m['quote']}step.{'done' if m['what'] == 'done' else 'failed'}{m['quote']}", text
    )


def rename(
    reader: Reader, value: dict[str, Value], path: Path, written: str, canonical: str
) -> dict[str, Value]:
    """Moves one B key to its A name, unless A stands there too."""
    if written not in value:
        return value
    reader.spelled_b((*path, written), written, canonical)
    moved = dict(value)
    given = moved.pop(written)
    if canonical in moved:
        reader.error(
            "spelled_twice",
            (*path, written),
            f"{written!r} and {canonical!r} say the same thing here",
            hint=f"keep {canonical!r}",
        )
    else:
        moved[canonical] = given
        if (*path, canonical) not in reader.moved:
            reader.moved[(*path, canonical)] = (*path, written)
    return moved


def split_set(
    reader: Reader, value: dict[str, Value], path: Path, *, scopes: tuple[str, ...]
) -> dict[str, Value]:
    """`set: {ctx.x: …, iter.y: …}` (or `{ctx: {x: …}}`) becomes set_ctx and set_iter."""
    if "set" not in value:
        return value
    reader.spelled_b((*path, "set"), "set", " / ".join(f"set_{scope}" for scope in scopes))
    out = dict(value)
    given = out.pop("set")
    if not isinstance(given, dict):
        reader.error("set_invalid", (*path, "set"), f"set must be a mapping, not {kind_of(given)}")
        return out
    for key, item in given.items():
        scope, _, rest = str(key).partition(".")
        if not rest and scope not in scopes and "iter" in scopes and scope not in _SCOPES:
            # A variable of the pipeline, read by its bare name in the tasks after it.
            target = out.setdefault("set_iter", {})
            if isinstance(target, dict):
                target[str(key)] = item
            continue
        if scope not in scopes:
            reader.error(
                "set_scope",
                (*path, "set", key),
                f"set writes {key!r}; here it may write {' and '.join(f'{s}.…' for s in scopes)} only",
                hint=f"write {scopes[0]}.{key}",
            )
            continue
        target = out.setdefault(f"set_{scope}", {})
        if not isinstance(target, dict):
            continue
        if rest:
            target[rest] = item
        elif isinstance(item, dict):
            target.update(item)
        else:
            reader.error(
                "set_scope", (*path, "set", key), f"{key} itself cannot be set", hint=f"name a key: {key}.x"
            )
    return out


def output_as_result(reader: Reader, value: dict[str, Value], path: Path) -> dict[str, Value]:
    """`output: {store, output_select, inline_max_bytes}` of a task or step is `spec.result`."""
    if "output" not in value:
        return value
    reader.spelled_b((*path, "output"), "output", "spec.result")
    out = dict(value)
    given = out.pop("output")
    if not isinstance(given, dict):
        reader.error("output_invalid", (*path, "output"), f"output must be a mapping, not {kind_of(given)}")
        return out
    result = {("select" if key == "output_select" else key): item for key, item in given.items()}
    spec = dict(out.get("spec") or {}) if isinstance(out.get("spec"), dict | None) else {}
    spec["result"] = {**result, **(spec.get("result") or {})}
    out["spec"] = spec
    reader.moved.setdefault((*path, "spec", "result"), (*path, "output"))
    if "output_select" in given:
        reader.moved.setdefault((*path, "spec", "result", "select"), (*path, "output", "output_select"))
    return out
