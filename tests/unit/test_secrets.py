from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from treadle.kernel.errors import SecretMissing, TreadleError
from treadle.secrets.files import (
    SecretStore,
    SecretsUnreadable,
    parse_secrets,
    secret_store_of,
    secret_store_path,
)
from treadle.secrets.providers import Secrets, kept_for

VALUE = "hunter2-hunter2"


# --- files that people write ---


def test_a_dotenv_file():
    text = (
        '# comment\n\nexport A=plain # trailing\nB = \'single # kept\'\nC="two\\nlines \\"q\\""\n'
        'D=a=b=c\nE=\nKEY="-----BEGIN\nmiddle\nEND"\n'
    )
    assert parse_secrets(text) == {
        "A": "plain",
        "B": "single # kept",
        "C": 'two\nlines "q"',
        "D": "a=b=c",
        "E": "",
        "KEY": "-----BEGIN\nmiddle\nEND",
    }


def test_yaml_and_json_keep_values_as_they_are_written():
    text = "token: 012345\nyes_no: on\npg:\n  db_host: localhost\n  db_port: 5432\n  db_password: 1e5\n"
    expected = {
        "token": "012345",
        "yes_no": "on",
        "pg": {"db_host": "localhost", "db_port": "5432", "db_password": "1e5"},
    }
    assert parse_secrets(text) == expected
    assert parse_secrets(json.dumps(expected)) == expected
    assert parse_secrets("") == {}


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "a: [1]\n", "a: {b: {c: 1}}\n", "{a: ", "A='open\n", "A=1\nnonsense\n"]
)
def test_a_file_of_another_shape_is_refused_without_showing_a_value(text):
    with pytest.raises(SecretsUnreadable) as caught:
        parse_secrets(text.replace("1", VALUE), file="s.env")
    assert "s.env" in str(caught.value)
    assert VALUE not in str(caught.value)


# --- the chain ---


async def test_the_first_provider_that_has_a_name_wins(tmp_path):
    file = tmp_path / "secrets.yaml"
    file.write_text("a: from file\nb: from file\n")
    store = SecretStore(tmp_path / "db.secrets")
    for name in "abcd":
        store.set(name, "from store")
    env = {f"TREADLE_SECRET_{name}": "from env" for name in "ABCDE"}
    secrets = Secrets({"a": "given"}, file=file, store=store, env=env)

    @secrets.provider
    async def vault(name: str) -> str | None:
        return "from vault" if name in ("b", "c") else None

    found = {name: await secrets.resolve(name) for name in "abcde"}
    assert found == {"a": "given", "b": "from file", "c": "from vault", "d": "from store", "e": "from env"}


async def test_a_missing_secret_says_where_to_put_it():
    with pytest.raises(SecretMissing) as caught:
        await Secrets(env={}).resolve("pg-main")
    assert caught.value.cls == "authorization"
    for remedy in ("treadle secret set pg-main", "TREADLE_SECRET_PG_MAIN", "--secrets"):
        assert remedy in caught.value.message


async def test_fields_come_from_any_provider(tmp_path):
    store = SecretStore(tmp_path / "db.secrets")
    store.set("one", {"user": "ann", "password": VALUE})
    secrets = Secrets(
        {"two": {"k": "v"}},
        store=store,
        env={"TREADLE_SECRET_THREE": '{"port": 5432}', "TREADLE_SECRET_FOUR": "{not json"},
    )
    assert await secrets.resolve("one") == {"user": "ann", "password": VALUE}
    assert await secrets.resolve("two") == {"k": "v"}
    assert await secrets.resolve("three") == {"port": "5432"}
    assert await secrets.resolve("four") == "{not json"


