"""Results by reference (PLAYBOOK §5.12, §5.37; seed 004 §10)."""

from __future__ import annotations

from typing import Any

from treadle.kernel.model import Cancel, Started, make_reference
from treadle.kernel.values import decode, digest, encode
from treadle.tools.protocol import ToolCall

from .harness import Lab

BIG = {"rows": [{"id": i, "text": "x" * 50} for i in range(2000)], "total": 2000}


def big(config: dict[str, Any], call: ToolCall) -> Any:
    return BIG


def test_large_results_leave_as_references_and_templates_look_inside_them() -> None:
    lab = (
        Lab(
            """
    workflow:
      - step: load
        tool: {kind: big}
        next: {arcs: [{step: use, when: "{{ event.result.total == 2000 }}", args: {all: "{{ load }}"}}]}
      - step: use
        tool: {kind: echo, value: ["{{ load.total }}", "{{ args.all.rows | length }}", "{{ load._ref }}", "{{ load.rows[3].id }}", "{{ load._store }}"]}
    """,
            {"big": big},
        )
        .run()
        .replays()
    )
    reference = lab.steps["load"]["result"]
    assert {
        "kind",
        "ref",
        "store",
        "key",
        "checksum",
        "size",
        "schema_hint",
        "scope",
        "expires_at",
        "extracted",
        "preview",
    } <= set(reference)
    assert reference["kind"] == "result_ref"
    assert reference["ref"].startswith("treadle://execution/r1/step/load/task/load_task/run/")
    assert reference["preview"]["truncated"] is True
    assert lab.result == [2000, 2000, reference["ref"], 3, "blob"]
    assert lab.events("step.done", step="load")[0]["data"]["result"] == reference
    assert sum(len(stored.body) for stored in lab.driver.journal) < 20_000


def test_a_reference_is_not_loaded_for_its_own_fields() -> None:
    lab = Lab(
        "workflow: [{step: a, tool: {kind: big}, next: {arcs: [{step: b}]}}, {step: b, tool: {kind: echo, value: '{{ a._ref }}'}}]",
        {"big": big},
    ).run()
    assert lab.loaded == []


def test_select_fills_extracted_and_is_readable_by_name() -> None:
    lab = Lab(
        """
    workflow:
      - step: load
        tool: {kind: big, spec: {result: {preview_max_bytes: 40, select: [{path: "$.total", as: count}, {path: "$.rows[1].id", as: second}]}}}
        next: {arcs: [{step: use, when: "{{ load.count == 2000 }}"}]}
      - {step: use, tool: {kind: echo, value: ["{{ load.count }}", "{{ load.second }}"]}}
    """,
        {"big": big},
    ).run()
    assert lab.result == [2000, 1]
    assert lab.steps["load"]["result"]["extracted"] == {"count": 2000, "second": 1}
    assert len(lab.steps["load"]["result"]["preview"]["sample"]) <= 40
    assert lab.loaded == []


def test_inline_max_bytes_lowers_the_threshold() -> None:
    lab = Lab(
        "workflow: [{step: a, tool: {kind: echo, value: some text, spec: {result: {inline_max_bytes: 4}}}}]"
    ).run()
    assert lab.steps["a"]["result"]["kind"] == "result_ref"


def test_w2_the_payload_limit_is_the_executors() -> None:
    lab = Lab("""
    executor: {spec: {policy: {limits: {max_payload_bytes: 8}}}}
    workflow: [{step: a, tool: {kind: echo, value: longer than eight bytes}}]
    """).run()
    assert lab.steps["a"]["result"]["size"] > 8


def test_a_large_ctx_key_is_a_reference_too() -> None:
    lab = (
        Lab(
            """
    workflow:
      - step: load
        tool: {kind: big, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {all: "{{ outcome.result }}"}}}}]}}}
        next: {arcs: [{step: use, when: "{{ ctx.all.total == 2000 }}"}]}
      - {step: use, tool: {kind: echo, value: "{{ ctx.all.rows[5].id }}"}}
    """,
            {"big": big},
        )
        .run()
        .replays()
    )
    assert lab.ctx["all"]["kind"] == "result_ref"
    assert lab.result == 5


