"""Templates: native types, undefined, sandbox, bounds, names (PLAYBOOK §1.2 M1 M2, §1.3, §5.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.dialects.playbook import parsing
from treadle.dialects.playbook.edition import CURRENT, edition
from treadle.dialects.playbook.handles import Handle, StepResults, TemplateScope
from treadle.dialects.playbook.short_forms import Reading, read
from treadle.dialects.playbook.templates import Expression, PlacedTemplate, Tree, expression
from treadle.dialects.playbook.texts import plain, truth_of
from treadle.kernel.errors import ExpressionError

from .harness import Lab

NAMES: dict[str, Any] = {
    "ctx": {"n": 3, "text": "123", "list": [1, 2], "items": ["a key named like a method"], "nil": None},
    "outcome": {"status": "error", "http": {"status": 404}},
    "iter": {"page": "7"},
}


def value(text: str, **more: Any) -> Any:
    return PlacedTemplate(text, "here").value(TemplateScope({**NAMES, **more}))


def test_m1_a_missing_chain_is_undefined_not_an_error() -> None:
    assert value("{{ outcome.result.data.paging.hasMore | default(false) }}") is False
    assert value("{{ nothing.at.all }}") is None
    assert value("a{{ nothing.at.all }}b") == "ab"
    assert PlacedTemplate("{{ nothing.at.all }}", "here").truth(TemplateScope(NAMES)) is False


def test_m2_single_expressions_keep_native_types_and_texts_stay_texts() -> None:
    assert value("{{ (iter.page | int) + 1 }}") == 8
    assert value("{{ ctx.list }}") == [1, 2]
    assert value("{{ ctx.n == 3 }}") is True
    assert value("{{ ctx.text }}") == "123"
    assert value("{{ '[1]' }}") == "[1]"
    assert value("  {{ ctx.n }}\n") == 3
    assert value("{{ ctx.n }}{{ ctx.n }}") == "33"
    assert value("{{ ctx.nil }}") is None


def test_a_key_wins_over_a_method() -> None:
    assert value("{{ ctx.items }}") == ["a key named like a method"]
    assert value("{{ outcome.keys() | list }}") == ["status", "http"]


def test_constants_never_reach_jinja() -> None:
    tree = Tree({"a": 1, "b": ["x", {"c": "no marks"}]}, "t")
    assert tree.constant
    assert tree.render(TemplateScope({})) is tree.value_if_constant


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'x' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ range(10**9) | list }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'a'.ljust(10**10) }}",
        "{{ 'a' | center(10**10) }}",
        "{{ '%0100000000d' | format(1) }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(9000000) %}0123456789{% endfor %}",
    ],
)
def test_rendering_is_bounded(text: str) -> None:
    with pytest.raises(ExpressionError):
        value(text)


def test_range_is_not_capped_at_100_000() -> None:
    assert value("{{ range(300000) | length }}") == 300_000


@pytest.mark.parametrize(
    "text", ["{{ ctx.__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ ctx.get.__globals__ }}"]
)
def test_the_sandbox_shows_no_internals(text: str) -> None:
    assert value(text) is None


@pytest.mark.parametrize(
    "text", ["{{ ctx.update({'a': 1}) }}", "{{ ctx.list.append(3) }}", "{{ [1] | random }}", "{{ lipsum() }}"]
)
def test_no_mutation_and_no_chance(text: str) -> None:
    with pytest.raises(ExpressionError):
        value(text)


def test_errors_name_place_text_and_what_was_undefined() -> None:
    with pytest.raises(ExpressionError) as caught:
        value("{{ missing + 1 }}")
    assert caught.value.cls == "expression"
    for part in ("here", "{{ missing + 1 }}", "'missing' is undefined"):
        assert part in caught.value.message


def test_uses_name_the_keys_that_are_read() -> None:
    uses = expression("{{ ctx.a.b + workload['c'] }}{% for x in steps %}{{ x.y + ctx.z }}{% endfor %}").uses
    assert list(uses) == [("ctx", "a"), ("workload", "c"), ("steps", None), ("ctx", "z")]


def test_precedence_of_bare_names() -> None:
    lab = Lab("""
    workload: {a: w, b: w, c: w, d: w}
    workflow:
      - step: one
        tool: {kind: noop, result: {x: 1}, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {a: c, b: c}}}}]}}}
        next: {arcs: [{step: two, args: {a: args}}]}
      - step: two
        loop: {in: [1], iterator: c}
        tool: {kind: echo, value: ["{{ a }}", "{{ b }}", "{{ c }}", "{{ d }}", "{{ one.x }}", "{{ workload.a }}"]}
    """).run()
    assert lab.result["results"] == [["args", "c", 1, "w", 1, "w"]]


def test_x1_workload_is_merged_deeply_and_defaults_may_be_templates() -> None:
    lab = Lab("""
    workload: {base: http://x, url: "{{ workload.base }}/v1", deep: {a: 1, b: 2}, list: [1, 2]}
    workflow:
      - {step: a, tool: {kind: echo, value: "{{ workload }}"}}
    """).run({"base": "http://y", "deep": {"b": 3}, "list": [9]})
    assert lab.result == {"base": "http://y", "url": "http://y/v1", "deep": {"a": 1, "b": 3}, "list": [9]}


def test_handles() -> None:
    steps = StepResults(
        {"s": {"status": "done", "result": {"x": [1], "status": "theirs"}}, "later": {"status": "running"}}
    )
    scope = TemplateScope({}, (steps,))
    assert PlacedTemplate("{{ s.x[0] }}", "t").value(scope) == 1
    assert PlacedTemplate("{{ s.data.status }}", "t").value(scope) == "theirs"
    assert PlacedTemplate("{{ s.status }}", "t").value(scope) == "theirs", (
        "the keys of a result win over its envelope"
    )
    assert PlacedTemplate("{{ s }}", "t").value(scope) == {"x": [1], "status": "theirs"}
    assert PlacedTemplate("{{ s.x | length }} of {{ s | length }}", "t").value(scope) == "1 of 2"
    assert PlacedTemplate("{{ later.x }}", "t").value(scope) is None
    assert plain([Handle(3)]) == [3]


def test_the_body_of_an_http_result_has_two_names() -> None:
    result = {"data": {"a": 1}, "status_code": 200}
    assert (
        value("{{ outcome.result.body.a }} {{ outcome.result.data.a }}", outcome={"result": result}) == "1 1"
    )
    assert value("{{ outcome.result.body }}", outcome={"result": {"data": 1}}) is None


_LEAVES = st.sampled_from(
    [
        "ctx.n",
        "ctx.text",
        "ctx.list",
        "ctx.missing",
        "gone.a.b",
        "outcome.http.status",
        "1",
        "'x'",
        "[1, 404]",
        "true",
        "none",
        "iter['page']",
    ]
)


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from(["==", "!=", "in", "and", "or", "+", "<"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda a: f"(not {a})"),
        inner.map(lambda a: f"({a} | default('d'))"),
        inner.map(lambda a: f"({a} | int)"),
        inner.map(lambda a: f"({a} is defined)"),
        pair.map(lambda t: f"({t[0]} if {t[1]} else 7)"),
        pair.map(lambda t: f"[{t[0]}, {t[1]}]"),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(_LEAVES, _grow, max_leaves=6))
def test_shortcuts_agree_with_jinja(text: str) -> None:
    """The closures and Jinja's own compiler give the same value, or both an error."""
    source = "{{ " + text + " }}"
    assert Expression(source).fast is not None
    scope = TemplateScope(NAMES)

    def fast() -> Any:
        return plain(Expression(source).value(scope))

    def slow() -> Any:
        return plain(Expression(source, shortcuts=False).value(scope))

    outcomes = []
    for way in (fast, slow):
        try:
            outcomes.append(("value", way()))
        except Exception as error:
            outcomes.append(("error", type(error).__name__))
    assert outcomes[0] == outcomes[1]


_WORDS = st.one_of(
    st.sampled_from(
        [
            *(
                "ctx.n",
                "ctx.text",
                "ctx.missing",
                "ctx.missing.deeper",
                "ctx.n.deeper",
                "gone",
                "gone.a.b",
                "ctx",
                "loop",
                "caller",
            ),
            *(
                "outcome.http.status",
                "outcome.items",
                "s.x",
                "s.status",
                "s",
                "event.result",
                "range",
                "dict.x",
                "self",
                "not",
                "if",
            ),
            *(
                "true",
                "None",
                "0",
                "7",
                "007",
                "1_000",
                "1.5",
                "-1",
                "'x'",
                '"step.done"',
                "''",
                "'a\\n'",
                "'}}'",
                "ctx['n']",
                "ctx.n()",
                "ü",
            ),
            *(
                "==",
                "!=",
                "<",
                "<=",
                ">",
                ">=",
                "in",
                "|",
                "+",
                "is",
                "-",
                "}}",
                "{{",
                "and",
                "'",
                "default(1)",
                "default('d')",
                "default()",
            ),
            *("default(none)", "default(ctx.n)", "default(1)|int", "d(1)", "length", "%}", "#}"),
        ]
    ),
    st.text("ctx.n'\"|(){}%-= <1\\", max_size=6),
)


@settings(max_examples=600, deadline=None)
@given(
    st.one_of(
        _WORDS.map(lambda word: [word]),
        st.tuples(_WORDS, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "|"]), _WORDS),
        st.tuples(
            _WORDS, st.sampled_from(["and", "or"]), _WORDS, st.sampled_from(["==", "and", "or"]), _WORDS
        ),
        st.lists(_WORDS, min_size=1, max_size=4),
    ),
    st.sampled_from([" ", "", "\n", "  "]),
    st.sampled_from(
        [("{{ ", " }}"), ("{{", "}}"), (" {{ ", " }}\n"), ("{{- ", " }}"), ("{{ ", " }} {{ ctx.n }}")]
    ),
)
def test_short_forms_are_read_as_jinja_reads_them(
    words: Sequence[str], between: str, braces: tuple[str, str]
) -> None:
    """What is read without Jinja is told of alike, and has the same value under the rules of both editions."""
    text = between.join(words).join(braces)
    short = read(text)
    if short is None:
        return
    by_jinja = parsing.parsed(text)
    for field in ("native", "path", "names_only", "names", "uses", "chains"):
        assert getattr(short, field) == getattr(by_jinja, field), field
    assert parsing.without_value(text) is None
    steps = StepResults({"s": {"status": "done", "result": {"x": [1]}}})
    for rules in (1, CURRENT):
        token = edition.set(rules)
        try:
            assert _outcome(short, TemplateScope(NAMES, (steps,))) == _outcome(
                by_jinja, TemplateScope(NAMES, (steps,))
            )
        finally:
            edition.reset(token)


