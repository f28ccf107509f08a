"""Seed 004 §5.3, §6.3, §6.4, §8: loops; PLAYBOOK §5.22, §5.24, §5.40: failure, joins, collections."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.dialects.playbook.slices import Slices
from treadle.kernel.values import decode_trusted, encode
from treadle.tools.protocol import ToolCall

from .harness import Lab

LOOP = """
    workflow:
      - step: each
        %s
        loop:
          in: %s
          iterator: item
          spec: {mode: %s, max_in_flight: 3, policy: {exec: distributed}}
        tool: {kind: echo, value: "{{ iter.item }}", fail: "{{ 'schema' if iter.item == 'bad' else none }}"}
        next:
          arcs:
            - {step: after, when: "{{ event.name == 'loop.done' }}", args: {total: "{{ event.total }}", failed: "{{ event.failed }}"}}
            - {step: broken, when: "{{ event.name == 'step.failed' }}"}
      - {step: after, tool: {kind: echo, value: ["{{ args.total }}", "{{ each.results }}", "{{ each.stats }}"]}}
      - {step: broken, tool: {kind: echo, value: broken}}
"""


def test_l2_sequential_runs_one_at_a_time_in_order() -> None:
    lab = Lab(LOOP % ("", "[c, a, b]", "sequential")).run().replays()
    assert lab.in_flight_max == 1
    assert [call[0]["value"] for call in lab.tools["echo"].calls[:3]] == ["c", "a", "b"]
    assert lab.result == [3, ["c", "a", "b"], {"total": 3, "success": 3, "failed": 0}]


def test_l3_parallel_never_exceeds_max_in_flight() -> None:
    lab = Lab(LOOP % ("", '"{{ range(40) }}"', "parallel")).run().replays()
    assert lab.in_flight_max == 3
    assert lab.result[1] == list(range(40))


def test_l3_results_stay_in_item_order_whatever_finishes_first() -> None:
    lab = Lab(LOOP % ("", "[x, y, z, v, w]", "parallel")).start()
    while open_ := lab.driver.open("step"):
        lab.perform(open_[-1])
    assert lab.result[1] == ["x", "y", "z", "v", "w"]
    lab.replays()


def test_l5_loop_events() -> None:
    lab = Lab(LOOP % ("", "[a, b]", "sequential")).run()
    wanted = (
        "loop.started",
        "loop.iteration.started",
        "loop.iteration.done",
        "loop.done",
        "step.done",
        "step.started",
    )
    assert [
        (e["type"], e.get("iteration"))
        for e in lab.driver.events
        if e["type"] in wanted and e["step"] == "each"
    ] == [
        ("step.started", None),
        ("loop.started", None),
        ("loop.iteration.started", 0),
        ("loop.iteration.done", 0),
        ("loop.iteration.started", 1),
        ("loop.iteration.done", 1),
        ("loop.done", None),
    ]


def test_l4_set_iter_never_leaks_to_a_sibling() -> None:
    lab = Lab("""
    workflow:
      - step: each
        loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
        tool:
          - {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {own: "{{ iter.n * 10 }}", had: "{{ iter.own | default('nothing') }}"}}}}]}}}
          - {kind: echo, value: ["{{ iter.index }}", "{{ n }}", "{{ iter.own }}", "{{ iter.had }}", "{{ loop.index }}", "{{ loop.last }}"]}
    """).run()
    assert lab.result["results"] == [
        [0, 1, 10, "nothing", 1, False],
        [1, 2, 20, "nothing", 2, False],
        [2, 3, 30, "nothing", 3, True],
    ]


def test_l8_break_ends_the_iteration_not_the_loop() -> None:
    lab = Lab("""
    workflow:
      - step: each
        loop: {in: [1, 2], iterator: n}
        tool:
          - {kind: echo, value: "{{ n }}", spec: {policy: {rules: [{when: "{{ n == 1 }}", then: {do: break}}]}}}
          - {kind: echo, value: end}
    """).run()
    assert lab.result["results"] == [1, "end"]


@pytest.mark.parametrize("items", ["[]", '"{{ none }}"', '"{{ [] }}"'])
def test_l9_empty_collections_are_done_with_zero_iterations(items: str) -> None:
    lab = Lab(LOOP % ("", items, "parallel")).run().replays()
    assert lab.result == [0, [], {"total": 0, "success": 0, "failed": 0}]


def test_fail_fast_is_the_default_and_cancels_what_runs() -> None:
    lab = Lab(LOOP % ("", "[a, bad, c, d, e]", "parallel")).run().replays()
    assert lab.result == "broken"
    assert lab.status == "completed"
    assert lab.types("loop.done") == []
    failed = lab.events("loop.iteration.failed")
    assert [(e["iteration"], e["error"]["kind"]) for e in failed] == [
        (1, "schema"),
        (2, "cancelled"),
        (3, "cancelled"),
    ]
    assert lab.steps["each"]["result"]["results"] == ["a", None, None, None]
    assert lab.steps["each"]["error"]["kind"] == "schema"


def test_best_effort_is_done_with_a_count_of_failures_and_the_run_completes() -> None:
    lab = (
        Lab(LOOP % ("spec: {policy: {failure: {mode: best_effort}}}", "[a, bad, c]", "parallel"))
        .run()
        .replays()
    )
    assert lab.status == "completed"
    assert lab.result == [3, ["a", None, "c"], {"total": 3, "success": 2, "failed": 1}]
    assert lab.events("loop.done")[0]["data"] == {"total": 3, "success": 2, "failed": 1}


def test_a_mapping_iterates_over_key_and_value() -> None:
    lab = Lab(LOOP % ("", "{a: 1, b: 2}", "sequential")).run()
    assert lab.result[1] == [{"key": "a", "value": 1}, {"key": "b", "value": 2}]


@pytest.mark.parametrize("items", ['"{{ workload.text }}"', '"{{ 5 }}"'])
def test_text_and_numbers_are_no_collection(items: str) -> None:
    lab = Lab(LOOP % ("", items, "sequential")).run({"text": "abc"})
    assert lab.steps["each"]["error"]["kind"] == "schema"


def test_max_in_flight_may_be_a_template() -> None:
    text = (LOOP % ("", "[1, 2, 3, 4, 5, 6]", "parallel")).replace(
        "max_in_flight: 3", 'max_in_flight: "{{ workload.cap }}"'
    )
    lab = Lab(text).run({"cap": 2})
    assert lab.in_flight_max == 2


def test_wide_loops_open_in_slices() -> None:
    text = (LOOP % ("", '"{{ range(200) }}"', "parallel")).replace("max_in_flight: 3", "max_in_flight: 150")
    lab = Lab(text).start()
    assert len(lab.driver.open("step")) == 150
    lab.work()
    assert (lab.status, lab.in_flight_max) == ("completed", 150)


def test_the_marking_does_not_grow_with_the_loop() -> None:
    """8,000 items: the state stays small, the journal's records too, results are in chunks."""
    lab = Lab("""
    workflow:
      - step: each
        loop: {in: "{{ range(workload.n) }}", iterator: n, spec: {mode: parallel, max_in_flight: 10}}
        tool: {kind: echo, value: "{{ n }}"}
        next: {arcs: [{step: check}]}
      - {step: check, tool: {kind: echo, value: "{{ each.results[7999] }}"}}
    """)
    lab.driver.feed = _without_probes(lab)  # type: ignore[method-assign]
    sizes: list[int] = []
    lab.start({"n": 8_000})
    while open_ := lab.driver.open("step"):
        lab.perform(open_[0])
        if len(lab.driver.journal) % 1000 == 0:
            sizes.append(len(encode(lab.driver.state)))
    assert lab.status == "completed"
    assert lab.result == 7_999
    assert max(sizes) < 40_000
    manifest = lab.steps["each"]["result"]["results"]
    assert manifest["kind"] == "manifest"
    assert manifest["count"] == 8_000


