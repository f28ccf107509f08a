"""The input of a playbook, held to `metadata.input_schema` before a run is made.

The seeds fix the roots, so a schema stands in `metadata`. It describes the workload as the run sees
it: the defaults under what is given. A default that is a template has no value yet, so its key is
left out of the check unless it is given.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value

from .layers import merge
from .model import Playbook
from .reading import Reader
from .templates import Tree


def check_schema(reader: Reader, metadata: dict[str, Value]) -> None:
    """That it is a JSON Schema at all, at deploy time."""
    if (schema := metadata.get("input_schema")) is None:
        return
    from treadle.lang.schema_problems import schema_problem  # the library costs 50 ms to import

    if (found := schema_problem(schema)) is not None:
        place, message = found
        reader.error(
            "input_schema_invalid",
            ("metadata", "input_schema", *place),
            f"metadata.input_schema: {message}",
            hint="input_schema: {type: object, required: [day], properties: {day: {type: string}}}",
        )


def check_input(playbook: Playbook, given: dict[str, Value]) -> None:
    schema = playbook.metadata.get("input_schema")
    if not isinstance(schema, dict):
        return
    from treadle.lang.json_schema import CANNOT_APPLY, validator, why_not_applied

    defaults: dict[str, Value] = playbook.workload.value_if_constant or {}
    fixed = {key: value for key, value in defaults.items() if Tree(value, "workload").constant}
    open_keys = [key for key in defaults if key not in fixed and key not in given]
    whole: dict[str, Value] = merge(fixed, given)
    try:
        errors = [
            {"path": _path(error.absolute_path), "message": error.message}
            for error in validator(_without(schema, open_keys)).iter_errors(whole)
        ]
    except CANNOT_APPLY as error:
        errors = [{"path": "$", "message": f"the schema cannot be applied: {why_not_applied(error)}"}]
    if errors:
        first = f"{errors[0]['path']}: {errors[0]['message']}"
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise InputInvalid(f"the input does not fit the playbook: {first}{more}", details={"errors": errors})


def _without(schema: dict[str, Value], keys: list[str]) -> dict[str, Value]:
    if not keys:
        return schema
    out = dict(schema)
    if isinstance(required := schema.get("required"), list):
        out["required"] = [key for key in required if key not in keys]
    return out


def _path(parts: Iterable[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