async def test_whatever_was_handed_out_is_redacted(tmp_path):
    secrets = Secrets({"tok": VALUE, "pin": "1234", "pg": {"password": "pw-of-twelve"}}, env={})
    value = {"text": f"{VALUE} 1234 pw-of-twelve"}
    assert secrets.redact(value) == value, "nothing is known before it is used"
    secrets.mark("pin")
    for name in ("tok", "pin", "pg"):
        await secrets.resolve(name)
    assert secrets.redact(value) == {"text": "[redacted:tok] [redacted:pin] [redacted:pg.password]"}


async def test_a_runs_own_file_goes_first_and_shares_the_redactor(tmp_path):
    (tmp_path / "run.env").write_text(f"tok={VALUE}\n")
    secrets = Secrets({"other": "elsewhere-1"}, env={"TREADLE_SECRET_TOK": "from the environment"})
    options = {"secrets": str(tmp_path / "run.env")}
    assert await secrets.resolve("tok", options) == VALUE
    assert await secrets.resolve("tok") == "from the environment"
    assert await secrets.resolve("other", options) == "elsewhere-1"
    assert secrets.redact(VALUE) == "[redacted:tok]"


async def test_a_secrets_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SecretsUnreadable, match=r"none\.env"):
        await Secrets(file=tmp_path / "none.env", env={}).resolve("x")


# --- the encrypted store ---


@pytest.fixture
def store(tmp_path, monkeypatch) -> SecretStore:
    monkeypatch.delenv("TREADLE_SECRET_KEY", raising=False)
    return SecretStore(tmp_path / "treadle.db.secrets")


def test_set_list_get_remove(store):
    assert (store.names(), store.get("tok")) == ([], None)
    store.set("tok", VALUE)
    store.set("pg", {"user": "ann"})
    assert store.names() == ["pg", "tok"]
    assert (store.get("tok"), store.get("pg")) == (VALUE, {"user": "ann"})
    store.set("tok", "new value")
    assert SecretStore(store.path).get("tok") == "new value"
    assert store.remove("tok") is True
    assert store.remove("tok") is False
    assert store.names() == ["pg"]


