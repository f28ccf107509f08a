"""Backups: a whole store in one file, taken while others work on it, and a store made of one again.

A backup is a copy (`copying.py`) of the store as it was at one moment, payloads included, wherever those are kept. It is
a store in a file: every question can be asked of it, and nobody can work on it. It says of itself when and from where it
was taken, and what the rows of each of its tables are in one word, so that whoever restores it knows whether it is
what was written.

What a restored store must not do is go on with what somebody else goes on with. Leases of work that the original gave do
not hold in it, nor does anybody's hold on its shards; and where the original can be seen to be at work, it is not
restored.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from treadle.kernel.errors import (
    BlobMissing,
    StoreCorrupt,
    StoreTooNew,
    StoreUnavailable,
    TreadleError,
    Unsupported,
)
from treadle.lang.duration import instant_text

from .connection import BACKUP, UNFINISHED
from .copying import TABLES, Copied, Table, Tell, check_chains, copy, digest_of
from .files import written
from .open import Place, is_postgres, newest_schema, read_store, shown
from .owner import OwnerLock
from .reads import AUDIT_COLUMNS, SqlReads
from .sql import SqlStore, migrations
from .sqlite import SqliteDialect

# Payloads can be collected while they are copied; then the copy begins again, and meets the next moment.
_TRIES: Final = 5


def check_place(url: str, file: Path) -> None:
    """Refuses a backup of no store, or to a place where it cannot be, before anything is done."""
    if not Place.of(url).has_store():
        raise StoreUnavailable(f"there is no store at {shown(url)}; name one with --store")
    if file.exists():
        raise Unsupported(
            f"{file} is there already, and a backup overwrites nothing; name another file", code="FILE_EXISTS"
        )
    if not file.absolute().parent.is_dir():
        raise Unsupported(f"the folder {file.absolute().parent} does not exist; create it", code="NO_FOLDER")


def backup(url: str, file: Path, tell: Tell = lambda table, rows: None) -> dict[str, Any]:
    """Writes a backup of the store at an address; what is in it. Others may work on the store meanwhile."""
    check_place(url, file)
    begun = time.monotonic()
    with _part_of(file) as part, contextlib.closing(read_store(url)) as reads:
        _check_schema(reads, url)
        about, copied = _copied(reads, part, url, tell)
        with written(file):
            os.link(part, file)  # unlike a rename, it overwrites nothing that came meanwhile
    return {
        "backup": str(file),
        "from": about["from"],
        "at": about["at"],
        "verified": True,
        "bytes": file.stat().st_size,
        "seconds": round(time.monotonic() - begun, 3),
        **copied.counts,
    }


@contextlib.contextmanager
def _part_of(file: Path) -> Iterator[Path]:
    """Where a backup is while it is written; gone afterwards, also that of somebody who was killed."""
    part = file.with_name(file.name + ".part")
    lock = OwnerLock(part)
    if not lock.acquire():
        raise Unsupported(f"process {lock.holder()} is writing {file}", code="FILE_EXISTS")
    try:
        _remove(part)
        yield part
    finally:
        _remove(part)
        part.with_name(part.name + "-owner").unlink(missing_ok=True)
        lock.release()


def _remove(store: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        store.with_name(store.name + ending).unlink(missing_ok=True)


def _check_schema(reads: SqlReads, url: str) -> None:
    newest = newest_schema(url)
    if reads.schema_version > newest:
        raise StoreTooNew.of(reads.schema_version, newest)
    if reads.schema_version < newest:
        raise Unsupported(
            f"the store has schema {reads.schema_version}, this Treadle has {newest}. Back it up with the version that "
            "made it, so that you can go back to that; or bring it up to date first, with `treadle migrate`",
            code="STORE_TOO_OLD",
        )


def _copied(reads: SqlReads, part: Path, url: str, tell: Tell) -> tuple[dict[str, Any], Copied]:
    for tried in range(1, _TRIES + 1):
        about: dict[str, Any] = {"from": shown(url), "at": instant_text(time.time_ns())}
        try:
            # Payloads go into the file too: one file is easier to keep than a folder.
            with contextlib.closing(SqlStore(SqliteDialect(part), None)) as target:
                with reads.at_one_moment():
                    copied = copy(reads, target, tell)
                    about["store"] = name_of(reads.work_key())
                    about["epoch"] = max(
                        row[0] for row in reads.rows_after("shards", "epoch", "shard", None, 1000)
                    )
                about["tables"] = [
                    [t.name, t.columns, t.key, t.numbered, copied.digests[t.name]] for t in TABLES
                ]
                target.note_of_store(BACKUP, about)
                target.note_of_store(UNFINISHED, None)
            in_one_file(part)
            return about, copied
        except BlobMissing:
            missing_still = _misses(reads)
            if tried == _TRIES or missing_still:
                raise
            _remove(part)
    raise AssertionError("the last try returns or raises")


def _misses(reads: SqlReads) -> bool:
    """Whether a payload is missing now, and was not only collected while it was copied."""
    after = ""
    try:
        while page := reads.payloads(after, 500):
            for digest, size in page:
                reads.check_payload(digest, size)
            after = page[-1][0]
    except BlobMissing:
        return True
    return False


def name_of(key: bytes) -> str:
    """What tells one store from another: of its key, which every store has its own of, no more than a digest."""
    return sha256(key).hexdigest()[:16]


def in_one_file(path: Path) -> None:
    """Without a log beside it, so that copying the file copies all of it; and durable."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    with path.open("rb") as file:
        os.fsync(file.fileno())