def test_a_loop_over_a_stored_result_keeps_the_reference() -> None:
    lab = Lab(
        """
    workflow:
      - {step: load, tool: {kind: big}, next: {arcs: [{step: each}]}}
      - step: each
        loop: {in: "{{ load.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 20}}
        tool: {kind: echo, value: "{{ row.id }}"}
    """,
        {"big": big},
    ).start()
    lab.perform(lab.driver.open("step")[0])
    (token,) = lab.driver.state["tokens"].values()
    assert set(token["loop"]["source"]) == {"stored", "path"}
    assert lab.driver.run.open


LARGE_ARGS = """
    workflow:
      - {step: load, tool: {kind: big}, next: {arcs: [{step: use, args: {rows: "{{ event.result.rows }}", n: "{{ event.result.total }}"}}]}}
      - {step: use, tool: {kind: echo, value: ["{{ args.rows[7].id }}", "{{ args.n }}", "{{ args.rows._store }}"]}}
    """


def test_r8_large_args_become_references() -> None:
    lab = Lab(LARGE_ARGS, {"big": big}).start()
    lab.perform(lab.driver.open("step")[0])
    (token,) = lab.tokens
    assert (token["args"]["rows"]["kind"], token["args"]["n"]) == ("result_ref", 2000)
    assert lab.work().replays().result == [7, 2000, "blob"]
    assert sum(len(stored.body) for stored in lab.driver.journal) < 20_000


def test_a_run_of_0_1_0_has_its_large_args_rendered_by_a_worker() -> None:
    lab = Lab(LARGE_ARGS, {"big": big})
    lab.driver.feed(Started(seed=b"seed"))
    lab.perform(lab.driver.open("step")[0])
    (storing,) = lab.driver.open("step")
    assert storing.params["render"] == 0
    lab.perform(storing)
    assert lab.tokens[0]["args"]["rows"]["kind"] == "result_ref"
    assert lab.work().replays().result == [7, 2000, "blob"]


def test_a_large_input_stays_in_the_store_and_is_read_key_by_key() -> None:
    lab = Lab("""
    workload: {rows: [], small: 0, deep: {a: 1}}
    workflow:
      - step: each
        loop: {in: "{{ workload.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 50}}
        tool: {kind: echo, value: "{{ row.id }}"}
        next: {arcs: [{step: use, when: "{{ workload.rows[1].id == 1 }}"}]}
      - {step: use, tool: {kind: echo, value: ["{{ workload.rows[1999].id }}", "{{ small }}", "{{ rows | length }}", "{{ workload.deep }}"]}}
    """)
    given = {"rows": BIG["rows"], "small": 5, "deep": {"b": 2}}
    checksum = digest(given)
    lab.driver.blobs[checksum] = decode(encode(given))
    lab.start(make_reference(checksum=checksum, size=len(encode(given))))
    assert len(encode(lab.driver.state)) < 10_000
    for intent in lab.driver.open("step"):
        lab.perform(intent)
    lab.driver.feed(Cancel())
    assert lab.status == "cancelled"

    small = Lab(
        "workflow: [{step: use, tool: {kind: echo, value: ['{{ workload.rows[1999].id }}', '{{ rows | length }}']}}]"
    )
    small.driver.blobs[checksum] = decode(encode(given))
    small.run(make_reference(checksum=checksum, size=len(encode(given))))
    assert small.result == [1999, 2000]