def test_the_references_of_chunks_do_not_pile_up_either() -> None:
    """Large results make many chunks; their references are stored level by level."""
    lab = Lab(
        """
    workflow:
      - step: each
        loop: {in: "{{ range(workload.n) }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
        tool: {kind: echo, value: "{{ n }}"}
        next: {arcs: [{step: check}]}
      - {step: check, tool: {kind: echo, value: ["{{ each.results | list }}", "{{ each.results[100] }}", "{{ each.results | length }}"]}}
    """,
        slices=Slices(chunk_items=2, fold_parts=3),
    ).start({"n": 101})
    most = 0
    while open_ := lab.driver.open("step"):
        lab.perform(open_[-1] if len(open_) % 2 else open_[0])
        for token in lab.driver.state["tokens"].values():
            most = max(most, len((token.get("loop") or {}).get("parts", ())))
    lab.replays()
    assert lab.result == [list(range(101)), 100, 101]
    assert most < 20
    assert len(lab.steps["each"]["result"]["results"]["parts"]) < 12


def _without_probes(lab: Lab) -> Any:
    """The driver copies the whole run before each event to undo refused ones; here none is."""
    from treadle.testing import driver as module

    def feed(event: Any) -> Any:
        driver, pending = lab.driver, event
        while pending is not None:
            step = module.advance(
                driver.run,
                driver.machine,
                driver.definition,
                pending,
                at_ns=driver.now_ns,
                blobs=driver.blobs.__getitem__,
            )
            driver.blobs.update((name, decode_trusted(body)) for name, body in step.blobs.items())
            driver.journal.append(module.Stored(step.seq, step.body, step.digest))
            driver.events += step.events if len(driver.events) < 1000 else []
            pending = driver.run.pending()
        return driver

    return feed


