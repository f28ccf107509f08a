"""Patterns: read as JavaScript reads them, and matched in work that pattern and text alone decide.

What JavaScript answers was asked of V8 (node 20 and later), not of our code.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treadle.lang.pattern_search import OutOfSteps, PatternProgram
from treadle.lang.pattern_syntax import parse
from treadle.lang.patterns import (
    PRODUCT_MAX,
    STEPS_MAX,
    PatternBudget,
    PatternError,
    TooMuchWork,
    compile_pattern,
)


def found(source: str, text: str, *, schema: bool = False) -> bool:
    return compile_pattern(source, schema=schema).found_in(text)


# --- JavaScript ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text", "wanted"),
    [
        # Letters and text that Python takes for something else.
        (r"\Z", "a", False), (r"\Z", "Z", True), (r"^\A$", "A", True),
        (r"^a{,3}$", "aa", False), (r"^a{,3}$", "a{,3}", True), ("^a{1$", "a{1", True), ("^x}]$", "x}]", True),
        (r"^\p{L}$", "p{L}", True), (r"^\p{L}$", "é", False), (r"^\u{3}$", "uuu", True), (r"\k", "k", True),
        ("[a&&b]", "&", True), ("[[a]", "[", True), ("[a||b]", "|", True),
        # Classes.
        ("[]", "a", False), ("[]|b", "b", True), ("^[^]$", "\n", True), (r"^[\d-x]+$", "1-x", True),
        (r"^[\d-x]$", "w", False), (r"[\b]", "\b", True), (r"^[\]a]+$", "a]", True), (r"^[^\W_]+$", "a1", True),
        # Escapes.
        (r"\cJ", "\n", True), (r"^\c$", "\\c", True), (r"^[\c1]$", "\x11", True), (r"^\x6$", "x6", True),
        (r"^\0$", "\0", True), (r"^\12$", "\n", True), (r"^\8$", "8", True), (r"^\u0061\x62$", "ab", True),
        (r"^\ud83d\ude00$", "😀", True), (r"\-\/", "-/", True), (r"^\v\f$", "\x0b\x0c", True),
        # Space, line ends, digits and words.
        (r"^\s$", "\u00a0", True), (r"^\s$", "\ufeff", True), (r"^\s$", "\u2029", True), (r"^\s$", "\x1c", False),
        (r"^\S$", "\u00a0", False), ("^.$", "\u2028", False), ("^.$", "\r", False), ("^.$", "\x85", True),
        (r"^\d$", "٣", False), (r"^\w$", "é", False), (r"\bé", "é", False), ("a$", "a\n", False), ("^b", "a\nb", False),
        (r"\B", "u\u00a0a", False), (r"^\B", "\u00a0", True),
        # Groups and references.
        (r"^\1(a)$", "a", True), (r"^(?<n>a|b)\k<n>$", "bb", True), (r"^(?<n>a|b)\k<n>$", "ab", False),
        (r"^(?:(a)|b)*\1$", "aba", False), (r"^(?:(a)|b)*\1$", "ab", True), (r"^(a)?b\1$", "b", True),
        (r"^(z)((a+)?(b+)?(c))*\3$", "zaacbbbcac", False), (r"^(?:a?)*?$", "aa", True), (r"^(\1a)+$", "aa", True),
        # Looking around.
        ("^(?!.*b)", "aab", False), (r"(?<=\$)\d+", "cost $5", True), (r"(?<!\$)5", "$5", False),
        (r"(?<=a+)b", "aab", True), (r"(?<=(\w)\1)c", "aac", True), (r"(?<=\1(\w))c", "aac", True),
        (r"^(?=(a+))\1b", "aab", True), ("(?=a)*", "", True), ("a(?=b)c", "abc", False),
        # Flags of a group.
        ("^(?i:aB)c$", "Abc", True), ("^(?i:aB)c$", "AbC", False), ("a(?s:.)b", "a\nb", True),
        ("(?m:^b$)", "a\nb\nc", True), (r"^(?i:[^\W_])$", "s", True), ("^(?i:[^a])$", "A", False),
        (r"^(?i:(a))\1$", "Aa", False), (r"^(?i:(a)\1)$", "Aa", True), ("(?i:a(?-i:b))", "AB", False),
        # Counts that RE2 leaves to us.
        ("^a{1001}$", "a" * 1001, True), ("^a{1001}$", "a" * 1000, False), ("^(?:ab){2,2000}$", "ab" * 1500, True),
    ],
)  # fmt: skip
def test_patterns_are_those_of_javascript(source: str, text: str, wanted: bool) -> None:
    assert found(source, text) is wanted


@pytest.mark.parametrize(
    "source",
    ["x*+", "x++", "a**", "*", "+a", "{2}", "a{2,1}", "(", ")", "a)", "[", "[a", "[b-a]", "[a--b]", "\\", "(?i)a", "(?P<n>a)",
     "(?P=n)", "(?>a)", "(?#a)", "(?", "(?ii:a)", "(?-:a)", "(?<n>a)(?<n>b)", "(?<1>a)", r"(?<n>a)\k<m>", r"(?<n>a)\k",
     "(?<=a)*", "^*", r"\b+", "(" * 51 + ")" * 51, "a" * 20_001],
)  # fmt: skip
def test_what_javascript_refuses_is_refused(source: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(source)


@pytest.mark.parametrize(
    ("source", "text", "wanted"),
    [
        (r"^\p{L}+$", "Äé", True), (r"^\p{Lu}$", "a", False), (r"^\P{L}$", "1", True), (r"^[\p{L}\d]+$", "é1", True),
        (r"^\p{Script=Greek}+$", "αβ", True), (r"^(?!x)\p{L}$", "é", True), (r"^\u{1F600}$", "😀", True),
        ("(?i)^ab$", "AB", True), (r"\Aab\Z", "ab", True), (r"\Aab\z", "ab\n", False), ("^.$", "😀", True),
        (r"^(?P<x>a|b)(?P=x)$", "bb", True),
    ],
)  # fmt: skip
def test_patterns_of_schemas_also_know_unicode_and_what_python_writes(
    source: str, text: str, wanted: bool
) -> None:
    assert found(source, text, schema=True) is wanted


@pytest.mark.parametrize("source", [r"\p{", r"\p{Nobody}", r"(?=a)\p{Greek}", r"\p{}"])
def test_properties_that_do_not_exist_are_refused(source: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(source, schema=True)


def test_a_pattern_never_warns() -> None:
    """Python's own compiler writes FutureWarnings to the terminal of whoever runs `treadle check`."""
    code = (
        "from treadle.lang.patterns import compile_pattern as c\nfor s in ('[a&&b]', '[[a]', '[a||b]'): c(s)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


# --- bounded work -------------------------------------------------------------------------------

HOSTILE = [
    "^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "^(a*)*$", "(a+)+b", "^(?:a?){500}a{500}$", "^(.*)*x$", r"^(\w+\s?)*$",
    "(?=(a+)+$)b", "^(?!(a+)+b)(a|a)*$", "(?<=(a+)+)b", r"^(a+)+\B!!$",
]  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE)
def test_nested_repetitions_do_not_blow_up(source: str) -> None:
    """Each would take Python longer than anybody waits."""
    assert not found(source, "a" * 60 + "!")


