"""The measurements of several members, in tiny sizes: that they work and that the page is made of them alone. No times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_what_is_measured_is_written_as_json_and_as_a_page(
    tmp_path: Path, pg_uri: str, benchmarks: None
) -> None:
    import cluster
    import cluster_report
    from cluster_house import Postgres
    from cluster_sizes import TINY

    found = cluster.measure(Postgres(pg_uri), tmp_path, TINY, ["ceiling", "records"], ["treadle_toy"], [])
    samples = {sample["subject"]: sample for sample in found["samples"]}
    assert {name: sample.get("failed") for name, sample in samples.items()} == dict.fromkeys(
        ("treadle_toy", "treadle_toy_long", "one server")
    )
    assert samples["treadle_toy"]["figures"]["steps_per_s"] > 0
    assert samples["one server"]["figures"]["records"] >= TINY.records

    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(found))
    said = cluster_report.report(path)
    page = path.with_suffix(".md").read_text()
    assert said in page
    assert "**Not the full sizes.**" in page

    again = cluster.Notes(Postgres(pg_uri), tmp_path, TINY, lambda found: None)
    again.go_on_from(found, ["records"])
    assert {sample["measure"] for sample in again.found["samples"]} == {"ceiling"}
    path.write_text(json.dumps(again.found))
    cluster_report.report(path)
    assert "Measured again since: records (" in path.with_suffix(".md").read_text()


def test_targets_are_judged_by_what_was_measured(benchmarks: None) -> None:
    from cluster_report import Samples, targets, workers

    def sample(measure: str, subject: str, **figures: float) -> dict[str, object]:
        return {"measure": measure, "subject": subject, "figures": figures, "load": 1.0}

    found = {
        "sizes": {"workers": [1, 4], "concurrency": 8, "nap_s": 0.1, "steps_long": 200},
        "samples": [
            sample("ceiling", "treadle_toy_long", steps_per_s=6_500),
            sample("ceiling", "treadle_process", steps_per_s=2_000),
            sample("ceiling", "dbos", steps_per_s=500),
            sample("workers", "nats 1", steps_per_s=80),
            sample("workers", "nats 4", steps_per_s=288),
        ],
        "calibrations": [],
    }
    said = "\n".join(targets(Samples(found)))
    assert "| ≥ 6,000 steps/s | 6,500 | **yes** |" in said
    assert "| ceiling: treadle_process | ≥ 5 × DBOS | 4 | no |" in said
    assert "| ceiling: treadle_playbook | ≥ 5 × DBOS | — | — |" in said
    assert "| workers over nats: efficiency with 4 | ≥ 0.8 | 0.9 | **yes** |" in said
    assert "| 4 workers | 288 | 0.90 |" in "\n".join(workers(Samples(found)))
