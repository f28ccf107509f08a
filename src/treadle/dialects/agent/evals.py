"""Evaluators and what a retry says about them.

Value and function evaluators are decided here; for a judge this module writes the question and
reads the answer. No evaluator stops another: all of them run, and all verdicts are recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.json_schema import why_not_applied
from treadle.lang.patterns import PatternBudget

from .limits import REASONING_CHARS_MAX
from .model import Evaluator, Node, Retry
from .paths import problems_of

# How the list of what failed ends, by the nodes page; and in runs that 0.1.0 began.
FIX: Final = "Fix and try again."
FIX_BEFORE: Final = "Address every point in this attempt."
PARSE_FAILURE: Final = "judge parse failure"
OUTPUT_CHECK: Final = "output_required"
_WORDS: Final = frozenset({"yes", "no", "pass", "fail", "passed", "failed", "true", "false"})
_TAG: Final = re.compile(r"</?\w+/?>")
_VERDICT: Final = re.compile(r"\A\W*verdict\b\W*(?:is\b\W*)?", re.IGNORECASE)
_REASONING: Final = re.compile(r"\A\W*(?:reasoning|reason)\W*:\s*|\A[\s.,:;!*_-]+", re.IGNORECASE)
_MARKS: Final = "*_`\"'.,:;!?()[]{}<>#-–—"


def verdict(name: str, kind: str, passed: bool, reasoning: str) -> dict[str, Value]:
    if len(reasoning) > REASONING_CHARS_MAX:
        reasoning = reasoning[: REASONING_CHARS_MAX - 1] + "…"
    return {"name": name, "kind": kind, "pass": passed, "reasoning": reasoning}


def check_output(node: Node, data: Value, *, old: bool = False) -> dict[str, Value] | None:
    """Declared output is checked in full; falling short is an eval failure, so it can be retried.
    `old`: in the words of runs that 0.1.0 began, and by its count of work."""
    if node.validator is None:
        return None
    try:
        errors = [
            f"{'.'.join(map(str, error.absolute_path)) or 'data'}: {error.message}"
            for error in node.validator.iter_errors(data, PatternBudget(first=True) if old else None)
        ]
    except Exception as error:  # a schema may refer to what does not exist, or recurse without end
        errors = [f"the output schema cannot be applied: {error if old else why_not_applied(error)}"]
    if not errors:
        return None
    return verdict(OUTPUT_CHECK, "value", False, "; ".join(errors[:10]))


def decided(
    evaluator: Evaluator, data: Value, calls: Sequence[Mapping[str, Value]], *, tells: bool = True
) -> dict[str, Value]:
    """A value or function evaluator's verdict. `tells` why calls failed; runs of 0.1.0 did not, and
    counted the work of patterns otherwise."""
    rule = evaluator.rule
    found = []
    if rule.required or rule.matches:
        found = problems_of(rule.required, rule.matches, data, old=not tells)
    done = {call["tool"] for call in calls if "error" not in call}
    seen = {call["tool"] for call in calls}
    if rule.any_called and not any(tool in done for tool in rule.any_called):
        found.append(f"none of {', '.join(rule.any_called)} was called")
    missing = [tool for tool in rule.all_called if tool not in done]
    if missing:
        unseen = [tool for tool in missing if not tells or tool not in seen]
        found += [f"{', '.join(unseen)} was not called"] if unseen else []
    if tells and (missing or (rule.any_called and not done.intersection(rule.any_called))):
        wanted = {*missing, *rule.any_called}
        failed = {call["tool"]: call["error"] for call in calls if "error" in call and call["tool"] in wanted}
        found += [f"{tool} was called and failed: {error}" for tool, error in failed.items()]
    forbidden = [tool for tool in rule.none_called if tool in seen]
    if forbidden:
        found.append(f"{', '.join(forbidden)} was called")
    return verdict(evaluator.name, evaluator.kind, not found, "; ".join(found) or "all checks hold")


def with_aliases(
    calls: Sequence[Mapping[str, Value]], aliases: Mapping[str, Sequence[str]]
) -> list[Mapping[str, Value]]:
    """Calls as a function evaluator counts them: an MCP alias stands for its canonical tool too."""
    canonical = {alias: name for name, names in aliases.items() for alias in names}
    if not canonical:
        return list(calls)
    extra = [{**call, "tool": canonical[call["tool"]]} for call in calls if call["tool"] in canonical]
    return [*calls, *extra]


def judge_question(evaluator: Evaluator, data: Value, calls: Value) -> str:
    """The judge sees the node's data, its tool calls and the rubric; not the input, not upstream."""
    return (
        "You judge the result of one step of a workflow. Judge only what is shown.\n\n"
        f"## Rubric\n\n{evaluator.rubric}\n\n"
        f"## Result\n\n{_json(data)}\n\n"
        f"## Tool calls\n\n{_json(calls)}\n\n"
        f"Answer with one word first: {evaluator.pass_when} if the rubric is met, another single word "
        "(such as no) if it is not. Then, on the next line, say why in one or two sentences."
    )


