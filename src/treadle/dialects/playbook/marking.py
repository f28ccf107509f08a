"""The marking of a run, and one turn of the machine over it.

PlaybookState is canonical values only. Tokens are `ready` (to be admitted), `pending` (denied, parked) or
`running`. TokenState ids are counted, and canonical key order of counted ids is their order of birth, so
iterating them is the same before and after a snapshot.

What it opens is labelled by a `Ref`: the token, the iteration where there is one, and what the intent is for. `7` is
the step-run of token 7, `7.3` its iteration 3, `7.3!on` what that iteration waits for, `7!due` the end of its
lifecycle. Journals hold them as text.

A `Turn` collects one decision. It has room for so many intents and events; what does not fit waits
in the marking and is done at the machine's own next record (`Decision.more`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec
from msgspec.structs import replace

from treadle.kernel.errors import LimitExceeded
from treadle.kernel.model import Context, Decision, Intent, Status, is_reference
from treadle.kernel.values import Value, decode_trusted, encode

from .handles import StepResults, TemplateScope, is_stored
from .model import Playbook, Step
from .pipeline import canonical as canonical
from .pipeline import write
from .reference_form import by_reference
from .slices import SLICES, Slices
from .templates import Tree

if TYPE_CHECKING:
    from .states import PlaybookState, StepEntry, TokenState

# Where a record is full, what is larger than this goes by reference. A reference has about half of it.
SPARE_BYTES_MAX: Final = 2048

Mark = Literal["", "due", "on", "lease", "keychain", "args", "keep"]


class Ref(msgspec.Struct, frozen=True):
    """`mark` says what for: the work itself (""), the lifecycle's end (`due`), what a pipeline waits for (`on`), a
    lease of iterations (`lease`), the proof of the keychain (`keychain`). 0.1.0 also had arguments rendered by a
    worker (`args`) and chunks of results kept by one (`keep`, counted by `part`)."""

    token: str
    iteration: int | None = None
    mark: Mark = ""
    part: int | None = None

    def __str__(self) -> str:
        head = self.token if self.iteration is None else f"{self.token}.{self.iteration}"
        tail = self.mark if self.part is None else f"{self.mark}{self.part}"
        return f"{head}!{tail}" if tail else head

    @classmethod
    def parse(cls, text: str) -> Ref:
        if text.isdigit():  # the step-run of a token, as most are
            return cls(text)
        head, _, tail = text.partition("!")
        token, _, index = head.partition(".")
        iteration = int(index) if index else None
        if tail.startswith("keep"):
            return cls(token, iteration, "keep", int(tail[4:]))
        return cls(token, iteration, cast("Mark", tail))

    @property
    def base(self) -> Ref:
        """The work that it stands beside."""
        return replace(self, mark="", part=None)

    def marked(self, mark: Mark, part: int | None = None) -> Ref:
        return replace(self, mark=mark, part=part)


# The proof of the keychain.
KEYCHAIN: Final = Ref("", mark="keychain")


def new_state(workload: dict[str, Value]) -> PlaybookState:
    return {
        "workload": workload,
        "ctx": {},
        "steps": {},
        "tokens": {},
        "ready": [],
        "parked": [],
        "joins": {},
        "failures": [],
        "halted": [],
        "n": 0,
        "done": 0,
        "failed": 0,
        "branches": 0,
        "phase": "flow",
        "last": None,
        "backlog": [],
    }


class Turn:
    """One decision in the making."""

    def __init__(
        self, playbook: Playbook, state: PlaybookState, ctx: Context, slices: Slices = SLICES
    ) -> None:
        self.playbook, self.state, self.ctx, self.slices = playbook, state, ctx, slices
        # What an earlier record had no room for happened before anything of this one.
        backlog = state["backlog"]
        self.events: list[dict[str, Value]] = backlog[: slices.events]
        if backlog:
            state["backlog"] = backlog[slices.events :]
        self.intents: list[Intent] = []
        self.cancelled: list[str] = []
        self.bytes = 0
        self.stored = 0
        self.ctx_changed = False
        self.again = False
        # Which rules the run was started under (`edition`): those of 0.1.0?
        self.first = ctx.machine < 2
        # Does the machine do steps by itself that only wait (since version 3)?
        self.takes_waits = ctx.machine >= 3
        # The scratchpad a step-run starts with: empty, or its caller's iteration as the parent.
        parent = ctx.options.get("iter")
        self.own_iter: dict[str, Value] = {"parent": parent} if parent else {}
        self.status: Status | None = None
        self.result: Value = None
        self.error: dict[str, Value] | None = None

    @property
    def room(self) -> bool:
        return (
            len(self.intents) < self.slices.intents
            and len(self.events) < self.slices.events
            and self.bytes < self.slices.bytes
            and self.stored < self.slices.stored_bytes
        )

    def emit(self, type: str, **data: Value) -> None:
        self.tell({"type": type, **data})

    def tell(self, event: dict[str, Value]) -> None:
        """An event that is there already: those of a step that are always the same are made when it is loaded."""
        if self.state["backlog"] or len(self.events) >= self.slices.events_hard:
            self.state["backlog"].append(event)
        else:
            self.events.append(event)

    def open(self, intent: Intent, size: int | None = None) -> None:
        """`size` is that of its params, where somebody has measured them already."""
        self.bytes += len(encode(intent.params)) if size is None else size
        self.intents.append(intent)

    def cancel(self, ref: str) -> None:
        """Takes back one intent, whether it is open already or was about to be opened."""
        kept = [intent for intent in self.intents if intent.ref != ref]
        if len(kept) != len(self.intents):
            self.intents = kept
        else:
            self.cancelled.append(ref)

    def open_refs(self, token: str) -> list[str]:
        """The refs of everything open for one token."""
        refs = [intent.ref for intent in self.ctx.open.values()] + [intent.ref for intent in self.intents]
        found = [ref for ref in dict.fromkeys(refs) if Ref.parse(ref).token == token]
        return [ref for ref in found if ref not in self.cancelled]

    def decision(self) -> Decision:
        again = self.again or bool(self.state["backlog"])
        return Decision(
            state=self.state,
            events=self.events,
            intents=self.intents,
            cancel=self.cancelled,
            status=self.status,
            result=self.result,
            error=self.error,
            more={"go": True} if again and self.status is None else None,
        )

    # --- what is too large for the journal ------------------------------------------------------

    def store(self, value: Value, schema_hint: str | None = None) -> dict[str, Value]:
        """Puts a value away, whatever its size."""
        reference = self.ctx.store(value, schema_hint=schema_hint)
        self.stored += reference["size"]
        return reference

    def light(self, value: Value, limit: int | None = None) -> Value:
        """The value itself while it is small, else a reference to it."""
        if self.first:
            return value
        if is_reference(value):
            # What people sent in was put away where it came in, and has no address yet.
            bare = "kind" not in value and "path" not in value
            return canonical(by_reference(self.ctx.run, self.ctx.blob(value), value)) if bare else value
        limit = self.playbook.inline_bytes_max if limit is None else limit
        if is_stored(value) or len(encode(value)) <= limit:
            return value
        return canonical(by_reference(self.ctx.run, value, self.store(value)))

    def light_args(self, args: dict[str, Value]) -> dict[str, Value]:
        """Arguments, small as a whole: the largest go by reference first."""
        limit = self.playbook.inline_bytes_max
        if not args or self.first or len(encode(args)) <= limit:
            return args
        out = dict(args)
        sizes = {name: len(encode(value)) for name, value in args.items()}
        left = sum(sizes.values()) + sum(map(len, sizes))
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            if left <= limit or sizes[name] <= min(limit, SPARE_BYTES_MAX):
                break
            out[name] = self.light(args[name], 0)
            left += len(encode(out[name])) - sizes[name]
        return out

    def arc_args(self, args: Tree, scope: TemplateScope) -> dict[str, Value]:
        """The arguments of an arc, in canonical order and small as a whole, encoded once if at all."""
        limit = self.playbook.inline_bytes_max
        size = args.at_hand_bytes_max
        if size is not None and size <= limit and (at_hand := args.at_hand(scope)) is not None:
            return at_hand  # the keys of a definition stand in canonical order
        if not (rendered := args.arguments(scope)):
            return {}
        body = encode(rendered)
        made: dict[str, Value] = decode_trusted(body)
        return made if len(body) <= limit else self.light_args(made)

    def light_params(self, params: dict[str, Value]) -> tuple[dict[str, Value], int | None]:
        """What a worker is told, small enough for a record, however many names a step's templates have; and its
        size, where it is known."""
        if self.first:
            return params, None
        if "ctx" in params:
            params["ctx"] = {key: self.light(value) for key, value in params["ctx"].items()}
        if (size := len(encode(params))) <= self.slices.bytes:
            return params, size
        for scope in ("workload", "ctx", "args"):
            if scope in params:
                kept = {key: self.light(value, SPARE_BYTES_MAX) for key, value in params[scope].items()}
                params[scope] = kept
        for entry in params.get("steps", {}).values():
            if "result" in entry:
                entry["result"] = self.light(entry["result"], SPARE_BYTES_MAX)
        return params, None

    def _recorded(self, value: Value) -> Value:
        """A value that this record shows, whatever else it has to show."""
        size = len(encode(value))
        full = self.bytes + size > self.slices.bytes
        kept = self.light(value, min(SPARE_BYTES_MAX, self.playbook.inline_bytes_max) if full else None)
        self.bytes += size if kept is value else len(encode(kept))
        return kept

    # --- ctx and names -------------------------------------------------------------------------

    def patch(
        self, writes: list[list[Value]], shown: list[list[Value]] | None = None, /, **about: Value
    ) -> None:
        """Applies writes to ctx, records them (or what is `shown` for them), and has parked tokens
        looked at again."""
        if not writes:
            return
        if shown is None and not self.first:
            writes = [[path, self._recorded(value)] for path, value in writes]
        ctx = self.state["ctx"]
        for path, value in writes:
            write(ctx, path, value)
        self.ctx_changed = True
        self.emit("ctx.patched", **about, data=dict(writes if shown is None else shown))

    def scope(
        self, args: Mapping[str, Value], *, iteration: Mapping[str, Value] | None = None, **names: object
    ) -> TemplateScope:
        """The names that guards, admission and arguments see."""
        state, run = self.state, self.ctx.run
        ctx, workload = state["ctx"], state["workload"]
        iteration = iteration if iteration is not None else self.own_iter
        fixed = {
            "workload": workload,
            "ctx": ctx,
            "args": args,
            "input": args,
            "iter": iteration,
            "execution_id": run,
            "job": {"uuid": run, "execution_id": run},
            **names,
        }
        layers = (args, ctx, iteration, workload, StepResults(state["steps"]))
        return TemplateScope(fixed, layers, self.playbook.steps)

    # --- tokens --------------------------------------------------------------------------------

    def place(
        self,
        step: str,
        args: dict[str, Value],
        event: Mapping[str, Value],
        source: str | None,
        *,
        ready: bool = True,
        light: bool = False,
    ) -> str:
        """Puts a token on a step; `drive` admits and starts it. A token that is not ready yet waits
        for its arguments to be stored. `light` says that `args` are as small as they will be."""
        state = self.state
        if len(state["tokens"]) >= self.slices.tokens and self.ctx.machine > 1:
            raise LimitExceeded(
                f"more than {self.slices.tokens:,} tokens at once, the last on {step!r}: its arcs make more than they "
                "consume; join branches (admit.join), or let mode be exclusive"
            )
        state["n"] += 1
        token: TokenState = {
            "step": step,
            "status": "ready" if ready else "storing",
            "args": args if light else self.light_args(args),
        }
        target = self.playbook.steps[step]
        if target.admit is not None or target.join is not None:
            token["event"] = dict(event)
        if source is not None:
            token["from"] = source
        name = str(state["n"])
        state["tokens"][name] = token
        if ready:
            state["ready"].append(name)
        return name

    def entry(self, step: Step) -> StepEntry:
        steps = self.state["steps"]
        if (entry := steps.get(step.name)) is None:
            entry = steps[step.name] = {"status": "running", "runs": 0, "active": 0}
        return entry


def status_of(state: PlaybookState) -> Status:
    if state.get("hard"):
        return "failed"
    if state["failures"]:
        return "partial" if state.get("succeeded") else "failed"
    return "completed"


def run_result(turn: Turn) -> Value:
    """The result of final_step if it ran, of the step a caller asked for, else of the last to end."""
    state = turn.state
    name = turn.ctx.options.get("return_step") or state.get("closing") or state["last"]
    entry = state["steps"].get(name) if name else None
    return entry.get("result") if entry is not None else None
