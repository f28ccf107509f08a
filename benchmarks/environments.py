"""An environment for each peer, made once: Treadle neither depends on them nor shares their versions.

They lie under `benchmarks/.cache/`, named after what they hold, so that a new pin makes a new one. Nothing but the
registries of pip and npm is asked, and npm runs no scripts of packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
OURS = ("treadle_process", "treadle_playbook", "treadle_functions", "treadle_agent")
PINS: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "peers" / "versions.toml").read_text("utf-8"))
SUBJECTS = (*OURS, *PINS)
PATIENCE_S = 900


class Unavailable(Exception):
    """A peer that cannot be had here, and why."""


@dataclass(frozen=True)
class Environment:
    python: str
    variables: dict[str, str]
    packages: list[str]


def environment(subject: str) -> Environment:
    if subject in OURS:
        return Environment(sys.executable, {}, _freeze(sys.executable))
    pins = PINS[subject]
    name = hashlib.sha256(json.dumps([pins, platform.python_version()]).encode()).hexdigest()[:8]
    home = CACHE / f"{subject}-{name}"
    python = home / "bin" / "python"
    try:
        if not (home / ".ready").exists():
            print(
                f"making the environment of {subject}: {' '.join(name for names in pins.values() for name in names)}",
                file=sys.stderr,
            )
            venv.create(home, with_pip=True, clear=True)
            _run([str(python), "-m", "pip", "install", "-q", *pins["pip"]])
            if "npm" in pins:
                _run(
                    [
                        "npm",
                        "install",
                        "--ignore-scripts",
                        "--no-audit",
                        "--no-fund",
                        "--prefix",
                        str(home),
                        *pins["npm"],
                    ]
                )
            (home / ".ready").touch()
        return Environment(
            str(python), _variables(subject, home, pins), _freeze(str(python)) + pins.get("npm", [])
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()
        raise Unavailable(last[-1] if last else f"exit {error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error


def _variables(subject: str, home: Path, pins: dict[str, list[str]]) -> dict[str, str]:
    """Where a server that came by npm is. Its package is a launcher; the binary is in one named after the machine."""
    if subject != "restate":
        return {}
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"restate-server-{platform.system().lower()}-{machine}"
    binary = home / "node_modules" / "@restatedev" / package / "bin" / "restate-server"
    if not binary.exists():
        raise Unavailable(f"no {package} on npm for this machine")
    return {"RESTATE_SERVER": str(binary), "RESTATE_SERVER_VERSION": pins["npm"][0].rsplit("@", 1)[1]}


def _freeze(python: str) -> list[str]:
    code = "from importlib.metadata import distributions as d; print('\\n'.join(sorted({f'{x.name}=={x.version}' for x in d()})))"
    return _run([python, "-c", code]).split()


def _run(command: list[str]) -> str:
    variables = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=variables
    )
    return done.stdout
