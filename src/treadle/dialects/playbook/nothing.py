"""What stands for a name or key that is not there. It is Jinja's notion, so it is loaded with Jinja."""

from __future__ import annotations

from jinja2 import ChainableUndefined

from .edition import is_first


class NotThere(ChainableUndefined):
    """A name or key that is not there. Whoever computes with it is told which."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        if is_first():
            return super()._undefined_message
        return f"{str(self._undefined_name)[:200]!r} is undefined"

    @property
    def name(self) -> str:
        return str(self._undefined_name)

    @property
    def is_named(self) -> bool:
        """Whether a template named it; what a filter or an `if` without `else` gives has no name."""
        return self._undefined_name is not None