def restore(
    file: Path, url: str, *, user: str, beside: bool = False, dry_run: bool = False
) -> dict[str, Any]:
    """Makes a store of a backup, where none is yet, after every digest in it has been checked; what is in it."""
    with opened(file) as (source, about):
        _check(source, about, file)
        place = Place.of(url)
        if not beside:
            _check_original(about)
        if _taken(place):
            raise Unsupported(
                f"there is a store at {shown(url)} already, and a backup overwrites nothing; name a place where none is",
                code="STORE_NOT_EMPTY",
            )
        said = {"backup": str(file), "from": about["from"], "at": about["at"], "to": shown(url)}
        if dry_run:
            return {
                **said,
                "verified": True,
                "restored": False,
                "runs": sum(source.run_count().values()),
            }
        copied = _restored(source, about, place, user)
    return {**said, "verified": True, "restored": True, **copied.counts}


def _taken(place: Place) -> bool:
    if not place.has_store():
        return False
    with contextlib.closing(place.reader()) as reads:
        return bool(reads.noted(UNFINISHED) is not None or reads.last_run_no() or reads.versions())


def _restored(source: SqlReads, about: dict[str, Any], place: Place, user: str) -> Copied:
    ours = place.path is not None and not place.has_store()
    place.check()
    try:
        with contextlib.closing(place.open()) as target:
            copied = copy(source, target)
            target.keep_key(secrets.token_bytes(32))
            target.raise_epochs(about["epoch"])
            row = (time.time_ns(), user, "", "store.restore", about["at"], "ok", None, "", "")
            target.insert_rows("audit", AUDIT_COLUMNS, [row])
            target.note_of_store(UNFINISHED, None)
    except BaseException:
        if ours and place.path is not None:
            _remove(place.path)
            shutil.rmtree(place.path.with_name(place.path.name + "-blobs"), ignore_errors=True)
        raise
    return copied


@contextlib.contextmanager
def opened(file: Path) -> Iterator[tuple[SqlReads, dict[str, Any]]]:
    """A backup, and what it says of itself. One of an earlier version is read as a copy that is brought up to date."""
    if not file.is_file():
        raise StoreUnavailable(f"there is no backup {file}")
    dialect = SqliteDialect(file)
    newest = migrations("sqlite")[-1][0]
    try:
        found = dialect.found()
    except StoreCorrupt as error:
        raise Unsupported(f"{file} is not a backup: it is none of ours", code="NOT_A_BACKUP") from error
    if found > newest:
        raise StoreTooNew.of(found, newest, what=str(file))
    with contextlib.closing(SqlReads(dialect, dialect.connect(readonly=True), None)) as reads:
        about = reads.noted(BACKUP) if found else None
        if about is None:
            raise Unsupported(
                f"{file} is not a backup that `treadle backup` made. A store is copied with "
                "`treadle migrate --from URL --to URL`",
                code="NOT_A_BACKUP",
            )
        if found == newest:
            yield reads, about
            return
        _check(reads, about, file)
    with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".treadle-") as folder:
        moved = Path(folder) / "backup.db"
        shutil.copyfile(file, moved)
        dialect = SqliteDialect(moved)
        with contextlib.closing(dialect.connect()) as connection:
            dialect.migrate(connection, migrations("sqlite"))
        with contextlib.closing(SqlReads(dialect, dialect.connect(readonly=True), None)) as reads:
            yield reads, {**about, "tables": []}


def _check(reads: SqlReads, about: dict[str, Any], file: Path) -> None:
    """Every row is as it was written, every record follows from the one before it, every payload is what it is called."""
    try:
        wrong = _first_wrong(reads, about)
    except TreadleError as error:
        wrong = error.message
    if wrong:
        raise Unsupported(f"{file} is damaged: {wrong}; take another backup", code="BACKUP_DAMAGED")


def _first_wrong(reads: SqlReads, about: dict[str, Any]) -> str:
    if problems := reads.check():
        return problems[0]
    for name, columns, key, numbered, digest in about["tables"]:
        if digest_of(reads, Table(name, columns, key, numbered)) != digest:
            return f"{name} is not what was written"
    check_chains(reads)
    after = ""
    while page := reads.payloads(after, 100):
        for digest, _ in page:
            reads.blob(digest)
        after = page[-1][0]
    return ""


def _check_original(about: dict[str, Any]) -> None:
    """Refuses where the store that the backup is of can be seen to be at work."""
    url = str(about["from"])
    if is_postgres(url):
        return  # its password is not in the backup, so nobody can look
    path = Place.of(url).path
    if path is None or not Place.of(url).has_store():
        return
    with contextlib.closing(read_store(url)) as original:
        same = original.has_key() and name_of(original.work_key()) == about["store"]
    lock = OwnerLock(path)
    if not same:
        return
    if lock.acquire():
        lock.release()
        return
    raise Unsupported(
        f"process {lock.holder()} works on {shown(url)}, of which this is a backup: both would do the work that was "
        "open. Stop it first; to look into a backup, name it with --store; --beside restores all the same",
        code="ORIGINAL_AT_WORK",
    )
