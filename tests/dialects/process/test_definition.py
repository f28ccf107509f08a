"""Normalisation, validation with positions, one digest for every way in, exports that are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.dialects.process import DIALECT
from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import decode_trusted, encode
from treadle.lang.definition import Definition
from treadle.lang.text import Document, parse
from treadle.process import (
    Process,
    coalesce,
    concat,
    error,
    format_,
    if_,
    in_,
    lit,
    payload,
    process,
    result,
    run,
    start,
    state,
    task,
    var,
)

TEXT = """
dialect: process
name: PolicyRenewal
version: 1.2.0
title: Policy renewal
retention: 90d
start: {schema: {type: object, required: [policy_id]}}
tasks:
  approve: {roles: [underwriter], payload: {policy: {$: state.policy_id}}, timeout: 3d, escalate_to: [boss],
            schema: {type: object, required: [answer]}, type: form}
  review: {roles: clerk, payload: {doc: {$: doc}}, timeout: PT2H, on_timeout: [{set: {state.late: {$: doc_index}}}]}
steps:
  - set: {state.policy_id: {$: start.policy_id}, state.a.b: [1, {$: "start.n + 1"}]}
  - reference: {$: start.policy_id}
  - call: {transport: http, url: {$: "concat('http://x/', state.policy_id)"}, method: PUT, headers: {x-key: k},
           payload: {id: {$: state.policy_id}}, into: quote, timeout: 30s, deadline: 2m,
           retry: {attempts: 3, backoff: exponential, delay: 2s},
           on_success: [{set: {state.ok: true}}],
           on_failure: [{fail: {message: {$: "format('no quote: {}', error.message)"}, code: NO_QUOTE}}],
           on_timeout: [{complete: null}]}
  - if: {$: result.quote.total > 1000 and not (state.vip or 1 < start.n)}
    then:
      - task: approve
      - if: {$: "payload.answer == 'reject'"}
        then: [{complete: {renewed: false}}]
    else: [{wait: {until: "2030-01-01T00:00:00Z"}}]
  - repeat: {each: doc, in: {$: result.quote.items}, max: 10, do: [{task: review}, {call: {transport: billing, payload: {item: {$: doc}}}}]}
  - repeat: {while: {$: "state.n < 3"}, max: 5, do: [{set: {state.n: {$: "coalesce(state.n, 0) + 1"}}}]}
  - repeat: {until: {$: "payload.done in [true]"}, max: 5, do: [{await: ping}]}
  - wait: {$: "if(state.vip, '1s', '1h')"}
  - await: {signal: documents, into: docs, timeout: 7d, on_timeout: [{fail: late}]}
  - fork: {right: [{wait: 90s}], left: [{set: {state.r: {$: run.id}}}]}
  - child: {workflow: IssuePolicy, input: {id: {$: state.policy_id}}, into: issued, on_failure: [{fail: {$: error.message}}]}
  - continue_with: {workflow: Archive@1.0.0, input: {id: {$: state.policy_id}}}
  - complete: {renewed: true}
