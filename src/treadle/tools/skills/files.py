"""`files`: read, write, list and search text files below one folder.

The folder is FILES_ROOT, else the workflow's own, else the current one. Links are followed before
the check, so nothing outside can be reached through them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from treadle.kernel.errors import ToolError
from treadle.work.agent_skill import Skill, ToolContext

READ_BYTES_MAX: Final = 256 * 1024
FOUND_MAX: Final = 200
ROOT: Final = {
    "FILES_ROOT": {
        "description": "Folder that files are read from and written to",
        "env": "TREADLE_FILES_ROOT",
    }
}
_PATH: Final = {"type": "string", "description": "Path relative to the folder"}


def root_of(ctx: ToolContext) -> Path:
    return Path(ctx.config.get("FILES_ROOT") or ctx.base or ".").resolve()


def inside(ctx: ToolContext, path: str) -> Path:
    """The real path of a name, which must lie below the root."""
    root = root_of(ctx)
    found = (root / path).resolve()
    if not found.is_relative_to(root):
        raise ToolError(f"{path} is outside of the folder that may be used", code="FILE_OUTSIDE_ROOT")
    return found


def files_skill() -> Skill:
    skill = Skill("files", name="Files", description="Text files below one folder", config=ROOT)

    @skill.tool(
        "list_files",
        description="List files below a folder",
        input_schema={"type": "object", "properties": {"path": _PATH, "pattern": {"type": "string"}}},
        idempotent=True,
    )
    def list_files(input: dict[str, Any], ctx: ToolContext) -> Any:
        root, folder = root_of(ctx), inside(ctx, input.get("path") or ".")
        pattern = input.get("pattern") or "**/*"
        if pattern.startswith("/") or ".." in Path(pattern).parts:
            raise ToolError("a pattern is relative to the folder")
        found = [p for p in sorted(folder.glob(pattern)) if p.is_file() and p.resolve().is_relative_to(root)]
        return {
            "files": [str(p.relative_to(root)) for p in found[:FOUND_MAX]],
            "more": max(0, len(found) - FOUND_MAX),
        }

    @skill.tool(
        "read_file",
        description="Read a text file",
        input_schema={"type": "object", "properties": {"path": _PATH}, "required": ["path"]},
        idempotent=True,
    )
    def read_file(input: dict[str, Any], ctx: ToolContext) -> Any:
        path = inside(ctx, input["path"])
        if not path.is_file():
            raise ToolError(f"{input['path']} is not a file")
        data = path.read_bytes()
        return {
            "text": data[:READ_BYTES_MAX].decode("utf-8", "replace"),
            "truncated": len(data) > READ_BYTES_MAX,
        }

    @skill.tool(
        "write_file",
        description="Write a text file, replacing what is there",
        input_schema={
            "type": "object",
            "properties": {"path": _PATH, "text": {"type": "string"}},
            "required": ["path", "text"],
        },
        # Writing the same text twice leaves the same file.
        idempotent=True,
    )
    def write_file(input: dict[str, Any], ctx: ToolContext) -> Any:
        path = inside(ctx, input["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(input["text"], encoding="utf-8")
        return {"path": input["path"], "bytes": len(input["text"].encode())}

    @skill.tool(
        "search_files",
        description="Find lines that contain a text",
        input_schema={
            "type": "object",
            "properties": {"text": {"type": "string", "minLength": 1}, "path": _PATH},
            "required": ["text"],
        },
        idempotent=True,
    )
    def search_files(input: dict[str, Any], ctx: ToolContext) -> Any:
        root, folder = root_of(ctx), inside(ctx, input.get("path") or ".")
        found: list[dict[str, Any]] = []
        for path in sorted(folder.rglob("*")):
            if len(found) >= FOUND_MAX:
                break
            if not path.is_file() or not path.resolve().is_relative_to(root):
                continue
            if path.stat().st_size > READ_BYTES_MAX:
                continue
            for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
                if input["text"] in line:
                    found.append({"file": str(path.relative_to(root)), "line": number, "text": line[:400]})
        return {"matches": found[:FOUND_MAX]}

    return skill
