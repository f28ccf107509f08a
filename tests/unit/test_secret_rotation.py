"""Changing the key of the secret store: everything can be read at every moment, and after a crash at any of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from treadle.secrets import files
from treadle.secrets.files import SecretStore, SecretsUnreadable

VALUES = {"a": "first", "b": {"user": "u", "password": "p"}, "c": "third"}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_SECRET_KEY", raising=False)
    monkeypatch.delenv("TREADLE_SECRET_KEY_OLD", raising=False)


def filled(path: Path, **options: str) -> SecretStore:
    store = SecretStore(path, **options)
    for name, value in VALUES.items():
        store.set(name, value)
    return store


def assert_all(store: SecretStore) -> None:
    assert {name: store.get(name) for name in store.names()} == VALUES


def test_everything_is_sealed_anew_and_the_old_key_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.secrets"
    store = filled(path)
    reader = SecretStore(path)
    assert_all(reader)
    key, sealed = store.key_path.read_text(), json.loads(path.read_text())["secrets"]
    assert store.rotate() == 3
    assert_all(store)
    assert_all(reader)
    assert_all(SecretStore(path))
    after = json.loads(path.read_text())
    assert len(after["keys"]) == 1
    assert not set(sealed.values()) & set(after["secrets"].values())
    store.key_path.write_text(key)
    with pytest.raises(SecretsUnreadable):
        SecretStore(path).get("a")


@pytest.mark.parametrize("moment", [1, 2, 3])
@pytest.mark.parametrize("written", [False, True])
def test_a_rotation_that_is_cut_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, written: bool
) -> None:
    path = tmp_path / "t.secrets"
    store = filled(path)
    whole = files._write_private
    count = 0

    def cut(file: Path, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == moment and not written:
            raise KeyboardInterrupt
        whole(file, data)
        if count == moment:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "_write_private", cut)
        with pytest.raises(KeyboardInterrupt):
            store.rotate()
    assert_all(SecretStore(path))
    again = SecretStore(path)
    again.set("a", "first")
    assert_all(SecretStore(path))
    assert again.rotate() == 3
    assert_all(SecretStore(path))
    assert len(again.key_path.read_text().split()) == 1


def test_a_key_of_the_environment_is_changed_with_the_old_one_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "t.secrets"
    filled(path, key="a passphrase")
    with pytest.raises(SecretsUnreadable):
        SecretStore(path, key="another one").rotate()
    both = SecretStore(path, key="another one", old_key="a passphrase")
    assert_all(both)
    both.set("c", "third")
    assert_all(SecretStore(path, key="another one", old_key="a passphrase"))
    assert both.rotate() == 3
    assert_all(SecretStore(path, key="another one"))
    with pytest.raises(SecretsUnreadable):
        SecretStore(path, key="a passphrase").get("a")


def test_a_store_of_the_first_version_is_read_and_rotated(tmp_path: Path) -> None:
    path = tmp_path / "t.secrets"
    filled(path)
    document = json.loads(path.read_text())
    (about,) = document["keys"].values()
    values = {name: sealed.partition(":")[2] for name, sealed in document["secrets"].items()}
    path.write_text(json.dumps({"version": 1, "secrets": values, **about}))
    store = SecretStore(path)
    assert_all(store)
    assert store.rotate() == 3
    assert_all(SecretStore(path))


def test_a_store_without_secrets_has_nothing_to_rotate(tmp_path: Path) -> None:
    assert SecretStore(tmp_path / "t.secrets").rotate() == 0