def test_a_loop_over_the_workload_keeps_only_a_path() -> None:
    lab = Lab(LOOP % ("", '"{{ workload.items }}"', "parallel")).start({"items": ["x"] * 100})
    (token,) = lab.driver.state["tokens"].values()
    assert token["loop"]["source"] == {"path": ["workload", "items"]}
    assert lab.work().result[0] == 100


CTX = """
    workflow:
      - step: each
        spec: {policy: {failure: {mode: best_effort}}}
        loop: {in: [1, 1, 2], iterator: n, spec: {mode: %s, max_in_flight: 3 %s}}
        tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {k: "{{ n }}"}}}}]}}}
"""


def test_conflicting_ctx_writes_of_parallel_iterations_fail_the_later_one() -> None:
    lab = Lab(CTX % ("parallel", "")).run().replays()
    assert [(e["iteration"], e["error"]["kind"]) for e in lab.events("loop.iteration.failed")] == [
        (2, "ctx_conflict")
    ]
    assert lab.ctx == {"k": 1}


@pytest.mark.parametrize(("first", "second"), [("k", "k.a"), ("k.a", "k"), ("k.a.b", "k")])
def test_writes_above_and_below_each_other_conflict_too(first: str, second: str) -> None:
    rule = "{when: '{{ n == %d }}', then: {do: continue, set_ctx: {%s: 1, other.n%d: 1}}}"
    rules = ", ".join(rule % (n, path, n) for n, path in enumerate((first, second)))
    lab = Lab(f"""
    workflow:
      - step: a
        loop: {{in: [0, 1], iterator: n, spec: {{mode: parallel}}}}
        tool: {{kind: noop, spec: {{policy: {{rules: [{rules}]}}}}}}
    """).run()
    assert [e["error"]["kind"] for e in lab.events("loop.iteration.failed")] == ["ctx_conflict"]


