"""The simulator's own workload: programs for a small dialect that does everything a machine can ask for (`drill_machine.py`).

What a program must come to is known beforehand (`oracle.py`). Besides, ids are asked for by several, with the same program
and with others; other versions are deployed while runs are under way, and some of the runs that runs start are kept for a moment only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.kernel.machine import Machine
from treadle.kernel.model import Cancel, Patch, Retry, Signal, Started
from treadle.lang.definition import Definition
from treadle.runtime.ports import NewRun
from treadle.work.job import Performer

from .drill_machine import BRIEF, AsideMachine, DrillMachine, perform
from .oracle import Op, check_result, possible_ends
from .workload import Action, ForkWanted, NextVersion, Planned

if TYPE_CHECKING:
    from .checks import RunLife
    from .world import SimWorld

# How much of all that runs start is kept for a moment only.
BRIEF_SHARE = 0.3
GRINDS = (80, 240)


class Drill:
    """Random programs, their signals, and the oracle that knows how each must end."""

    def __init__(self, rng: Random) -> None:
        self.machines: Mapping[str, Machine] = {"drill": DrillMachine(), "aside": AsideMachine()}
        frames = rng.random() < 0.3
        self._drill, *self._later = (_version(f"1.{number}.0", number, frames) for number in range(4))
        # The same version with other content: one of the two gets it.
        self._later.append(_version("1.3.0", 4, frames))
        body = {"drill": True, "mark": BRIEF, "kept_ms": rng.choice((0, 500, 5_000))}
        self._brief = Definition("aside", "brief", "1.0.0", body)
        self._cell = Definition("drill", "cell", "1.0.0", {"cell": True})
        # What a run tells is for cells of its own dialect.
        self._cell_aside = Definition("aside", "cell-aside", "1.0.0", {"cell": True})
        self.definitions = [self._drill, self._brief, self._cell, self._cell_aside]
        self._bodies = {one.digest: one.body for one in (*self.definitions, *self._later)}
        # Runs that somebody asked to move, and to which definition.
        self._asked_to_move: set[tuple[str, str]] = set()
        self.performers: Mapping[str, Performer] = {"work": perform}
        self._rng = rng
        # Under each id the programs with which it was asked for.
        self._programs: dict[str, list[Any]] = {}
        self._cancelled: set[str] = set()
        self._retried: set[str] = set()
        self._forks: list[ForkWanted] = []
        # Gifts that are equal are one payload, which is somebody's for longer.
        self._gifts = 0
        self._signals = 0

    def endless(self, workflow: str) -> bool:
        return workflow in ("cell", "cell-aside")

    # --- the script ---

    def actions(self, rng: Random) -> list[Action]:
        found: list[Action] = []
        crowd_ms = rng.randrange(5_000)
        for number in range(rng.randrange(3, 11)):
            run = f"run-{number}"
            program = self._program(depth=0)
            self._programs[run] = [program]
            at_ms = rng.randrange(5_000)
            if rng.random() < 0.5:
                # Several come at once, so that there are some who wait for each other.
                at_ms = crowd_ms + rng.randrange(20)
                if rng.random() < 0.5:
                    program["lanes"].append([{"do": "grind", "count": rng.randrange(*GRINDS)}])
            start = self._start(run, f"start {run}", at_ms, program, rng)
            found += [start, *self._second_starts(start, rng)]
            found += self._signal_actions(run, program, at_ms, rng)
            if rng.random() < 0.15:
                self._cancelled.add(run)
                cancel = Cancel(reason="enough")
                late = at_ms + rng.randrange(5_000)
                found.append(Action(f"cancel {run}", late, run, cancel, after=f"start {run}"))
            found += self._steering(run, program, at_ms, rng)
        return found

    def _start(self, run: str, name: str, at_ms: int, program: Any, rng: Random) -> Action:
        event = Started(definition=self._drill.digest, input=program, seed=rng.randbytes(16))
        create = NewRun("drill", "drill", self._drill.version, self._drill.digest)
        return Action(name, at_ms, run, event, create=create)

    def _second_starts(self, start: Action, rng: Random) -> list[Action]:
        """Others ask for the same id: at once, while it is under way, when it has ended; for the same, or for something
        else, and whoever comes first has it."""
        found = []
        for number in range(rng.choice((0, 0, 1, 2))):
            name, run = f"{start.name} again {number}", start.run
            at_ms = start.at_ms + rng.choice((0, rng.randrange(10), rng.randrange(10_000)))
            if rng.random() < 0.6:
                event = msgspec.structs.replace(start.event, seed=rng.randbytes(16))
                found.append(replace(start, name=name, at_ms=at_ms, event=event))
                continue
            other = self._program(depth=1)
            self._programs[run].append(other)
            found.append(self._start(run, name, at_ms, other, rng))
        return found

    def deploys(self) -> list[NextVersion]:
        return [NextVersion(self._rng.randrange(8_000), definition) for definition in self._later]

    def schedules(self) -> list[Planned]:
        """In every second world."""
        rng = self._rng
        program = {"lanes": [[{"do": "work", "value": 1}, {"do": "timer", "ms": rng.randrange(1, 4_000)}]]}
        return [
            Planned(
                at_ms=rng.randrange(3_000),
                for_ms=rng.randrange(3_000, 15_000),
                name=f"tick-{number}",
                workflow=rng.choice(("drill", "brief")),
                input=program,
                every_s=rng.randrange(1, 5),
                overlap=rng.choice(("allow", "queue")),
            )
            for number in range(rng.choice((0, 0, 1, 2)))
        ]

    def _steering(self, run: str, program: Any, at_ms: int, rng: Random) -> list[Action]:
        """Patches; and for runs that wait for nobody's signal, retries and forks."""
        found: list[Action] = []
        for number in range(rng.choice((0, 0, 1, 2))):
            when = at_ms + rng.randrange(8_000)
            event = Patch(data={"token": f"{run}/{number}"})
            found.append(Action(f"patch {run} {number}", when, run, event, after=f"start {run}"))
        if any(op["do"] == "signal" and "ms" not in op for lane in program["lanes"] for op in lane):
            return found
        if possible_ends(program) != {"completed"}:
            self._retried.add(run)
            for number in range(2):
                when = at_ms + rng.randrange(30_000)
                again = Retry(how={"number": number}, definition=self._another(run))
                found.append(Action(f"retry {run} {number}", when, run, again, after=f"start {run}"))
        elif rng.random() < 0.3:
            self._forks.append(ForkWanted(at_ms + rng.randrange(8_000), run, f"{run}-fork"))
        return found

    def _another(self, run: str) -> str | None:
        """Now and then a run is asked to go on under another version."""
        if self._rng.random() < 0.5:
            return None
        chosen = self._rng.choice(self._later).digest
        self._asked_to_move.add((run, chosen))
        return chosen

    def forks(self) -> list[ForkWanted]:
        return self._forks

    def _signal_actions(self, run: str, program: Any, at_ms: int, rng: Random) -> list[Action]:
        found = []
        for lane in program["lanes"]:
            for op in lane:
                if op["do"] == "signal" and "ms" not in op:
                    self._signals += 1
                    name = f"signal {run} {op['name']} {self._signals}"
                    event = Signal(name=op["name"], data={"token": self._signals})
                    keyed = (f"run:{run}", f"signal:{self._signals}") if rng.random() < 0.8 else None
                    when = at_ms + rng.randrange(10_000)
                    found.append(Action(name, when, run, event, submission=keyed, after=f"start {run}"))
        return found

    def _program(self, depth: int) -> Any:
        rng = self._rng
        lanes = [[self._op(depth) for _ in range(rng.randrange(1, 5))] for _ in range(rng.randrange(1, 4))]
        if len(lanes) > 1 and rng.random() < 0.15:
            lanes[0].append({"do": "drop", "lane": len(lanes) - 1})
        if depth == 0 and rng.random() < 0.3:
            lanes.append(self._handed())
        return {"lanes": lanes}

    def _handed(self) -> list[Op]:
        """A payload that one run makes and another one goes on with, when the first may be gone."""
        rng = self._rng
        self._gifts += 1
        nap: Op = {"do": "timer", "ms": rng.randrange(1, 8_000)}
        if rng.random() < 0.5:
            made: Op = {
                "do": "child",
                "workflow": "brief",
                "program": {"lanes": [[{"do": "gift", "value": self._gifts}]]},
            }
            return [made, nap, {"do": "reread", "of": 0}]
        heirs = {"lanes": [[nap, {"do": "reread", "of": None}]]}
        return [
            {"do": "gift", "value": rng.randrange(1_000)},
            {"do": rng.choice(("child", "start")), "program": heirs, "hand": 0},
        ]

    def _op(self, depth: int) -> Op:
        rng = self._rng
        kinds = ["work", "work", "flaky", "timer", "careful", "many", "deliver", "late", "invalid", "task"]
        kinds += ["pay", "once"]
        if depth < 2:
            kinds += ["child", "start"]
        if depth == 0:
            kinds += ["signal", "signal", "signal_late", "child", "orphan", "blob"]
        if rng.random() < 0.03:
            return {"do": rng.choice(("fail", "crash"))}
        kind = rng.choice(kinds)
        match kind:
            case "flaky":
                return {"do": kind, "value": 7, "fails": rng.randrange(1, 4), "ms": rng.randrange(2_000)}
            case "pay":
                return {"do": kind, "fails": rng.randrange(3), "ms": rng.randrange(2_000)}
            case "timer" | "late":
                return {"do": kind, "ms": rng.randrange(1, 20_000)}
            case "many":
                return {"do": kind, "count": rng.randrange(1, 7)}
            case "deliver":
                cell = f"cell-{rng.randrange(2)}"
                return {
                    "do": kind,
                    "cell": cell,
                    "definition": self._cell.digest,
                    "aside": self._cell_aside.digest,
                    "value": rng.randrange(100),
                }
            case "signal":
                return {"do": "signal", "name": rng.choice("ab")}
            case "signal_late":
                return {"do": "signal", "name": "nobody", "ms": rng.randrange(1, 20_000)}
            case "child" | "start":
                chosen = "brief" if rng.random() < BRIEF_SHARE else "drill"
                return {"do": kind, "workflow": chosen, "program": self._program(depth + 1)}
            case "orphan":
                return {"do": "child", "workflow": "nowhere", "program": {"lanes": []}}
            case _:
                return {"do": kind, "value": rng.randrange(1_000)}

    # --- the oracle ---

    def recorded(self, life: RunLife, record: dict[str, Any]) -> None:
        """A record was committed: it was decided by the definition with which its run began, but for those that somebody
        asked to move."""
        event, where = record["event"], f"{life.id}#{record['seq']}"
        if record["kind"] != "started" and "definition" in event:
            asked = record["kind"] == "retry" and (life.id, event["definition"]) in self._asked_to_move
            assert asked, f"{where}: the run moves to another definition, and nobody asked it to"
        mark = self._bodies[life.definition].get("mark")
        for shown in record.get("events", ()):
            assert shown["type"] != "drill.step" or shown["by"] == mark, (
                f"{where} is decided by definition {shown['by']}, and its run is under {mark}"
            )

    def kept_ns(self, definition: str) -> int:
        return DrillMachine().retention_ns(self._bodies[definition])

    def check(self, world: SimWorld) -> None:
        lives = world.journals.all_lives()
        assert {life.id for life in lives} >= self._programs.keys(), "a run that was started is not there"
        forks = {fork.new_id: fork.run for fork in world.keeper.forked}
        for life in lives:
            if (asked := self._programs.get(forks.get(life.id, life.id))) is None:
                continue
            if life.id in forks:
                self._check_fork(life, asked)
                continue
            program = life.records[0]["event"]["input"]
            assert program in asked, f"{life.id} was started with {program}, which nobody asked for"
            self._check_end(life, program)

    def _check_fork(self, life: RunLife, asked: list[Any]) -> None:
        """It goes on with one of the programs that its original may have had."""
        for program in asked[:-1]:
            # What another program gave may be of any shape.
            with suppress(AssertionError, ValueError, TypeError):
                self._check_end(life, program)
                return
        self._check_end(life, asked[-1])

    def _check_end(self, life: RunLife, program: Any) -> None:
        last, run = life.records[-1], life.id.removesuffix("-fork")
        allowed = possible_ends(program)
        if run in self._cancelled:
            allowed = allowed | {"cancelled"}
        if run in self._retried:
            allowed = allowed | {"completed"}
        assert last["status"] in allowed, f"{life.id} is {last['status']}: {last.get('error')}"
        if last["status"] == "completed":
            check_result(program, last["result"], life.id)


def _version(version: str, mark: int, frames: bool) -> Definition:
    return Definition("drill", "drill", version, {"drill": True, "frames": frames, "mark": mark})
