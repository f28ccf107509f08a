"""Sugar of seed 004 §14: `choose`, `while`, `until` become jumps between tasks.

Labels are stable (the sugar's name, else its place in the list), every branch ends in a jump to one
merge point, so nothing falls through, and the generated noops hand `_prev` on untouched.

    - name: kind_of_page            - while: {when: "{{ … }}", do: [tasks]}
      choose:                       - until: {when: "{{ … }}", do: [tasks]}
        - {when: "{{ … }}", then: [tasks]}
        - else: [tasks]
"""

from __future__ import annotations

from treadle.kernel.values import Value
from treadle.lang.text import Path

from .reading import Reader, kind_of

WORDS = ("choose", "while", "until")
Placed = tuple[dict[str, Value], Path]


def is_sugar(task: Value) -> bool:
    return isinstance(task, dict) and any(word in task for word in WORDS) and "kind" not in task


def expand(reader: Reader, tasks: list[Value], path: Path, within: str = "") -> list[Placed]:
    """The tasks of a list with all sugar written out, each with the path it came from. Generated
    names begin with those they stand `within`, so that each is made once."""
    out: list[Placed] = []
    for index, task in enumerate(tasks):
        place = (*path, index)
        if not is_sugar(task):
            out.append((task, place))
            continue
        word = next(word for word in WORDS if word in task)
        name = task.get("name") or f"{within}{word}_{index}"
        if extra := [key for key in task if key not in (word, "name")]:
            reader.error(
                "sugar_invalid",
                (*place, extra[0]),
                f"{word} takes no {extra[0]!r}",
                hint="it has a name at most",
            )
        body = _choose if word == "choose" else _while if word == "while" else _until
        out.extend(body(reader, str(name), task[word], (*place, word)))
    return out


def _noop(name: str, *rules: dict[str, Value]) -> dict[str, Value]:
    return {"name": name, "kind": "noop", "result": "{{ _prev }}", "spec": {"policy": {"rules": list(rules)}}}


def _jump(to: str) -> dict[str, Value]:
    return {"do": "jump", "to": to}


def _otherwise(then: dict[str, Value]) -> dict[str, Value]:
    return {"else": {"then": then}}


def _choose(reader: Reader, name: str, branches: Value, path: Path) -> list[Placed]:
    end = f"{name}.end"
    if not isinstance(branches, list) or not branches:
        reader.error("choose_invalid", path, "choose must be a list of {when, then} and a last else")
        return []
    rules: list[dict[str, Value]] = []
    bodies: list[Placed] = []
    fallback = end
    for index, branch in enumerate(branches):
        place = (*path, index)
        last = index == len(branches) - 1
        if not isinstance(branch, dict) or not ({"when", "then"} <= set(branch) or "else" in branch):
            reader.error(
                "choose_invalid", place, "a branch of choose is {when, then: [tasks]} or {else: [tasks]}"
            )
            continue
        label = f"{name}.else" if "else" in branch else f"{name}.{index}"
        given = branch["else"] if "else" in branch else branch["then"]
        where = (*place, "else" if "else" in branch else "then")
        if isinstance(given, dict) and "then" in given:
            given, where = given["then"], (*where, "then")
        if "else" in branch:
            if not last:
                reader.error("else_not_last", place, "else must be the last branch", rule="PLAYBOOK §5.16")
            fallback = label
        else:
            rules.append({"when": reader.condition(branch["when"], (*place, "when")), "then": _jump(label)})
        bodies.append((_noop(label, _otherwise({"do": "continue"})), place))
        bodies += _body(reader, given, where, f"{label}.")
        bodies.append((_noop(f"{label}.end", _otherwise(_jump(end))), place))
    head = _noop(name, *rules, _otherwise(_jump(fallback)))
    return [(head, path), *bodies, (_noop(end, _otherwise({"do": "continue"})), path)]


def _while(reader: Reader, name: str, value: Value, path: Path) -> list[Placed]:
    if (parts := _loop_parts(reader, "while", name, value, path)) is None:
        return []
    condition, body = parts
    head = _noop(name, {"when": condition, "then": {"do": "continue"}}, _otherwise(_jump(f"{name}.end")))
    again = _noop(f"{name}.again", _otherwise(_jump(name)))
    return [(head, path), *body, (again, path), (_noop(f"{name}.end", _otherwise({"do": "continue"})), path)]


def _until(reader: Reader, name: str, value: Value, path: Path) -> list[Placed]:
    if (parts := _loop_parts(reader, "until", name, value, path)) is None:
        return []
    condition, body = parts
    head = _noop(name, _otherwise({"do": "continue"}))
    check = _noop(f"{name}.check", {"when": condition, "then": _jump(f"{name}.end")}, _otherwise(_jump(name)))
    return [(head, path), *body, (check, path), (_noop(f"{name}.end", _otherwise({"do": "continue"})), path)]


def _loop_parts(
    reader: Reader, word: str, name: str, value: Value, path: Path
) -> tuple[Value, list[Placed]] | None:
    if not isinstance(value, dict) or "when" not in value or not ({"do", "tool"} & set(value)):
        reader.error(f"{word}_invalid", path, f"{word} is {{when: …, do: [tasks]}}, not {kind_of(value)}")
        return None
    key = "do" if "do" in value else "tool"
    condition = reader.condition(value["when"], (*path, "when"))
    return condition, _body(reader, value[key], (*path, key), f"{name}.")


def _body(reader: Reader, value: Value, path: Path, within: str) -> list[Placed]:
    if isinstance(value, dict):
        return expand_one(reader, value, path, within)
    if not isinstance(value, list):
        reader.error("sugar_invalid", path, f"a list of tasks is wanted here, not {kind_of(value)}")
        return []
    return expand(reader, value, path, within)


def expand_one(reader: Reader, task: dict[str, Value], path: Path, within: str = "") -> list[Placed]:
    return expand(reader, [task], path[:-1], within) if is_sugar(task) else [(task, path)]
