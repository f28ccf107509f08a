"""Secrets on disk: plain files that people write, and the encrypted store that `treadle secret` keeps.

A plain file is a dotenv file, or a YAML or JSON mapping of name to value or to fields. Values are
read as they are written: `012345` stays a text with a leading zero.

The store is one file beside the database. Each value is encrypted with AES-256-GCM, bound to its
name; a reader of the file learns names only. The key is a file beside it (mode 0600), or the text
in TREADLE_SECRET_KEY. It can be changed (`rotate`).
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from treadle.kernel.errors import TreadleError
from treadle.store.files import written
from treadle.store.open import Place

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Secret = str | dict[str, str]

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_CHECK: Final = "treadle secret store"
_ENV_LINE: Final = r"(?s)\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*?)\s*\Z"
_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.@/-]{0,199}\Z"


class SecretsUnreadable(TreadleError):
    """Secrets cannot be read: the file is broken, or the key is another one than it was written with."""

    cls = "authorization"
    code = "SECRETS_UNREADABLE"


def parse_secrets(text: str, *, file: str = "<text>") -> dict[str, Secret]:
    """Secrets by name, from a dotenv, YAML or JSON text. Errors never show a value."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and re.match(_ENV_LINE, lines[0]) and not lines[0].lstrip().startswith(("{", '"')):
        return dict(_parse_dotenv(text, file))
    import yaml

    try:
        # The base loader keeps every scalar as the text that stands there.
        found = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise SecretsUnreadable(f"{file}: neither dotenv nor YAML nor JSON{line}") from None
    if found in (None, ""):
        return {}
    if not isinstance(found, dict):
        raise SecretsUnreadable(f"{file}: a mapping of name to value, or of name to fields, is expected")
    return {str(name): as_secret(value, f"{file}: {name}") for name, value in found.items()}


def as_secret(value: Any, where: str) -> Secret:
    """A text, or fields of text; anything deeper is refused."""
    if isinstance(value, Mapping):
        fields = {str(field): as_secret(part, f"{where}.{field}") for field, part in value.items()}
        for field, part in fields.items():
            if not isinstance(part, str):
                raise SecretsUnreadable(f"{where}.{field}: a field must be a text, not a mapping")
        return {field: str(part) for field, part in fields.items()}
    if isinstance(value, list) or value is None:
        raise SecretsUnreadable(f"{where}: a text or a mapping of fields is expected")
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _parse_dotenv(text: str, file: str) -> Iterator[tuple[str, str]]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (match := re.match(_ENV_LINE, line)) is None:
            raise SecretsUnreadable(f"{file}, line {number}: NAME=value is expected")
        name, value = match[1], match[2]
        quote = value[:1]
        if quote in ("'", '"'):
            while not _closes(value, quote):
                follow = next(lines, None)
                if follow is None:
                    raise SecretsUnreadable(f"{file}, line {number}: the quote is not closed")
                value += "\n" + follow[1]
            value = value[1 : value.rindex(quote)]
            if quote == '"':
                value = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), value)
        else:
            value = re.sub(r"\s+#.*\Z", "", value)
        yield name, value


def _closes(value: str, quote: str) -> bool:
    return (
        re.match(r"'[^']*'\s*(#.*)?\Z" if quote == "'" else r'"(?:[^"\\]|\\.)*"\s*(#.*)?\Z', value, re.S)
        is not None
    )


