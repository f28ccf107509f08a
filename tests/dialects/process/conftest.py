"""Small tools to write a process in a test and to drive it without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from treadle.dialects.process import DIALECT
from treadle.lang.definition import Definition
from treadle.lang.problems import Problem
from treadle.lang.text import parse
from treadle.testing.driver import Driver

TRANSPORTS = ("billing", "mail", "a", "b", "c")


def head(steps: str) -> str:
    return steps if "dialect" in steps else f"dialect: process\nname: wf\n{steps}"


@pytest.fixture
def compiled() -> Callable[[str], Definition]:
    """The definition of a text that must be valid; `steps:` alone is enough."""

    def run(text: str) -> Definition:
        definition, problems = DIALECT.compile(parse(head(text)), transports=TRANSPORTS)
        assert definition is not None, "\n".join(map(str, problems))
        return definition

    return run


@pytest.fixture
def problems_of() -> Callable[[str], list[Problem]]:
    def run(text: str) -> list[Problem]:
        return list(DIALECT.compile(parse(head(text)), transports=TRANSPORTS)[1])

    return run


@pytest.fixture
def started(compiled: Callable[[str], Definition]) -> Iterator[Callable[..., Driver]]:
    """A run of a text, started. Every run is replayed at the end of the test."""
    drivers: list[Driver] = []

    def run(text: str, input: Any = None, **more: Any) -> Driver:
        driver = Driver(DIALECT.machine, compiled(text).body)
        drivers.append(driver)
        return driver.start(input, **more)

    yield run
    for driver in drivers:
        driver.assert_replays()
