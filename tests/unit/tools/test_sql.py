from __future__ import annotations

import base64

import pytest

from treadle.tools.base import BadConfig
from treadle.tools.protocol import ToolCall
from treadle.tools.sql import read_statements, split_statements


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';'; select 2", ["select ';'", "select 2"]),
        ("select 'it''s; ok'; x", ["select 'it''s; ok'", "x"]),
        (r"select E'a\'; b'; x", [r"select E'a\'; b'", "x"]),
        ('select ";" from t; x', ['select ";" from t', "x"]),
        ("-- a; b\nselect 1; -- c;\n", ["-- a; b\nselect 1"]),
        ("/* a; /* b; */ c; */ select 1; x", ["/* a; /* b; */ c; */ select 1", "x"]),
        ("do $$ begin; end $$; x", ["do $$ begin; end $$", "x"]),
        ("do $f$ a; $$ b; $$ c; $f$; x", ["do $f$ a; $$ b; $$ c; $f$", "x"]),
        ("select $1; select a$b; x", ["select $1", "select a$b", "x"]),
        (" ;; \n -- nothing\n", []),
        ("/* open; ", []),
        ("/* a */ select 1 /* b */; /* c /* d */ e */", ["/* a */ select 1 /* b */"]),
        ("'only a quote'", ["'only a quote'"]),
    ],
)
def test_statements_end_at_semicolons_that_are_not_quoted(text, expected):
    assert split_statements(text) == expected


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "config",
    [
        {"command": "a; b"},
        {"commands": ["a", "b"]},
        {"commands": "a; b"},
        {"query": "a; b"},
        {"queries": ["a; b"]},
        {"command_b64": encoded("a; b")},
        {"commands_b64": [encoded("a"), encoded("b")]},
        {"query_b64": encoded("a; b")},
        {"script": "a; b"},
        {"script": {"uri": "s.sql", "source": {"type": "file"}}},
        {"script": "s.sql"},
        {"commands": [{"sql": "a"}, {"query": "b"}]},
    ],
)
def test_every_field_that_may_hold_statements(config, tmp_path):
    (tmp_path / "s.sql").write_text("a;\nb;\n")
    found = read_statements(config, ToolCall(base=str(tmp_path)))
    assert [statement.text for statement in found] == ["a", "b"]


@pytest.mark.parametrize(
    "config",
    [{}, {"command": " ; "}, {"command_b64": "%%%"}, {"script": "none.sql"}, {"command": "a", "params": 5}],
)
def test_what_cannot_be_read_is_a_problem_of_the_task(config, tmp_path):
    with pytest.raises(BadConfig):
        read_statements(config, ToolCall(base=str(tmp_path)))


def test_params_belong_to_all_or_to_one():
    config = {"commands": ["a", {"sql": "b", "params": [2]}], "params": [1]}
    assert [s.params for s in read_statements(config, ToolCall())] == [[1], [2]]
