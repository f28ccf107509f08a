"""The parts of the command line that need no engine: values, differences, traces, exit codes."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Engine
from treadle.cli import following, inputs
from treadle.cli.bulk import Bulk, Chosen
from treadle.cli.moments import instant_ns
from treadle.cli.output import Output, Usage, elapsed, error_code, exit_code, to_json, worst
from treadle.cli.progress import Progress
from treadle.kernel.errors import DefinitionError, InputInvalid, NotWaiting, RunExists, VersionMismatch
from treadle.testing import assert_replays
from treadle.views.differences import MISSING, differences
from treadle.views.trace import trace_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=1", {"x": 1}),
        ("x=true", {"x": True}),
        ("x=1.5", {"x": 1.5}),
        ('x="1"', {"x": "1"}),
        ("x=[1, 2]", {"x": [1, 2]}),
        ("x=2026-11-15", {"x": "2026-11-15"}),
        ("x=a=b", {"x": "a=b"}),
        ("x=", {"x": ""}),
        ("x=NaN", {"x": "NaN"}),
        ("x={bad", {"x": "{bad"}),
    ],
)
def test_a_pair_is_json_if_it_parses_else_text(text: str, value: dict[str, Any]) -> None:
    assert inputs.pairs([text]) == value


@pytest.mark.parametrize("text", ["x", "=1"])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="key=value"):
        inputs.pairs([text])


def test_pairs_add_keys_to_the_input() -> None:
    assert inputs.merged({"a": 1, "b": 1}, ["b=2"], "--input") == {"a": 1, "b": 2}
    assert inputs.merged(None, [], "--input") is None
    assert inputs.merged([1], [], "--input") == [1]
    with pytest.raises(Usage, match="must be an object"):
        inputs.merged([1], ["a=1"], "--input")


def test_a_value_comes_from_text_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inputs.value('{"a": 1}', "--data") == {"a": 1}
    file = tmp_path / "data.yaml"
    file.write_text("a: yes\n")
    assert inputs.value(f"@{file}", "--data") == {"a": "yes"}
    monkeypatch.setattr("sys.stdin", io.StringIO("[1]"))
    assert inputs.value("-", "--data") == [1]
    with pytest.raises(Usage, match="--data is not JSON"):
        inputs.value("{oops", "--data")
    with pytest.raises(Usage, match="there is no file"):
        inputs.value(f"@{tmp_path}/none.json", "--data")


def test_templates_are_sources_by_name() -> None:
    given = ["pr=./pr.md", "issue=Say why = how.", 'slash={"inline": "/x"}', "odd={not json"]
    assert inputs.sources(given, "--template") == {
        "pr": "./pr.md",
        "issue": "Say why = how.",
        "slash": {"inline": "/x"},
        "odd": "{not json",
    }
    for bad in ("pr", "=x", "pr="):
        with pytest.raises(Usage, match="is not NAME=SOURCE"):
            inputs.sources([bad], "--template")


def test_a_key_that_stands_twice_is_a_mistake_of_usage() -> None:
    with pytest.raises(Usage, match="'s' stands twice"):
        inputs.value('{"a": {"s": "x", "s": "y"}}', "--input")


def test_json_without_a_bottom_is_a_mistake_of_usage() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    with pytest.raises(Usage, match="too deeply"):
        inputs.value(f'{{"z": {deep}}}', "--input")
    with pytest.raises(Usage, match="too deeply"):
        inputs.pairs([f"z={deep}"])


def test_since_takes_durations_and_instants() -> None:
    assert instant_ns("2026-11-15T08:00:00Z", "--since") == 1_794_729_600 * 10**9
    early, late = instant_ns("2h", "--since"), instant_ns("1h", "--since")
    assert early is not None
    assert late is not None
    assert early < late
    with pytest.raises(Usage, match="--since"):
        instant_ns("yesterday", "--since")


def test_exit_codes_follow_the_status() -> None:
    statuses = ["completed", "failed", "waiting", "stalled", "cancelled", "partial", "running"]
    assert [exit_code({"status": status}) for status in statuses] == [0, 1, 3, 3, 4, 5, 3]
    assert exit_code({"status": "running", "dialect": "reactive"}) == 0
    assert exit_code({"status": "waiting", "stale": True}) == 0


@pytest.mark.parametrize(
    ("codes", "code"),
    [([], 0), ([0, 0], 0), ([0, 3], 3), ([3, 1], 1), ([4, 5, 3], 4), ([1, 2], 2), ([5, 0], 5)],
)
def test_several_runs_exit_with_the_worst(codes: list[int], code: int) -> None:
    assert worst(codes) == code


def test_refused_operations_exit_1_and_bad_usage_2() -> None:
    assert error_code(NotWaiting()) == 1
    assert error_code(VersionMismatch()) == 1
    assert error_code(DefinitionError()) == 2
    assert error_code(InputInvalid()) == 2
    assert error_code(RunExists()) == 2
    assert error_code(Usage("x")) == 2


def test_json_shows_bytes_and_keeps_unicode() -> None:
    assert to_json({"b": b"\x00\xff", "t": "é"}) == '{"b":{"$bytes":"AP8="},"t":"é"}'


def test_error_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=True)
    problem = {
        "severity": "error",
        "code": "X",
        "message": "bad [thing]",
        "hint": "mend it",
        "file": "f.yaml",
        "line": 3,
    }
    assert out.error(DefinitionError("bad", details={"problems": [problem]})) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["details"]["problems"] == [problem]
    assert "f.yaml:3: error: bad [thing] [X]" in captured.err
    assert "mend it" in captured.err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0345, "34 ms"), (2.14, "2.1 s"), (185, "3m 05s"), (7800, "2h 10m")]
)
def test_elapsed_reads_well(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text


# --- differences --------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_equal_values_have_no_differences(value: Any) -> None:
    assert list(differences(value, json.loads(json.dumps(value)))) == []


@given(values, values)
def test_values_differ_iff_a_difference_is_found(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (list(differences(one, other)) == []) == same


def test_differences_name_path_and_both_sides() -> None:
    left = {"a": [1, {"b": 2}], "c": 1, "same": 0}
    right = {"a": [1, {"b": 3}, 4], "d": 1, "same": 0}
    assert list(differences(left, right)) == [
        {"path": "a[1].b", "left": 2, "right": 3},
        {"path": "a[2]", "left": MISSING, "right": 4},
        {"path": "c", "left": 1, "right": MISSING},
        {"path": "d", "left": MISSING, "right": 1},
    ]


# --- traces -------------------------------------------------------------------------------------


def test_the_trace_of_an_agent_is_its_own() -> None:
    trace = {
        "steps": [{"node": "a"}],
        "edges": [{"from": "a", "to": "b", "reason": "only path"}],
        "sources": {},
    }
    document = {"dialect": "agent", "state": {"trace": trace}, "stats": {"usage": {"usd": 0.5}}}
    assert trace_of(document, []) == {**trace, "usage": {"usd": 0.5}}


def test_other_traces_pair_intents_with_receipts() -> None:
    opened = [
        {"id": "i1", "kind": "call", "params": {"name": "quote"}},
        {"id": "i2", "kind": "signal", "params": {"name": "documents"}},
        {"id": "i3", "kind": "timer", "params": {}, "ref": "deadline"},
        {"id": "i4", "kind": "task", "params": {"name": "approve"}},
    ]
    journal = [
        {"seq": 1, "kind": "started", "at": "2026-11-15T08:00:00Z", "event": {}, "opened": opened},
        {
            "seq": 2,
            "kind": "receipt",
            "at": "2026-11-15T08:00:00.250Z",
            "event": {"intent": "i1", "status": "error", "error": {"code": "X"}},
        },
        {
            "seq": 3,
            "kind": "signal",
            "at": "2026-11-15T08:00:02Z",
            "event": {"name": "documents"},
            "cancelled": ["i3"],
        },
    ]
    steps = trace_of({"dialect": "process"}, journal)["steps"]
    assert [(s["name"], s["status"], s["settled"], s["ms"]) for s in steps] == [
        ("quote", "error", 2, 250.0),
        ("documents", "ok", 3, 2000.0),
        ("deadline", "cancelled", 3, 2000.0),
        ("approve", "open", None, None),
    ]
    assert steps[0]["error"] == {"code": "X"}


# --- progress -----------------------------------------------------------------------------------


def test_progress_in_a_pipe_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(Output()) as progress:
        for seq, event in enumerate(
            [
                {"type": "step.started", "step": "fetch", "at": "2026-11-15T08:00:00Z"},
                {"type": "task.started", "step": "fetch", "task": "t"},
                {"type": "task.done", "step": "fetch", "task": "t"},
                {"type": "step.done", "step": "fetch", "at": "2026-11-15T08:00:02.500Z"},
                {"type": "node:enter", "node": "judge", "instruction": "…"},
                {
                    "type": "node:exit",
                    "node": "judge",
                    "result": {"status": "failed", "data": {"error": "no [key]"}},
                },
                {"type": "route", "from": "judge", "to": "end", "reason": "good", "node": "judge"},
                {"type": "next.evaluated", "step": "fetch"},
            ],
            start=1,
        ):
            progress.feed({"seq": seq, **event})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "· fetch started"
    assert lines[1] == "✓ fetch 2.5 s"
    assert lines[2] == "· judge started"
    assert lines[3].startswith("✗ judge ")
    assert lines[3].endswith("no [key]")
    assert lines[4:] == ["  judge: → end (good)"]


def test_progress_is_silent_when_a_program_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(Output(as_json=True)) as progress:
        progress.feed({"seq": 1, "type": "step.started", "step": "fetch"})
    assert capsys.readouterr() == ("", "")


async def test_bulk_needs_ids_or_a_filter() -> None:
    engine: Any = None
    assert await Bulk(["a", "b", "a"]).find(engine) == ["a", "b"]
    with pytest.raises(Usage, match="name a run"):
        await Bulk([]).find(engine)
    with pytest.raises(Usage, match="not both"):
        await Bulk(["a"], Chosen(all_failed=True)).find(engine)


async def test_what_is_in_hand_is_told_after_all_that_came_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever looks into workers' hands is ahead of whoever reads the events: both are told in the order of the run."""
    (tmp_path / "flow.yaml").write_text(
        "workflow:\n  - {step: price, tool: {kind: noop}, next: {arcs: [{step: charge}]}}\n"
        "  - {step: charge, tool: {kind: slow}}\n"
    )
    called, may_end = asyncio.Event(), asyncio.Event()
    engine = Engine(f"sqlite:///{tmp_path / 't.db'}")

    @engine.tool("slow")
    async def slow() -> None:
        called.set()
        await may_end.wait()

    async with engine:
        run = await engine.start(engine.load(tmp_path / "flow.yaml")[0], None)
        await asyncio.wait_for(called.wait(), 60)
        family = following.RunFamily(engine, run.id, for_people=True)
        with Progress(Output()) as progress:

            async def tell() -> None:
                for member, event in await family.news():
                    progress.feed(event, member.label)

            await following._look(engine, family, progress, tell)
        may_end.set()
        await run.result(timeout=60)
        await assert_replays(run)
    told = capsys.readouterr().err
    assert told.index("✓ price") < told.index("charge started"), told
