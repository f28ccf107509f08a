"""Records on disk: compressed, with what records of a dialect have in common known beforehand.

A packed record is a byte with which no canonical value begins, the number of a dictionary that ships with Treadle, and
one frame of zstd. In the short form the frame goes without its constant first bytes, and the ids that stand in the
row's own columns are left out of it. In the bare form they are left out, and there is no frame. Digests are over the
record itself, so packing changes nothing that is promised. A store holds all forms side by side: 0.1.0 wrote plain
records, so does a Python that has no zstd, and so does everybody at first (`sql.PLAIN_RECORDS`): a process that only
writes a few need not load the codec.

Dictionaries are never changed, only added: `benchmarks/dictionary.py` makes one. `N-DIALECT.zdict` is for the records of
a dialect, of which the one with the highest number is written with; `1.zdict` is for all others.
"""

from __future__ import annotations

import sys
from binascii import hexlify
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from treadle.kernel.errors import StoreUnavailable

_WHOLE: Final = 0x1F
_SHORT: Final = 0x1E
_BARE: Final = 0x1D
_LEVEL: Final = 3
# Less than this is not worth a frame.
_BYTES_MIN: Final = 48
_GENERAL: Final = 1
# What each frame of zstd begins with.
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# An id in a record is a text of 32 characters; two bytes stand for it, the first of which is in no text.
_ID: Final = b"x "
_ID_CHARS: Final = 32
_FIRST: Final = 0xFD
_BARE_FORM: Final = bytes((_BARE,))
_MARKS: Final = [bytes((_FIRST, number)) for number in range(64)]


class Packer(msgspec.Struct, frozen=True):
    codec: Any
    whole: bytes
    short: bytes


def pack(body: bytes, dialect: str = "", opens: bytes | None = None, closes: bytes | None = None) -> bytes:
    """A record as it is stored; `opens` and `closes` are the columns of its row."""
    if len(body) < _BYTES_MIN or (packer := _packer(dialect)) is None:
        return body
    codec = packer.codec
    cut = without_ids(body, opens, closes)
    if cut is None:
        packed: bytes = packer.whole + codec.compress(body, codec.FLUSH_FRAME)
    else:
        packed = packer.short + codec.compress(cut, codec.FLUSH_FRAME)[len(_MAGIC) :]
    return packed if len(packed) < len(body) else body


def bared(body: bytes, opens: bytes | None, closes: bytes | None) -> bytes:
    """A record as it is stored where the time counts more than some bytes."""
    cut = without_ids(body, opens, closes)
    return body if cut is None or cut is body else _BARE_FORM + cut


def unpack(stored: bytes, opens: bytes | None, closes: bytes | None) -> bytes:
    """The record itself. What is damaged comes back as it is: its digest will not match."""
    if not stored or (form := stored[0]) not in (_WHOLE, _SHORT, _BARE):
        return stored
    if form == _BARE:
        return _with_ids(stored[1:], opens, closes)
    zstd = _zstd()
    if zstd is None:
        raise StoreUnavailable("its records are compressed: pip install backports.zstd")
    try:
        frame = stored[2:] if form == _WHOLE else _MAGIC + stored[2:]
        found: bytes = zstd.decompress(frame, _dictionary(stored[1]))
    except (zstd.ZstdError, KeyError, IndexError):
        return stored
    return found if form == _WHOLE else _with_ids(found, opens, closes)


def without_ids(body: bytes, opens: bytes | None, closes: bytes | None) -> bytes | None:
    """A record with marks in place of the ids in its columns; None if it holds such a mark by itself."""
    if opens is None and closes is None:
        return body
    may_hold = _FIRST in body  # one byte is quicker to look for than each mark, and in few records
    spelled = hexlify((opens or b"") + (closes or b""))
    for number in range(min(len(spelled) // _ID_CHARS, len(_MARKS))):
        mark, at = _MARKS[number], number * _ID_CHARS
        if may_hold and mark in body:
            return None
        # One look at the record; `replace` counts first, and looks again.
        body = mark.join(body.split(_ID + spelled[at : at + _ID_CHARS]))
    return body


def _with_ids(body: bytes, opens: bytes | None, closes: bytes | None) -> bytes:
    spelled = hexlify((opens or b"") + (closes or b""))
    for mark, at in zip(_MARKS, range(0, len(spelled), _ID_CHARS), strict=False):
        body = body.replace(mark, _ID + spelled[at : at + _ID_CHARS])
    return body


@cache
def _zstd() -> Any:
    """The codec: part of Python from 3.14 on, a package before that; None where there is neither."""
    try:
        return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        return None


@cache
def _files() -> dict[int, tuple[str, Path]]:
    """Each dictionary by its number: whose records it is for, and where it is."""
    found = {}
    for file in Path(__file__).with_name("dictionaries").iterdir():
        number, _, dialect = file.name.removesuffix(".zdict").partition("-")
        found[int(number)] = (dialect, file)
    return found


@cache
def _dictionary(number: int) -> Any:
    return _zstd().ZstdDict(_files()[number][1].read_bytes())


@cache
def _packer(dialect: str) -> Packer | None:
    """One for the process and dialect: it locks itself for as long as a frame takes."""
    zstd = _zstd()
    if zstd is None:
        return None
    options = {
        zstd.CompressionParameter.compression_level: _LEVEL,
        # Our own header says which dictionary.
        zstd.CompressionParameter.dict_id_flag: 0,
    }
    number = max((number for number, (of, _) in _files().items() if of == dialect), default=_GENERAL)
    codec = zstd.ZstdCompressor(options=options, zstd_dict=_dictionary(number).as_digested_dict)
    return Packer(codec, bytes((_WHOLE, number)), bytes((_SHORT, number)))
