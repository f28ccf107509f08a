"""Many and large: what one record cannot hold is cut or stored, and never refuses a legal process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
