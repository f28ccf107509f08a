"""publish, cells, cell, manifest, apply, shadow, snapshot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli
from .flows import SHOP

EVENT = "com.acme/OrderCreated@1"
ORDER = "com.acme/order@1"


@pytest.fixture
def shop(cli: Cli, write: Callable[[str, str], Path]) -> Cli:
    """A shop with one order."""
    write("shop.py", SHOP)
    document = cli(
        "publish",
        EVENT,
        "--data",
        '{"order_id": "o-1", "cents": 5}',
        "--app",
        "shop.py:app",
        "--json",
        code=0,
    ).json
    assert (document["id"], document["status"]) == (f"{ORDER}/o-1", "completed")
    return cli


def test_the_code_is_found_again_where_it_came_from(shop: Cli) -> None:
    document = shop("publish", EVENT, "--data", '{"order_id": "o-2", "cents": 5}', "--json", code=0).json
    assert document["state"]["order_id"] == "o-2"
    rows = shop("cells", ORDER, "--json", code=0).json
    assert [row["key"] for row in rows] == ["o-1", "o-2"]
    assert rows[0].keys() >= {"key", "status", "size", "last_active"}


def test_a_submission_is_taken_once(shop: Cli) -> None:
    sent = ["publish", EVENT, "--data", '{"order_id": "o-3", "cents": 5}', "--submission-id", "s1", "--json"]
    first = shop(*sent, code=0).json
    assert shop(*sent, code=0).json["version_no"] == first["version_no"]


def test_an_event_that_does_not_fit_is_refused(shop: Cli) -> None:
    assert shop("publish", EVENT, "--data", '{"order_id": 7}', "--json").code in (1, 2)
    assert (
        shop("publish", "com.acme/Unknown@1", "--data", "{}", "--json", code=2).error["code"]
        == "INPUT_INVALID"
    )
    assert [row["key"] for row in shop("cells", ORDER, "--json").json] == ["o-1"]


def test_one_cell(shop: Cli) -> None:
    document = shop("cell", ORDER, "o-1", "--json", code=0).json
    assert document == shop("show", f"{ORDER}/o-1", "--json", code=0).json
    assert document["key"] == "o-1"
    assert shop("cell", ORDER, "o-9", "--json", code=2).error["code"] == "CELL_NOT_FOUND"
    (step,) = shop("trace", f"{ORDER}/o-1", "--json", code=0).json["steps"]
    assert (step["kind"], step["status"]) == ("payment/charge@1", "ok")


def test_keys_that_look_like_json_can_be_text(shop: Cli) -> None:
    shop("publish", EVENT, "--data", '{"order_id": "7", "cents": 5}', code=0)
    assert shop("cell", ORDER, "7", "--text-key", "--json", code=0).json["key"] == "7"


def test_manifest_is_derived_from_the_code(shop: Cli) -> None:
    document = shop("manifest", "shop.py:app", "--json", code=0).json
    assert document["name"] == "shop"
    assert document["manifest"]["$kind"] == "manifest"
    subscriptions = document["manifest"]["routing"]["subscriptions"]
    assert subscriptions == [{"event": EVENT, "workflow": ORDER, "key_field": "order_id"}]
    assert shop("manifest", "shop.py:nothing", "--json", code=2).error["message"]
    assert shop("manifest", "nothing.py:app", "--json", code=2).error["code"] == "USAGE"


def test_an_application_is_started_by_events(shop: Cli) -> None:
    assert (
        "treadle publish EVENT --app shop.py:app"
        in shop("run", "shop.py:app", "--json", code=2).error["message"]
    )


def test_shadow_reports_what_was_observed(shop: Cli) -> None:
    report = shop("shadow", "shop.py:app", "--json", code=0).json
    assert report.keys() >= {"effects", "pending", "statuses", "allowlists", "changes"}
    assert [effect["effect"] for effect in report["effects"]] == ["payment/charge@1"]
    assert report["changes"] == []


def test_apply_moves_to_new_code(shop: Cli, write: Callable[[str, str], Path]) -> None:
    write("shop2.py", SHOP.replace('ref="charge"', 'ref="charge:1"'))
    before = shop("manifest", "shop.py:app", "--json").json["digest"]
    answer = shop("apply", "shop2.py:app", "--json", code=0).json
    assert answer["manifest"] == shop("manifest", "shop2.py:app", "--json").json["digest"] != before
    assert (
        shop("publish", EVENT, "--data", '{"order_id": "o-5", "cents": 5}', "--json", code=0).json["status"]
        == "completed"
    )


def test_snapshot_roots_follow_the_content(shop: Cli) -> None:
    first = shop("snapshot", "--json", code=0).json["shop"]["roots"]
    assert shop("snapshot", "--json", code=0).json["shop"]["roots"] == first
    shop("publish", EVENT, "--data", '{"order_id": "o-2", "cents": 5}', code=0)
    assert shop("snapshot", "--json", code=0).json["shop"]["roots"] != first


def test_replay_of_cells(shop: Cli) -> None:
    answers = shop("replay", "--all", "--json", code=0).lines
    assert {"id": f"{ORDER}/o-1", "equal": True} in answers