def _outcome(found: Reading, scope: TemplateScope) -> tuple[str, Any]:
    assert found.fast is not None
    try:
        value = found.fast(scope)
        return type(value).__name__, (plain(value, load=True), truth_of(value))
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ctx.n }}",
        "{{n}}",
        "{{ ctx.n < workload.most }}",
        "{{ event.name == 'step.done' }}",
        "{{ event.name == 'step.done' and ctx.n > 0 or ctx.last }}",
        "{{ args.n | default(0) }}",
    ],
)
def test_these_are_short_forms(text: str) -> None:
    assert read(text) is not None


@pytest.mark.parametrize(
    "text", ["{{ true or ctx.n }}", "{{ 1 == 1 and ctx.n }}", "{{ 7 }}", "{{ not ctx.n }}"]
)
def test_these_are_not(text: str) -> None:
    """Jinja works out what names nothing, and then asks for less."""
    assert read(text) is None


@pytest.mark.parametrize("many", [" and ", " == ", "."])
def test_what_jinja_would_have_to_count_is_no_short_form(many: str) -> None:
    text = "{{ " + many.join(["a"] * 101) + " }}"
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ workload.get('a', 'DEFAULT') }}", 1),
        ("{{ workload.items() | list | length }}", 2),
        ("{{ workload.keys() | sort | join(',') }}", "a,b"),
        ("{{ ctx.get('x') }}", 7),
        ("{{ ctx.values() | list }}", [7]),
    ],
)
def test_methods_of_a_mapping_see_all_of_it_in_a_task(text: str, expected: Any) -> None:
    lab = Lab(
        f"""
    workload: {{a: 1, b: 2}}
    workflow:
      - {{step: first, tool: {{kind: noop}}, set: {{ctx.x: 7}}, next: {{arcs: [{{step: t}}]}}}}
      - {{step: t, tool: {{kind: echo, value: "{text}"}}}}
    """
    ).run()
    assert lab.steps["t"]["result"] == expected


