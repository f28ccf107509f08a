"""What an agent run asks of the outside, as small protocols: providers of models, skills, MCP.

A provider answers three kinds of question: `turn` (one answer of the model at a node), `choose` (a
conditional edge), `ask` (a judge, a reflection). It raises `ProviderError` for what went wrong on
its side, saying whether asking again may help; waiting is never its business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value


class ProviderError(TreadleError):
    """A model's provider did not answer. Its message says what it said."""

    cls = "transport"
    code = "PROVIDER_FAILED"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        details: dict[str, Any] = {"retryable": retryable}
        if retry_after_s is not None:
            details["retry_after_s"] = retry_after_s
        super().__init__(message, code=code, details=details)


# Structs: some of these are made with every turn.
class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model is told of it."""

    name: str
    description: str
    input_schema: dict[str, Any]


async def _no_context() -> dict[str, Any]:
    return {}


async def _no_history() -> list[dict[str, Any]]:
    return []


async def _silent(message: str) -> None:
    return None


class TurnRequest(msgspec.Struct, kw_only=True):
    """One answer of the model at a node.

    `context` and `history` are loaded when they are asked for. History is a list of neutral
    messages: `{"role": "assistant", "text", "calls", "native"?}` and `{"role": "tool", "results"}`;
    `results` are those of the last answer's calls, which are not in the history yet.
    `disallowed_tools` names tools of the provider's own that the model must not have at this node
    (never skill tools); a provider that adds none has nothing to leave out.
    """

    node: str
    iteration: int
    attempt: int
    turn: int
    nth: int
    instruction: str
    tools: Sequence[ToolSpec] = ()
    model: str | None = None
    max_turns: int = 50
    output_schema: dict[str, Any] | None = None
    mcp_servers: Sequence[str] = ()
    disallowed_tools: Sequence[str] = ()
    results: Sequence[Mapping[str, Any]] = ()
    context: Callable[[], Awaitable[dict[str, Any]]] = _no_context
    history: Callable[[], Awaitable[list[dict[str, Any]]]] = _no_history
    progress: Callable[[str], Awaitable[None]] = _silent


class TurnReply(msgspec.Struct, kw_only=True):
    """Either `calls` (`{"id", "tool", "input"}` each), or a result: `status` and `data`."""

    calls: list[dict[str, Any]] = []
    status: str = "success"
    data: Value = None
    text: str = ""
    usage: dict[str, Any] = {}
    # The provider's own form of this answer, handed back to it with the history.
    native: Value = None


class ChooseRequest(msgspec.Struct, kw_only=True):
    node: str
    iteration: int
    nth: int
    question: str
    choices: list[dict[str, str]]
    model: str | None = None
    context: Callable[[], Awaitable[dict[str, Any]]] = _no_context


class ChooseReply(msgspec.Struct, kw_only=True):
    """`choice` is the id of a choice, or None for none of them."""

    choice: Value = None
    usage: dict[str, Any] = {}


class AskRequest(msgspec.Struct, kw_only=True):
    """`nth` counts the questions of the run, `node_nth` those of the node."""

    instruction: str
    model: str | None = None
    nth: int = 1
    node: str = ""
    node_nth: int = 1


class AskReply(msgspec.Struct, kw_only=True):
    text: str = ""
    usage: dict[str, Any] = {}


class Provider(Protocol):
    """Access to models. `default_model` serves where nobody names one, `small_model` judges.

    Two more attributes may be there. `instant`: a turn never waits, so that it needs no event loop. `pure`: a turn
    touches nothing outside and costs nothing, so that it may be done before it is durable.
    """

    default_model: str | None
    small_model: str | None
    # Whether it wants the messages of earlier turns; if not, none are stored.
    keeps_history: bool

    async def turn(self, request: TurnRequest) -> TurnReply: ...

    async def choose(self, request: ChooseRequest) -> ChooseReply: ...

    async def ask(self, request: AskRequest) -> AskReply: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a running MCP server. `idempotent`: repeating it does no harm, says the server."""

    name: str
    server: str
    own_name: str
    description: str
    input_schema: dict[str, Any]
    idempotent: bool = False


class McpSession(Protocol):
    """The MCP servers of one visit of a node."""

    @property
    def tools(self) -> Mapping[str, McpTool]: ...

    async def call(self, tool: McpTool, input: dict[str, Any]) -> Value:
        """The tool's output. Raises ToolError with what the server said."""
        ...


class Visit(NamedTuple):
    """One attempt at a node, as its run knows it: the key of its MCP session."""

    run: str
    session: str


class McpSessions(Protocol):
    async def open(self, key: Visit, servers: Mapping[str, McpServer], taken: Sequence[str]) -> McpSession:
        """The session of this visit, started if it is not running. `taken` are names of other tools;
        a tool of a server that clashes goes by `<server>__<tool>`."""
        ...

    async def release(self, key: Visit) -> None:
        """The visit is over: its servers are stopped."""
        ...


@dataclass(frozen=True, slots=True)
class McpServer:
    """How to reach one server; `env` and `headers` hold real values and must not be recorded."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    cwd: str | None = None
