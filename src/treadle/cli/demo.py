"""`serve --demo`: a server with something to look at.

The examples of every dialect are deployed and started on a store in memory: some complete, some wait for people and
signals, one fails, and a schedule brings a new run now and then. They work in a folder of their own; everything is gone
when the server ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .command import DEFAULT_STORE, Session
from .output import Usage

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.kernel.values import Value

_FILES: Final = (
    "playbook/approval.yaml",
    "playbook/retries.yaml",
    "playbook/words.yaml",
    "process/order.yaml",
    "process/OpenAccount.yaml",
    "process/Training.yaml",
    "process/Welcome.yaml",
    "process/onboarding.yaml",
    "agent/triage/flow.yaml",
    "agent/release-notes/flow.yaml",
    "reactive/order.py:app",
    "functions/order.py:order",
)
_LINES: Final[Value] = [{"sku": "lamp", "count": 2}]
_RUNS: Final[tuple[tuple[str, str, Value], ...]] = (
    ("words-1", "words", {"text": "the quick brown fox jumps over the lazy dog"}),
    # Fails with a traceback: a number has no words. It can be mended and retried.
    ("words-broken", "words", {"text": 42}),
    ("retries-1", "retries", {"succeeds_at": 3}),
    ("trip-1", "approval", {"budget": 1000}),
    ("order-1", "Order", {"order": "o-1", "customer": "c-7", "lines": _LINES}),
    ("ada", "Onboarding", {"name": "Ada Byron"}),
    ("saga-1", "order", {"id": "o-7", "cents": 500}),
)
# Played by a script that stands beside the flow: no model is asked, nothing is paid.
_SCRIPTED: Final = (
    ("triage-1", "triage", "agent/triage/script.json"),
    ("notes-1", "release-notes", "agent/release-notes/script.json"),
)
_EVENT: Final = "com.acme/OrderCreated@1"
_TICK: Final = "15s"


@dataclass(frozen=True, slots=True)
class Demo:
    folder: Path

    def deploy(self, engine: Engine) -> None:
        for file in _FILES:
            engine.deploy(str(self.folder / file))

    async def start(self, engine: Engine) -> None:
        for id, workflow, given in _RUNS:
            await engine.start(workflow, given, id=id)
        for id, workflow, script in _SCRIPTED:
            await engine.start(workflow, id=id, model=f"scripted:{self.folder / script}")
        await engine.publish(_EVENT, {"order_id": "o-1", "amount_cents": 500})
        await engine.schedule_add("every-now-and-then", "words", {"text": "to be or not to be"}, every=_TICK)


@contextmanager
def demo(cli: Session) -> Iterator[Demo]:
    """The examples, in a folder that goes; the session's store becomes one in memory."""
    import tempfile

    if cli.store != DEFAULT_STORE:
        raise Usage("--demo has a store of its own; leave --store and TREADLE_STORE out")
    cli.store = "memory:"
    with tempfile.TemporaryDirectory(prefix="treadle-demo-") as folder:
        shutil.copytree(_examples(), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        yield Demo(Path(folder))


def _examples() -> Path:
    """Inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for found in (package / "examples", package.parents[1] / "examples"):
        if (found / _FILES[0]).is_file():
            return found
    raise Usage("--demo: the examples are missing in this installation; install treadle from its wheel")