def test_ctx_conflict_policies() -> None:
    assert Lab(CTX % ("parallel", ", policy: {ctx: last_write}")).run().ctx == {"k": 2}
    assert Lab(CTX % ("parallel", ", policy: {ctx: append}")).run().ctx == {"k": [1, 1, 2]}
    assert Lab(CTX % ("sequential", "")).run().ctx == {"k": 2}


def test_reducers() -> None:
    text = """
    workflow:
      - step: each
        loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, policy: {reduce: %s}}}
        tool: {kind: echo, value: %s}
    """
    assert Lab(text % ("sum", '"{{ n }}"')).run().result["reduced"] == 6
    assert Lab(text % ("collect", '"{{ n }}"')).run().result["reduced"] == [1, 2, 3]
    merged = Lab(text % ("merge", "\"{{ {'k' ~ n: n} }}\"")).run().result["reduced"]
    assert merged == {"k1": 1, "k2": 2, "k3": 3}


def test_l7_nested_iteration_by_a_task_loop() -> None:
    lab = (
        Lab("""
    workload: {cities: [{name: rome, hotels: [a, b]}, {name: oslo, hotels: [c]}]}
    workflow:
      - step: cities
        loop: {in: "{{ workload.cities }}", iterator: city, spec: {mode: parallel}}
        tool:
          - name: hotels
            kind: echo
            loop: {in: "{{ iter.city.hotels }}", iterator: hotel}
            value: "{{ iter.parent.city.name }}/{{ iter.hotel }}/{{ iter.index }}/{{ iter.parent.index }}"
          - {kind: echo, value: ["{{ hotels.results }}", "{{ iter.index }}"]}
    """)
        .run()
        .replays()
    )
    assert lab.result["results"] == [[["rome/a/0/0", "rome/b/1/0"], 0], [["oslo/c/0/1"], 1]]


def test_l7_a_child_playbook_sees_the_callers_iter_as_parent() -> None:
    parent = Lab("""
    workflow:
      - step: each
        loop: {in: [7], iterator: n}
        tool: {kind: playbook, path: child}
    """).run()
    (child,) = parent.driver.open("child")
    assert child.params["options"]["iter"] == {"n": 7, "index": 0}
    inner = Lab("""
    workflow:
      - step: each
        loop: {in: [1], iterator: m}
        tool: {kind: echo, value: ["{{ iter.parent.n }}", "{{ iter.m }}", "{{ iter.parent.index }}"]}
    """).run(options=child.params["options"])
    assert inner.result["results"] == [[7, 1, 0]]


def test_iterations_suspend_on_their_own() -> None:
    lab = Lab("""
    workflow:
      - step: each
        loop: {in: [1, 2], iterator: n, spec: {mode: parallel}}
        tool: [{kind: wait, seconds: "{{ n * 10 }}"}, {kind: echo, value: "{{ n }}"}]
    """).run()
    assert lab.status == "waiting"
    lab.advance(10)
    assert len(lab.events("loop.iteration.done")) == 1
    assert lab.advance(10).replays().result["results"] == [1, 2]


def test_loop_lifecycle_timeout_stops_the_iterations() -> None:
    lab = (
        Lab("""
    workflow:
      - step: each
        spec: {policy: {lifecycle: {timeout_s: 15}, failure: {mode: best_effort}}}
        loop: {in: [1, 2], iterator: n, spec: {mode: parallel}}
        tool: [{kind: wait, seconds: "{{ n * 10 }}"}, {kind: echo, value: "{{ n }}"}]
    """)
        .run()
        .advance(10)
        .advance(10)
        .replays()
    )
    assert lab.steps["each"]["error"]["kind"] == "timeout"
    assert lab.steps["each"]["result"]["results"] == [1, None]


