"""Results by reference: what is large, or asked to be stored, leaves the worker as a reference.

A reference carries what people and guards need without loading it: size, a preview, and the fields
that `spec.result.select` picked. PLAYBOOK §5.12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.dialects.playbook.errands import Render
from treadle.dialects.playbook.handles import PayloadNeeded, loader
from treadle.dialects.playbook.model import PREVIEW_BYTES_MAX, Playbook, Step, Task
from treadle.dialects.playbook.reference_form import by_reference, preview
from treadle.dialects.playbook.routing import argument_scope
from treadle.dialects.playbook.selection import extracted
from treadle.kernel.model import is_reference
from treadle.kernel.values import Value, encode
from treadle.tools.functions import off_the_loop
from treadle.work.job import Job


async def externalise(
    job: Job, step: Step, task: Task | None, result: Value, limit: int, *, run: str, attempt: int = 1
) -> Value:
    """The result itself while it is small, else its reference, whose address names the task that gave
    the result; `run` tells step-runs apart in it."""
    config: dict[str, Any] = (task.spec.get("result") or {}) if task is not None else {}
    store = config.get("store") or {}
    asked = bool(config.get("select")) or store.get("kind", "auto") not in ("auto", "inline")
    threshold = config.get("inline_max_bytes", limit)
    if is_reference(result) or (not asked and await _size(result) <= threshold):
        return result
    name = task.name if task is not None else step.name
    preview_max = int(config.get("preview_max_bytes", PREVIEW_BYTES_MAX))
    stored = await job.store_blob(result)
    return {
        "kind": "result_ref",
        "ref": f"treadle://execution/{job.run}/step/{step.name}/task/{name}/run/{run}/attempt/{attempt}",
        **stored,
        "scope": store.get("scope", "execution"),
        "ttl": store.get("ttl"),
        "expires_at": None,
        "extracted": extracted(config, result),
        "preview": preview(result, preview_max),
    }


async def store_large(job: Job, value: Value, limit: int) -> Value:
    """A ctx key above the limit is stored by reference too."""
    if is_reference(value) or await _size(value) <= limit:
        return value
    return by_reference(job.run, value, await job.store_blob(value))


async def _size(value: Value) -> int:
    return await off_the_loop(value, lambda: len(encode(value)), "playbook")


async def render_args(job: Job, playbook: Playbook, errand: Render) -> dict[str, Any]:
    """The arguments of an arc whose values were too large for the machine to hand on: the largest of
    them leave as references."""
    params = job.intent.params
    step = playbook.steps[errand.step]
    arc = step.arcs[errand.arc]
    scope = argument_scope(step, arc, params, job.run)
    payloads: dict[str, Value] = {}

    def at_hand(reference: Mapping[str, Any]) -> Value:
        if reference["checksum"] not in payloads:
            raise PayloadNeeded(reference)
        return payloads[reference["checksum"]]

    token = loader.set(at_hand)
    try:
        while True:
            try:
                args: dict[str, Any] = arc.args.arguments(scope)
                break
            except PayloadNeeded as need:
                payloads[str(need.reference["checksum"])] = await job.load_blob(need.reference)
    finally:
        loader.reset(token)
    limit = playbook.inline_bytes_max
    sizes = {name: len(encode(value)) for name, value in args.items()}
    # Largest first, until the whole is small: many values that are just below the limit are large too.
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if sum(sizes.values()) + sum(map(len, sizes)) <= limit:
            break
        args[name] = await store_large(job, args[name], 0)
        sizes[name] = len(encode(args[name]))
    return args


def find_reference(value: Value, ref: str) -> dict[str, Any] | None:
    """The reference with this address among the values a step-run was given."""
    if isinstance(value, dict):
        if value.get("ref") == ref and is_reference(value):
            return value
        value = list(value.values())
    if isinstance(value, list):
        return next((found for item in value if (found := find_reference(item, ref)) is not None), None)
    return None
