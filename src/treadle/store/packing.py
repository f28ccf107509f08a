"""Records on disk: compressed, with what records have in common known beforehand.

A packed record is a byte with which no canonical value begins, the number of a dictionary that ships with Treadle, and
one frame of zstd. Digests are over the record itself, so packing changes nothing that is promised. A store holds
packed and plain records side by side: 0.1.0 wrote plain ones, and so does a Python that has no zstd.

Dictionaries are never changed, only added: `benchmarks/dictionary.py` makes one.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module, resources
from typing import Any, Final

from treadle.kernel.errors import StoreUnavailable

_MARK: Final = 0x1F
# The one that is written with; the others are read.
_NEWEST: Final = 1
_LEVEL: Final = 3
# Less than this is not worth a frame.
_BYTES_MIN: Final = 48


def pack(body: bytes) -> bytes:
    """A record as it is stored."""
    if len(body) < _BYTES_MIN or (packer := _packer()) is None:
        return body
    packed: bytes = _HEAD + packer.compress(body, packer.FLUSH_FRAME)
    return packed if len(packed) < len(body) else body


def unpack(stored: bytes) -> bytes:
    """The record itself. What is damaged comes back as it is: its digest will not match."""
    if not stored or stored[0] != _MARK:
        return stored
    zstd = _zstd()
    if zstd is None:
        raise StoreUnavailable("its records are compressed: pip install backports.zstd")
    try:
        found: bytes = zstd.decompress(stored[2:], _dictionary(stored[1]))
    except (zstd.ZstdError, FileNotFoundError, IndexError):
        return stored
    return found


_HEAD: Final = bytes((_MARK, _NEWEST))


@cache
def _zstd() -> Any:
    """The codec: part of Python from 3.14 on, a package before that; None where there is neither."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


@cache
def _dictionary(number: int) -> Any:
    file = resources.files("treadle.store") / "dictionaries" / f"{number}.zdict"
    return _zstd().ZstdDict(file.read_bytes())


@cache
def _packer() -> Any:
    """One for the process: it locks itself for as long as a frame takes."""
    zstd = _zstd()
    if zstd is None:
        return None
    options = {
        zstd.CompressionParameter.compression_level: _LEVEL,
        # Our own header says which dictionary.
        zstd.CompressionParameter.dict_id_flag: 0,
    }
    return zstd.ZstdCompressor(options=options, zstd_dict=_dictionary(_NEWEST).as_digested_dict)
