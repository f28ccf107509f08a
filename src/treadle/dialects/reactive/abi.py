"""A workflow as a function of bytes: canonical CBOR in, canonical CBOR out (seed §7.2).

    input   {version: 1, state: bytes|null, event: {schema, value: bytes, key?: bytes}, ctx?: bytes}
    output  {state: bytes|null, domain_events?: [{schema, value}], effects?: [{effect, params, ref?}], ann?: bytes}

The same for keyed and unkeyed workflows. The machine calls step functions without this detour; this is for
those who keep inputs and outputs as bytes: goldens, fuzzers, other hosts.
"""

from __future__ import annotations

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value, decode, encode

from .app import App
from .decide import Bound, check
from .step import Context

VERSION = 1


def invoke(app: App, workflow: str, envelope: bytes) -> bytes:
    """Runs one step of one workflow on an input envelope."""
    bound = Bound(app, app.workflow(workflow))
    given = decode(envelope)
    if given.get("version") != VERSION:
        raise InputInvalid(
            f"an input envelope of version {given.get('version')!r}; this is version {VERSION}"
        )
    event, key = given["event"], given["event"].get("key")
    if bound.workflow.keyed != (key is not None):
        raise InputInvalid(f"{workflow} is {'keyed' if bound.workflow.keyed else 'unkeyed'}")
    taken = bound.workflow.by_schema.get(event["schema"])
    if taken is None:
        raise InputInvalid(f"{workflow} does not take {event['schema']}")
    state = None if given["state"] is None else bound.workflow.state.load(decode(given["state"]))
    typed = taken.shape.load(app.event(event["schema"], event["value"])[1])
    output = bound.workflow(state, typed, _context(bound, key, given.get("ctx")))
    return encode(_output(bound, output))


def _context(bound: Bound, key: bytes | None, body: bytes | None) -> Context:
    carried: dict[str, Value] = {
        "now_ns": 0,
        "entropy": bytes(64),
        "seq": 0,
        **(decode(body) if body else {}),
    }
    shape = bound.workflow.key
    return Context(
        now_ns=carried["now_ns"],
        entropy=carried["entropy"],
        seq=carried["seq"],
        manifest=bound.app.digest,
        workflow=bound.workflow.name,
        key=None if shape is None or key is None else shape.load(decode(key)),
        cell_mode=shape is not None,
    )


def _output(bound: Bound, output: object) -> Value:
    checked = check(bound, output, False)
    value: dict[str, Value] = {"state": None if checked.state is None else encode(checked.state)}
    if checked.events:
        value["domain_events"] = [{"schema": s, "value": encode(v)} for s, v in checked.events]
    if checked.effects:
        value["effects"] = [{**effect, "params": encode(effect["params"])} for effect in checked.effects]
    if checked.annotations is not None:
        value["ann"] = encode(checked.annotations)
    return value
