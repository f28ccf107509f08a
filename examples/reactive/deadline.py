"""Pattern C: time and answers. A quote is asked for; if it is late, the request expires, and an answer that
comes after the deadline is noted but changes nothing.

    python examples/reactive/deadline.py

No engine is needed: this one runs in `rx.testing.World`, where the clock moves by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from treadle import reactive as rx


@rx.schema("quotes/Requested@1")
@dataclass(frozen=True, slots=True)
class Requested:
    id: str
    item: str


@rx.schema("quotes/Request@1")
@dataclass(frozen=True, slots=True)
class Request:
    item: str
    pc: Literal["waiting", "quoted", "expired"] = "waiting"
    cents: int | None = None
    late: bool = False


ask = rx.effect("quotes/ask@1", params=str, receipt=int)


@rx.workflow(
    "quotes/request@1",
    state=Request,
    events=[Requested],
    key="id",
    effects=[ask, rx.timer],
    terminal=lambda r: r.pc != "waiting",
    determinism="strict",
)
def request(r: Request | None, event: Any, ctx: rx.Context) -> rx.Output[Request]:
    match r, event:
        case None, Requested(_, item):
            deadline = rx.timer(ctx.now + timedelta(hours=1), ref="deadline")
            return rx.Output(Request(item), effects=[ask(item, ref="ask"), deadline])
        case Request(pc="waiting"), rx.Receipt(ref="ask", status="ok", value=cents):
            return rx.Output(replace(r, pc="quoted", cents=cents))
        case Request(pc="waiting"), rx.Receipt(ref="deadline"):
            return rx.Output(replace(r, pc="expired"))
        case Request(pc="expired"), rx.Receipt(ref="ask", status="ok"):
            return rx.Output(replace(r, late=True))
        case _:
            return rx.Output(r)


app = rx.App("quotes", [request])


def main() -> None:
    world = rx.testing.World(app)
    world.send(Requested("in-time", "a lathe"))
    world.ok(world.open(ask)[0], 90_000)
    world.send(Requested("late", "a loom"))
    world.advance("1h")
    world.ok(world.open(ask, key="late")[0], 70_000)
    for cell in world.cells(request):
        print(cell.key, cell.status, world.state(request, cell.key))
    world.assert_replays()


if __name__ == "__main__":
    main()