@pytest.mark.parametrize("source", [r"^(a+)+\1$", r"^(a|a)*(b?)\2c$", r"(?:(a+)\1?)+(.*)*c"])
def test_a_search_without_end_is_given_up(source: str) -> None:
    with pytest.raises(TooMuchWork, match=r"too many steps.*simpler pattern"):
        found(source, "a" * 60 + "!")


def test_giving_up_depends_on_pattern_and_text_alone() -> None:
    """The same number of steps each time: so it is the same answer in every replay."""
    program = PatternProgram(parse(r"^(?=(a+))\1+b$"))
    left = {program.search("a" * 50 + "b" * 3, STEPS_MAX) for _ in range(3)}
    assert len(left) == 1
    answer, rest = left.pop()
    assert not answer
    used = STEPS_MAX - rest
    assert program.search("a" * 50 + "b" * 3, used) == (False, 0)
    with pytest.raises(OutOfSteps):
        program.search("a" * 50 + "b" * 3, used - 1)


def test_many_texts_share_one_budget() -> None:
    pattern, budget = compile_pattern(r"^(a+)+\1$"), PatternBudget()
    assert pattern.found_in("aa", budget)
    before = budget.steps
    assert before < STEPS_MAX
    with pytest.raises(TooMuchWork):
        for _ in range(STEPS_MAX):
            pattern.found_in("a" * 12 + "!", budget)
    assert budget.steps == 0


