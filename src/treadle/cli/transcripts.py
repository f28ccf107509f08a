"""trace and transcript: the way a run took, and what an agent asked and was answered on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from treadle.lang.json_text import to_json

from .command import RUN, Commands, Session
from .moments import moment
from .reach import EITHER
from .runs import RunId
from .view import spending

commands = Commands(RUN)


@commands(examples=["treadle trace triage-1", "treadle trace o-1 --json"], reach=EITHER)
async def trace(cli: Session, id: RunId) -> None:
    """Show the way a run took: nodes and edges of an agent, else each intent with its receipt."""
    from rich.markup import escape

    from treadle.dialects.agent.model import DEFAULT_PATH
    from treadle.views.trace import routes, trace_of

    async with cli.asks(code=True) as engine:
        found = await engine.run(id)
        document = await found.show()
        journal = await found.journal()
        traced = trace_of(document, journal)
        asks_models = engine.dialects[document["dialect"]].asks_models
    if cli.out.as_json:
        cli.out.document(traced)
        return
    steps = traced["steps"]
    if asks_models:
        steps = [{**step, "usage": spending(step.get("usage") or {})} for step in steps]
        columns = {"node": "NODE", "iteration": "VISIT", "status": "STATUS", "usage": "USAGE"}
    else:
        columns = {
            "seq": "SEQ",
            "kind": "KIND",
            "name": "NAME",
            "status": "STATUS",
            "settled": "SETTLED",
            "ms": "MS",
            "id": "INTENT",
        }
    cli.out.rows(steps, columns, empty="nothing was done yet")
    for edge, reason in zip(traced.get("edges", ()), routes(journal, DEFAULT_PATH), strict=False):
        cli.out.note(f"[dim]{escape(edge['from'])} → {escape(edge['to'])}:[/] {escape(reason)}")


@commands(
    examples=[
        "treadle transcript triage-1",
        "treadle transcript triage-1 --node classify",
        "treadle transcript triage-1 --json",
    ],
    reach=EITHER,
)
async def transcript(
    cli: Session,
    id: RunId,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Only this node.", show_default=False)
    ] = None,
) -> None:
    """Show every prompt, message, tool call, routing question and answer of an agent run."""
    async with cli.asks(code=True) as engine:
        found = await engine.transcript(id, node=node)
    if cli.out.as_json:
        cli.out.document({"run": id, "entries": found})
        return
    if not found:
        cli.out.note("nothing was asked yet")
    for said in found:
        cli.out.raw("\n".join(_lines(said)) + "\n\n")


def _lines(said: Mapping[str, Any]) -> Iterator[str]:
    visit = f" visit {said['iteration']}" if said.get("iteration", 1) > 1 else ""
    turn = f" {said['turn']}" if "turn" in said else ""
    name = said.get("tool") or said.get("run") or said.get("evaluator") or ""
    spent = spending(said.get("usage") or {})
    head = f"── {said['node']}{visit} · {said['kind']}{turn} {name}".rstrip()
    yield f"{head}  [{moment(said['at'])}{f', {spent}' if spent else ''}]"
    for part in ("model", "instruction", "tools", "question", "choices", "context", "input", "payload"):
        if said.get(part) not in (None, [], {}):
            yield from _part(part, said[part])
    if said.get("open"):
        yield "   … not answered yet"
    elif "error" in said:
        yield from _part("error", said["error"])
    else:
        who = f"answer of {said['by']}" if said.get("by") else "answer"
        yield from _part(who, said.get("answer"))


def _part(name: str, value: Any) -> Iterator[str]:
    text = value if isinstance(value, str) else to_json(value, indent=2)
    first, *rest = text.split("\n")
    if not rest and len(first) <= 100:
        yield f"   {name}: {first}"
        return
    yield f"   {name}:"
    for line in (first, *rest):
        yield f"     {line}".rstrip()
