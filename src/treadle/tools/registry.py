"""Tools by kind: the built-in ones, those an application registers, those a plug-in brings.

Built-in tools are imported when they are first asked for, so that a bare `import treadle` pays for
none of them and a missing extra only matters to those who use it. What is registered by hand wins
over a built-in, and a built-in over a plug-in: installing a package never changes what `http` means.

An unknown kind is an `UnknownTool` error that names the remedy. It is for the caller to keep the
intent open then: the tool may be there after the next start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from treadle.kernel.errors import TreadleError
from treadle.lang.fields import Fields
from treadle.lang.slips import nearest

from .base import RESULT_BYTES_MAX
from .fields import BUILT_IN
from .functions import FunctionTool
from .protocol import Declares, Outcome, Tool, ToolCall

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["FunctionTool", "ToolRegistry", "UnknownTool", "checked_tool"]

ENTRY_POINTS = "treadle.tools"

_BUILT_IN: Mapping[str, str] = {
    "noop": "treadle.tools.noop:NoopTool",
    "python": "treadle.tools.python:PythonTool",
    "shell": "treadle.tools.shell:ShellTool",
    "http": "treadle.tools.http:HttpTool",
    "postgres": "treadle.tools.postgres:PostgresTool",
    "duckdb": "treadle.tools.duckdb:DuckDbTool",
    "nats": "treadle.tools.nats:NatsTool",
    "artifact": "treadle.tools.artifact:ArtifactTool",
    "transfer": "treadle.tools.transfer:TransferTool",
}
_ALIASES: Mapping[str, str] = {"result": "artifact", "resolve": "artifact", "result_fetch": "artifact"}
_EXTRAS: Mapping[str, str] = {"postgres": "postgres", "duckdb": "duckdb", "nats": "nats"}

F = TypeVar("F", bound=Callable[..., Any])


class UnknownTool(TreadleError, LookupError):
    """No tool of this kind is known here. Register one, or install the extra that brings it."""

    cls = "definition"
    code = "UNKNOWN_TOOL"


def _is_ours(tool: Tool) -> bool:
    """Whether a tool is the one that comes with Treadle, not one that was registered in its place."""
    place = _BUILT_IN.get(tool.kind, "")
    return f"{type(tool).__module__}:{type(tool).__name__}" == place


def _plugins(name: str | None = None) -> list[EntryPoint]:
    # Reading the installed packages' metadata costs 20 ms of imports, which most programs never need.
    from importlib.metadata import entry_points

    return [entry for entry in entry_points(group=ENTRY_POINTS) if name in (None, entry.name)]


@runtime_checkable
class _Runs(Protocol):
    """The least that a tool is; what it does not say of itself has a default."""

    kind: str

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome: ...


def checked_tool(plugin: object) -> Tool:
    """What somebody registers, if it is a tool."""
    if isinstance(plugin, _Runs) and isinstance(plugin.kind, str) and callable(plugin.run):
        return cast("Tool", plugin)
    raise TreadleError(
        f"{type(plugin).__name__} is neither a skill (treadle.agent.Skill) nor a tool "
        "(an object with `kind` and `async run(config, call)`); register one of these",
        cls="definition",
        code="PLUGIN_INVALID",
    )


class ToolRegistry:
    """All tools one worker can use. Tools are made once and closed with the registry."""

    def __init__(self, *, plugins: bool = True, result_bytes_max: int = RESULT_BYTES_MAX) -> None:
        self._plugins = plugins
        self.result_bytes_max = result_bytes_max
        self._tools: dict[str, Tool] = {}
        self._making = threading.Lock()
        self.callables: dict[str, FunctionTool] = {}
        self._has_pure = False
        # How often something was registered: what was asked of tools before may be otherwise since.
        self.changes = 0

    @property
    def registered(self) -> Collection[str]:
        """The kinds that were registered, or made, here."""
        return self._tools.keys()

    def admit(self, plugin: object) -> Tool:
        """Registers what somebody brings, if it is a tool."""
        return self.register(checked_tool(plugin))

    def register(self, tool: Tool) -> Tool:
        """Adds a tool, or replaces the one of the same kind."""
        self._tools[tool.kind] = tool
        self.changes += 1
        return tool

    def tool(self, kind: str, *, idempotent: bool = False, pure: bool = False) -> Callable[[F], F]:
        """`@registry.tool("slack")` over a `def` or `async def` makes it the tool of that kind. One that is
        `pure` touches nothing outside: it may be called before the decision to call it is durable."""

        def decorate(function: F) -> F:
            self.register(self._function(kind, function, idempotent, pure))
            return function

        return decorate

    def function(
        self, name: str | None = None, *, idempotent: bool = False, pure: bool = False
    ) -> Callable[[F], F]:
        """`@registry.function()` lets tasks call it in process: `{kind: python, callable: NAME}`."""

        def decorate(function: F) -> F:
            label = name or function.__name__
            self.callables[label] = self._function(f"python:{label}", function, idempotent, pure)
            self.changes += 1
            return function

        return decorate

    def get(self, kind: str, config: Mapping[str, Any] | None = None) -> Tool:
        """The tool for a task, or `UnknownTool`. With its `config`, a task that names a registered
        callable gets that function itself, so that `sync` and `idempotent` are the function's."""
        if config is not None and kind == "python" and config.get("callable") in self.callables:
            return self.callables[str(config["callable"])]
        kind = _ALIASES.get(kind, kind)
        if (tool := self._tools.get(kind)) is None:
            # Asked for by worker threads too: a tool holds connections, so there is one of each.
            with self._making:
                tool = self._tools.get(kind) or self._tools.setdefault(kind, self._make(kind))
        return tool

    def is_idempotent(self, kind: str, config: Mapping[str, Any]) -> bool:
        """Whether repeating this very task does no harm: what the task says itself, else what the
        tool says of such a task, else what it says of itself."""
        if isinstance(own := config.get("idempotent"), bool):
            return own
        if config.get("pure") is True:
            return True
        tool = self.get(kind, config)
        judge = getattr(tool, "idempotent_for", None)
        return bool(judge(config)) if judge else tool.idempotent

    def is_pure(self, kind: str, config: Mapping[str, Any]) -> bool:
        """Whether this very task touches nothing outside: what it says itself, else what its function says."""
        if isinstance(own := config.get("pure"), bool):
            return own
        if not self._has_pure:
            return False
        try:
            tool = self.get(kind, config)
        except UnknownTool:
            return False
        return isinstance(tool, FunctionTool) and tool.pure

    def declared(self, kind: str) -> Fields | None:
        """The fields that tasks of a kind have, if its tool says so. No built-in tool is made for it."""
        kind = _ALIASES.get(kind, kind)
        if (tool := self._tools.get(kind)) is None:
            if kind in _BUILT_IN or not self._plugins or not _plugins(kind):
                return BUILT_IN.get(kind)
            try:
                tool = self.get(kind)
            except Exception:  # a plug-in that cannot be loaded says nothing of its fields
                return None
        return tool.fields if isinstance(tool, Declares) else BUILT_IN.get(kind) if _is_ours(tool) else None

    def kinds(self) -> list[str]:
        """Every kind that can be asked for, plug-ins included; nothing is imported for it."""
        found = {*self._tools, *_BUILT_IN, *_ALIASES}
        if self._plugins:
            found.update(entry.name for entry in _plugins())
        return sorted(found)

    def __contains__(self, kind: object) -> bool:
        """Whether a kind can be asked for. The installed packages are looked through last: that takes long."""
        if kind in self._tools or kind in _BUILT_IN or kind in _ALIASES:
            return True
        return self._plugins and isinstance(kind, str) and bool(_plugins(kind))

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds())

    def __len__(self) -> int:
        return len(self.kinds())

    async def close(self) -> None:
        """Closes every tool that was made; one that fails does not keep the others open."""
        errors = []
        for tool in list(self._tools.values()):
            try:
                await tool.close()
            except Exception as error:
                errors.append(error)
        self._tools = {kind: tool for kind, tool in self._tools.items() if kind not in _BUILT_IN}
        if errors:
            raise ExceptionGroup("tools did not close", errors)

    def _make(self, kind: str) -> Tool:
        if kind in _BUILT_IN:
            module, _, name = _BUILT_IN[kind].partition(":")
            try:
                return self._instance(kind, getattr(import_module(module), name))
            except ImportError as error:
                raise UnknownTool(
                    f"the tool {kind!r} needs the package {error.name!r}: "
                    f"pip install 'treadle[{_EXTRAS.get(kind, 'dev')}]'",
                    details={"kind": kind, "missing": error.name},
                ) from error
        if self._plugins:
            for entry in _plugins(kind):
                return self._instance(kind, entry.load())
        raise self._unknown(kind)

    def _instance(self, kind: str, found: Any) -> Tool:
        """A tool of a class, of a factory on it that takes the registry, of a function, or as it is."""
        if isinstance(found, type):
            factory = getattr(found, "for_registry", None)
            return cast("Tool", factory(self) if factory else found())
        if hasattr(found, "run"):
            return cast("Tool", found)
        return self._function(kind, found, bool(getattr(found, "idempotent", False)))

    def _function(
        self, kind: str, function: Callable[..., Any], idempotent: bool, pure: bool = False
    ) -> FunctionTool:
        self._has_pure = self._has_pure or pure
        return FunctionTool(
            kind, function, idempotent=idempotent, pure=pure, result_bytes_max=self.result_bytes_max
        )

    def _unknown(self, kind: str) -> UnknownTool:
        near = nearest(kind, self.kinds())
        guess = f" Did you mean {near[0]!r}?" if near else ""
        return UnknownTool(
            f"no tool of kind {kind!r} is known here.{guess} Register one with @engine.tool({kind!r}), or install "
            f"a plug-in whose entry point in the group {ENTRY_POINTS!r} is named {kind!r}.",
            details={"kind": kind, "known": self.kinds()},
        )