JOIN = """
    workflow:
      - {step: fork, next: {spec: {mode: inclusive}, arcs: [{step: a, args: {from: x}}, {step: b}, {step: c}]}}
      - {step: a, tool: {kind: echo, value: 1}, next: {arcs: [{step: joined, args: {v: "{{ event.result }}"}}]}}
      - {step: b, tool: {kind: echo, value: 2}, next: {arcs: [{step: joined, args: {v: "{{ event.result }}"}}]}}
      - {step: c, tool: {kind: echo, value: 3}, next: {arcs: [{step: joined, args: {v: "{{ event.result }}"}}]}}
      - step: joined
        spec: {policy: {admit: {%s}}}
        tool: {kind: echo, value: "{{ args.tokens | default(none) }}"}
"""


def test_join_all_any_and_count() -> None:
    lab = Lab(JOIN % "join: {from: [c, a, b], mode: all}").run().replays()
    assert (lab.steps["joined"]["runs"], lab.result) == (1, [{"v": 3}, {"v": 1}, {"v": 2}])
    lab = Lab(JOIN % "join: {mode: any}").run().replays()
    assert (lab.steps["joined"]["runs"], lab.steps["joined"]["result"]) == (1, [{"v": 1}])
    lab = Lab(JOIN % "join: {mode: count, count: 2}").run().replays()
    assert (lab.status, lab.steps["joined"]["runs"]) == ("completed", 1)
    assert lab.steps["joined"]["result"] == [{"v": 1}, {"v": 2}]


def test_a_token_that_a_join_does_not_name_runs_by_itself() -> None:
    lab = Lab(JOIN % "join: {from: [a, b], mode: all}").run().replays()
    assert (lab.status, lab.steps["joined"]["runs"]) == ("completed", 2)


def test_a_join_of_some_is_complete_again_in_each_round() -> None:
    lab = Lab("""
    workflow:
      - {step: fork, tool: {kind: noop}, set: {ctx.n: "{{ ctx.n | default(0) + 1 }}"}, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c, when: "{{ ctx.n > 9 }}"}]}}
      - {step: a, tool: {kind: noop}, next: {arcs: [{step: j}]}}
      - {step: b, tool: {kind: noop}, next: {arcs: [{step: j}]}}
      - {step: c, tool: {kind: noop}, next: {arcs: [{step: j}]}}
      - step: j
        spec: {policy: {admit: {join: {mode: count, count: 2}}}}
        tool: {kind: noop}
        next: {arcs: [{step: k, when: "{{ ctx.n < 3 }}"}]}
      - {step: k, tool: {kind: noop}, next: {arcs: [{step: fork, when: "{{ ctx.n < 3 }}"}]}}
    """).run()
    assert (lab.status, lab.steps["j"]["runs"]) == ("completed", 3)


def test_a_join_that_cannot_complete_keeps_the_run_waiting() -> None:
    lab = Lab("""
    workflow:
      - {step: fork, next: {arcs: [{step: a}]}}
      - {step: a, tool: {kind: echo}, next: {arcs: [{step: j}]}}
      - {step: b, tool: {kind: echo}, next: {arcs: [{step: j}]}}
      - {step: j, spec: {policy: {admit: {join: {mode: all}}}}, tool: {kind: echo}}
    """).run()
    assert lab.status == "waiting"
    assert lab.driver.view()["waiting_for"][0]["name"] == "j"


def test_join_by_key() -> None:
    text = (JOIN % "join: {mode: count, count: 2, key: '{{ args.v > 2 }}'}").replace(
        "mode: inclusive", "mode: inclusive"
    )
    lab = Lab(text).run()
    assert lab.steps["joined"]["result"] == [{"v": 1}, {"v": 2}]


def test_once_is_a_latch() -> None:
    lab = Lab(JOIN % "once: true").run().replays()
    assert (lab.status, lab.steps["joined"]["runs"]) == ("completed", 1)
    assert len(lab.events("token.discarded", step="joined")) == 2


