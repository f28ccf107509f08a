"""Sources and skills: step 0 (S5, S28, R1-R6, K1-K6, D1)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed
from treadle.agent import Skill
from treadle.dialects.agent.sources import SourceShape, classify
from treadle.kernel.errors import TreadleError
from treadle.performers.agent import sources as agent_sources
from treadle.performers.agent.skill_finding import Skills, Values, discover
from treadle.performers.agent.sources import CONTENT_BYTES_MAX, SourceError
from treadle.testing.scripted import ScriptedModel

ONE = {"run": {"a": [{"data": {}}]}}


@pytest.mark.parametrize(
    ("value", "kind", "origin"),
    [
        ("./a.md", "file", "./a.md"),
        ("../a.md", "file", "../a.md"),
        ("/etc/x", "file", "/etc/x"),
        ("  ./a.md\n", "file", "./a.md"),
        ("http://x", "url", "http://x"),
        ("https://x", "url", "https://x"),
        ("ftp://x", "inline", "ftp://x"),
        ("a.md", "inline", "a.md"),
        ("  text ", "inline", "  text "),
        ({"inline": "./x"}, "inline", "./x"),
        ({"inline": ""}, "inline", ""),
        ({"file": "x"}, "file", "x"),
        ({"url": "https://x", "type": "fetch"}, "url", "https://x"),
    ],
)
def test_what_a_source_is(value, kind, origin):
    found = classify(value)
    assert (found.kind, found.origin) == (kind, origin)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("", "SOURCE_INVALID_SHAPE"),
        ({}, "SOURCE_INVALID_SHAPE"),
        (3, "SOURCE_INVALID_SHAPE"),
        ({"inline": "a", "file": "b"}, "SOURCE_INVALID_SHAPE"),
        ({"inline": "a", "type": "fetch"}, "SOURCE_INVALID_SHAPE"),
        ({"url": "https://x", "type": "soap"}, "SOURCE_INVALID_TYPE"),
    ],
)
def test_what_is_no_source(value, code):
    with pytest.raises(SourceShape) as caught:
        classify(value)
    assert caught.value.code == code


def test_files_are_read_beside_the_workflow_first(play, flow, tmp_path, monkeypatch):
    here, there = tmp_path / "flow", tmp_path / "cwd"
    for folder in (here, there):
        folder.mkdir()
        (folder / "both.md").write_text(f"from {folder.name}")
    (there / "only.md").write_text("only in cwd")
    monkeypatch.chdir(there)
    wf = flow({"a": {"instruction": "./both.md", "rules": [{"file": "only.md"}]}})
    run = play(wf, ONE, base=str(here))
    source = run.trace["sources"]["nodes.a.instruction"]
    assert source == {
        "content": "from flow",
        "kind": "file",
        "origin": "./both.md",
        "resolver": "file",
        "hash": hashlib.sha256(b"from flow").hexdigest()[:16],
        "sourcePath": str(here / "both.md"),
    }
    assert run.trace["sources"]["nodes.a.rules[0]"]["content"] == "only in cwd"
    assert run.of("node:enter")[0]["instruction"] == "from flow"


def test_every_source_has_its_field_path(play, flow):
    wf = flow(
        {"a": {"rules": ["r0", "r1"], "context": {"only": True, "sources": ["c0"]}, "skills": ["s"]}},
        rules=["wr"],
        context=["wc"],
        skills={"s": {"instruction": "how"}},
    )
    run = play(wf, ONE, {"rules": "ir", "context": ["ic0", "ic1"]}, templates={"issueTemplate": "t"})
    assert {path: source["content"] for path, source in run.trace["sources"].items()} == {
        "nodes.a.instruction": "Do a.",
        "nodes.a.rules[0]": "r0",
        "nodes.a.rules[1]": "r1",
        "nodes.a.context[0]": "c0",
        "workflow.rules[0]": "wr",
        "workflow.context[0]": "wc",
        "input.rules[0]": "ir",
        "input.context[0]": "ic0",
        "input.context[1]": "ic1",
        "skills.s.instruction": "how",
        "templates.issueTemplate": "t",
    }
    assert "## Skill: s\n\nhow" in run.asked("run")[0]["instruction"]


def test_the_same_url_is_fetched_once(play, flow):
    fetched = []

    async def fetch(url: str) -> tuple[str, str]:
        fetched.append(url)
        return f"text of {url}", "2026-11-15T08:00:00Z"

    wf = flow({"a": {"instruction": "https://x/1", "rules": ["https://x/1", "https://x/2"]}})
    run = play(wf, ONE, fetch=fetch)
    assert fetched == ["https://x/1", "https://x/2"]
    assert run.trace["sources"]["nodes.a.rules[0]"]["fetchedAt"] == "2026-11-15T08:00:00Z"


@pytest.mark.parametrize(
    ("instruction", "options", "code"),
    [
        ("./missing.md", {}, "SOURCE_FILE_NOT_FOUND"),
        ("/review this", {}, "SOURCE_FILE_NOT_FOUND"),
        ("https://x/1", {"offline": True}, "SOURCE_OFFLINE_REQUIRES_FETCH"),
        ("./binary", {}, "SOURCE_FILE_READ_FAILED"),
        ("./folder", {}, "SOURCE_FILE_READ_FAILED"),
        ("./large", {}, "SOURCE_FILE_READ_FAILED"),
        ("/review " + "every line of it " * 20, {}, "SOURCE_FILE_NOT_FOUND"),
        ("./" + "x" * 300, {}, "SOURCE_FILE_NOT_FOUND"),
        ("/" + "a/" * 5000, {}, "SOURCE_FILE_NOT_FOUND"),
        ("./binary/below", {}, "SOURCE_FILE_NOT_FOUND"),
        ("./nul\0byte", {}, "SOURCE_FILE_NOT_FOUND"),
    ],
)
def test_a_source_that_fails_ends_the_run(play, flow, tmp_path, instruction, options, code):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(b"x" * (CONTENT_BYTES_MAX + 1))
    run = play(flow({"a": {"instruction": instruction}}), ONE, base=str(tmp_path), **options)
    assert run.status == "failed"
    assert run.error["code"] == code
    assert run.error["where"] == "nodes.a.instruction"
    assert [e["type"] for e in run.events] == ["workflow:start", "workflow:end"]
    assert run.of("workflow:end") == [{"results": {}}]
    if instruction.startswith("/"):
        assert "inline" in run.error["message"]
    assert len(run.error["message"]) < 1000


def test_a_fetch_that_fails_ends_the_run(play, flow):
    async def fetch(url: str) -> tuple[str, str]:
        raise SourceError("403", code="SOURCE_URL_AUTH_REQUIRED")

    run = play(flow({"a": {"instruction": "https://x"}}), ONE, fetch=fetch)
    assert run.error["code"] == "SOURCE_URL_AUTH_REQUIRED"


@pytest.mark.parametrize(
    "failure", [ValueError("Invalid IPv6 URL"), KeyError("location"), ExceptionGroup("two", [OSError()])]
)
def test_whatever_a_fetch_raises_names_its_source(play, flow, failure):
    """§8.15: error.code is the SOURCE_ code; the error is the Source's, not the performer's."""

    async def fetch(url: str) -> tuple[str, str]:
        raise failure

    run = play(flow("a"), ONE, {"rules": ["text", "https://x"]}, fetch=fetch)
    assert (run.error["code"], run.error["where"]) == ("SOURCE_URL_UNREACHABLE", "input.rules[1]")
    assert run.of("workflow:end") == [{"results": {}}]


def test_one_resource_is_fetched_once_however_it_is_written(play, flow):
    """R3: cached by canonical key."""
    fetched = []

    async def fetch(url: str) -> tuple[str, str]:
        fetched.append(url)
        return url, "2026-11-15T08:00:00Z"

    same = [
        "http://example.org/same",
        "http://example.org/same#part",
        "HTTP://EXAMPLE.org/same",
        "http://example.org:80/same",
        "http://example.org/./other/../same",
    ]
    other = [
        "http://example.org:81/same",
        "https://example.org/same",
        "http://example.org/same/",
        "http://example.org/same?q",
    ]
    run = play(flow({"a": {"rules": [{"url": url} for url in same + other]}}), ONE, fetch=fetch)
    assert fetched == [same[0], *other]
    sources = run.trace["sources"]
    assert [sources[f"nodes.a.rules[{i}]"]["origin"] for i in range(9)] == same + other, "as written"
    assert {sources[f"nodes.a.rules[{i}]"]["content"] for i in range(5)} == {same[0]}


def test_one_file_is_read_once_however_it_is_written(play, flow, tmp_path, monkeypatch):
    read: list[str] = []
    monkeypatch.setattr(agent_sources, "_read", lambda path: read.append(path) or "text")
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.md").write_text("text")
    (tmp_path / "link.md").symlink_to(tmp_path / "a.md")
    rules = ["./a.md", {"file": "a.md"}, "./sub/../a.md", str(tmp_path / "a.md"), "./link.md"]
    run = play(flow({"a": {"rules": rules}}), ONE, base=str(tmp_path))
    assert read == [str(tmp_path / "a.md")]
    assert run.trace["sources"]["nodes.a.rules[4]"]["origin"] == "./link.md"


@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ({"url": "not a uri"}, True),
        ({"url": "docs/rules.md"}, True),
        ({"url": "http://[::1"}, True),
        ({"url": "http://example.org:99999/a"}, True),
        ({"url": "https://"}, True),
        ("http://[::1", True),
        ("https://:80/x", True),
        ({"url": "https://example.org/a?b=c%20d#e"}, False),
        ({"url": "http://[::1]:8080/a"}, False),
        ("https://example.org/grüße", False),
        ("See https://[ for more", False),
        ({"inline": "http://[::1"}, False),
    ],
)
def test_an_address_that_is_none_is_found_before_the_run(problems, flow, source, bad):
    """§2: `url (uri)`, wherever a Source may stand."""
    wf = flow(
        {
            "a": {
                "instruction": source,
                "rules": {"sources": [source]},
                "approve": {"roles": ["r"], "prompt": source},
            }
        },
        context=[source],
        skills={"s": {"instruction": source}},
    )
    found = problems(wf)
    assert {problem.code for problem in found.errors} == ({"SOURCE_INVALID_SHAPE"} if bad else set())
    assert len(found.errors) == (5 if bad else 0)


def test_fetch_auth_takes_hosts_and_ports(problems, flow):
    assert not problems(
        flow("a", fetch={"auth": {"example.org": "T", "example.org:8080": "T", "[::1]:80": "T"}})
    ).errors
    assert problems(flow("a", fetch={"auth": {"https://example.org": "T"}})).errors


def template_engine(folder: Path, wf: dict[str, Any]) -> Engine:
    (folder / "flow.json").write_text(json.dumps(wf))
    engine = Engine("memory:")
    engine.models["fake"] = ScriptedModel(ONE)
    engine.deploy(str(folder / "flow.json"))
    return engine


@pytest.mark.house
async def test_templates_are_sources_like_others(tmp_path, flow):
    """S5: every Source, templates too, is resolved in step 0; files are read."""
    (tmp_path / "pr.md").write_text("Summarise.")
    templates = {"pr": "./pr.md", "issue": {"file": str(tmp_path / "pr.md")}, "text": "plain"}
    async with template_engine(tmp_path, flow("a")) as engine:
        run = await engine.start("wf", {}, model="fake", templates=templates)
        found = (await run.result(timeout=20))["trace"]["sources"]
    assert found["templates.pr"]["content"] == found["templates.issue"]["content"] == "Summarise."
    assert found["templates.pr"]["hash"] == hashlib.sha256(b"Summarise.").hexdigest()[:16]
    assert found["templates.text"]["kind"] == "inline"


@pytest.mark.house
@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("./missing.md", "SOURCE_FILE_NOT_FOUND"),
        ("http://127.0.0.1:9/x", "SOURCE_URL_BLOCKED"),
        ("http://[::1", "SOURCE_URL_UNREACHABLE"),
        ({"url": "ftp://example.org"}, "SOURCE_URL_BLOCKED"),
        ({"file": "a", "url": "b"}, "SOURCE_INVALID_SHAPE"),
    ],
)
async def test_a_template_that_fails_ends_the_run(tmp_path, flow, caplog, template, code):
    async with template_engine(tmp_path, flow("a")) as engine:
        run = await engine.start("wf", {}, model="fake", templates={"pr": template})
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=20)
    assert (caught.value.error["code"], caught.value.error["where"]) == (code, "templates.pr")
    assert "Traceback" not in caplog.text


def test_step_0_is_recorded_and_never_done_again(prepared, flow, tmp_path):
    (tmp_path / "a.md").write_text("first")
    run = prepared(flow({"a": {"instruction": "./a.md"}}), ONE, base=str(tmp_path)).start().go(1)
    (tmp_path / "a.md").write_text("changed meanwhile")
    run.go()
    assert run.asked("run")[0]["instruction"] == "first"
    assert [i.kind for i in run.performed].count("source") == 1


def test_long_sources_and_results_travel_by_reference(play, flow):
    long = "x" * 200_000
    wf = flow({"a": {"instruction": long}, "b": {}}, "a b")
    run = play(wf, {"run": {"a": [{"data": {"text": long}}], "b": [{"data": {}}]}})
    assert run.asked("run")[0]["instruction"] == long
    assert run.asked("run")[1]["context"]["a"] == {"text": long}
    assert run.result["results"]["a"]["data"]["text"] == long
    assert run.result["trace"]["sources"]["nodes.a.instruction"]["content"] == long
    assert max(len(record.body) for record in run.driver.journal) < 100_000 + len(long)


# --- skills -------------------------------------------------------------------------------------


def skill_md(root: Path, folder: str, id: str, text: str | bytes) -> None:
    place = root / folder / id
    place.mkdir(parents=True)
    (place / "SKILL.md").write_bytes(text.encode() if isinstance(text, str) else text)


def test_skill_folders_are_found_in_order(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    skill_md(tmp_path, ".claude/skills", "one", "---\nname: Later\n---\nlater")
    skill_md(
        tmp_path,
        ".treadle/skills",
        "one",
        "---\nname: First\ndescription: d\ncategory: odd\n---\nBody text\n",
    )
    skill_md(tmp_path, ".gemini/skills", "two", "No front matter.")
    skill_md(tmp_path, ".agents/skills", "broken", "---\n- not a mapping\n---\ntext")
    first = discover("one", str(tmp_path))
    assert (first.name, first.category, first.instruction) == ("First", "general", "Body text")
    assert discover("two", str(tmp_path)).instruction == "No front matter."
    assert discover("broken", str(tmp_path)) is None, "a folder that others use must not stop a run"
    assert "passed over" in caplog.text
    assert discover("../one", str(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("---\nname: n\nconfig: [x]\n---\nbody", "config"),
        ("---\nname: n\nconfig: hello\n---\nbody", "config"),
        ("---\nname: n\nconfig: {K: 5}\n---\nbody", "config.K"),
        ("---\nmcp: hello\n---\nbody", "mcp"),
        ("---\nmcp: {foo: 1}\n---\nbody", "mcp"),
        ("---\nmcp: {command: x, timeout: soon}\n---\nbody", "mcp.timeout"),
        ("---\nname: [unclosed\n---\nbody", "YAML"),
        ("---\nname: a\nname: b\n---\nbody", "stands twice"),
        ("---\n- 1\n---\nbody", "not a mapping"),
        ("", "neither an instruction"),
        ("---\nname: Net\n---\n", "neither an instruction"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_a_written_skill_that_is_wrong_stops_nobody(play, flow, tmp_path, text, wrong):
    """A4, K2: where it is optional the node runs without it; what is wrong with which file is told."""
    skill_md(tmp_path, ".treadle/skills", "net", text)
    run = play(flow({"a": {"skills": ["net"], "skills_optional": True}}), ONE, base=str(tmp_path))
    assert (run.status, len(run.of("node:warning"))) == ("completed", 1)
    told = Skills(learn=lambda name, value: None).unknown("net", str(tmp_path))
    assert str(tmp_path / ".treadle/skills/net/SKILL.md") in told
    assert wrong in told


def test_a_server_that_is_used_without_a_variable_says_so(play, flow, tmp_path, monkeypatch):
    monkeypatch.setenv("SET_KEY", "abcdefgh")
    monkeypatch.delenv("UNSET_KEY", raising=False)
    server = "mcp: {command: nobody, env: {SET_KEY: a key, UNSET_KEY: another}}"
    skill_md(tmp_path, ".treadle/skills", "net", f"---\n{server}\n---\nbody")
    wf = flow({"a": {"skills": ["net"], "requires": {"output_required": ["input.no"], "on_fail": "skip"}}})
    (warned,) = play(wf, ONE, base=str(tmp_path)).of("node:warning")
    assert warned["message"] == "the server of the skill 'net' is used without UNSET_KEY: not set"


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_instruction_that_is_an_empty_file_is_asked_of_nobody(play, flow, tmp_path, text):
    (tmp_path / "a.md").write_text(text)
    run = play(flow({"a": {"instruction": "./a.md"}}), ONE, base=str(tmp_path))
    assert (run.status, run.error["code"]) == ("failed", "SOURCE_FILE_READ_FAILED")
    assert run.error["where"] == "nodes.a.instruction"
    fine = play(flow({"a": {"rules": ["./a.md"]}}), ONE, base=str(tmp_path))
    assert fine.status == "completed"


def test_a_written_skill_that_hides_a_broken_one_says_so(play, flow, tmp_path):
    skill_md(tmp_path, ".treadle/skills", "net", "---\nconfig: [x]\n---\nmeant")
    skill_md(tmp_path, ".claude/skills", "net", "other")
    run = play(flow({"a": {"skills": ["net", "net"]}}), ONE, base=str(tmp_path))
    (warned,) = run.of("node:warning")
    assert warned["node"] == "a"
    assert str(tmp_path / ".treadle/skills/net/SKILL.md") in warned["message"]
    assert "config" in warned["message"]


@pytest.mark.parametrize(
    ("text", "name", "instruction"),
    [
        ("\ufeff---\nname: Net\n---\nbody", "Net", "body"),
        ("---\r\nname: Net\r\n---\r\nbody", "Net", "body"),
        ("---\n---\nbody\n---\nmore", "net", "body\n---\nmore"),
        ("---\ndescription: a---\nname: Net\n---\nbody", "Net", "body"),
        ("body\n---\nmore", "net", "body\n---\nmore"),
    ],
)
def test_front_matter(tmp_path, text, name, instruction):
    skill_md(tmp_path, ".treadle/skills", "net", text)
    found = discover("net", str(tmp_path))
    assert (found.name, found.instruction) == (name, instruction)


def test_check_knows_the_skills_that_are_written_beside_the_file(tmp_path, flow):
    """W1: UNKNOWN_SKILL is for a skill that a run would not find either."""
    skill_md(tmp_path, ".claude/skills", "net", "Look at the network.")
    skill_md(tmp_path, ".claude/skills", "empty", "")
    (tmp_path / "flow.json").write_text(json.dumps(flow({"a": {"skills": ["net", "nte", "empty", "files"]}})))
    found = Engine("memory:").check(str(tmp_path / "flow.json"))
    assert [(p.code, p.path) for p in found] == [
        ("UNKNOWN_SKILL", "nodes.a.skills[1]"),
        ("UNKNOWN_SKILL", "nodes.a.skills[2]"),
    ]
    nowhere, unusable = (problem.message for problem in found)
    assert "'nte' is neither in this file nor" in nowhere
    assert f"'empty' is not usable: {tmp_path / '.claude/skills/empty/SKILL.md'}: it has neither" in unusable


def test_a_written_skill_replaces_instruction_and_keeps_tools(play, flow, tmp_path):
    skill = Skill("net", name="Net", instruction="built in")
    skill.tool("ping")(lambda input, ctx: "pong")
    skill_md(tmp_path, ".treadle/skills", "net", "---\nname: Net\n---\nwritten")
    run = play(flow({"a": {"skills": ["net"]}}), ONE, skills=(skill,), base=str(tmp_path))
    assert run.asked("run")[0]["tools"] == ["ping"]
    assert "## Skill: Net\n\nwritten" in run.asked("run")[0]["instruction"]


def test_a_registered_skill_wins_over_the_files_own(play, flow):
    skill = Skill("net", name="Registered", instruction="registered")
    wf = flow({"a": {"skills": ["net"]}}, skills={"net": {"instruction": "inline"}})
    assert (
        "## Skill: Registered\n\nregistered" in play(wf, ONE, skills=(skill,)).asked("run")[0]["instruction"]
    )


def test_step_0_records_skills_without_values(play, flow, monkeypatch):
    monkeypatch.setenv("NET_TOKEN", "super-secret-value")
    skill = Skill(
        "net", name="Net", config={"NET_TOKEN": {"description": "t", "required": True, "env": "NET_TOKEN"}}
    )
    skill.tool("ping", description="Ping", input_schema={"type": "object"}, idempotent=True)(lambda i, c: 1)
    run = play(flow({"a": {"skills": ["net"]}}), ONE, skills=(skill,))
    assert run.driver.state["skills"]["net"]["tools"] == [
        {"name": "ping", "description": "Ping", "input_schema": {"type": "object"}, "idempotent": True}
    ]
    assert all(b"super-secret-value" not in record.body for record in run.driver.journal)


@pytest.mark.parametrize("id", ["Net", "a--b", "-a", "a" * 65, ""])
def test_skill_ids_are_kebab_case(id):
    with pytest.raises(TreadleError, match="not valid"):
        Skill(id, name="x")


def test_two_skills_with_one_tool_name(play, flow):
    skills = []
    for id in ("one", "two"):
        skill = Skill(id, name=id)
        skill.tool("go")(lambda input, ctx, id=id: id)
        skills.append(skill)
    calls: list[Any] = [{"tool": "go"}, {"tool": "two__go"}]
    run = play(
        flow({"a": {"skills": ["one", "two"]}}),
        {"run": {"a": [{"tool_calls": calls, "data": {}}]}},
        skills=tuple(skills),
    )
    assert [call["output"] for call in run.results["a"]["toolCalls"]] == ["one", "two"]


async def test_settings_are_looked_for_in_order(tmp_path, monkeypatch):
    """K2: what the run was given, its secrets, the environment, `.env` beside the workflow, `.env` here."""
    here, there = tmp_path / "flow", tmp_path / "cwd"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(there)
    for name in ("A_KEY", "B_KEY", "C_KEY", "D_KEY", "E_KEY"):
        monkeypatch.delenv(name, raising=False)
    (there / ".env").write_text("A_KEY=cwd\nB_KEY=cwd\nC_KEY=cwd\nD_KEY=cwd\nE_KEY=cwd\n")
    (here / ".env").write_text("A_KEY=flow\nB_KEY=flow\nC_KEY=flow\nD_KEY=flow\n")
    for name in ("A_KEY", "B_KEY", "C_KEY"):
        monkeypatch.setenv(name, "environment")

    async def secret(name: str) -> str:
        if name in ("A_KEY", "B_KEY"):
            return "secret"
        raise KeyError(name)

    values = Values({"A_KEY": "given"}, secret, str(here))
    found = [
        await values.find(name, name) for name in ("A_KEY", "B_KEY", "C_KEY", "D_KEY", "E_KEY", "NO_KEY")
    ]
    assert found == ["given", "secret", "environment", "flow", "cwd", None]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"\xef\xbb\xbfMY_TOK=value\n", "value"),
        (b"just a line\nMY_TOK=value\n", None),
        (b"MY_TOK=\xff\xfe\n", None),
        (b"a: [x\n", None),
    ],
)
async def test_an_env_file_that_is_not_ours_stops_nobody(tmp_path, monkeypatch, caplog, text, found):
    """K2: an unavailable skill does not fail the workflow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_TOK", raising=False)
    (tmp_path / ".env").write_bytes(text)

    async def secret(name: str) -> str:
        raise KeyError(name)

    assert await Values({}, secret, None).find("TOK", "MY_TOK") == found
    assert ("passed over" in caplog.text) == (found is None)


async def test_a_setting_may_be_a_secret_by_the_name_of_its_variable():
    async def secret(name: str) -> str:
        return {"MY_TOK": "value"}[name]

    assert await Values({}, secret, None).find("TOK", "MY_TOK") == "value"


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("id", 5, "VALUE_REFUSED"),
        ("id", b"x", "VALUE_REFUSED"),
        ("model", 5, "VALUE_REFUSED"),
        ("config", 5, "VALUE_REFUSED"),
        ("templates", ["x"], "VALUE_REFUSED"),
        ("secrets", "/nonexistent", "SECRETS_UNREADABLE"),
    ],
)
async def test_an_option_that_is_none_is_refused_and_stops_nobody_else(tmp_path, flow, option, value, code):
    async with template_engine(tmp_path, flow("a")) as engine:
        with pytest.raises(TreadleError) as caught:
            await engine.start("wf", {}, **{"model": "fake", option: value})
        assert caught.value.code == code
        run = await engine.start("wf", {}, model="fake")
        await run.result(timeout=20)


def test_a_skill_has_at_least_something(prepared, flow):
    with pytest.raises(TreadleError, match="no tools, no instruction"):
        prepared(flow("a"), ONE, skills=(Skill("empty", name="E"),))
