"""`make demo`: real examples of every dialect on the embedded store, in a temporary folder, ending by itself.

It does what a user would do, through the command line, and shows it: first a run that is killed in the middle (SIGKILL, no
goodbye), taken up again and replayed; then a tour of the examples, each with the exit code it should have.
The demo fails when an example does, so that it cannot rot.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
PROGRAMS = {"treadle": Path(sys.executable).parent / "treadle", "python": Path(sys.executable)}
PATIENCE_S = 120
LINES_SHOWN = 20
RESULT_LINES_SHOWN = 6

COMPLETED, WAITING = 0, 3


@dataclass(frozen=True)
class Command:
    """One command of the tour, and how it should end. `TASK` is the id of the only open task."""

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
            Command("treadle run examples/order.yaml -i 'items=[3, 4, 5]' --id order-17"),
            Command("treadle trace order-17"),
            Command("treadle graph order-17 --format mermaid"),
        ),
    ),
    Stop(
        "Playbook: a parallel loop with a reducer; a policy that retries",
        (
            Command("treadle run examples/playbook/words.yaml -i text='the quick brown fox'"),
            Command("treadle run examples/playbook/retries.yaml -i succeeds_at=3"),
        ),
    ),
    Stop(
        "Playbook: a gate that a patch opens, then a person who decides",
        (
            Command("treadle run examples/playbook/approval.yaml --id trip-1", exit=WAITING),
            Command("treadle patch trip-1 budget=1000", exit=WAITING),
            Command("treadle task claim TASK --user ann --role boss"),
            Command("""treadle task complete TASK --user ann --data '{"answer": "yes"}'"""),
        ),
    ),
    Stop(
        "Process: a policy renewal that a person sends back once (Python builder)",
        (
            Command(
                "treadle run examples/process/renewal.py -i policy_id=P-7 -i claims=3 --id renewal-1",
                exit=WAITING,
            ),
            Command("treadle task claim TASK --user ann --role underwriter"),
            Command(
                """treadle task complete TASK --user ann --data '{"answer": "rework", "discount": 100}'""",
                exit=WAITING,
            ),
            Command("treadle task claim TASK --user ann --role underwriter"),
            Command("""treadle task complete TASK --user ann --data '{"answer": "approve"}'"""),
        ),
    ),
    Stop(
        "Process: an order with checks side by side and a warehouse with a deadline (YAML)",
        (
            Command(
                "treadle run examples/process/order.yaml -i order=o-1 -i customer=c-7"
                """ -i lines='[{"sku": "lamp", "count": 2}]' --id order-1""",
                exit=WAITING,
            ),
            Command("treadle task claim TASK --user wim --role warehouse"),
            Command("""treadle task complete TASK --user wim --data '{"ok": true}'"""),
        ),
    ),
    Stop(
        "Process: onboarding waits for a signal and for processes of its own",
        (
            Command(
                "treadle deploy examples/process/OpenAccount.yaml examples/process/Training.yaml"
                " examples/process/Welcome.yaml"
            ),
            Command(
                """treadle run examples/process/onboarding.yaml -i name="Ada Byron" --id ada""", exit=WAITING
            ),
            Command(
                """treadle signal --reference "Ada Byron" documents --data '["passport.pdf", "contract.pdf"]'""",
                exit=WAITING,
            ),
            Command("treadle task claim TASK --user tom --role trainer"),
            Command("""treadle task complete TASK --user tom --data '{"passed": true}'"""),
            Command("treadle show ada"),
        ),
    ),
    Stop(
        "Agent: a report is read, answered, judged and refined (by a scripted model, offline)",
        (
            Command(
                "treadle run examples/agent/triage/flow.yaml"
                " --model scripted:examples/agent/triage/script.json --id triage-1"
            ),
            Command("treadle trace triage-1"),
            Command(
                "treadle run examples/agent/research/flow.yaml"
                " --model scripted:examples/agent/research/script.json --id research-1"
            ),
        ),
    ),
    Stop(
        "Agent: release notes that a person approves",
        (
            Command(
                "treadle run examples/agent/release-notes/flow.yaml"
                " --model scripted:examples/agent/release-notes/script.json --id notes-1",
                exit=WAITING,
            ),
            Command("treadle tasks"),
            Command("treadle task claim TASK --user ann --role lead"),
            Command(
                """treadle task complete TASK --data '{"approved": true, "note": "ship it"}' --user ann --role lead"""
            ),
        ),
    ),
    Stop(
        "Reactive: an order that is charged, with a charge that fails twice",
        (
            Command(
                "treadle publish com.acme/OrderCreated@1 --app examples/reactive/order.py:app"
                """ --data '{"order_id": "o-1", "amount_cents": 500}'"""
            ),
            Command("treadle cell com.acme/order@1 o-1 --app examples/reactive/order.py:app"),
            Command("python examples/reactive/choreography.py"),
            Command("python examples/reactive/deadline.py"),
        ),
    ),
    Stop(
        "Functions: an order as a saga in Python, which waits for an approval",
        (
            Command(
                """treadle run examples/functions/order.py:order --input '{"id": "o-7", "cents": 500}' --id saga-1""",
                exit=WAITING,
            ),
            Command("treadle list --state stage=paid"),
            Command("treadle signal saga-1 approved --data true"),
            Command("treadle graph saga-1 --format mermaid"),
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


def perform(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Runs `treadle …` or `python …` of this installation."""
    program, *arguments = shlex.split(line)
    return subprocess.run(
        [str(PROGRAMS[program]), *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}


def show(folder: Path, command: Command) -> None:
    """Runs one command, prints it and what it says, and insists on how it ends."""
    line = command.line
    if "TASK" in line:
        line = line.replace("TASK", json.loads(perform(folder, "treadle tasks --json").stdout)[0]["id"])
    say(f"\n$ {line}")
    done = perform(folder, line)
    if done.returncode != command.exit:
        say(done.stderr + done.stdout)
        raise SystemExit(f"demo: it ended with {done.returncode} and should with {command.exit}")
    told = print_some(done.stderr, LINES_SHOWN)
    print_some(
        done.stdout, LINES_SHOWN - told if told < LINES_SHOWN - RESULT_LINES_SHOWN else RESULT_LINES_SHOWN
    )


def print_some(text: str, most: int) -> int:
    """Prints the first lines of what a command said; how many."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines[:most]:
        say(f"  {line}")
    if len(lines) > most:
        say(f"  … {len(lines) - most} more lines")
    return min(len(lines), most)


def nightly(folder: Path) -> Path:
    """A playbook of parts that take a moment each and leave a line in a witness file."""
    text = CRASH
    for number in range(1, PARTS + 1):
        text += CRASH_STEP.format(number=number)
        if number < PARTS:
            done = "{{ event.name == 'step.done' }}"
            text += f'    next: {{arcs: [{{step: part_{number + 1}, when: "{done}"}}]}}\n'
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
        [str(PROGRAMS["treadle"]), *shlex.split(line)],
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
    show(folder, Command("treadle list"))
    show(folder, Command("treadle resume nightly-1"))
    document = json.loads(perform(folder, "treadle show nightly-1 --json").stdout)
    say(f"\n  {document['status']}; the witness saw parts {' '.join(witness.read_text('utf-8').split())}.")
    say("  What was finished is not done again; the interrupted part is, under the same idempotency key.")
    show(folder, Command("treadle replay nightly-1"))


def parts_seen(witness: Path) -> int:
    return len(witness.read_text("utf-8").splitlines()) if witness.exists() else 0


def main() -> None:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="treadle-demo-") as name:
        folder = Path(name)
        shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        say(f"Treadle, on one SQLite file: {folder / 'treadle.db'}")
        crash(folder)
        for stop in TOUR:
            head(stop.title)
            for command in stop.commands:
                show(folder, command)
        head("Every decision, decided again")
        show(folder, Command("treadle replay --all"))
        show(folder, Command("treadle doctor"))
    say(
        f"\nDone in {time.monotonic() - begin:.0f} s. The code of all this is in {os.path.relpath(EXAMPLES)}/."
    )


if __name__ == "__main__":
    main()