def test_a_reference_whose_payload_is_gone_is_an_outcome() -> None:
    lab = Lab(
        """
    workflow:
      - {step: load, tool: {kind: big}, next: {arcs: [{step: use}]}}
      - step: use
        tool:
          - {kind: echo, value: "{{ load.total }}", spec: {policy: {rules: [{when: "{{ outcome.error.code == 'REFERENCE_NOT_AVAILABLE' }}", then: {do: break, set_ctx: {gone: true}}}]}}}
    """,
        {"big": big},
    ).start()
    lab.perform(lab.driver.open("step")[0])
    lab.driver.blobs.clear()
    assert (lab.work().status, lab.ctx) == ("completed", {"gone": True})


def test_large_items_of_a_stored_collection_go_by_address() -> None:
    rows = {"rows": [{"id": n, "blob": "x" * 80_000} for n in range(30)]}
    lab = Lab(
        """
    workflow:
      - {step: load, tool: {kind: rows}, next: {arcs: [{step: each}]}}
      - step: each
        loop: {in: "{{ load.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 30}}
        tool: {kind: echo, value: ["{{ row.id }}", "{{ iter.row.blob | length }}"]}
    """,
        {"rows": lambda config, call: rows},
    ).run()
    assert lab.result["results"] == [[n, 80_000] for n in range(30)]
    assert max(len(stored.body) for stored in lab.driver.journal) < 50_000


def test_a_reference_to_a_store_of_the_users_is_a_plain_value() -> None:
    """Seed 004 §10: storage tools return `{store, key, checksum, size, schema_hint}` of their own store."""
    theirs = {"store": "s3", "key": "a/b", "checksum": "md5:1", "size": 3, "schema_hint": None}
    manifest = {"kind": "manifest", "files": 3}
    lab = (
        Lab(
            """
    workflow:
      - {step: put, tool: {kind: put}, next: {arcs: [{step: list, args: {k: "{{ put.key }}"}}]}}
      - {step: list, tool: {kind: manifest}, next: {arcs: [{step: use, args: {n: "{{ list.files }}"}}]}}
      - {step: use, tool: {kind: echo, value: "{{ args.n }} {{ put.store }}"}}
    """,
            {"put": lambda config, call: theirs, "manifest": lambda config, call: manifest},
        )
        .run()
        .replays()
    )
    assert lab.steps["put"]["result"] == theirs
    assert lab.steps["use"]["result"] == "3 s3"


def test_the_task_that_gave_the_result_says_how_it_is_kept() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - name: fetch
            kind: echo
            value: {a: {b: 1}, big: 2}
            spec:
              result: {select: [{path: "$.a.b", as: bee}]}
              policy: {rules: [{when: "{{ _attempt < 2 }}", then: {do: retry, delay: 0}}, {else: {then: {do: break}}}]}
          - {name: other, kind: noop}
        next: {arcs: [{step: b}]}
      - {step: b, tool: {kind: noop, result: ["{{ a.bee }}", "{{ a._ref }}"]}}
    """).run()
    assert lab.result[0] == 1
    assert "/task/fetch/run/" in lab.result[1]
    assert lab.result[1].endswith("/attempt/2")


def test_what_select_picks_is_readable_in_the_same_pipeline() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - {name: fetch, kind: echo, value: {a: {b: 1}}, spec: {result: {select: [{path: "$.a.b", as: bee}]}}}
          - {name: use, kind: noop, result: ["{{ fetch.bee }}", "{{ fetch.a.b }}"]}
    """).run()
    assert lab.result == [1, 1]


def test_many_arguments_just_below_the_limit_all_arrive() -> None:
    """R7, R8: their sum is above it; none of them is."""
    lab = (
        Lab(
            """
    workflow:
      - {step: a, tool: {kind: noop}, next: {arcs: [{step: b, args: {k0: "{{ 'x' * 40000 }}", k1: "{{ 'y' * 40000 }}", n: 1}}]}}
      - {step: b, tool: {kind: echo, value: "{{ args.k0 | length }} {{ args.k1 | length }} {{ args.n }} {{ args.keys() | list }}"}}
    """
        )
        .run()
        .replays()
    )
    assert lab.steps["b"]["result"] == "40000 40000 1 ['n', 'k0', 'k1']"
