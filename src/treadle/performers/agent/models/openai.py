"""OpenAI's models, and every server that speaks its chat completions (`OPENAI_BASE_URL`).

Chat completions rather than responses, because that is what compatible servers have. Declared
output is asked for with `response_format`; strict mode is off, so any JSON Schema may be declared,
and the machine checks the result. Retries are the engine's business, so the SDK's own are off.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import openai
from openai import AsyncOpenAI

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

PROGRESS_CHARS: Final = 400


@dataclass(slots=True)
class _Answer:
    """An answer put together from its stream."""

    model: str = ""
    text: str = ""
    refusal: str = ""
    finish: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, chunk: Any) -> str:
        """Takes one chunk in; what it adds to the text."""
        self.model = chunk.model or self.model
        if chunk.usage is not None:
            self.input_tokens = chunk.usage.prompt_tokens
            self.output_tokens = chunk.usage.completion_tokens
        added = ""
        for choice in chunk.choices:
            if choice.index:
                continue
            self.finish = choice.finish_reason or self.finish
            added += choice.delta.content or ""
            self.refusal += choice.delta.refusal or ""
            for part in choice.delta.tool_calls or ():
                call = self.calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = part.id or call["id"]
                if part.function is not None:
                    call["name"] += part.function.name or ""
                    call["arguments"] += part.function.arguments or ""
        self.text += added
        return added

    def take(self, document: dict[str, Any]) -> None:
        """Takes in an answer that came in one piece."""
        used, choice = document.get("usage") or {}, document["choices"][0]
        message = choice["message"]
        self.model = document.get("model") or ""
        self.input_tokens = used.get("prompt_tokens") or 0
        self.output_tokens = used.get("completion_tokens") or 0
        self.finish = choice.get("finish_reason") or "stop"
        self.text, self.refusal = message.get("content") or "", message.get("refusal") or ""
        for index, call in enumerate(message.get("tool_calls") or ()):
            called = call["function"]
            given = called.get("arguments") or ""
            self.calls[index] = {
                "id": call.get("id") or f"call_{index}",
                "name": called["name"],
                "arguments": given if isinstance(given, str) else json.dumps(given),
            }

    @property
    def stopped_short(self) -> str | None:
        """Why the answer is not whole, or None."""
        if self.refusal:
            return f"the model refused: {self.refusal}"
        return {
            "length": "the answer was cut off at the model's limit",
            "content_filter": "the provider's filter stopped the answer",
        }.get(self.finish or "")

    @property
    def usage(self) -> dict[str, Any]:
        return priced(
            self.model,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            weighed=self.input_tokens,
        )


class OpenAIModel(RemoteModel[AsyncOpenAI]):
    key_name = "OPENAI_API_KEY"
    default_model: str | None = "gpt-5.4"
    small_model: str | None = "gpt-5.4-mini"

    async def turn(self, request: TurnRequest) -> TurnReply:
        messages: list[dict[str, Any]] = []
        if request.instruction:
            messages.append({"role": "system", "content": request.instruction})
        messages.append({"role": "user", "content": prompt.first_message(await request.context())})
        for message in await request.history():
            messages += _messages(message)
        names = Names(tool.name for tool in request.tools)
        more: dict[str, Any] = {}
        if request.tools:
            more["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": names.fit(tool.name),
                        "description": tool.description,
                        "parameters": tool.input_schema,
                    },
                }
                for tool in request.tools
            ]
        if request.output_schema is not None:
            form = {"name": "result", "schema": request.output_schema, "strict": False}
            more["response_format"] = {"type": "json_schema", "json_schema": form}
        answer = await self._send(request.model, messages, progress=request.progress, **more)
        return _reply(answer, request, names)

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        text = prompt.question(request, await request.context())
        answer = await self._answer(request.model, text)
        return ChooseReply(choice=prompt.choice_of(answer.text, request), usage=answer.usage)

    async def ask(self, request: AskRequest) -> AskReply:
        answer = await self._answer(request.model, request.instruction)
        return AskReply(text=answer.text, usage=answer.usage)

    async def _answer(self, model: str | None, question: str) -> _Answer:
        answer = await self._send(model, [{"role": "user", "content": question}])
        if (reason := answer.stopped_short) is not None:
            raise prompt.no_answer(reason)
        return answer

    async def _send(
        self,
        model: str | None,
        messages: list[dict[str, Any]],
        *,
        progress: Callable[[str], Awaitable[None]] | None = None,
        **more: Any,
    ) -> _Answer:
        """One request, streamed; whole sentences of it are shown while it comes."""
        client = await self._connected()
        answer, said = _Answer(), ""
        try:
            body: dict[str, Any] = {"model": model or self.default_model, "messages": messages, **more}
            stream: Any = await client.chat.completions.create(
                stream=True, stream_options={"include_usage": True}, **body
            )
            async with stream:
                if (document := await whole_answer(stream.response)) is not None:
                    answer.take(document)
                    return answer
                async for chunk in stream:
                    said += answer.add(chunk)
                    if progress is not None and (len(said) >= PROGRESS_CHARS or said.endswith("\n")):
                        if said.strip():
                            await progress(said.strip())
                        said = ""
        except ProviderError:
            raise
        except openai.APIStatusError as error:
            headers = error.response.headers
            raise self._refused(error.status_code, error.body, error.message, headers) from error
        except openai.APITimeoutError as error:
            raise ProviderError("the provider timed out", code="PROVIDER_TIMEOUT", retryable=True) from error
        except (openai.APIConnectionError, httpx2.TransportError) as error:
            raise ProviderError(
                f"the provider cannot be reached: {error}", code="PROVIDER_CONNECTION", retryable=True
            ) from error
        except openai.APIError as error:
            if error.body is None or isinstance(error, openai.APIResponseValidationError):
                raise _unreadable(error) from error
            raise prompt.stream_error(error.body, error.message, {}) from error
        except (openai.OpenAIError, ValueError, TypeError, AttributeError, LookupError) as error:
            raise _unreadable(error) from error
        if answer.finish is None:
            raise ProviderError("the answer broke off", code="PROVIDER_CONNECTION", retryable=True)
        return answer

    def _make(self, key: str) -> AsyncOpenAI:
        return AsyncOpenAI(api_key=key, base_url=self._base_url, max_retries=0, timeout=self._timeout_s)


def _messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [
            {
                "role": "tool",
                "tool_call_id": result["id"],
                "content": prompt.as_json(
                    result["output"] if "output" in result else {"error": result["error"]}
                ),
            }
            for result in message["results"]
        ]
    return [message["native"]]


def _unreadable(error: Exception) -> ProviderError:
    return ProviderError(
        f"the provider's answer cannot be read: {type(error).__name__}: {error}", code="REPLY_INVALID"
    )


def _reply(answer: _Answer, request: TurnRequest, names: Names) -> TurnReply:
    text, usage, error = answer.text, answer.usage, answer.stopped_short
    if error is not None:
        # Calls are no better than the text: their arguments are cut off too.
        return TurnReply(status="failed", data={"summary": text, "error": error}, text=text, usage=usage)
    if answer.calls:
        parts = [answer.calls[index] for index in sorted(answer.calls)]
        native = {
            "role": "assistant",
            "content": text or None,
            "tool_calls": [
                {
                    "id": part["id"],
                    "type": "function",
                    "function": {"name": part["name"], "arguments": part["arguments"]},
                }
                for part in parts
            ],
        }
        calls = [
            {"id": part["id"], "tool": names.own(part["name"]), "input": _input(part["arguments"])}
            for part in parts
        ]
        return TurnReply(calls=calls, text=text, usage=usage, native=native)
    return TurnReply(data=prompt.data_of(text, request.output_schema), text=text, usage=usage)


def _input(arguments: str) -> Any:
    """A call's input. What is not JSON is handed on as text: the tool refuses it, and the model is told."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