def test_long_texts_and_large_patterns_are_bounded_together() -> None:
    assert found("^[a-z]+$", "a" * 1_000_000)
    assert not found(r"^(?!.*b)[a-z]+$", "a" * 20_000 + "1")
    with pytest.raises(TooMuchWork, match="a text of 1000000 characters"):
        found("(?:a|b)*a[ab]{900}c", "ab" * 500_000)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("()" * 9_000 + r"\1x", "a" * 1_000),
        ("(?=a)" + "a*" * 9_000 + "x", "a" * 1_000),
        (r"(.*)(.*)\1\2x", "a" * 100_000),
        (r"(a*)" + r"\1" * 1_000 + "x", "a" * 50_000),
        ("(?=" * 40 + "(a+)+" + ")" * 40 + "b", "a" * 20_000),
        ("a{2000}" * 2_000, "a" * 100_000),
    ],
)
def test_large_patterns_are_given_up_as_soon(source: str, text: str) -> None:
    """What a step costs must not grow with the pattern."""
    with pytest.raises(TooMuchWork):
        found(source, text)


# --- the same as others -------------------------------------------------------------------------

# What Python and JavaScript agree on, with repetitions that Python survives on short texts.
PIECES = [
    "a", "b", "ab", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\W", "^", "$", r"\b", "-", r"\.", r"\x61", "é", "[é-ü]",
    "(?=b)", "(?!a)", "(?<=a)", "(?<!b)", "(?:)", r"\B",
]  # fmt: skip
ATOMS = st.sampled_from(PIECES)
# Not empty: there Python has its own mind about `\\B`.
CHARS = st.text(st.sampled_from("abcA1 -.éü\u00a0😀"), min_size=1, max_size=9)


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    grouped = st.builds(
        "(?:{}){}".format, inner, st.sampled_from(["", "?", "*", "+", "{2}", "{1,2}", "*?", "{0}"])
    )
    return st.builds("".join, st.lists(grouped | inner, max_size=3)) | st.builds("{}|{}".format, inner, inner)


@given(st.recursive(ATOMS, _joined, max_leaves=6), CHARS)
@example(r"(?:)\B", "1\u00a0a")
@example("(?:(?:a|^)*)*b", "ab")
def test_answers_are_those_of_re(source: str, text: str) -> None:
    wanted = re.search(source, text, re.ASCII) is not None
    assert found(source, text) is wanted
    # Both engines, where RE2 would have answered alone.
    assert PatternProgram(parse(source)).search(text, STEPS_MAX)[0] is wanted


@given(st.text(st.sampled_from("ab1\\()[]{}?*+|^$.-,:=!<>nkdpPuxc0&i\n"), max_size=14), CHARS)
def test_any_text_is_a_pattern_or_refused(source: str, text: str) -> None:
    for schema in (False, True):
        try:
            pattern = compile_pattern(source, schema=schema)
        except PatternError:
            continue
        assert pattern.found_in(text) in (True, False)


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("a", 1),
        ("^ab$", 4),
        ("[a-z]{3,20}", 40),
        ("(a|b)+", 10),
        (r"\p{L}", 800),
        ("[^x]", 9),
        ("", 1),
        ("é", 8),
    ],
)
def test_the_size_of_a_pattern_is_that_of_what_is_written(source: str, size: int) -> None:
    """Whether a search is given up is decided by it, and recorded: RE2's own figure differs by version."""
    assert compile_pattern(source, schema=True).size == size


def test_a_search_is_given_up_by_pattern_and_text_alone() -> None:
    pattern, budget = compile_pattern("x{1000}"), PatternBudget()
    assert pattern.size == 2000
    text = "a" * (PRODUCT_MAX // 2000 - 1)
    assert not pattern.found_in(text, budget)
    with pytest.raises(TooMuchWork):
        pattern.found_in(text, budget)


def test_runs_of_0_1_0_count_as_they_did() -> None:
    text = "a" * (PRODUCT_MAX // 2000 + 1)
    with pytest.raises(TooMuchWork):
        compile_pattern("x{1000}").found_in(text, PatternBudget())
    assert not compile_pattern("x{1000}").found_in(text, PatternBudget(first=True))
