"""Performs the `step` intents of playbooks.

One intent is one step-run, one loop iteration, or a lease of many iterations; small errands of the
machine (prove the keychain, keep loop results, render large arguments) come the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from treadle.dialects.playbook import errands
from treadle.dialects.playbook.errands import errand_of, is_step_run
from treadle.dialects.playbook.model import SUSPENDING, Playbook, Step, Task
from treadle.dialects.playbook.pipeline import told_when_done
from treadle.kernel.errors import SecretMissing, TreadleError
from treadle.kernel.model import OpenIntent
from treadle.secrets.providers import Secrets
from treadle.tools.protocol import Tool, is_sync
from treadle.tools.registry import UnknownTool
from treadle.work.job import Done, Job, StaysOpen

from .keychain import KeychainReader
from .pipeline import PipelineRun, Tools
from .places import FileOf, say_line
from .results import render_args
from .saving import Lookout

# So many are remembered.
NATURES_MAX: Final = 10_000


class PlainTools:
    """A plain mapping of tools behind the same protocol, for tests and small programs."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        self._asked = 0

    @property
    def changes(self) -> int:
        """A mapping may be changed at any time, and does not say so."""
        self._asked += 1
        return self._asked

    def get(self, kind: str, config: Mapping[str, Any] | None = None) -> Tool:
        if kind not in self._tools:
            raise UnknownTool(f"no tool of kind {kind!r} is known here")
        return self._tools[kind]

    def is_idempotent(self, kind: str, config: Mapping[str, Any]) -> bool:
        return self.get(kind, config).idempotent

    def is_pure(self, kind: str, config: Mapping[str, Any]) -> bool:
        return config.get("pure") is True


class Nature(msgspec.Struct):
    """What the tools of a step's tasks say of it, as long as they are those that were asked."""

    step: Step
    changes: int
    # All are plain functions, so that no event loop is needed.
    is_plain: bool
    # None touches anything outside, and one does something.
    is_pure: bool
    # What is told of it when it is done, where that is always the same (`Step.is_plain`).
    told: list[dict[str, Any]] | None


class PipelinePerformer:
    """`performer = PipelinePerformer(tools)`; `await performer(job)` is one step-run."""

    def __init__(
        self,
        tools: Tools | Mapping[str, Tool],
        secrets: Secrets | None = None,
        *,
        file_of: FileOf | None = None,
    ) -> None:
        self._file_of = file_of
        self._tools: Tools = PlainTools(tools) if isinstance(tools, dict) else tools  # type: ignore[assignment]  # mypy does not narrow a union by `dict` here
        self._secrets = secrets
        # By the identity of the step, which is that of its loaded definition.
        self._natures: dict[int, Nature] = {}
        self._lookout = Lookout()

    async def __call__(self, job: Job) -> Done:
        return await self.perform(job)

    async def perform(self, job: Job) -> Done:
        params = job.intent.params
        is_run = is_step_run(params)
        if not is_run and isinstance(errand := errand_of(params), errands.Keep):
            return Done(value=await job.store_blob(errand.chunk, schema_hint="loop results"))
        playbook = await job.load_definition()
        if not isinstance(playbook, Playbook):
            raise StaysOpen(f"the definition of {job.workflow} cannot be loaded here")
        keychain = KeychainReader(playbook, job, self._secrets) if playbook.keychain else None
        if is_run:
            told = self._nature(playbook.steps[params["step"]]).told
            run = PipelineRun(
                self._tools,
                job,
                playbook,
                keychain,
                file_of=self._file_of,
                told=told,
                lookout=self._lookout,
            )
            return await run.run()
        if isinstance(errand, errands.Prove):
            keychain = keychain or KeychainReader(playbook, job, self._secrets)
            return await self._prove(job, keychain, errand.entries)
        if isinstance(errand, errands.Render):
            return Done(value=await render_args(job, playbook, errand))
        assert isinstance(errand, errands.Lease)
        from .lease import LeaseRun  # with all that loops need which one worker goes through

        return await LeaseRun(self._tools, job, playbook, keychain, errand, file_of=self._file_of).run()

    async def _prove(self, job: Job, keychain: KeychainReader, entries: list[str]) -> Done:
        try:
            await keychain.prove(entries)
        except SecretMissing as error:
            told = error.to_value()
            if self._file_of is not None:
                await say_line(told, None, job, self._file_of)
            raise SecretMissing(told["message"], details=error.details) from error
        return Done()

    def never_waits(self, intent: OpenIntent, definition: Any) -> bool:
        """Whether all tasks of the intent's step are plain functions, so that no loop is needed."""
        params = intent.params
        if not is_step_run(params):
            errand = errand_of(params)
            if isinstance(errand, errands.Keep):
                return True
            if isinstance(errand, errands.Prove):
                return False
            if isinstance(errand, errands.Render):
                return isinstance(definition, Playbook)
        if not isinstance(definition, Playbook):
            return False
        return self._nature(definition.steps[params["step"]]).is_plain

    def is_pure(self, intent: OpenIntent, definition: Any) -> bool:
        """Whether no task of the intent's step touches anything outside: each says so, or its function does. What does
        nothing at all does not make it impure, nor does it make it pure."""
        params = intent.params
        if not isinstance(definition, Playbook) or not is_step_run(params):
            return False
        return self._nature(definition.steps[params["step"]]).is_pure

    def _nature(self, step: Step) -> Nature:
        """Asked on the core's thread for each step-run, and found out once."""
        changes, found = self._tools.changes, self._natures.get(id(step))
        if found is None or found.step is not step or found.changes != changes:
            if len(self._natures) >= NATURES_MAX:
                self._natures.clear()
            told = told_when_done(step, iterates=step.loop is not None) if step.is_plain else None
            found = self._natures[id(step)] = Nature(step, changes, *self._judged(step), told)
        return found

    def _judged(self, step: Step) -> tuple[bool, bool]:
        if step.needs.keychain != []:
            return False, False
        does = [task for task in step.tasks if task.kind != "noop"]
        is_plain = all(self._is_plain(task) for task in does)
        return is_plain, bool(does) and all(self._is_pure(task) for task in does)

    def _is_pure(self, task: Task) -> bool:
        return task.kind not in SUSPENDING and self._tools.is_pure(task.kind, task.config.value_if_constant)

    def _is_plain(self, task: Task) -> bool:
        if task.kind in SUSPENDING:
            # Iterations of a loop come to wait in the order of their items on the loop; on threads they need not.
            return False
        try:
            tool = self._tools.get(task.kind, task.config.value_if_constant)
        except TreadleError:
            return False
        return is_sync(tool)
