"""Errors that workers elsewhere make: whatever their shape, a run goes on with them as with any other."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.bus.messages import settling_from_value
from treadle.dialects.process import DIALECT
from treadle.lang.text import parse
from treadle.testing.driver import Driver

STALLS = "dialect: process\nname: P\nversion: '1'\nsteps: [{call: {transport: http, url: u}}]"


@pytest.mark.parametrize(
    "error",
    [{"message": 5}, {"message": ["a"]}, {"details": "x"}, {"details": [1]}, {"class": 5}, {"code": {}}, {}],
    ids=str,
)
def test_an_error_of_any_shape_stalls_a_process(error: dict[str, Any]) -> None:
    definition, _ = DIALECT.compile(parse(STALLS))
    assert definition is not None
    driver = Driver(DIALECT.machine, definition.body)
    driver.start()
    (intent,) = driver.open()
    said = {"intent": intent.id, "status": "error", "error": error, "lease": "l", "attempts": 1}
    driver.feed(settling_from_value(said).receipt)
    assert driver.status == "stalled", driver.run.error
