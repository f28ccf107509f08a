"""Claude, through Anthropic's own SDK: streamed, with tool use and structured results.

A node with declared output is given one more tool, `submit_result`, whose input schema is the
output; calling it is the result. That takes any JSON Schema, and leaves the other tools usable; if
it is called beside others, those are called first, and the result is asked for once more.
Retries are the engine's business, so the SDK's own are off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anthropic
import httpx2
from anthropic import AsyncAnthropic
from anthropic.types import Message

from treadle.performers.agent.api import (
    AskReply,
    AskRequest,
    ChooseReply,
    ChooseRequest,
    ProviderError,
    TurnReply,
    TurnRequest,
)

from . import prompt
from .prices import usage as priced
from .remote import RemoteModel, whole_answer
from .tool_names import Names

SUBMIT: Final = "submit_result"
MAX_TOKENS: Final = 16_000
# Thinking counts too, and is on by default with current models.
ANSWER_TOKENS: Final = 8_000
PROGRESS_CHARS: Final = 400
# What a server that speaks the language only roughly may leave out of a message.
_UNSAID: Final = {
    "id": "",
    "type": "message",
    "role": "assistant",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 0, "output_tokens": 0},
}


class AnthropicModel(RemoteModel[AsyncAnthropic]):
    key_name = "ANTHROPIC_API_KEY"
    default_model: str | None = "claude-sonnet-5-5"
    small_model: str | None = "claude-haiku-4-5"

    async def turn(self, request: TurnRequest) -> TurnReply:
        names = Names((tool.name for tool in request.tools), reserved=(SUBMIT,))
        tools: list[dict[str, Any]] = [
            {"name": names.fit(tool.name), "description": tool.description, "input_schema": tool.input_schema}
            for tool in request.tools
        ]
        if request.output_schema is not None:
            tools.append(
                {
                    "name": SUBMIT,
                    "description": "Hand in the result of this step. Call it once, when you are done.",
                    "input_schema": {"type": "object", **request.output_schema},
                }
            )
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": prompt.first_message(await request.context())}
        ]
        for message in await request.history():
            messages.append(_message(message))
        # Never forced: forced tool use and thinking exclude each other. Text with JSON in it will do.
        more = {"tools": tools, "tool_choice": {"type": "auto"}} if tools else {}
        answer = await self._send(
            request.model,
            MAX_TOKENS,
            messages,
            system=request.instruction or anthropic.omit,
            progress=request.progress,
            **more,
        )
        return _reply(answer, request, names)

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        text = prompt.question(request, await request.context())
        answer = await self._answer(request.model, text)
        return ChooseReply(choice=prompt.choice_of(_text(answer), request), usage=_usage(answer))

    async def ask(self, request: AskRequest) -> AskReply:
        answer = await self._answer(request.model, request.instruction)
        return AskReply(text=_text(answer), usage=_usage(answer))

    async def _answer(self, model: str | None, question: str) -> Any:
        answer = await self._send(model, ANSWER_TOKENS, [{"role": "user", "content": question}])
        if (reason := _stopped_short(answer, ANSWER_TOKENS)) is not None:
            raise prompt.no_answer(reason)
        return answer

    async def _send(
        self,
        model: str | None,
        max_tokens: int,
        messages: list[dict[str, Any]],
        *,
        progress: Callable[[str], Awaitable[None]] | None = None,
        **more: Any,
    ) -> Any:
        """One request, streamed; whole sentences of it are shown while it comes."""
        client = await self._connected()
        said = ""
        finished = False
        try:
            body: dict[str, Any] = {"model": model or self.default_model, "messages": messages, **more}
            async with client.messages.stream(max_tokens=max_tokens, **body) as stream:
                if (document := await whole_answer(stream.response)) is not None:
                    return Message.model_validate({**_UNSAID, "model": body["model"], **document})
                async for event in stream:
                    if event.type == "message_stop":
                        finished = True
                    elif event.type == "text" and progress is not None:
                        said += event.text
                        if len(said) >= PROGRESS_CHARS or said.endswith("\n"):
                            if said.strip():
                                await progress(said.strip())
                            said = ""
                if not finished:
                    raise ProviderError("the answer broke off", code="PROVIDER_CONNECTION", retryable=True)
                return await stream.get_final_message()
        except anthropic.APIStatusError as error:
            if error.status_code < 400:
                raise prompt.stream_error(error.body, error.message, error.response.headers) from error
            headers = error.response.headers
            raise self._refused(error.status_code, error.body, error.message, headers) from error
        except anthropic.APITimeoutError as error:
            raise ProviderError("the provider timed out", code="PROVIDER_TIMEOUT", retryable=True) from error
        except (anthropic.APIConnectionError, httpx2.TransportError) as error:
            raise ProviderError(
                f"the provider cannot be reached: {error}", code="PROVIDER_CONNECTION", retryable=True
            ) from error
        except ProviderError:
            raise
        except (
            anthropic.APIError,
            ValueError,
            TypeError,
            AttributeError,
            AssertionError,
            LookupError,
            RuntimeError,
        ) as error:
            raise ProviderError(
                f"the provider's answer cannot be read: {type(error).__name__}: {error}", code="REPLY_INVALID"
            ) from error

    def _make(self, key: str) -> AsyncAnthropic:
        return AsyncAnthropic(api_key=key, base_url=self._base_url, max_retries=0, timeout=self._timeout_s)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        results = [
            {
                "type": "tool_result",
                "tool_use_id": result["id"],
                "content": prompt.as_json(result["output"]) if "output" in result else str(result["error"]),
                "is_error": "error" in result,
            }
            for result in message["results"]
        ]
        return {"role": "user", "content": results}
    return {"role": "assistant", "content": message["native"]}


def _text(answer: Any) -> str:
    return "".join(block.text for block in answer.content if block.type == "text")


def _usage(answer: Any) -> dict[str, Any]:
    used = answer.usage
    written, read = used.cache_creation_input_tokens or 0, used.cache_read_input_tokens or 0
    weighed = used.input_tokens + 1.25 * written + 0.1 * read
    total = used.input_tokens + written + read
    return priced(answer.model, input_tokens=total, output_tokens=used.output_tokens, weighed=weighed)


def _stopped_short(answer: Any, limit: int) -> str | None:
    """Why an answer is not whole, or None."""
    return {
        "max_tokens": f"the answer was cut off after {limit} tokens",
        "refusal": "the model refused",
        "model_context_window_exceeded": "the context is too long for the model",
    }.get(answer.stop_reason)


def _reply(answer: Any, request: TurnRequest, names: Names) -> TurnReply:
    text, usage = _text(answer), _usage(answer)
    error = _stopped_short(answer, MAX_TOKENS)
    if error is not None:
        # Calls are no better than the text: their input is cut off too, and looks whole.
        return TurnReply(status="failed", data={"summary": text, "error": error}, text=text, usage=usage)
    uses = [block for block in answer.content if block.type == "tool_use"]
    handed_in = [block for block in uses if block.name == SUBMIT and request.output_schema is not None]
    others = [block for block in uses if block not in handed_in]
    if others:
        # A result that came before theirs is left out of the history: every call there has an answer.
        kept = [block for block in answer.content if block not in handed_in]
        native = [block.model_dump(mode="json", exclude_none=True) for block in kept]
        calls = [{"id": block.id, "tool": names.own(block.name), "input": block.input} for block in others]
        return TurnReply(calls=calls, text=text, usage=usage, native=native)
    if handed_in:
        found = handed_in[-1].input
        if isinstance(found, dict):
            found = prompt.with_summary(found, text, request.output_schema)
        return TurnReply(data=found, text=text, usage=usage)
    return TurnReply(data=prompt.data_of(text, request.output_schema), text=text, usage=usage)
