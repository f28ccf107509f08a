"""Values by reference everywhere (PLAYBOOK §5.37): no playbook fails for the size of what it renders itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.backdoor import change

from treadle import Engine
from treadle.kernel.model import is_reference
from treadle.lang.duration import parse_instant
from treadle.testing import assert_replays
from treadle.tools.protocol import ToolCall

from .harness import Lab

MIB = 1024 * 1024
MAKE = "{{ 'x' * 3145728 }}"
LIST = "{{ [workload.unit * 4] * 24 }}"
SIZE = 24 * 4 * 50_000
ARCS = ", ".join(f"{{step: s{n}}}" for n in range(60))
STEPS = "\n".join(f"      - {{step: s{n}, tool: {{kind: block, key: {n}}}}}" for n in range(60))

# Where a playbook renders: the text of it, and what must come out.
PLACES: dict[str, tuple[str, Any]] = {
    "set of a step": (
        f"""
    workflow:
      - {{step: a, set: {{ctx.big: "{MAKE}"}}, next: {{arcs: [{{step: b}}]}}}}
      - {{step: b, tool: {{kind: echo, value: "{{{{ ctx.big | length }}}}"}}}}
    """,
        3 * MIB,
    ),
    "set of an arc": (
        f"""
    workflow:
      - {{step: a, next: {{arcs: [{{step: b, set: {{ctx.big: "{MAKE}"}}}}]}}}}
      - {{step: b, tool: {{kind: echo, value: "{{{{ ctx.big | length }}}}"}}}}
    """,
        3 * MIB,
    ),
    "args of an arc": (
        f"""
    workflow:
      - {{step: a, next: {{arcs: [{{step: b, args: {{big: "{MAKE}", n: 1}}}}]}}}}
      - {{step: b, tool: {{kind: echo, value: "{{{{ (args.big | length) + args.n }}}}"}}}}
    """,
        3 * MIB + 1,
    ),
    "args of a step": (
        f"""
    workflow:
      - {{step: b, args: {{big: "{MAKE}"}}, tool: {{kind: echo, value: "{{{{ args.big | length }}}}"}}}}
    """,
        3 * MIB,
    ),
    "a mapping of args over a default": (
        f"""
    workflow:
      - {{step: a, next: {{arcs: [{{step: b, args: {{m: {{big: "{MAKE}"}}}}}}]}}}}
      - {{step: b, args: {{m: {{n: "{{{{ 1 + 1 }}}}"}}}}, tool: {{kind: echo, value: "{{{{ (args.m.big | length) + args.m.n }}}}"}}}}
    """,
        3 * MIB + 2,
    ),
    "a default of the workload": (
        f"""
    workload: {{big: "{MAKE}", n: 2}}
    workflow:
      - {{step: b, tool: {{kind: echo, value: "{{{{ (workload.big | length) + n }}}}"}}}}
    """,
        3 * MIB + 2,
    ),
    "a computed list": (
        f"""
    workload: {{unit: {"y" * 50_000}}}
    workflow:
      - step: each
        loop: {{in: "{LIST}", iterator: n, spec: {{mode: parallel, max_in_flight: 24}}}}
        tool: {{kind: echo, value: "{{{{ n | length }}}}"}}
        next: {{arcs: [{{step: b}}]}}
      - {{step: b, tool: {{kind: echo, value: "{{{{ each.results | sum }}}}"}}}}
    """,
        SIZE,
    ),
    "a list in arguments": (
        f"""
    workload: {{unit: {"y" * 50_000}}}
    workflow:
      - {{step: a, next: {{arcs: [{{step: each, args: {{rows: "{LIST}"}}}}]}}}}
      - step: each
        loop: {{in: "{{{{ args.rows }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: 24}}}}
        tool: {{kind: echo, value: "{{{{ n | length }}}}"}}
        next: {{arcs: [{{step: b}}]}}
      - {{step: b, tool: {{kind: echo, value: "{{{{ each.results | sum }}}}"}}}}
    """,
        SIZE,
    ),
    "results that are merged": (
        """
    workflow:
      - step: each
        loop: {in: "{{ range(6) }}", iterator: n, spec: {policy: {reduce: merge}}}
        tool: {kind: block, key: "{{ n }}"}
        next: {arcs: [{step: b}]}
      - {step: b, tool: {kind: echo, value: "{{ each.reduced | length }}"}}
    """,
        6,
    ),
    "an appended list": (
        """
    workflow:
      - step: each
        loop: {in: "{{ range(30) }}", iterator: n, spec: {policy: {ctx: append}}}
        tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {k: "{{ 'x' * 60000 }}"}}}}]}}}
        next: {arcs: [{step: b}]}
      - {step: b, tool: {kind: echo, value: "{{ ctx.k | map('length') | sum }}"}}
    """,
        1_800_000,
    ),
    "the summary of final_step": (
        f"""
    executor: {{spec: {{final_step: last}}}}
    workflow:
      - {{step: fan, next: {{spec: {{mode: inclusive}}, arcs: [{ARCS}]}}}}
{STEPS}
      - {{step: last, tool: {{kind: echo, value: "{{{{ args.results | length }}}}"}}}}
    """,
        60,
    ),
}


def block(config: dict[str, Any], call: ToolCall) -> Any:
    return {f"k{config['key']}": "z" * 300_000}


@pytest.mark.parametrize("place", PLACES)
def test_what_a_playbook_renders_itself_may_have_any_size(place: str) -> None:
    text, expected = PLACES[place]
    lab = Lab(text, {"block": block}).run()
    assert (lab.status, lab.error, lab.result) == ("completed", None, expected)
    assert max(len(stored.body) for stored in lab.driver.journal) < 512 * 1024
    lab.replays()


def test_many_keys_of_some_size_fit_into_one_record_together() -> None:
    """Three hundred keys just below the limit: no key is large, the record would be."""
    keys = ", ".join(f"ctx.k{n}: \"{{{{ 'x' * 60000 }}}}\"" for n in range(300))
    names = ", ".join(f"ctx.k{n}" for n in range(300))
    lab = Lab(f"""
    workflow:
      - {{step: a, set: {{{keys}}}, next: {{arcs: [{{step: b}}]}}}}
      - {{step: b, tool: {{kind: echo, value: "{{{{ [{names}] | map('length') | sum }}}}"}}}}
    """).run()
    assert (lab.status, lab.result) == ("completed", 300 * 60_000)
    assert max(len(stored.body) for stored in lab.driver.journal) < 2 * MIB


def test_a_patch_goes_by_reference_and_says_what_it_stands_for() -> None:
    lab = Lab("""
    workflow:
      - step: b
        spec: {policy: {admit: {rules: [{when: "{{ ctx.go | length == 3145728 }}", then: {allow: true}}]}}}
        tool: {kind: echo, value: "{{ ctx.go | length }}"}
    """).run()
    lab.driver.patch(go="z" * 3 * MIB)
    lab.work().replays()
    assert (lab.status, lab.result) == ("completed", 3 * MIB)
    assert lab.ctx["go"]["kind"] == "result_ref"
    assert lab.ctx["go"]["preview"]["sample"].startswith('"zzz')


# --- in an engine ----------------------------------------------------------------------------------------

EVERYWHERE = """
metadata: {name: everywhere}
workload: {big: "{{ 'w' * 3000000 }}"}
workflow:
  - step: a
    set: {ctx.made: "{{ 'x' * 3000000 }}"}
    next: {arcs: [{step: gate, args: {rows: "{{ [workload.big[:1000000]] * 4 }}"}}]}
  - step: gate
    spec: {policy: {admit: {rules: [{when: "{{ ctx.go | length > 0 }}", then: {allow: true}}]}}}
    loop: {in: "{{ args.rows }}", iterator: row, spec: {mode: parallel}}
    tool: [{name: child, kind: playbook, path: child.yaml, args: {row: "{{ row }}", more: "{{ 'm' * 2000000 }}"}}, {name: out, kind: noop, result: "{{ child.n }}"}]
    next: {arcs: [{step: ask}]}
  - step: ask
    tool: [{name: look, kind: ask, title: look, roles: [boss], payload: {all: "{{ 'p' * 2000000 }}"}}, {name: out, kind: noop, result: "{{ [ctx.made | length, ctx.go | length, workload.big | length, gate.results | sum, look.note | length] }}"}]
