"""The records of a world as a test reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.dialects.reactive.app import App
from treadle.dialects.reactive.routing import Delivery
from treadle.kernel.model import DETACHED_KINDS, OpenIntent
from treadle.kernel.values import decode_trusted
from treadle.runtime.hot import Hot
from treadle.store.run_rows import RunRow

from .host import WorldHost
from .views import Intent, Record

Show = Callable[[Hot, OpenIntent], Intent]


def records(host: WorldHost, app: App, rows: list[RunRow], show: Show) -> list[Record]:
    """All records of some runs, in the order in which they were committed."""
    position = {place: number for number, place in enumerate(host.store.order)}
    found = []
    for row in rows:
        manifest = ""
        for record, digest in host.records(row):
            manifest = manifest or _manifest(host, record["event"]["definition"])
            found.append(
                (position[row.no, record["seq"]], _record(host, app, row, record, digest, manifest, show))
            )
            if record["kind"] == "apply":
                manifest = _manifest(host, record["event"]["definition"])
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _manifest(host: WorldHost, definition: str) -> str:
    return str(host.registry.load(definition).row.body["manifest"])


def _record(
    host: WorldHost, app: App, row: RunRow, record: dict[str, Any], digest: str, manifest: str, show: Show
) -> Record:
    hot = host.hot(row.id)
    assert hot is not None
    kind, event = record["kind"], record["event"]
    is_cell = row.id != app.name
    if is_cell and kind == "started" and event.get("input") is not None:
        # A cell begins with its first event: one record holds both.
        kind, event = "event", event["input"]
    workflow = host.bound(hot, app).workflow if is_cell else None
    opened = [
        OpenIntent(**value, seq=record["seq"], at_ns=record["at"])
        for value in record.get("opened", ())
        if value["kind"] not in DETACHED_KINDS
    ]
    log = record.get("log") or {}
    return Record(
        seq=record["seq"],
        kind=kind,
        workflow=row.workflow,
        key=row.cell_key if workflow is None or workflow.key is None else workflow.key.load(row.cell_key),
        event=event,
        events=[
            {name: item for name, item in told.items() if name != "type"}
            for told in record.get("events", ())
            if told["type"] == "event"
        ],
        opened=[show(hot, intent) for intent in opened],
        cancelled=list(record.get("cancelled", ())),
        status=record["status"],
        digest=digest,
        state_digest="sha256:" + log["state"] if "state" in log else None,
        at_ns=record["at"],
        manifest=manifest,
    )


def delivery(host: WorldHost, row: RunRow, submission: str) -> Delivery:
    """What a run was given under a submission id."""
    for stored in host.store.journal(row.no):
        event = decode_trusted(stored.body)["event"]
        given = event.get("input") or event
        if given.get("submission") == submission:
            return Delivery(row.workflow, row.cell_key, row.id, given["schema"], given["value"])
    raise AssertionError(f"{row.id} was answered under {submission}, and has no record of it")