def test_the_files_show_names_only_and_belong_to_their_owner(store):
    store.set("tok", VALUE)
    for path in store.path.parent.iterdir():
        assert VALUE not in path.read_text()
    assert "tok" in store.path.read_text()
    for path in (store.path, store.key_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_value_cannot_be_moved_to_another_name(store):
    store.set("a", VALUE)
    store.set("b", "other")
    document = json.loads(store.path.read_text())
    document["secrets"]["b"] = document["secrets"]["a"]
    store.path.write_text(json.dumps(document))
    with pytest.raises(SecretsUnreadable):
        SecretStore(store.path).get("b")


def test_another_process_sees_a_new_secret_at_once(store):
    store.set("a", VALUE)
    assert store.get("b") is None
    SecretStore(store.path).set("b", "late arrival")
    assert store.get("b") == "late arrival"


WRITER = "import sys; from treadle.secrets.files import SecretStore; SecretStore(sys.argv[1]).set(sys.argv[2], 'v')"


def test_a_writer_waits_for_the_one_before_it_and_keeps_what_that_one_wrote(store):
    store.set("first", "v")
    with store._writing() as document:
        other = subprocess.Popen([sys.executable, "-c", WRITER, str(store.path), "other"])
        end = time.monotonic() + 30
        while f"-> FLOCK  ADVISORY  WRITE {other.pid} " not in Path("/proc/locks").read_text():
            assert time.monotonic() < end, "the other writer does not wait"
            assert other.poll() is None, "the other writer did not wait"
        document["secrets"]["mine"] = document["secrets"]["first"]
    assert other.wait(30) == 0
    assert store.names() == ["first", "mine", "other"]


@pytest.mark.parametrize("key", ["a passphrase of mine", "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA="])
def test_the_key_can_come_from_the_environment(tmp_path, monkeypatch, key):
    monkeypatch.setenv("TREADLE_SECRET_KEY", key)
    store = SecretStore(tmp_path / "s.secrets")
    store.set("tok", VALUE)
    assert not store.key_path.exists()
    assert SecretStore(store.path).get("tok") == VALUE
    monkeypatch.setenv("TREADLE_SECRET_KEY", "another one")
    for attempt in (lambda s: s.get("tok"), lambda s: s.set("x", "y")):
        with pytest.raises(SecretsUnreadable, match="another key"):
            attempt(SecretStore(store.path))
    assert SecretStore(store.path).names() == ["tok"], "names need no key"


def test_a_lost_key_or_a_broken_file_is_a_clear_error_and_changes_nothing(store):
    store.set("tok", VALUE)
    store.key_path.unlink()
    with pytest.raises(SecretsUnreadable, match="key"):
        SecretStore(store.path).get("tok")
    with pytest.raises(SecretsUnreadable, match="key"):
        SecretStore(store.path).set("new", "x")
    assert not store.key_path.exists(), "a new key would hide that the old one is lost"
    store.path.write_text("garbage")
    with pytest.raises(SecretsUnreadable, match="damaged"):
        SecretStore(store.path).names()
    assert store.path.read_text() == "garbage"


@pytest.mark.parametrize("name", ["", "a b", "../x y", "x" * 300])
def test_odd_names_are_refused(store, name):
    with pytest.raises(TreadleError, match="cannot name a secret"):
        store.set(name, VALUE)


def test_where_the_secrets_of_a_store_are_kept(monkeypatch, tmp_path):
    assert secret_store_path("sqlite:///treadle.db") == Path("treadle.db.secrets")
    assert secret_store_path("sqlite:////var/lib/t.db") == Path("/var/lib/t.db.secrets")
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    one = secret_store_path("postgresql://ann:pw@db:5432/flows")
    assert one.parent == tmp_path
    assert one == secret_store_path("postgresql://bob:other@db:5432/flows"), (
        "a password is not part of the place"
    )
    assert "pw" not in os.fspath(one)


@pytest.mark.parametrize(
    "same",
    [
        "postgres://db/flows",
        "postgresql://ann@db:5432/flows",
        "postgresql:///flows?host=db",
        "postgresql://db/?dbname=flows&port=5432",
        "postgresql://flows@db?connect_timeout=3",
    ],
)
def test_one_database_has_one_place_for_its_secrets_however_its_address_is_written(same):
    assert secret_store_path(same) == secret_store_path("postgresql://db/flows")


@pytest.mark.parametrize(
    "other",
    [
        "postgresql://db/others",
        "postgresql://db:5433/flows",
        "postgresql:///flows?host=/run/pg",
        "postgresql://db/flows?options=-csearch_path%3Dmine",
    ],
)
def test_two_stores_never_share_their_secrets(other):
    assert secret_store_path(other) != secret_store_path("postgresql://db/flows")


def test_a_file_keeps_its_secrets_beside_it_whatever_its_name_and_a_store_in_memory_keeps_none():
    assert secret_store_path("sqlite:///a?b.db") == Path("a?b.db.secrets")
    assert secret_store_of("memory://") is None


@pytest.mark.parametrize(("asked", "error"), [("home", RuntimeError), ("exists", PermissionError)])
def test_where_there_is_no_folder_of_the_user_other_secrets_are_found(monkeypatch, asked, error):
    def refused(*path):
        raise error("as a container says whose user is another one")

    monkeypatch.delenv("TREADLE_HOME", raising=False)
    monkeypatch.setattr(Path, asked, refused)
    url = "postgresql://db/flows"
    assert asyncio.run(Secrets(store=kept_for(url), env={"TREADLE_SECRET_A": VALUE}).resolve("a")) == VALUE


def test_a_folder_that_takes_no_secrets_is_told_with_its_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    store = SecretStore(tmp_path / "file" / "x.secrets")
    with pytest.raises(TreadleError, match=r"cannot write .*x\.secrets"):
        store.set("a", VALUE)
    with pytest.raises(SecretsUnreadable, match="cannot be read"):
        store.names()
