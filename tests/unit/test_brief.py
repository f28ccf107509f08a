"""Errors are cut to a size that a record takes, and say so."""

from __future__ import annotations

from pathlib import Path

from treadle import Engine
from treadle.kernel.brief import ERROR_BYTES_MAX, brief
from treadle.kernel.values import encode


def test_small_errors_are_told_in_full() -> None:
    error = {"class": "user", "code": "X", "message": "m" * 4000, "where": None, "details": {"a": [1]}}
    assert brief(error) == error


def test_long_parts_are_cut_and_say_how_long_they_were() -> None:
    error = {"class": "user", "code": "X", "message": "ü" * 10**6, "details": {"rows": ["r" * 10**5] * 9}}
    cut = brief(error)
    assert len(encode(cut)) <= ERROR_BYTES_MAX
    assert (cut["class"], cut["code"]) == ("user", "X")
    assert cut["message"].startswith("üüü")
    assert cut["message"].endswith("… (1,000,000 characters)")
    assert cut["details"]["truncated"] is True
    assert cut["details"]["bytes"] > 9 * 10**5


def test_a_secret_is_taken_out_before_the_text_is_cut() -> None:
    text = "x" * 1020 + "SECRET" + "y" * 10**5
    cut = brief({"message": text}, clean=lambda text: text.replace("SECRET", "***"))
    assert "SEC" not in cut["message"]


async def test_a_long_message_of_a_transport_takes_the_failure_branch(
    tmp_path: Path,
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "dialect: process\nname: p\nversion: 1.0.0\nsteps:\n"
        "  - call: {transport: t, into: r, on_failure: [{complete: {$: 'error.message'}}]}\n"
        "  - complete: {never: true}\n"
    )
    async with Engine("memory:") as engine:

        @engine.transport("t")
        def t() -> None:
            raise ValueError("y" * 3_000_000)

        (definition,) = engine.load(str(file))
        run = await engine.start(definition)
        assert str(await run.result(timeout=20)).endswith("characters)")
