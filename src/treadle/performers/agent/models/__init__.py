"""Providers of models: scripted, Anthropic, OpenAI and whatever speaks their language.

A run names its provider as `PROVIDER[:ARG]` (`--model anthropic`, `openai:gpt-5`,
`scripted:script.json`); model names in the workflow are handed to that provider verbatim.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from treadle.kernel.errors import TreadleError, ValueRefused
from treadle.performers.agent.api import Provider, ProviderError
from treadle.performers.agent.skill_finding import environment

from . import prices

Resolve = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
Learn = Callable[[str, str], Any]


def _written(spec: str) -> int | None:
    """When a script was last written: a changed one is read anew."""
    name, _, path = spec.partition(":")
    try:
        return os.stat(path).st_mtime_ns if name == "scripted" else None
    except OSError:
        return None


@runtime_checkable
class Scripted(Provider, Protocol):
    """A provider whose answers depend on which node of which run called the run that asks."""

    def within(self, calls: Sequence[Sequence[Any]]) -> Provider: ...


class Providers:
    """The providers of one engine: what was registered, then those that are shipped."""

    def __init__(self, registered: Mapping[str, Any], *, resolve: Resolve, learn: Learn) -> None:
        self._registered = registered
        self._resolve = resolve
        self._learn = learn
        self._given: dict[str, Provider] = {}
        self._made: dict[tuple[Any, ...], Provider] = {}
        # The models that were made here and never wait for anything, as they are recorded with runs.
        self.at_once: set[str] = set()

    def take(self, run: str, model: object) -> str:
        """Takes a model that a run was started with, and gives the name under which it is recorded. It
        lives in this process: elsewhere the run waits for it."""
        if not all(callable(getattr(model, name, None)) for name in ("turn", "choose", "ask")):
            raise ValueRefused(
                f"model must be text (PROVIDER[:ARG]) or a model with turn, choose and ask, not {type(model).__name__}",
                details={"path": "model"},
            )
        name = f"given:{run}"
        self._given[name] = cast("Provider", model)
        return name

    def get(self, options: Mapping[str, Any]) -> Provider:
        """The provider of a run, by its recorded options. A script knows the calls of workflows apart."""
        spec = str(options.get("model") or self._default(options.get("base")))
        if (found := self._given.get(spec)) is None:
            found = self._registered.get(spec)
            if found is None or not hasattr(found, "turn"):
                found = self._made_for(spec, options)
        calls = options.get("within")
        return found.within(calls) if calls and isinstance(found, Scripted) else found

    def _made_for(self, spec: str, options: Mapping[str, Any]) -> Provider:
        name, _, argument = spec.partition(":")
        found = self._registered.get(spec) or self._registered.get(name)
        if found is not None:
            return found if hasattr(found, "turn") else self._kept((spec,), lambda: found(argument))
        # Keys come from a run's secrets and from `.env` beside its workflow: folders do not share them.
        secrets, base = options.get("secrets"), options.get("base")
        key = (spec, secrets, base, _written(spec))
        return self._kept(key, lambda: self._make(name, argument, {"secrets": secrets, "base": base}))

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuses a run whose provider cannot be made here, before there is one."""
        try:
            self.get(options)
        except ProviderError as error:
            raise TreadleError(error.message, code=error.code, cls="user") from error

    def _kept(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Provider:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _default(self, base: str | None) -> str:
        if len(self._registered) == 1:
            return next(iter(self._registered))
        if spec := environment("TREADLE_MODEL", base):
            return spec
        for name, variable in (("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")):
            if environment(variable, base):
                return name
        raise ProviderError(
            "no model is chosen: give --model PROVIDER[:NAME], or set TREADLE_MODEL, ANTHROPIC_API_KEY or "
            "OPENAI_API_KEY; --model scripted:FILE needs no key",
            code="UNKNOWN_PROVIDER",
        )

    def _make(self, name: str, argument: str, options: Mapping[str, Any]) -> Provider:
        async def key(variable: str) -> str | None:
            return await self._key(variable, options)

        if name == "scripted":
            from .scripted import ScriptedModel

            script = ScriptedModel.load(argument)
            (self.at_once.add if script.answers_at_once else self.at_once.discard)(f"scripted:{argument}")
            return script
        if name in ("anthropic", "openai"):
            prices.check()
        try:
            if name == "anthropic":
                from .anthropic import AnthropicModel

                return AnthropicModel(key, model=argument or None)
            if name == "openai":
                from .openai import OpenAIModel

                return OpenAIModel(key, model=argument or None)
        except ModuleNotFoundError as error:
            message = (
                f"the provider {name} needs a package: pip install 'treadle[agent]' ({error.name} is missing)"
            )
            raise ProviderError(message, code="EXTRA_MISSING") from error
        known = ", ".join(sorted({"scripted", "anthropic", "openai", *self._registered}))
        raise ProviderError(f"there is no provider {name!r}; there are: {known}", code="UNKNOWN_PROVIDER")

    async def _key(self, variable: str, options: Mapping[str, Any]) -> str | None:
        """An API key: from the secrets of the run or the store, else from the environment."""
        found: Any = None
        try:
            found = await self._resolve(variable, options)
        except TreadleError:
            found = environment(variable, options.get("base"))
        if isinstance(found, str) and found:
            self._learn(variable, found)
            return found
        return None

    async def close(self) -> None:
        for provider in self._made.values():
            await provider.close()
        self._made.clear()