def test_seed_example_pagination_pattern() -> None:
    """Pages are fetched in order per item while items run in parallel; 404 takes its own way."""
    seen: dict[str, list[Any]] = {"fetch": [], "ok": [], "404": []}

    def fetch(config: dict[str, Any], call: ToolCall) -> Any:
        from treadle.tools.protocol import Outcome

        path, page = config["url"], config["page"]
        seen["fetch"].append((path, page))
        if path.endswith("gone"):
            return Outcome.failed("not_found", "404", code="HTTP_404", http={"status": 404})
        body = {"data": [f"{path}#{page}"], "paging": {"hasMore": page < 3, "page": page}}
        return Outcome(result={"data": body, "status_code": 200}, http={"status": 200})

    lab = (
        Lab(
            EXAMPLE,
            {
                "http": fetch,
                "ok": lambda config, call: seen["ok"].append(config["items"]),
                "gone": lambda config, call: seen["404"].append(config["items"]),
            },
        )
        .run({"endpoints": [{"path": "/a"}, {"path": "/gone"}, {"path": "/b"}]})
        .replays()
    )
    assert lab.status == "completed"
    assert [page for path, page in seen["fetch"] if path == "x/a"] == [1, 2, 3]
    assert sorted(map(str, seen["ok"])) == sorted(str([f"x/{p}#{n}"]) for p in "ab" for n in (1, 2, 3))
    assert seen["404"] == [[]]


EXAMPLE = """
    workload: {api_url: x}
    workflow:
      - step: fetch_all
        spec: {policy: {failure: {mode: best_effort}}}
        loop: {in: "{{ workload.endpoints }}", iterator: endpoint, spec: {mode: parallel, max_in_flight: 10}}
        tool:
          - {name: init_iter, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {page: 1, has_more: true}}}}]}}}
          - name: fetch_page
            kind: http
            url: "{{ workload.api_url }}{{ iter.endpoint.path }}"
            page: "{{ iter.page }}"
            spec:
              policy:
                rules:
                  - {when: "{{ outcome.status == 'error' and outcome.http.status in [429,500,502,503,504] }}", then: {do: retry, attempts: 10, backoff: exponential, delay: 2.0}}
                  - {when: "{{ outcome.status == 'error' and outcome.http.status in [401,403] }}", then: {do: fail}}
                  - else:
                      then:
                        do: continue
                        set_iter:
                          http_status: "{{ outcome.http.status | default(200) }}"
                          has_more: "{{ outcome.result.data.paging.hasMore | default(false) }}"
                          page: "{{ outcome.result.data.paging.page | default(iter.page) }}"
                          items: "{{ outcome.result.data.data | default([]) }}"
          - name: route_by_status
            kind: noop
            spec:
              policy:
                rules:
                  - {when: "{{ iter.http_status == 404 }}", then: {do: jump, to: store_404}}
                  - {else: {then: {do: jump, to: store_200}}}
          - {name: store_200, kind: ok, items: "{{ iter.items }}", spec: {policy: {rules: [{else: {then: {do: jump, to: paginate}}}]}}}
          - {name: store_404, kind: gone, items: "{{ iter.items }}", spec: {policy: {rules: [{else: {then: {do: jump, to: paginate}}}]}}}
          - name: paginate
            kind: noop
            spec:
              policy:
                rules:
                  - {when: "{{ iter.has_more == true }}", then: {do: jump, to: fetch_page, set_iter: {page: "{{ (iter.page | int) + 1 }}"}}}
                  - {else: {then: {do: break}}}
        next: {arcs: [{step: done, when: "{{ event.name == 'loop.done' }}"}]}
      - {step: done, tool: {kind: echo}}
"""


def test_templates_in_a_written_list_or_mapping_are_rendered() -> None:
    text = """
    workload: {a: 5}
    workflow: [{step: s, loop: {in: %s, iterator: i}, tool: {kind: noop, result: "{{ i }}"}}]
    """
    lab = Lab(text % '["{{ workload.a }}", 7, ["{{ a }}"]]').run().replays()
    assert lab.result["results"] == [5, 7, [5]]
    lab = Lab(text % '{k: "{{ workload.a + 1 }}"}').run().replays()
    assert lab.result["results"] == [{"key": "k", "value": 6}]
