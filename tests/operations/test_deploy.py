"""What stands in deploy/ fits the program: every option is one, ports, images and secrets agree."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from treadle.cli.main import app
from treadle.lang.duration import parse_duration

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
MANIFESTS: list[dict[str, Any]] = [
    *yaml.safe_load_all((DEPLOY / "kubernetes" / "treadle.yaml").read_text("utf-8"))
]
UNIT = configparser.RawConfigParser(strict=False)
UNIT.optionxform = str  # type: ignore[assignment,method-assign] # names of options are as they are written
UNIT.read(DEPLOY / "treadle.service")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")


def containers() -> dict[str, Any]:
    """The container of each deployment, by its name."""
    pods = [found["spec"]["template"]["spec"] for found in MANIFESTS if found["kind"] == "Deployment"]
    return {pod["containers"][0]["name"]: {**pod["containers"][0], "pod": pod} for pod in pods}


def commands() -> dict[str, list[str]]:
    """Every command line that is started somewhere."""
    made = json.loads(re.findall(r"^CMD (.+)$", DOCKERFILE, re.M)[-1])
    return {
        "unit": shlex.split(UNIT["Service"]["ExecStart"])[1:],
        "image": made,
        **{
            f"compose {name}": found["command"]
            for name, found in COMPOSE["services"].items()
            if "command" in found
        },
        **{f"kubernetes {name}": found["args"] for name, found in containers().items()},
    }


@pytest.mark.parametrize("place", sorted(commands()))
def test_every_option_that_is_used_is_one_of_the_command(place: str) -> None:
    name, *arguments = commands()[place]
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    command = group.commands[name]  # type: ignore[attr-defined]
    known = {option: parameter for parameter in command.params for option in parameter.opts}
    while arguments:
        option = arguments.pop(0)
        assert option in known, f"{place}: treadle {name} has no {option}"
        if not getattr(known[option], "is_flag", False):
            assert arguments.pop(0), f"{place}: {option} says nothing"


def test_every_variable_that_is_set_is_read() -> None:
    sources = "".join(
        path.read_text("utf-8") for path in (DEPLOY.parent / "src" / "treadle" / "cli").glob("*.py")
    )
    set_ = {name for found in COMPOSE["services"].values() for name in found.get("environment", {})}
    set_ |= {one["name"] for found in containers().values() for one in found.get("env", [])}
    ours = {name for name in set_ if name.startswith("TREADLE_")}
    assert ours == {"TREADLE_STORE"}
    assert all(name in sources for name in ours)


def port_of(command: list[str]) -> int:
    return int(command[command.index("--port") + 1])


def test_ports_agree_wherever_they_stand() -> None:
    port = int(re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.M)[0])
    assert {port_of(command) for command in commands().values() if command[0] == "serve"} == {port}
    assert COMPOSE["services"]["server"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (service,) = [found for found in MANIFESTS if found["kind"] == "Service"]
    server = containers()["server"]
    assert service["spec"]["ports"][0]["port"] == port
    assert server["ports"] == [{"name": service["spec"]["ports"][0]["targetPort"], "containerPort": port}]
    for place, command in commands().items():
        if command[0] == "worker":
            asked = command[command.index("--server") + 1]
            host = "server" if place.startswith("compose") else service["metadata"]["name"]
            assert asked == f"http://{host}:{port}"


def test_images_secrets_and_selectors_agree() -> None:
    image = COMPOSE["services"]["server"]["image"]
    assert {found["image"] for found in containers().values()} == {image}
    assert COMPOSE["services"]["worker"]["image"] == image
    assert (DEPLOY.parent / COMPOSE["services"]["server"]["build"]["dockerfile"]).is_file()
    for name in ("server", "worker"):
        service, container = COMPOSE["services"][name], containers()[name]
        file = service["command"][service["command"].index("--token-file") + 1]
        assert file == f"/run/secrets/{service['secrets'][0]}"
        assert service["secrets"][0] in COMPOSE["secrets"]
        (mount,) = container["volumeMounts"]
        (volume,) = container["pod"]["volumes"]
        assert mount["name"] == volume["name"]
        inside = container["args"][container["args"].index("--token-file") + 1]
        assert inside == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
    for found in MANIFESTS:
        if found["kind"] == "Deployment":
            labels = found["spec"]["template"]["metadata"]["labels"]
            assert found["spec"]["selector"]["matchLabels"] == labels
    assert containers()["server"]["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_nothing_is_killed_before_its_drain_is_over() -> None:
    drain_s = parse_duration("30s") / 1e9
    assert float(UNIT["Service"]["TimeoutStopSec"]) > drain_s
    for found in containers().values():
        assert found["pod"]["terminationGracePeriodSeconds"] > drain_s
    for name in ("server", "worker"):
        assert parse_duration(COMPOSE["services"][name]["stop_grace_period"]) / 1e9 > drain_s


def test_what_the_image_copies_is_there_and_its_extras_are_declared() -> None:
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.M):
        assert all((DEPLOY.parent / name).exists() for name in line.split()[:-1])
    declared = (DEPLOY.parent / "pyproject.toml").read_text("utf-8")
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE)
    assert all(f"\n{extra} = [" in declared for extra in extras.split(","))