def test_the_name_of_a_later_task_means_what_it_means_until_it_has_run() -> None:
    lab = Lab(
        """
    workload: {page: 5}
    workflow:
      - step: t
        tool:
          - {name: first, kind: echo, value: "{{ page }}"}
          - {name: page, kind: echo, value: 9}
          - {name: last, kind: echo, value: "{{ first }} {{ page }}"}
    """
    ).run()
    assert lab.steps["t"]["result"] == "5 9"


@pytest.mark.parametrize(
    "text",
    [
        "{{ 1.5 | round(1000000000, 'ceil') }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ [1] | batch(100000000, 'x') | list }}",
        "{{ [1] | slice(100000000) | list }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ range(9000000) | select('in', range(9000000) | list) | list | length }}",
        "{{ range(900000) | select('in', range(900000) | list) | list | length }}",
        "{% for a in range(900000) %}{{ a in ctx.many }}{% endfor %}",
        "{{ ('a,'*1000000).split(',') | map('replace', '', 'b'*10000) | list | length }}",
        "{{ ('a,'*1000000).split(',') | map('replace', '', 'b'*10000) }}",
        "{{ '{:>999999999}'.format(1) | length }}",
        "{{ '{:>{}}'.format(1, 999999999) | length }}",
        "{{ '{a:>999999999}'.format_map({'a': 1}) | length }}",
        "{{ '%*d' | format(999999999, 1) | length }}",
        "{{ '%.*f' | format(999999999, 1.5) | length }}",
        "{{ ''.join(['x'*1000000]*1000) | length }}",
        "{{ ('a'*1000000).replace('a', 'b'*100000) | length }}",
        "{{ ('x'*1000).join('y'*10000000) }}",
        "{{ ('\t'*1000000).expandtabs(1000000) }}",
        "{{ (5).to_bytes(1000000000) }}",
        "{{ 'aaa' | wordwrap(1, true, 'x'*10000000) }}",
    ],
)
def test_no_short_template_takes_long_or_makes_much(text: str) -> None:
    with pytest.raises(ExpressionError):
        value(text, ctx={"many": list(range(900_000))})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ '{} of {:>4}'.format(99999999999, 7) }}", "99999999999 of    7"),
        ("{{ 'no 99999999999 %05.1f' | format(2.25) }}", "no 99999999999 002.2"),
        ("{{ 'a-b'.replace('-', '+') }}", "a+b"),
        ("{{ 'a-b-c'.replace('-', '+', 1) }}", "a+b-c"),
        ("{{ ', '.join(['a', 'b']) }}", "a, b"),
        ("{{ 'x'.ljust(3) }}", "x  "),
        ("{{ 2.345 | round(2) }}", 2.35),
        ("{{ [3, 1, 2] | sort | reverse | list }}", [3, 2, 1]),
        ("{{ [1, 2, 3] | select('in', [2, 3]) | map('string') }}", ["2", "3"]),
        ("{{ [1, 2, 3] | batch(2, 0) | list }}", [[1, 2], [3, 0]]),
        ("{% macro f(n) %}<{{ n }}>{% endmacro %}{{ f(1) }}{{ f(2) }}", "<1><2>"),
        ("{% for x in [1, 2] if x in [2] %}{{ loop.index }}:{{ x }}{% endfor %}", "1:2"),
        ("{{ 2 in [1, 2] and 'k' in {'k': 1} and 'b' in 'abc' | upper | lower }}", True),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
    ],
)
def test_bounds_leave_ordinary_templates_alone(text: str, expected: Any) -> None:
    assert value(text) == expected


