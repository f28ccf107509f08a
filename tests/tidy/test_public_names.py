"""The public surface: small, documented, cheap to import, and changed only on purpose."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

PUBLIC = {
    "treadle": ["Engine", "Run", "RunFailed", "TreadleError", "__version__"],
    "treadle.sync": ["Engine", "Run"],
    "treadle.testing": [
        "Driver",
        "Outcome",
        "Play",
        "ScriptedModel",
        "ScriptedTool",
        "VirtualClock",
        "assert_replays",
        "play",
    ],
}

# Each takes tens of milliseconds or brings an extra; `import treadle` wants none of them.
HEAVY = (
    "asyncio", "sqlite3", "jinja2", "msgspec", "httpx", "yaml", "typer", "rich", "cryptography", "jsonschema",
    "libipld", "duckdb", "psycopg", "nats", "anthropic", "openai", "mcp", "pydantic", "pytest", "treadle.engine",
)  # fmt: skip
# What `treadle --help` has no use for.
HEAVY_FOR_HELP = (
    "httpx", "cryptography", "jinja2", "jsonschema", "duckdb", "psycopg", "nats", "anthropic", "openai", "mcp",
    "pydantic", "pytest", "treadle.engine",
)  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_exactly_these(module: str) -> None:
    found = import_module(module)
    assert sorted(found.__all__) == PUBLIC[module]
    for name in found.__all__:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(found, name)), f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", ["treadle.process", "treadle.reactive", "treadle.agent", "treadle.flow"])
def test_what_authors_import_is_listed_and_documented(module: str) -> None:
    found = import_module(module)
    assert found.__all__ == sorted(found.__all__)
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"


def test_every_public_method_of_the_engine_is_documented() -> None:
    import treadle

    for cls in (treadle.Engine, treadle.Run):
        silent = [
            name
            for name, value in vars(cls).items()
            if not name.startswith("_") and inspect.isfunction(value) and not value.__doc__
        ]
        assert not silent, f"{cls.__name__}: {silent}"


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    import treadle

    with pytest.raises(AttributeError, match="nobody"):
        _ = treadle.nobody


def loaded_by(code: str) -> set[str]:
    listing = f"{code}\nimport sys; sys.stderr.write('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines())


def test_import_treadle_imports_nothing_heavy() -> None:
    found = loaded_by("import treadle") & set(HEAVY)
    assert not found, f"import these where they are used: {sorted(found)}"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['treadle', '--help']\n"
        "from treadle.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass"
    )
    found = loaded_by(code) & set(HEAVY_FOR_HELP)
    assert not found, f"import these where they are used: {sorted(found)}"


def test_the_engine_refuses_to_run_without_its_assertions() -> None:
    code = "from treadle import Engine\ntry: Engine('memory:')\nexcept Exception as e: print(e)"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert "without -O" in done.stdout
