"""A definition says what a run of it is started with, as a schema to make a form of."""

from __future__ import annotations

import httpx

from .conftest import deployed

PLAYBOOK = """
metadata: {name: greet, version: "1", description: Greets somebody}
workload: {name: world, times: 3, loud: false, ratio: 0.5, tags: [a], more: {x: 1}, told: "{{ now }}", none: null}
workflow:
  - step: hello
    tool: {kind: noop}
"""
PROCESS = """
dialect: process
name: renewal
version: "1"
start: {schema: {type: object, required: [policy]}}
steps:
  - complete: 1
"""
AGENT = """
id: triage
name: Triage
entry: gather
inputs:
  report: {type: string, required: true, description: File with the report}
  depth: {type: number, default: 2, enum: [1, 2]}
nodes:
  gather: {name: Gather, instruction: Look.}
edges: []
"""


async def test_every_dialect_that_says_what_it_is_started_with_gives_a_schema(
    http: httpx.AsyncClient,
) -> None:
    answer = await deployed(http, greet=PLAYBOOK, renewal=PROCESS, triage=AGENT)
    assert answer.status_code == 201, answer.text

    async def schema(name: str) -> dict[str, object]:
        found = (await http.get(f"/definitions/{name}")).json()
        assert (found["status"], found["reasons"]) == ("available", [])
        asked: dict[str, object] = found["input_schema"]
        return asked

    greet = await schema("greet")
    properties = greet["properties"]
    assert isinstance(properties, dict)
    assert {name: part.get("type") for name, part in properties.items()} == {
        "name": "string",
        "times": "integer",
        "loud": "boolean",
        "ratio": "number",
        "tags": "array",
        "more": "object",
        "told": None,  # a template may become anything
        "none": None,
    }
    assert properties["times"]["default"] == 3
    assert "required" not in greet  # each has a value
    assert await schema("renewal") == {"type": "object", "required": ["policy"]}
    assert await schema("triage") == {
        "type": "object",
        "properties": {
            "report": {"type": "string", "description": "File with the report"},
            "depth": {"type": "number", "default": 2, "enum": [1, 2]},
        },
        "required": ["report"],
    }
    assert (await http.get("/definitions/greet")).json()["description"] == "Greets somebody"