AS_VALUES = [
    ("{{ one - 1 }}", 5, 4),
    ("{{ 10 - one }}", 5, 5),
    ("{{ (10 - one) | int }}", 5, 5),
    ("{{ one / 2 }}", 5, 2.5),
    ("{{ one // 2 }}", 5, 2),
    ("{{ -one }}", 5, -5),
    ("{{ (-one) | abs }}", 5, 5),
    ("{{ one | abs }}", -5, 5),
    ("{{ one | round }}", 2.6, 3.0),
    ("{{ one is none }}", None, True),
    ("{{ one is string }}", "abc", True),
    ("{{ one is mapping }}", {"a": 1}, True),
    ("{{ one is number and one is not boolean }}", 5, True),
    ("{{ one is true }}", True, True),
    ("{{ one | dictsort | first }}", {"b": 1, "a": 2}, ["a", 2]),
    ("{{ one | items | list | length }}", {"b": 1, "a": 2}, 2),
    ("{{ dict(one, c=1) | length }}", {"a": 1}, 2),
    ("{{ range(one) | list }}", 2, [0, 1]),
    ("{{ one in ['abc'] and one in {'abc': 1} }}", "abc", True),
    ("{{ (one in {'abc': 1}) | string }}", "abc", "True"),
    ("{{ [7, 8][one] }}", 1, 8),
    ("{{ {'abc': 4}[one] }}", "abc", 4),
    ("{{ one | attr('status') }}", 1, "ok"),
    ("{% macro f(x) %}{{ x.status }}{% endmacro %}{{ f(one) }}", 1, "ok"),
]


@pytest.mark.parametrize(("text", "result", "expected"), AS_VALUES)
def test_a_result_by_its_name_is_like_the_result(text: str, result: Any, expected: Any) -> None:
    found = value(text, one=Handle(result))
    assert (found, type(found)) == (expected, type(expected))
