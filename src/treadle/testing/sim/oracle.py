"""What the programs of the drill must come to, whatever the weather was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.kernel.model import is_reference

BLOB_CHARS = 70_000
Op = dict[str, Any]


def references(value: Any) -> Iterator[dict[str, Any]]:
    """Every reference to a payload that stands in a value."""
    if isinstance(value, dict):
        if is_reference(value):
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from references(part)


def possible_ends(program: Any) -> set[str]:
    """Only a drill that says so may fail; whether it gets that far depends on who gives up whom."""
    dropped = {op["lane"] for lane in program["lanes"] for op in lane if op["do"] == "drop"}
    failing = {
        number
        for number, lane in enumerate(program["lanes"])
        if any(op["do"] in ("fail", "crash") for op in lane)
    }
    if not failing:
        return {"completed"}
    return {"completed", "failed"} if failing <= dropped else {"failed"}


def check_result(program: Any, result: Any, where: str) -> None:
    for number, (ops, out) in enumerate(zip(program["lanes"], result, strict=True)):
        given_up = bool(out) and out[-1] == "given up"
        assert given_up or len(out) == len(ops), f"{where}: lane {number} gave {out}"
        for op, value in zip(ops, out, strict=False):
            if value == "given up":
                break
            check_output(op, value, f"{where}: lane {number}, {op['do']}")


def check_output(op: Op, value: Any, where: str) -> None:
    expected: Any
    match op["do"]:
        case "many":
            expected = op["count"]
        case "blob":
            expected = BLOB_CHARS
        case "gift":
            assert is_reference(value), f"{where} gave {value}"
            return
        case "reread":
            expected = [BLOB_CHARS]
        case "grind":
            expected = "ground"
        case "timer" | "start":
            expected = op["do"]
        case "late":
            expected = ["timeout", "TIMEOUT"]
        case "invalid":
            expected = "rejected"
        case "deliver":
            expected = "sent"
        case "drop":
            expected = "dropped"
        case "fail" | "crash":
            expected = "skipped"
        case "pay":
            assert isinstance(value, int), f"{where} gave {value}"
            return
        case "once" if value == ["error", "IN_DOUBT"]:
            return
        case "task":
            assert value in ({"by": "ann"}, {"by": "bob"}), f"{where} gave {value}"
            return
        case "signal" if "ms" in op:
            expected = ["timeout", "TIMEOUT"]
        case "signal":
            assert "token" in value, f"{where} gave {value}"
            return
        case "child" if op.get("workflow") == "nowhere":
            expected = ["error", "UNKNOWN_WORKFLOW"]
        case "child":
            if isinstance(value, list) and value[:1] == ["error"]:
                assert possible_ends(op["program"]) != {"completed"}, f"{where} gave {value}"
                return
            check_result(op["program"], value, where)
            return
        case _:
            expected = op["value"]
    assert value == expected, f"{where} gave {value}, not {expected}"
