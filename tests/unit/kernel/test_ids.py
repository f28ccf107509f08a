"""Ids that are derived: where a run lives follows from its id alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.kernel.model import child_id, root_of, shard_of

INTENTS = st.binary(min_size=16, max_size=16).map(bytes.hex)


@given(st.text(min_size=1, max_size=40), st.lists(INTENTS, max_size=4), st.integers(1, 64))
def test_children_live_with_their_root(root: str, intents: list[str], count: int) -> None:
    run = root
    for intent in intents:
        run = child_id(run, intent)
    assert shard_of(run, count) == shard_of(root, count)
    assert 0 <= shard_of(run, count) < count


def test_one_shard_holds_everything() -> None:
    assert {shard_of(f"run-{number}", 1) for number in range(100)} == {0}


def test_runs_spread_over_all_shards() -> None:
    spread = [shard_of(f"run-{number}", 64) for number in range(6_400)]
    counts = [spread.count(shard) for shard in range(64)]
    assert min(counts) > 50
    assert max(counts) < 160


def test_the_place_of_a_run_never_changes() -> None:
    """It is written into stores: another formula would look for runs where they are not."""
    assert [shard_of(id, 64) for id in ("order-1", "order-2", "cart/7")] == [12, 3, 33]


@pytest.mark.parametrize(
    ("run", "root"),
    [
        ("a", "a"),
        ("a.0123456789ab", "a"),
        ("a.0123456789ab.ba9876543210", "a"),
        ("a.0123456789AB", "a.0123456789AB"),
        ("order.1", "order.1"),
        (".0123456789ab", ".0123456789ab"),
    ],
)
def test_an_id_tells_its_root(run: str, root: str) -> None:
    assert root_of(run) == root
