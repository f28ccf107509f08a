"""What the documentation shows is run: blocks marked `python run` and `console run`.

The blocks of one page share a folder, in order. A YAML block that opens with `# name.yaml` is a file of that name there. A block
`output` after another one is what that one prints.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<body>.*?)^```$", re.M | re.S)
TREADLE = str(Path(sys.executable).parent / "treadle")
PATIENCE_S = 120


@dataclass(frozen=True)
class Block:
    info: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(match["info"].strip(), match["body"], text[: match.start()].count("\n") + 1)
        for match in FENCE.finditer(text)
    ]


def runs(block: Block) -> bool:
    return block.info in ("python run", "console run")


PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if any(runs(block) for block in blocks(page))
]


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)} exits {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def perform(block: Block, folder: Path) -> str | None:
    """Does what a block says; what it prints, if it is one that prints."""
    if block.info == "python run":
        return run(sys.executable, "-W", "error", "-c", block.body, folder=folder)
    if block.info == "console run":
        commands = [line[2:] for line in block.body.splitlines() if line.startswith("$ ")]
        assert commands, f"line {block.line}: a console block has lines that begin with `$ `"
        printed = ""
        for command in commands:
            first, *rest = shlex.split(command)
            assert first == "treadle", f"line {block.line}: only treadle is run here"
            printed = run(TREADLE, *rest, folder=folder)
        return printed
    if block.info == "yaml" and (name := re.match(r"# (\S+\.ya?ml)\n", block.body)):
        (folder / name.group(1)).write_text(block.body, "utf-8")
    return None


def test_the_readme_is_among_the_pages() -> None:
    assert ROOT / "README.md" in PAGES
    shown = [block for block in blocks(ROOT / "README.md") if block.info.startswith(("python", "console"))]
    assert len(shown) >= 2
    assert all(runs(block) for block in shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_works(page: Path, tmp_path: Path) -> None:
    printed: str | None = None
    for block in blocks(page):
        if block.info == "output":
            assert printed == block.body, f"{page.name}:{block.line}"
        else:
            printed = perform(block, tmp_path)


def test_the_readme_fits_on_a_screen_and_shows_the_example() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 80
    assert (ROOT / "examples" / "order.yaml").read_text("utf-8") in text


def test_the_picture_is_what_treadle_draws(tmp_path: Path) -> None:
    run(TREADLE, "graph", str(ROOT / "examples" / "order.yaml"), "-o", "new.svg", folder=tmp_path)
    kept = (ROOT / "docs" / "images" / "order.svg").read_text("utf-8")
    assert (tmp_path / "new.svg").read_text("utf-8") == kept, (
        "draw it again: treadle graph … -o docs/images/order.svg"
    )


LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in LINK.findall(page.read_text("utf-8"))
        if not (page.parent / link).exists()
    ]
    assert not missing, "\n".join(missing)