"""
CHILD = """
metadata: {name: child}
workflow: [{step: count, tool: {kind: noop, result: {n: "{{ (workload.row | length) + (workload.more | length) }}"}}}]
"""


@pytest.mark.house
async def test_large_values_survive_a_restart_and_stay_as_long_as_their_run(tmp_path: Path) -> None:
    (tmp_path / "child.yaml").write_text(CHILD)
    (tmp_path / "pb.yaml").write_text(EVERYWHERE)
    store = f"sqlite:///{tmp_path}/t.db"
    async with Engine(store) as engine:
        (definition,) = engine.load(str(tmp_path / "pb.yaml"))
        run = await engine.start(definition, id="big")
        assert (await run.settled(timeout=60))["status"] == "waiting"
    async with Engine(store) as engine:
        await engine.gc()
        await engine.patch("big", {"go": "g" * 3_000_000})
        run = await engine.run("big")
        assert (await run.settled(timeout=120))["status"] == "waiting"
        (task,) = await engine.tasks()
        assert task["payload"] == {"all": "p" * 2_000_000}, "people see what they are asked about"
    async with Engine(store) as engine:
        await engine.gc()
        await engine.task_complete(task["id"], {"note": "n" * 2_000_000}, user="ann", roles=["admin"])
        run = await engine.run("big")
        assert await run.result(timeout=60) == [3_000_000, 3_000_000, 3_000_000, 12_000_000, 2_000_000]
        await assert_replays(engine)
        shown = await run.show()
        made = shown["state"]["ctx"]["made"]
        assert is_reference(made)
        assert (await engine.gc())["blobs"] == 0
        ended_ns = parse_instant(shown["ended_at"])
        await engine.gc(now_ns=ended_ns + 29 * 86_400 * 10**9)
        assert await engine.read(lambda reads: reads.has_blob(made["checksum"]))
        await engine.gc(now_ns=ended_ns + 31 * 86_400 * 10**9)
        assert not await engine.read(lambda reads: reads.has_blob(made["checksum"]))


async def test_replay_says_which_stored_payload_is_gone(tmp_path: Path) -> None:
    text = "metadata: {name: one}\nworkflow: [{step: a, set: {ctx.big: \"{{ 'x' * 100000 }}\"}}]\n"
    (tmp_path / "pb.yaml").write_text(text)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        (definition,) = engine.load(str(tmp_path / "pb.yaml"))
        run = await engine.start(definition, id="one")
        await run.settled(timeout=20)
        checksum = (await run.show())["state"]["ctx"]["big"]["checksum"]
        await change(engine, lambda desk: desk.batch.blob_refs_done.append((run_no(desk), checksum)))
        await engine.gc()
        found = await engine.replay("one")
        assert found["equal"] is None
        assert checksum in found["error"]["message"]


def run_no(core: Any) -> int:
    row = core.store.run("one")
    assert row is not None
    return int(row.no)


@pytest.mark.house
async def test_a_mapping_from_outside_that_looks_like_a_reference_reads_nothing(tmp_path: Path) -> None:
    """Whoever knows the digest of a payload gets nothing for it, wherever it is handed in and stored again."""
    text = """
metadata: {name: outside}
workflow:
  - {step: a, set: {ctx.big: "{{ 'secret' * 100000 }}"}, next: {arcs: [{step: gate}]}}
  - step: gate
    spec: {policy: {admit: {rules: [{when: "{{ ctx.given is defined }}", then: {allow: true}}]}}}
    set: {ctx.again: {list: "{{ [ctx.given] * 2000 }}"}}
    next: {arcs: [{step: b}]}
  - {step: b, tool: {kind: noop, result: "{{ ctx.again.list[0].checksum is defined }}"}}
"""
    (tmp_path / "pb.yaml").write_text(text)
    async with Engine("memory:") as engine:
        (definition,) = engine.load(str(tmp_path / "pb.yaml"))
        run = await engine.start(definition, id="o")
        shown = await run.settled(timeout=20)
        forged = {k: shown["state"]["ctx"]["big"][k] for k in ("store", "key", "checksum", "size")}
        await engine.patch("o", {"given": forged})
        assert await run.result(timeout=20) is True
        await assert_replays(engine)
