"""One call of a step: recorded arguments in, an outcome out. The same in a thread, a coroutine and a process."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import Any, Final

from treadle.dialects.function.errors import Fatal
from treadle.dialects.function.shapes import EMPTY, kept, plain, typed
from treadle.dialects.function.steps import Step
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value
from treadle.tools.functions import aside, in_a_loop
from treadle.work.job import Done, is_revoked
from treadle.work.raised import named, trace, words

from .current import CURRENT, Current, StepRaised
from .pace import StepPace

# What stands in a receipt as it is, and is never too large for one.
_SMALL: Final[frozenset[type]] = frozenset({bool, int, type(None)})


async def attempt(
    step: Step[..., Any], arguments: dict[str, Value], now: Current, pace: StepPace | None = None
) -> Done:
    """Calls a step once, here. Whatever it raises is an outcome."""
    token = CURRENT.set(now)
    try:
        args, kwargs = bound(step, arguments)
        if step.is_async:
            value = await step.function(*args, **kwargs)
        else:
            # In a context of its own: what it sets there is gone with it.
            call = partial(copy_context().run, step.function, *args, **kwargs)
            if in_a_loop():
                work = call if pace is None else partial(pace.timed, step.name, call)
                value = await aside(work, None, step.name)
            else:
                value = call() if pace is None else pace.timed(step.name, call)
        made = kept(value) if type(value) in _SMALL else plain(value)
        return Done(value=made, is_canonical=type(made) in _SMALL)
    except Fatal as error:
        details = {"fatal": True, "exception": "Fatal", "details": plain(error.details)}
        told = TreadleError(words(error) or "the step gave up", cls="user", code=error.code, details=details)
        return Done(status="error", error=told.to_value())
    except TreadleError as error:
        return Done(status="error", error=error.to_value())
    except BaseException as error:  # `sys.exit()` too: it ends the call, not the worker
        if is_revoked(error):
            raise
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind not in (object, BaseException)]
        details = {
            "exception": type(error).__name__,
            "kinds": kinds,
            "traceback": trace(error, hidden=(__file__,)),
        }
        return Done(status="error", error=StepRaised(named(error), details=details).to_value())
    finally:
        CURRENT.reset(token)


def bound(step: Step[..., Any], arguments: dict[str, Value]) -> tuple[list[Any], dict[str, Any]]:
    """Recorded arguments as the step's annotations promise them."""
    names, hints = step.plain_names, step.hints
    if names is not None and len(names) == len(arguments) and all(map(arguments.__contains__, names)):
        return [typed(arguments[name], hints.get(name, EMPTY)) for name in names], {}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in step.signature.parameters.items():
        if name not in arguments:
            continue
        hint, given = hints.get(name, EMPTY), arguments[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [typed(item, hint) for item in given]
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update({key: typed(item, hint) for key, item in given.items()})
        elif parameter.kind is parameter.KEYWORD_ONLY or len(args) < _position(step, name):
            kwargs[name] = typed(given, hint)
        else:
            args.append(typed(given, hint))
    return args, kwargs


def _position(step: Step[..., Any], name: str) -> int:
    return list(step.signature.parameters).index(name)