"""

approve = task(
    "approve",
    roles=["underwriter"],
    payload={"policy": state.policy_id},
    timeout="3d",
    escalate_to=["boss"],
    schema={"type": "object", "required": ["answer"]},
    type="form",
)
review = task(
    "review",
    roles=["clerk"],
    payload={"doc": var("doc")},
    timeout="2h",
    on_timeout=lambda p: p.set(state.late, p.doc_index),
)


@process(
    "PolicyRenewal",
    version="1.2.0",
    title="Policy renewal",
    retention="P90D",
    start={"type": "object", "required": ["policy_id"]},
)
def renewal(p: Any) -> None:
    p.set({state.policy_id: start.policy_id, state.a.b: [1, start.n + 1]})
    p.reference(start.policy_id)
    p.call(
        "http",
        url=concat("http://x/", state.policy_id),
        method="PUT",
        headers={"x-key": "k"},
        payload={"id": state.policy_id},
        into="quote",
        timeout="30s",
        deadline="120s",
        retry={"attempts": 3, "backoff": "exponential", "delay": "2s"},
        on_success=lambda p: p.set(state.ok, True),
        on_failure=lambda p: p.fail(format_("no quote: {}", error.message), code="NO_QUOTE"),
        on_timeout=lambda p: p.complete(),
    )
    with p.when((result.quote.total > 1000) & ~(state.vip | (lit(1) < start.n))):
        p.ask(approve)
        with p.when(payload.answer == "reject"):
            p.complete({"renewed": False})
    with p.otherwise():
        p.wait(until="2030-01-01T00:00:00Z")
    with p.each("doc", in_=result.quote.items, max=10):
        p.ask(review)
        p.call("billing", payload={"item": p.doc})
    with p.while_(state.n < 3, max=5):
        p.set(state.n, coalesce(state.n, 0) + 1)
    with p.until(in_(payload.done, [True]), max=5):
        p.await_signal("ping")
    p.wait(if_(state.vip, "1s", "1h"))
    p.await_signal("documents", into="docs", timeout="7d", on_timeout=lambda p: p.fail("late"))
    p.fork(right=lambda p: p.wait("PT1M30S"), left=lambda p: p.set(state.r, run.id))
    p.child(
        "IssuePolicy",
        input={"id": state.policy_id},
        into="issued",
        on_failure=lambda p: p.fail(error.message),
    )
    p.continue_with("Archive@1.0.0", input={"id": state.policy_id})
    p.complete({"renewed": True})


def exported(definition: Definition, format: str) -> Definition:
    text = DIALECT.export(definition, format)
    if format == "python":
        space: dict[str, Any] = {}
        exec(text, space)
        found = [value for value in space.values() if isinstance(value, Process)]
        return found[0].definition
    again, problems = DIALECT.compile(parse(text), transports=["billing"])
    assert again is not None, [str(problem) for problem in problems]
    return again


def test_text_and_builder_give_one_digest(compiled: Callable[[str], Definition]) -> None:
    assert compiled(TEXT).body == renewal.definition.body
    assert compiled(TEXT).digest == renewal.definition.digest
    assert renewal.definition.name == "PolicyRenewal"
    assert renewal.definition.version == "1.2.0"


@pytest.mark.parametrize("format", ["yaml", "json", "python"])
def test_export_import_export_is_the_identity(format: str, compiled: Callable[[str], Definition]) -> None:
    definition = compiled(TEXT)
    again = exported(definition, format)
    assert again.digest == definition.digest
    assert DIALECT.export(again, format) == DIALECT.export(definition, format)
    # Also from the store, where the order of keys is that of the canonical encoding.
    stored = Definition(
        "process", definition.name, definition.version, decode_trusted(encode(definition.body))
    )
    assert DIALECT.export(stored, format) == DIALECT.export(definition, format)


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_the_canonical_form_can_be_read_again(format: str, compiled: Callable[[str], Definition]) -> None:
    definition = compiled(TEXT)
    again = compiled(DIALECT.export(definition, format, canonical=True))
    assert again.digest == definition.digest


def test_the_canonical_definition_says_what_it_needs(compiled: Callable[[str], Definition]) -> None:
    needs = DIALECT.requires(compiled(TEXT))
    assert needs["transports"] == ["billing", "http"]
    assert needs["children"] == ["Archive@1.0.0", "IssuePolicy"]
    assert needs["functions"] == ["coalesce", "concat", "format", "if"]
    assert needs["signals"] == ["documents", "ping"]


def test_other_spellings_of_the_same_give_the_same_digest(compiled: Callable[[str], Definition]) -> None:
    base = compiled(
        "steps: [{wait: 60s}, {call: {transport: a, retry: {attempts: 2}}}, {await: {signal: go}}]"
    )
    same = compiled(
        "steps: [{wait: PT1M}, {call: {retry: {jitter: false, delay: 1s, backoff: none, attempts: 2}, transport: a}}, {await: go}]\n"
        "retention: 30d\ntasks: {}"
    )
    assert same.digest == base.digest
    assert (
        compiled("steps: [{set: {state.a: {$: ' 1+  state.b'}}}]").digest
        == compiled("steps: [{set: {state.a: {$: '(1 + state.b)'}}}]").digest
    )


def test_the_order_of_branches_is_part_of_the_definition(compiled: Callable[[str], Definition]) -> None:
    one = compiled("steps: [{fork: {a: [{wait: 1s}], b: []}}]")
    other = compiled("steps: [{fork: {b: [], a: [{wait: 1s}]}}]")
    assert one.digest != other.digest


@pytest.mark.parametrize(
    ("code", "steps", "line"),
    [
        ("UNKNOWN_FIELD", "steps:\n  - call: {transport: http, url: x, timeot: 3s}", 4),
        ("UNKNOWN_FIELD", "steps: []\nstarts: {}", 4),
        ("UNKNOWN_FIELD", "tasks: {a: {rolls: [x]}}\nsteps:\n  - task: a", 3),
        ("UNKNOWN_FIELD", "steps:\n  - wait: 1s\n    then: []", 5),
        ("UNKNOWN_TRANSPORT", "steps:\n  - wait: 1s\n  - call: {transport: nope}", 5),
        ("MISSING_FIELD", "steps:\n  - call: {transport: http}", 4),
        ("MISSING_FIELD", "steps:\n  - call: {transport: graphql, url: x}", 4),
        ("MISSING_FIELD", "steps:\n  - repeat: {while: {$: 'true'}, do: []}", 4),
        ("MISSING_FIELD", "steps:\n  - repeat: {until: {$: 'true'}, do: []}", 4),
        ("MISSING_FIELD", "steps:\n  - fail: {code: X}", 4),
        ("UNKNOWN_TASK", "steps:\n  - task: nobody", 4),
        ("UNKNOWN_ROOT", "steps:\n  - set: {state.a: {$: stat.b}}", 4),
        ("UNKNOWN_ROOT", "steps:\n  - set: {state.a: {$: item}}", 4),
        ("UNKNOWN_ROOT", "steps:\n  - set: {state.a: {$: item_index}}", 4),
        ("UNKNOWN_ROOT", "steps:\n  - set: {state.a: {$: run.secret}}", 4),
        ("UNKNOWN_ROOT", "tasks: {a: {payload: {$: doc}}}\nsteps:\n  - task: a", 3),
        ("UNKNOWN_FUNCTION", "steps:\n  - set: {state.a: {$: 'concatt(1)'}}", 4),
        ("WRONG_ARGUMENTS", "steps:\n  - set: {state.a: {$: 'at(1)'}}", 4),
        ("EXPRESSION_SYNTAX", "steps:\n  - set: {state.a: {$: '1 +'}}", 4),
        ("BAD_EXPRESSION", "steps:\n  - set: {state.a: {$: '1', b: 2}}", 4),
        ("BAD_TARGET", "steps:\n  - set: {start.a: 1}", 4),
        ("BAD_TARGET", "steps:\n  - set: {state: 1}", 4),
        ("BAD_TARGET", "steps:\n  - set: {state.a: 1, state.a.b: 2}", 4),
        ("BAD_DURATION", "steps:\n  - wait: 3 parsecs", 4),
        ("BAD_DURATION", "steps:\n  - wait: 5", 4),
        ("BAD_DURATION", "steps:\n  - call: {transport: a, timeout: soon}", 4),
        ("BAD_INSTANT", "steps:\n  - wait: {until: tomorrow}", 4),
        ("BAD_RETRY", "steps:\n  - call: {transport: a, retry: {attempts: 0}}", 4),
        ("BAD_RETRY", "steps:\n  - call: {transport: a, retry: {attempts: 2, backoff: wild}}", 4),
        ("BAD_REPEAT", "steps:\n  - repeat: {each: a, while: {$: 'true'}, do: []}", 4),
        ("BAD_FORK", "steps:\n  - fork: {}", 4),
        ("BAD_NAME", "steps:\n  - repeat: {each: state, in: [], do: []}", 4),
        ("BAD_NAME", "steps:\n  - call: {transport: a, into: a.b}", 4),
        ("BAD_STEP", "steps:\n  - {wait: 1s, await: x}", 4),
        ("BAD_STEP", "steps:\n  - sleep: 1s", 4),
        ("BAD_SCHEMA", "start: {schema: {type: nonsense}}\nsteps: []", 3),
        ("NO_TIMEOUT", "steps:\n  - await: {signal: a, on_timeout: []}", 4),
        ("NO_TIMEOUT", "tasks: {a: {escalate_to: [x]}}\nsteps:\n  - task: a", 3),
        ("TEXT_AS_CONDITION", "steps:\n  - if: state.a > 1\n    then: []", 4),
        ("NOT_A_LIST", "steps:\n  set: {state.a: 1}", 3),
    ],
)
def test_problems_name_their_place(
    code: str, steps: str, line: int, problems_of: Callable[..., list[Any]]
) -> None:
    found = [problem for problem in problems_of(steps) if problem.severity == "error"]
    assert code in [problem.code for problem in found]
    assert line in [problem.line for problem in found if problem.code == code]


def test_all_problems_are_reported_at_once(problems_of: Callable[..., list[Any]]) -> None:
    found = problems_of("steps:\n  - task: x\n  - wait: soon\n  - set: {a: 1}")
    assert [(problem.code, problem.path) for problem in found] == [
        ("UNKNOWN_TASK", "steps[0].task"),
        ("BAD_DURATION", "steps[1].wait"),
        ("BAD_TARGET", "steps[2].set.a"),
    ]


def test_warnings_leave_a_definition(compiled: Callable[[str], Definition]) -> None:
    definition = compiled("tasks: {a: {}}\nsteps: [{complete: null}, {wait: 1s}]")
    assert sorted(problem.code for problem in definition.warnings) == ["UNREACHABLE", "UNUSED_TASK"]


def test_loop_names_are_known_where_the_loop_is(problems_of: Callable[..., list[Any]]) -> None:
    ok = "steps: [{repeat: {each: a, in: [1], do: [{repeat: {each: b, in: [2], do: [{set: {state.x: {$: '[a, a_index, b, b_index, item_index]'}}}]}}]}}]"
    assert problems_of(ok) == []
    outside = "steps: [{repeat: {each: a, in: {$: a}, do: []}}, {set: {state.x: {$: a}}}]"
    assert [problem.code for problem in problems_of(outside)] == ["UNKNOWN_ROOT", "UNKNOWN_ROOT"]


def test_start_payload_is_checked(compiled: Callable[[str], Definition]) -> None:
    program = DIALECT.machine.load(compiled(TEXT).body)
    assert DIALECT.check_input(program, {"policy_id": 1}, {}) == {"policy_id": 1}
    with pytest.raises(InputInvalid) as caught:
        DIALECT.check_input(program, {}, {})
    assert caught.value.cls == "user"
    assert "policy_id" in str(caught.value.details["errors"])


def test_a_schema_cannot_reach_the_network(compiled: Callable[[str], Definition]) -> None:
    definition = compiled("start: {schema: {$ref: 'http://127.0.0.1:1/x.json'}}\nsteps: []")
    program = DIALECT.machine.load(definition.body)
    with pytest.raises(InputInvalid, match="another document"):
        DIALECT.check_input(program, {}, {})


def test_recognises_its_shape() -> None:
    assert DIALECT.recognises({"dialect": "process", "steps": []})
    assert DIALECT.recognises({"steps": [], "tasks": {}})
    assert not DIALECT.recognises({"steps": []})
    assert not DIALECT.recognises({"dialect": "agent", "steps": [], "tasks": {}})
    assert not DIALECT.recognises([])


def test_odd_texts_survive_yaml(compiled: Callable[[str], Definition]) -> None:
    values = [
        "1e3",
        "0o17",
        "yes",
        "null",
        "~",
        "",
        " a ",
        "- x",
        "12:30",
        "2026-01-01",
        "a: b",
        "#x",
        "é\n\tü",
        "'q'",
        '"',
        "{{ x }}",
        "1.5",
        "$x",
    ]
    document = Document({"dialect": "process", "name": "odd", "steps": [{"set": {"state.a": values}}]})
    definition, _ = DIALECT.compile(document)
    assert definition is not None
    for format in ("yaml", "json", "python"):
        assert exported(definition, format).digest == definition.digest, format


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda f: f + 0.0),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8),
        st.sampled_from(["1e3", ".5", "0x1f", "NO", "on", "=", "<<", "\n", "é"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=5).filter(
                lambda k: k != "$"
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_any_value_survives_every_format(value: Any) -> None:
    document = Document({"dialect": "process", "name": "any", "steps": [{"complete": value}]})
    definition, problems = DIALECT.compile(document)
    assert definition is not None, list(problems)
    for format in ("yaml", "json", "python"):
        assert exported(definition, format).digest == definition.digest, format


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\u2029", "\ufeff"])
@pytest.mark.parametrize("format", ["yaml", "json", "python"])
def test_what_some_readers_take_for_the_end_of_a_line_survives(format: str, sign: str) -> None:
    value = [sign, f"a {sign} b", f" {sign}{sign} ", {f"k {sign} k": {"$": f"'x {sign} y'"}}]
    document = Document({"dialect": "process", "name": "any", "steps": [{"complete": value}]})
    definition, problems = DIALECT.compile(document)
    assert definition is not None, list(problems)
    assert exported(definition, format).digest == definition.digest


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_expression_survives_every_format(data: st.DataObject) -> None:
    tree = data.draw(EXPRESSIONS)
    steps = [{"repeat": {"each": "set", "in": [], "do": [{"complete": {"$": tree}}]}}]
    document = Document({"dialect": "process", "name": "any", "steps": steps})
    definition, problems = DIALECT.compile(document)
    assert definition is not None, list(problems)
    for format in ("yaml", "json", "python"):
        assert exported(definition, format).digest == definition.digest, format


def _flat(op: str, parts: list[Any]) -> list[Any]:
    return [op, *(inner for part in parts for inner in (part[1:] if part[0] == op else [part]))]


def _grown(inner: Any) -> Any:
    return st.one_of(
        st.tuples(
            st.sampled_from(["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in"]), inner, inner
        ).map(list),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)).map(
            lambda p: _flat(*p)
        ),
        inner.map(lambda t: ["not", t]),
        st.tuples(inner.filter(lambda t: t[0] != "path"), inner).map(lambda p: ["get", *p]),
        st.lists(inner, max_size=2).map(lambda items: ["list", *items]),
        inner.map(lambda t: ["object", ["a b", t], ["class", ["lit", 1]]]),
        inner.map(lambda t: ["call", "if", t, ["lit", 1], t]),
        inner.map(lambda t: ["call", "format", ["lit", "{}"], t]),
    )


EXPRESSIONS = st.recursive(
    st.one_of(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-5, 5),
            st.floats(-2, 2).map(lambda f: f + 0.0),
            st.text("ab'\\\"\n", max_size=3),
        ).map(lambda v: ["lit", v]),
        st.sampled_from(
            [
                ["path", "state"],
                ["path", "state", "class"],
                ["path", "start", "a b", 0],
                ["path", "set"],
                ["path", "set_index"],
                ["path", "item_index"],
                ["path", "run", "id"],
                ["path", "state", "_tree"],
            ]
        ),
    ),
    _grown,
    max_leaves=8,
)
