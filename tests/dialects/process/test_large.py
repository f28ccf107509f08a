"""Many and large: what one record cannot hold is cut or stored, and never refuses a legal process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treadle.dialects.process import DIALECT
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt, is_reference, make_reference
from treadle.kernel.model import Started as Begun
from treadle.kernel.values import digest, encode
from treadle.lang.text import parse
from treadle.runtime.payloads import SHOWN_BYTES_MAX, put_back
from treadle.testing.driver import Driver

Started = Callable[..., Driver]


# --- many stalled branches ------------------------------------------------------------------------


def all_stalled(started: Started, branches: int) -> Driver:
    fork = ", ".join(f"b{n}: [{{call: {{transport: a, into: r{n}, payload: {n}}}}}]" for n in range(branches))
    d = started(f"steps: [{{fork: {{{fork}}}}}, {{complete: {{$: length(result)}}}}]")
    for call in d.open("call"):
        d.error(call)
    assert (d.status, d.open()) == ("stalled", [])
    return d


@pytest.mark.parametrize("branches", [65, 300])
def test_retry_moves_any_number_of_stalled_branches_on(started: Started, branches: int) -> None:
    d = all_stalled(started, branches)
    d.retry()
    calls = d.open("call")
    assert sorted(call.params["payload"] for call in calls) == list(range(branches))
    assert all(call.idempotency_key for call in calls), "the same request once more"
    assert d.types().count("run.retried") == branches
    for call in calls:
        d.ok(call, 1)
    assert (d.status, d.run.result) == ("completed", branches)


def test_a_branch_that_stalled_is_told_whatever_other_branches_do(started: Started) -> None:
    """Whether one is stalled is not looked for with each receipt; once one is, the run says so until it is moved on."""
    fork = ", ".join(f"b{n}: [{{call: {{transport: a, into: r{n}, payload: {n}}}}}]" for n in range(4))
    d = started(f"steps: [{{fork: {{{fork}}}}}, {{complete: {{$: length(result)}}}}]")
    first, second, third, last = d.open("call")
    d.ok(first, 1)
    assert d.status == "waiting"
    d.error(second)
    assert d.status == "stalled"
    d.ok(third, 1)
    assert d.status == "stalled"
    d.error(last)
    d.retry(**{"from": second.params["path"]})
    assert d.status == "stalled", "another one is"
    d.retry(**{"from": last.params["path"]})
    assert d.status == "waiting"
    for call in d.open("call"):
        d.ok(call, 1)
    assert (d.status, d.run.result) == ("completed", 4)
    d.assert_replays()


def test_steps_that_share_a_declaration_are_skipped_together(started: Started) -> None:
    """Every branch stalls in the block that the task declares, so one path names all of them."""
    fork = ", ".join(f"b{n}: [{{task: t}}]" for n in range(300))
    d = started(
        "tasks: {t: {roles: [x], timeout: 1s, on_timeout: [{call: {transport: a, into: r}}]}}\n"
        f"steps: [{{fork: {{{fork}}}}}, {{complete: {{$: result.r}}}}]"
    )
    d.advance(1)
    for call in d.open("call"):
        d.error(call)
    d.retry(**{"from": "tasks.t.on_timeout[0]", "skip": "by hand"})
    assert (d.status, d.run.result) == ("completed", "by hand")


# --- large values ---------------------------------------------------------------------------------


def stored(d: Driver, value: Any) -> dict[str, Any]:
    """A value as a transport hands a large one over: a reference to it in the store."""
    checksum = digest(value)
    d.blobs[checksum] = value
    return make_reference(checksum=checksum, size=len(encode(value)), schema_hint="process")


def called(started: Started, steps: str, **results: Any) -> Driver:
    """A run that has called for each of the results, all of which are stored, and went on."""
    calls = ", ".join(f"{{call: {{transport: a, into: {name}}}}}" for name in results)
    d = started(f"steps: [{calls}, {steps}]")
    for value in results.values():
        d.ok(d.open("call")[0], stored(d, value))
    return d


PAD = "z" * 70_000
ROWS = [f"{n:01000}" for n in range(2_000)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("state.l[0].n", 1),
        ("first(state.l).n", 1),
        ("last(state.l).n", 2),
        ("at(state.l, 1).n", 2),
        ("at(state.o, 'b').n", 2),
        ("state.l[start.i].n", 2),
        ("result.a in state.l", True),
        ("contains(state.l, result.b)", True),
        ("{n: 1} in state.l", False),
        ("state.l == [result.a, result.b]", True),
        ("state.l == [result.b, result.a]", False),
        ("state.o != {a: result.a, b: result.b}", False),
        ("length(json(state.l)) > 140000", True),
        ("length(string(state.o)) > 140000", True),
        ("length(format('{}', [result.a])) > 70000", True),
        ("keys(merge(state.o, {a: {m: 5}}).a)", ["m", "n", "pad"]),
        ("merge({a: {m: 5}}, state.o).a.n", 1),
        ("merge(state.o, {a: 5}).a", 5),
        ("coalesce(state.none, state.l[1]).n", 2),
        ("if(true, state.l[1], null).n", 2),
        ("(state.none or state.l[0]).n", 1),
        ("(state.l[0] and state.l[1]).n", 2),
    ],
)
def test_large_values_inside_others_are_what_they_stand_for(
    started: Started, expression: str, expected: Any
) -> None:
    steps = (
        "{set: {state.l: [{$: result.a}, {$: result.b}], state.o: {a: {$: result.a}, b: {$: result.b}}}},"
        f"{{complete: {{$: {_quoted(expression)}}}}}"
    )
    d = started(
        f"steps: [{{call: {{transport: a, into: a}}}}, {{call: {{transport: a, into: b}}}}, {steps}]",
        {"i": 1},
    )
    for n in (1, 2):
        d.ok(d.open("call")[0], stored(d, {"n": n, "pad": PAD}))
    assert (d.status, d.run.error, d.run.result) == ("completed", None, expected)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def test_equal_payloads_are_equal_however_they_were_written(started: Started) -> None:
    d = called(
        started,
        "{complete: {$: '[[result.a] == [result.b], [result.a] == [result.c]]'}}",
        a={"n": 1, "pad": PAD},
        b={"n": 1.0, "pad": PAD},
        c={"n": True, "pad": PAD},
    )
    assert d.run.result == [True, False]


def test_text_of_what_is_too_large_to_be_written_down_is_refused(started: Started) -> None:
    d = called(started, "{complete: {$: 'json([result.a])'}}", a=ROWS)
    assert d.run.error is not None
    assert (d.run.error["code"], d.run.error["where"]) == ("EXPRESSION_RANGE", "steps[1]")
    assert d.run.error["details"]["expression"] == "json([result.a])"


def test_each_goes_through_a_large_part_of_a_result(started: Started) -> None:
    d = called(
        started,
        "{set: {state.n: 0}},"
        "{repeat: {each: i, in: {$: result.r.a}, do: [{set: {state.n: {$: state.n + length(i)}, state.last: {$: i}}}]}},"
        "{complete: {$: '[state.n, state.last]'}}",
        r={"a": ROWS},
    )
    assert d.run.result == [2_000_000, ROWS[-1]]


def test_large_items_go_on_by_their_address(started: Started) -> None:
    d = called(
        started,
        "{repeat: {each: i, in: {$: result.r.a}, do: [{call: {transport: b, payload: {row: {$: i}, n: {$: i.n}, pads: {$: i.pads}}}}]}}",
        r={"a": [{"n": n, "pads": [PAD] * 20} for n in range(2)]},
    )
    (call,) = d.open("call")
    assert call.params["payload"]["n"] == 0
    assert call.params["payload"]["row"]["path"] == ["a", 0]
    assert call.params["payload"]["pads"]["path"] == ["a", 0, "pads"]
    assert d.status == "waiting"


@pytest.mark.parametrize("expression", ["result.r.a", "result.r['a']", "result.r[result.k.key]"])
def test_a_large_part_is_passed_on_and_looked_into_like_any_value(started: Started, expression: str) -> None:
    d = called(
        started,
        f"{{set: {{state.part: {{$: {_quoted(expression)}}}}}}},"
        "{call: {transport: b, payload: {rows: {$: state.part}}}},"
        "{complete: {n: {$: length(state.part)}, first: {$: 'state.part[0] == result.r.a[0]'}, rows: {$: state.part}}}",
        r={"a": ROWS},
        k={"key": "a", "pad": PAD},
    )
    (call,) = d.open("call")
    address = {**d.view()["results"]["r"], "path": ["a"]}
    assert call.params["payload"] == {"rows": address}
    d.ok(call)
    assert d.run.result == {"n": 2_000, "first": True, "rows": address}


def test_a_large_start_payload_is_read_and_passed_on(started: Started) -> None:
    given = {"a": ROWS, "n": 5}
    d = Driver(DIALECT.machine, _body("{set: {state.a: {$: start.a}, state.n: {$: start.n}}}, {wait: 1s}"))
    d.start(stored(d, given))
    assert d.status == "waiting"
    assert (d.view()["state"]["n"], d.view()["state"]["a"]["path"]) == (5, ["a"])
    d.assert_replays()


def _body(steps: str) -> Any:
    definition, _ = DIALECT.compile(parse(f"dialect: process\nname: wf\nsteps: [{steps}]"))
    assert definition is not None
    return definition.body


# --- what a process builds itself -----------------------------------------------------------------

MANY = {f"r{n}": [f"{n:060000}"] for n in range(40)}


def together(started: Started, steps: str) -> Driver:
    """A run with forty results that are small each, and 2.4 MB together."""
    calls = ", ".join(f"{{call: {{transport: a, into: {name}}}}}" for name in MANY)
    d = started(f"steps: [{calls}, {steps}]")
    for value in MANY.values():
        d.ok(d.open("call")[0], value)
    return d


def whole(d: Driver, value: Any) -> Any:
    return put_back(d.blobs.__getitem__, value)


def test_all_results_together_are_a_result_by_reference(started: Started) -> None:
    d = together(started, "{complete: {$: result}}")
    assert (d.status, d.run.error) == ("completed", None)
    assert is_reference(d.run.result)
    assert whole(d, d.run.result) == MANY


def test_what_is_built_of_many_values_is_sent_set_and_read(started: Started) -> None:
    names = ", ".join(f"result.{name}" for name in MANY)
    d = together(
        started,
        f"{{set: {{state.all: {{$: '[{names}]'}}, state.of: {{all: {{$: result}}, n: 1}}}}}},"
        "{call: {transport: b, payload: {rows: {$: state.all}, of: {$: state.of}}}},"
        "{child: {workflow: other, input: {all: {$: result}}}},"
        "{complete: {$: '[length(state.all), state.all[39] == result.r39, state.of.all.r1[0] == result.r1[0]]'}}",
    )
    (call,) = d.open("call")
    assert whole(d, call.params["payload"]) == {"rows": list(MANY.values()), "of": {"all": MANY, "n": 1}}
    d.ok(call)
    (child,) = d.open("child")
    assert whole(d, child.params["input"]) == {"all": MANY}
    d.ok(child, {"run": "x", "workflow": "other", "version": None, "result": None})
    assert (d.status, d.run.error, d.run.result) == ("completed", None, [40, True, True])
    assert max(len(stored.body) for stored in d.journal) < 200_000


def test_where_a_call_goes_may_be_large_too(started: Started) -> None:
    headers = ", ".join(f"h{n}: {{$: result.r{n}}}" for n in range(40))
    d = together(started, f"{{call: {{transport: http, url: 'http://x', headers: {{{headers}}}}}}}")
    (call,) = d.open("call")
    assert whole(d, call.params["headers"]) == {f"h{n}": MANY[f"r{n}"] for n in range(40)}
    assert whole(d, call.params["url"]) == "http://x"


def test_a_value_that_doubles_is_two_references_and_nothing_grows(started: Started) -> None:
    d = started(
        "steps: [{set: {state.x: 'abcdefgh', state.n: 0}}, {repeat: {while: {$: 'state.n < 100'}, max: 200,"
        " do: [{set: {state.n: {$: 'state.n + 1'}, state.x: {$: '[state.x, state.x]'}}}]}}]"
    )
    assert (d.status, d.run.error) == ("completed", None)
    assert sum(len(encode(value)) for value in d.blobs.values()) < 2_000_000


def test_expressions_are_bounded_by_the_work_they_do(started: Started) -> None:
    """Two values of forty doublings are alike, but nobody lives to see the end of comparing them."""
    d = started(
        "steps: [{set: {state.n: 0, state.x: [1, {$: start.pad}], state.y: [1.0, {$: start.pad}]}},"
        "{repeat: {while: {$: 'state.n < 40'}, max: 200, do: [{set: {state.n: {$: 'state.n + 1'},"
        " state.x: {$: '[state.x, state.x]'}, state.y: {$: '[state.y, state.y]'}}}]}},"
        "{complete: {$: 'state.x == state.y'}}]",
        {"pad": "p" * 40_000},
    )
    assert d.run.error is not None
    assert (d.run.error["class"], d.run.error["code"]) == ("expression", "EXPRESSION_RANGE")
    assert "turns" in d.run.error["message"]


def test_what_nobody_could_read_is_shown_by_reference(started: Started) -> None:
    d = started(
        "steps: [{set: {state.n: 0, state.x: [1, {$: start.pad}]}},"
        "{repeat: {while: {$: 'state.n < 40'}, max: 200, do: [{set: {state.n: {$: 'state.n + 1'},"
        " state.x: {$: '[state.x, state.x]'}}}]}}, {complete: {$: state.x}}]",
        {"pad": "p" * 40_000},
    )
    assert d.status == "completed"
    assert len(encode(whole(d, d.run.result))) < 2 * SHOWN_BYTES_MAX


def test_a_run_begun_by_0_1_0_is_bounded_as_it_was() -> None:
    d = Driver(
        DIALECT.machine,
        _body(
            "{set: {state.x: 'abcdefgh'}}, {repeat: {while: true, max: 100, do: [{set: {state.x: {$: '[state.x, state.x]'}}}]}}"
        ),
    )
    d.feed(Begun(seed=b"seed"))
    assert d.run.error is not None
    assert (d.run.error["class"], d.run.error["code"]) == ("expression", "EXPRESSION_RANGE")
    assert d.run.error["details"]["expression"] == "[state.x, state.x]"
    assert "let a call put them together" in d.run.error["message"]


def test_values_are_measured_as_they_are_stored(started: Started) -> None:
    """Four bytes a character: what is put together is stored, whatever it looked like."""
    face = "\N{GRINNING FACE}" * 100_000
    d = started("steps: [{complete: {$: '[start.a, start.a]'}}]", {"a": face})
    assert whole(d, d.run.result) == [face, face]


# --- errors, references and waits made of large text ----------------------------------------------

WALL = {"t": "y" * 3_000_000}


def test_a_failure_with_a_long_message_is_that_failure(started: Started) -> None:
    d = called(started, "{fail: {message: {$: result.r.t}, code: {$: result.r.t}}}", r=WALL)
    assert d.run.error is not None
    assert (d.run.error["class"], d.run.error["where"]) == ("user", "steps[1]")
    assert d.run.error["message"] == "y" * 4_000 + "… (3000000 characters)"
    assert d.run.error["code"] == "y" * 100


def test_a_business_reference_is_text_of_some_length(started: Started) -> None:
    d = called(started, "{reference: {$: result.r.t}}", r=WALL)
    assert d.run.error is not None
    assert (d.run.error["class"], d.run.error["code"]) == ("expression", "EXPRESSION_RANGE")
    assert "at most 1000 characters" in d.run.error["message"]


def test_a_wait_made_of_a_wall_of_text_is_an_expression_error(started: Started) -> None:
    d = called(started, "{wait: {$: result.r.t}}", r=WALL)
    assert d.run.error is not None
    assert (d.run.error["class"], d.run.error["code"]) == ("expression", "BAD_DURATION")
    assert len(d.run.error["message"]) < 5_000


def test_a_long_error_takes_its_branch_and_is_read_there(started: Started) -> None:
    d = started(
        "steps: [{call: {transport: a, on_failure: [{complete: {$: '[length(error.message), error.details]'}}]}}]"
    )
    failed = TreadleError(
        "y" * 300_000, cls="transport", code="X", details={"body": "b" * 300_000, "status": 500}
    )
    d.feed(Receipt(intent=d.open("call")[0].id, status="error", error=failed.to_value()))
    assert (d.status, d.run.error) == ("completed", None)
    assert d.run.result == [4_000 + len("… (300000 characters)"), {"status": 500}]


def test_a_long_error_stalls_the_run_and_can_be_given_up_on(started: Started) -> None:
    d = started("steps: [{call: {transport: a}}]")
    d.error(d.open("call")[0], "y" * 600_000)
    assert d.status == "stalled"
    d.retry(fail="z" * 600_000)
    assert d.status == "failed"
    assert d.run.error is not None
    assert d.run.error["message"].endswith("… (600000 characters)")
