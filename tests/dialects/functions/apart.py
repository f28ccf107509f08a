"""Steps that run in processes of their own; a module, because they are found by file and name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from treadle import flow


@flow.step(name="apart.where", process=True, secrets=["KEY"])
def where(text: str, data: bytes) -> tuple[int, str, bytes]:
    now = flow.current()
    return os.getpid(), f"{text} {now.attempt} {now.secrets['KEY']} {now.idempotency_key}", data


@flow.step(name="apart.raises", process=True)
async def raises() -> None:
    raise LookupError("not there")


@flow.step(name="apart.dies", process=True, retry={"attempts": 2})
def dies(mark: str) -> str:
    if flow.current().attempt == 1:
        os._exit(3)
    return mark


@flow.step(name="apart.hangs", process=True, timeout="4s")
def hangs(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(600)


@flow.step(name="apart.saves", process=True)
async def saves() -> int:
    now = flow.current()
    await now.progress("half", n=1)
    await now.save({"n": 7})
    return int(now.saved["n"])


@flow.workflow(name="apart.all")
async def everything(ctx: flow.Context, mark: str) -> list[Any]:
    found: list[Any] = [await where("hi", b"\x00\xff")]
    try:
        await raises()
    except flow.StepFailed as error:
        found.append([error.type, error.cls, error.message])
    found.append(await dies("alive"))
    try:
        await hangs(mark)
    except flow.StepTimeout as error:
        found.append(error.cls)
    return [*found, await saves()]
