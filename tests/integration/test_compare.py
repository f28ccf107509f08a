"""The comparison's own part of Treadle, in tiny sizes: that the answers are right and the JSON has its shape. No times."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
DIALECTS = ("treadle_process", "treadle_playbook", "treadle_functions")
IN_PROCESS = ("W1x1", "W1x100", "W2steps", "W2children", "W3", "W6", "W7")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("subject", "workload"),
    [
        *((subject, workload) for subject in DIALECTS for workload in IN_PROCESS),
        *((subject, "W1pure") for subject in DIALECTS[:2]),
        ("treadle_agent", "W8"),
        ("treadle_agent", "W8pure"),
    ],
)
def test_a_workload_has_the_right_answer_and_its_figure(
    subject: str, workload: str, tmp_path: Path, benchmarks: None
) -> None:
    from peers import driver
    from workloads import TINY, WORKLOADS

    peer = driver.peer_named(subject)
    figures = asyncio.run(driver.MEASURES[workload](peer, TINY, tmp_path))
    assert figures[WORKLOADS[workload][1]] > 0
    assert {"version", "durability", "recovery"} <= set(peer.about)
    if workload == "W7":
        assert (figures["steps"], figures["finished"]) == (TINY.length, True)


def test_a_wrong_answer_is_no_figure(benchmarks: None) -> None:
    from peers import driver

    with pytest.raises(SystemExit, match="wrong answer: the sum is 3, not 4"):
        driver.expect("the sum", 3, 4)


@pytest.mark.parametrize("subject", DIALECTS)
def test_what_is_killed_is_taken_up_and_all_of_it_is_written_as_json_and_as_a_page(
    subject: str, tmp_path: Path, benchmarks: None
) -> None:
    import compare
    import report
    from workloads import TINY, WORKLOADS

    stores = tmp_path / "stores"
    stores.mkdir()
    found = compare.compare(["W4", "W5", "W9"], [subject], TINY, stores)
    samples: dict[str, Any] = {sample["workload"]: sample for sample in found["samples"]}
    assert {name: sample.get("failed") for name, sample in samples.items()} == dict.fromkeys(
        ("W4", "W5", "W9")
    )
    killed = samples["W4"]["figures"]
    assert (killed["lost"], killed["settled_twice"], killed["in_flight"]) == (0, 0, TINY.in_flight)
    assert [calibration["workload"] for calibration in found["calibrations"]] == ["W4", "W5", "W9"]
    assert all(found[key] for key in ("made", "ended", "commit", "machine", "sizes"))
    assert any(line.startswith("treadle==") for line in found["subjects"][subject]["packages"])

    found["profiles"] = {subject: {"kernel": 0.25, "others": 0.75}}
    path = tmp_path / "page" / "compare.json"
    path.parent.mkdir()
    path.write_text(json.dumps(found))
    said = report.report(path)
    page = (path.parent / "README.md").read_text()
    assert said in page
    assert "**Not the full sizes**" in page
    assert "| kernel | 25% |" in page
    for workload in samples:
        assert WORKLOADS[workload][0] in page
        assert (path.parent / f"{workload}.svg").read_text().startswith("<svg")


def test_a_step_that_is_executed_again_after_a_later_one_had_begun_is_found(benchmarks: None) -> None:
    import compare
    from workloads import Sizes

    sizes = Sizes(in_flight=1, slow_steps=1)
    before = [("slow-0", 0, "a"), ("slow-0", 1, "b")]
    well = compare.judged({"slow-0": ["a", "c"]}, before, [*before, ("slow-0", 1, "c")], sizes)
    assert (well["lost"], well["settled_twice"]) == (0, 0)
    twice = compare.judged(
        {"slow-0": ["d", "c"]}, before, [*before, ("slow-0", 0, "d"), ("slow-0", 1, "c")], sizes
    )
    assert twice["settled_twice"] == 1
    strange = compare.judged({"slow-0": ["x", "c"]}, before, [*before, ("slow-0", 1, "c")], sizes)
    assert strange["settled_twice"] == 1
    lost = compare.judged({}, before, before, sizes)
    assert lost["lost"] == 1


def test_a_target_is_met_by_the_ratio_to_the_best_peer_it_names(benchmarks: None) -> None:
    from targets import Target, judge

    medians = {"treadle_process": 2.0, "dbos": 9.0, "restate": 7.0}

    def median(workload: str, figure: str, subject: str) -> float | None:
        return medians.get(subject)

    faster = Target("W4", "seconds", 3, ("dbos", "restate", "temporal"))
    found = judge(faster, "treadle_process", median, None)
    assert (found.reached, found.met) == ("3.50 ×", True)
    assert judge(Target("W4", "seconds", 4, ("restate",)), "treadle_process", median, None).met is False
    assert judge(Target("W4", "seconds", 4, ("temporal",)), "treadle_process", median, None).met is None
    assert (
        judge(Target("W1x1", "steps_per_s", 0.6, ("bare",), more=True), "treadle_process", median, 4.0).met
        is False
    )