def read_verdict(evaluator: Evaluator, reply: str) -> dict[str, Value] | None:
    """The judge's verdict, or None if the reply cannot be read."""
    text, expected = reply.strip(), evaluator.pass_when.lower()
    word, reasoning = _from_json(text, expected)
    if word is None:
        word, reasoning = _from_text(text, expected)
    if word is None:
        return None
    return verdict(evaluator.name, "judge", word == expected, reasoning or text)


def _from_text(text: str, expected: str) -> tuple[str | None, str]:
    """The word a reply begins with, if it is one that decides, and what comes behind it. `VERDICT: no`
    and `REASONING: …` are read as such. A word of the author's own has opposites of its own: then any
    word that stands alone, or behind that label, is an answer."""
    text, labels = _VERDICT.subn("", _TAG.sub(" ", text))
    first, rest, *_ = *text.split(maxsplit=1), "", ""
    rest = _REASONING.sub("", rest)
    clear = expected not in _WORDS and (labels > 0 or not rest)
    written = first.lower()
    forms = (written, written.strip("*_`\"'"), written.strip(_MARKS))
    word = expected if expected in forms else forms[-1]
    if word and (clear or word == expected or word in _WORDS):
        return word, rest
    return None, ""


def _from_json(text: str, expected: str) -> tuple[str | None, str]:
    if not text.startswith("{"):
        return None, ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None, ""
    for key in ("verdict", "answer", "pass", "result"):
        found = value.get(key)
        if isinstance(found, bool):
            found = expected if found else f"not {expected}"
        if isinstance(found, str) and found.strip():
            return found.strip().lower(), str(value.get("reasoning") or value.get("reason") or "")
    return None, ""


def failures(evals: Sequence[Mapping[str, Value]]) -> str:
    """`name (kind): reasoning` of every evaluator that failed."""
    return "; ".join(f"{e['name']} ({e['kind']}): {e['reasoning']}" for e in evals if not e["pass"])


def preamble(
    retry: Retry, evals: Sequence[Mapping[str, Value]], reflection: str | None, *, end: str = FIX
) -> str:
    """What a new attempt is told about the last one. `end` closes the plain list of failures."""
    listed = "\n".join(f"- {e['name']} ({e['kind']}): {e['reasoning']}" for e in evals if not e["pass"])
    failed = f"Your previous attempt did not pass evaluation:\n{listed}"
    lead = reflection or retry.text
    return f"{lead}\n\n{failed}" if lead else f"{failed}\n\n{end}"


def reflect_question(
    retry: Retry, instruction: str, data: Value, evals: Sequence[Mapping[str, Value]]
) -> str:
    """What the model is asked when a retry wants a reflection first."""
    lead = retry.reflect or (
        "An attempt at the task below did not pass evaluation. Say in a few sentences what went wrong "
        "and what the next attempt has to do differently."
    )
    return f"{lead}\n\n## Task\n\n{instruction}\n\n## Result\n\n{_json(data)}\n\n## Failed checks\n\n{failures(evals)}"


def _json(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=repr)