def read_secrets_file(path: Path) -> dict[str, Secret]:
    try:
        return parse_secrets(path.read_text("utf-8-sig"), file=str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SecretsUnreadable(f"the secrets file {path} cannot be read: {reason}") from None


def secret_store_of(store_url: str) -> SecretStore | None:
    """The secrets of a store; None where there is no place for them."""
    path = secret_store_path(store_url)
    return None if path is None else SecretStore(path)


def secret_store_path(store_url: str) -> Path | None:
    """Where the secrets of a store are kept: beside its file, else in the user's folder. None for a store in memory, and
    where nobody can say which folder that is, or look into it."""
    place = Place.of(store_url)
    if place.path is not None:
        return Path(f"{place.path}.secrets")
    if not place.shared:
        return None
    try:
        home = Path(os.environ.get("TREADLE_HOME") or Path.home() / ".treadle")
        home.exists()
    except (RuntimeError, PermissionError):  # a container may run as a user that it does not know
        return None
    return home / f"{hashlib.sha256(_database(store_url).encode()).hexdigest()[:16]}.secrets"


def _database(url: str) -> str:
    """The database behind an address, however it is written: nothing of who asks, nothing that goes without saying."""
    parts = urlsplit(url)
    asked = dict(parse_qsl(parts.query))
    hosts = asked.get("host") or unquote(parts.netloc.rpartition("@")[2])
    if port := asked.get("port"):
        hosts = f"{hosts}:{port}"
    hosts = ",".join(host.removesuffix(":5432") for host in hosts.split(","))
    name = asked.get("dbname") or unquote(parts.path[1:]) or asked.get("user") or parts.username or ""
    return f"{hosts}/{name}?{asked.get('options', '')}"


class SecretStore:
    """The encrypted store. Safe for several processes: writers lock, readers see whole files.

    Every value names the key it is sealed with, so that a store can hold values of two keys while the key is changed.
    `rotate` puts a new key beside the old one, seals everything anew, and only then lets the old one go: wherever it
    is cut, everything can be read, and it can be begun again.
    """

    def __init__(self, path: str | Path, *, key: str | None = None, old_key: str | None = None) -> None:
        self.path = Path(path)
        self.key_path = Path(str(self.path) + ".key")
        self._key_text = key if key is not None else os.environ.get("TREADLE_SECRET_KEY") or None
        self._old_text = old_key if old_key is not None else os.environ.get("TREADLE_SECRET_KEY_OLD") or None
        self._seen: tuple[int, int, int] | None = None
        self._document: dict[str, Any] = _empty()
        # The ciphers that were proven, by the names of their keys.
        self._ciphers: dict[str, AESGCM] = {}

    def names(self) -> list[str]:
        return sorted(self._read()["secrets"])

    def get(self, name: str) -> Secret | None:
        try:
            return self._get(name)
        except SecretsUnreadable:
            # The key may have been changed between our look at the values and at the keys.
            self._seen = None
            return self._get(name)

    def _get(self, name: str) -> Secret | None:
        document = self._read()
        if (sealed := document["secrets"].get(name)) is None:
            return None
        opened = json.loads(self._open(document, name, sealed))
        return opened if isinstance(opened, str) else {str(k): str(v) for k, v in opened.items()}

    def set(self, name: str, value: str | Mapping[str, str]) -> None:
        """Stores a secret, or replaces it."""
        if not re.match(_NAME, name):
            raise SecretsUnreadable(
                f"{name!r} cannot name a secret; use letters, digits and _ . - @ /", code="SECRET_NAME"
            )
        plain = json.dumps(value if isinstance(value, str) else dict(value)).encode()
        with self._writing() as document:
            key = self._current(document)
            document["secrets"][name] = self._seal(document, key, name, plain)

    def remove(self, name: str) -> bool:
        """Whether there was one to remove."""
        with self._writing() as document:
            return document["secrets"].pop(name, None) is not None

    def rotate(self) -> int:
        """Seals everything with a new key; how many secrets. With TREADLE_SECRET_KEY that is the new key, and
        TREADLE_SECRET_KEY_OLD the one it replaces."""
        with self._locked():
            before = json.loads(json.dumps(self._read()))
            if not before["keys"]:
                return 0
            # All of it is opened before anything is changed.
            plain = {name: self._open(before, name, sealed) for name, sealed in before["secrets"].items()}
            if self._key_text is None:
                _write_private(self.key_path, _key_lines(_new_key(), *self._texts()))
            after = _empty()
            key = self._add_key(after, self._texts()[0])
            for name, opened in plain.items():
                after["secrets"][name] = self._seal(after, key, name, opened)
            self._write(after)
            if self._key_text is None:
                _write_private(self.key_path, _key_lines(self._texts()[0]))
            return len(plain)

    def _read(self) -> dict[str, Any]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return _empty()
        except OSError as error:
            raise SecretsUnreadable(f"{self.path} cannot be read: {error.strerror}") from error
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            try:
                document = _upgraded(json.loads(self.path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise SecretsUnreadable(
                    f"{self.path} is not a Treadle secret store, or it is damaged"
                ) from error
            self._document, self._seen, self._ciphers = document, seen, {}
        return self._document

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time."""
        with written(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(str(self.path) + ".lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    @contextmanager
    def _writing(self) -> Iterator[dict[str, Any]]:
        """The new file takes the old one's place in one move."""
        with self._locked():
            document = json.loads(json.dumps(self._read()))
            yield document
            self._write(document)

    def _write(self, document: dict[str, Any]) -> None:
        _write_private(self.path, json.dumps(document, indent=1, sort_keys=True).encode())

    # --- keys ---

    def _seal(self, document: dict[str, Any], key: str, name: str, plain: bytes) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher(document, key).encrypt(nonce, plain, name.encode())
        return f"{key}:{base64.b64encode(sealed).decode()}"

    def _open(self, document: dict[str, Any], name: str, sealed: str) -> bytes:
        key, _, text = sealed.partition(":")
        opened = _decrypted(self._cipher(document, key), name, text)
        if opened is None:
            raise self._unreadable()
        return opened

    def _cipher(self, document: dict[str, Any], key: str) -> AESGCM:
        """The cipher of one of the store's keys, proven to be the one that values were written with."""
        if key not in self._ciphers:
            about = document["keys"].get(key)
            found = [c for text in self._texts() if (c := _proven(text, about)) is not None] if about else []
            if not found:
                raise self._unreadable()
            self._ciphers[key] = found[0]
        return self._ciphers[key]

    def _current(self, document: dict[str, Any]) -> str:
        """The name of the key that new values are sealed with; made at the first use."""
        if not document["keys"] and self._key_text is None and not self.key_path.exists():
            _write_private(self.key_path, _key_lines(_new_key()))
        newest = self._texts()[0]
        for key, about in document["keys"].items():
            if _proven(newest, about) is not None:
                return str(key)
        for key in document["keys"]:
            self._cipher(document, key)  # a key that cannot read what is there seals nothing beside it
        return self._add_key(document, newest)

    def _add_key(self, document: dict[str, Any], text: str) -> str:
        key = os.urandom(4).hex()
        about: dict[str, str] = {}
        if _raw_key(text) is None:
            about["salt"] = base64.b64encode(os.urandom(16)).decode()
        cipher = _cipher_of(text, about)
        nonce = os.urandom(_NONCE_BYTES)
        about["check"] = base64.b64encode(nonce + cipher.encrypt(nonce, b"", _CHECK.encode())).decode()
        document["keys"][key] = about
        self._ciphers[key] = cipher
        return key

    def _texts(self) -> list[str]:
        """The keys that are at hand, the newest first."""
        if self._key_text is not None:
            return [self._key_text, *([self._old_text] if self._old_text is not None else [])]
        try:
            found = self.key_path.read_text("ascii").split()
        except (OSError, UnicodeDecodeError):
            found = []
        if not found or any(_raw_key(text) is None for text in found):
            raise SecretsUnreadable(
                f"the key of the secret store is missing: put it at {self.key_path} or into TREADLE_SECRET_KEY"
            )
        return found

    def _unreadable(self) -> SecretsUnreadable:
        return SecretsUnreadable(
            f"{self.path} was written with another key, or it is damaged; check TREADLE_SECRET_KEY and "
            f"{self.path}.key"
        )


def _empty() -> dict[str, Any]:
    return {"version": 2, "keys": {}, "secrets": {}}


def _upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A store of 0.1.0 had one key, and no name for it."""
    if not isinstance(document["secrets"], dict):
        raise ValueError
    if document["version"] == 2:
        return document
    if document["version"] != 1:
        raise ValueError
    about = {name: document[name] for name in ("check", "salt") if name in document}
    values = {name: f"1:{sealed}" for name, sealed in document["secrets"].items()}
    return {"version": 2, "keys": {"1": about} if "check" in about else {}, "secrets": values}


def _new_key() -> str:
    return base64.b64encode(os.urandom(_KEY_BYTES)).decode()


def _key_lines(*keys: str) -> bytes:
    return "".join(f"{key}\n" for key in keys).encode()


def _cipher_of(text: str, about: Mapping[str, str]) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    raw = _raw_key(text)
    if raw is None:
        salt = base64.b64decode(about.get("salt", ""))
        raw = hashlib.scrypt(text.encode(), salt=salt, n=2**14, r=8, p=1, dklen=_KEY_BYTES)
    return AESGCM(raw)


def _proven(text: str, about: Mapping[str, str]) -> AESGCM | None:
    """The cipher of a key, if it is the one that a store knows by these marks."""
    cipher = _cipher_of(text, about)
    return cipher if _decrypted(cipher, _CHECK, about["check"]) is not None else None


def _raw_key(text: str) -> bytes | None:
    """A key of 32 bytes in base64; any other text is a passphrase."""
    try:
        raw = base64.b64decode(text.strip().replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == _KEY_BYTES else None


def _decrypted(cipher: AESGCM, name: str, sealed: str) -> bytes | None:
    from cryptography.exceptions import InvalidTag

    try:
        data = base64.b64decode(sealed)
        return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name.encode())
    except (InvalidTag, ValueError):
        return None


def _write_private(path: Path, data: bytes) -> None:
    """Writes a file that only its owner can read, whole or not at all."""
    import tempfile  # most engines keep no secret

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
