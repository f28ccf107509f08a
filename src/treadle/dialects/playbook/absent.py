"""Arguments that are not there: a step must not go on with nothing where its author named something.

Where arguments are rendered (`Tree.arguments`), a name or key that leads to nothing is an error. It is
nothing, as everywhere else, where the author could not know better: a step or task that has not run, took
another branch or failed has no result, an event without an error has no parts of one, and a playbook that is
not called from a loop has no `iter.parent`. `default`, `is defined` and an `if` without `else` say themselves
what is meant; they never get here.
"""

from __future__ import annotations

import msgspec

from .handles import MISSING, Handle, TemplateScope, attribute

# ("workload", "items") for `workload.items`; an index is its text.
Chain = tuple[str, ...]


class Absent(Exception):
    """An argument is made of a name that is not there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Wanted(msgspec.Struct):
    """The arguments at hand: which missing names are nothing, rather than an error."""

    scope: TemplateScope
    # Those of the template that is being rendered.
    chains: tuple[Chain, ...] = ()

    def meets(self, name: str) -> None:
        """A missing name is about to become a value or text."""
        culprit = name
        for chain in self.chains:
            if missing_key(self.scope, chain) == name:
                if _may_be_nothing(self.scope, chain):
                    return
                culprit = ".".join(chain)
        raise Absent(culprit)


def missing_key(scope: TemplateScope, chain: Chain) -> str | None:
    """The first part of a chain that leads to nothing."""
    value = scope.resolve(chain[0])
    if value is MISSING:
        return chain[0]
    for key in chain[1:]:
        value = _part(value, key)
        if value is MISSING:
            return key
    return None


def _part(value: object, key: str) -> object:
    found = attribute(value, key)
    items = value.payload() if isinstance(value, Handle) else value
    if found is MISSING and isinstance(items, list) and key.isdecimal():
        return items[int(key)] if int(key) < len(items) else MISSING
    return found


def _may_be_nothing(scope: TemplateScope, chain: Chain) -> bool:
    root, value = chain[0], scope.resolve(chain[0])
    if value is MISSING:
        return root in scope.later
    if isinstance(value, Handle) and value.status != "ok":
        return True
    if root == "_prev":
        return value is None
    if chain[:2] == ("iter", "parent"):
        return "parent" not in value
    event = scope.resolve("event") if root in ("event", "output") else None
    return isinstance(event, dict) and (event.get("status") == "error" or chain[:2] == ("event", "error"))
