"""`make demo`: real examples of every dialect on the embedded store, in a temporary folder, ending by itself.

It does what a user would do, through the command line, and shows it: first a run that is killed in the middle (SIGKILL, no
goodbye), taken up again and replayed; then a tour of the examples, each with the exit code it should have.
The demo fails when an example does, so that it cannot rot.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
TREADLE = Path(sys.executable).parent / "treadle"
PATIENCE_S = 60
LINES_SHOWN = 12

COMPLETED, WAITING = 0, 3


@dataclass(frozen=True)
class Command:
    """One `treadle …` of the tour, and how it should end. `{examples}` is the folder of this file."""

    line: str
    exit: int = COMPLETED


@dataclass(frozen=True)
class Stop:
    """One stop of the tour: an example and what to do with it."""

    title: str
    commands: tuple[Command, ...]


TOUR = (
    Stop(
        "Playbook: price an order, then ship and invoice at once",
        (
            Command("run {examples}/order.yaml -i 'items=[3, 4, 5]' --id order-17"),
            Command("trace order-17"),
            Command("graph order-17 --format mermaid"),
        ),
    ),
)

CRASH = """\
metadata: {name: nightly, version: "1"}
workflow:
"""
CRASH_STEP = """\
  - step: part_{number}
    tool:
      kind: python
      code: |
        import pathlib, time
        def main(witness, part):
            with pathlib.Path(witness).open("a") as log:
                log.write(f"{{part}}\\n")
            time.sleep(0.3)
            return part
      args: {{witness: "{{{{ workload.witness }}}}", part: {number}}}
"""
PARTS = 6


def say(text: str = "") -> None:
    print(text, flush=True)


def head(text: str) -> None:
    say(f"\n{text}\n{'─' * len(text)}")


def treadle(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TREADLE), *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}


def show(folder: Path, line: str, *, exit: int = COMPLETED) -> str:
    """Runs one command, prints it and what it says, and insists on how it ends."""
    say(f"\n$ treadle {line.format(examples=os.path.relpath(EXAMPLES))}")
    done = treadle(folder, shlex.split(line.format(examples=EXAMPLES)))
    lines = [text for text in done.stdout.splitlines() if text.strip()]
    for text in lines[:LINES_SHOWN]:
        say(f"  {text}")
    if len(lines) > LINES_SHOWN:
        say(f"  … {len(lines) - LINES_SHOWN} more lines")
    if done.returncode != exit:
        say("\n".join(lines[LINES_SHOWN:]))
        raise SystemExit(f"demo: `treadle {line}` ended with {done.returncode} and should with {exit}")
    return done.stdout


def nightly(folder: Path) -> Path:
    """A playbook of parts that take a moment each and leave a line in a witness file."""
    text = CRASH
    for number in range(1, PARTS + 1):
        text += CRASH_STEP.format(number=number)
        if number < PARTS:
            text += f"    next: {{arcs: [{{step: part_{number + 1}}}]}}\n"
    path = folder / "nightly.yaml"
    path.write_text(text, "utf-8")
    return path


def crash(folder: Path) -> None:
    head("Kill it in the middle")
    path, witness = nightly(folder), folder / "witness.log"
    line = f"run {path.name} -i witness={witness} --id nightly-1"
    say(
        f"\n$ treadle run {path.name} --id nightly-1        # {PARTS} parts; each leaves a line in a witness file"
    )
    running = subprocess.Popen(
        [str(TREADLE), *shlex.split(line)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while parts_seen(witness) < 3:
        if running.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("demo: the run ended before it could be killed")
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    say(f"  SIGKILL after part {parts_seen(witness)} of {PARTS} had begun")
    show(folder, "list")
    show(folder, "resume nightly-1")
    document = json.loads(show_quietly(folder, "show nightly-1 --json"))
    say(f"  {document['status']}; the witness saw parts {' '.join(witness.read_text('utf-8').split())}:")
    say("  whatever was finished is not done again; the interrupted part is, under the same idempotency key")
    show(folder, "replay nightly-1")


def show_quietly(folder: Path, line: str) -> str:
    return treadle(folder, shlex.split(line)).stdout


def parts_seen(witness: Path) -> int:
    return len(witness.read_text("utf-8").splitlines()) if witness.exists() else 0


def main() -> None:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="treadle-demo-") as name:
        folder = Path(name)
        say(f"Treadle, on one SQLite file: {folder / 'treadle.db'}")
        crash(folder)
        for stop in TOUR:
            head(stop.title)
            for command in stop.commands:
                show(folder, command.line, exit=command.exit)
        head("Every decision, decided again")
        show(folder, "replay --all")
        show(folder, "doctor")
    say(
        f"\nDone in {time.monotonic() - begin:.0f} s. The code of all this is in {os.path.relpath(EXAMPLES)}/."
    )


if __name__ == "__main__":
    main()
