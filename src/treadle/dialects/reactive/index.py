"""CellIndex: which cells a workflow has, and which state each is in, as content-addressed nodes.

A 256-way radix trie on the bytes of sha256(key). Up to 64 entries stand in one leaf; more are split by the
next byte, and a subtree that shrinks to 64 collapses into a leaf again. So the root is a function of the
content alone, whatever the order of changes was: two stores with equal cells have equal roots, and two
roots are compared by walking only where they differ.

Pure over two functions, `get(digest) -> bytes` and `put(bytes) -> digest`. A change of k cells among n
reads and writes about k·log256(n) nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol, TypeVar

from treadle.kernel.errors import BlobCorrupt
from treadle.kernel.values import Value, decode_trusted, digest_bytes, encode

T = TypeVar("T")
LEAF_ENTRIES_MAX: Final = 64
_EMPTY_LEAF: Final = encode({"t": "Leaf", "c": []})
EMPTY: Final = digest_bytes(_EMPTY_LEAF)


class Blobs(Protocol):
    """Immutable bytes by digest."""

    def get(self, digest: str) -> bytes: ...
    def put(self, body: bytes) -> str: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell. `state` is the digest of its state's bytes."""

    key: bytes
    state: str
    size: int
    last_active_ns: int


@dataclass(frozen=True, slots=True)
class _Branch:
    children: dict[int, tuple[str, int]]

    @property
    def count(self) -> int:
        return sum(count for _, count in self.children.values())


_Leaf = dict[bytes, Entry]


def key_hash(key: bytes) -> bytes:
    return sha256(key).digest()


class CellIndex:
    """Operations on roots. Nothing is kept between calls."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def find(self, root: str, key: bytes) -> Entry | None:
        hashed, depth = key_hash(key), 0
        node = self._load(root)
        while isinstance(node, _Branch):
            child = node.children.get(hashed[depth])
            if child is None:
                return None
            node, depth = self._load(child[0]), depth + 1
        return node.get(hashed)

    def entries(self, root: str) -> Iterator[Entry]:
        """All cells, in the order of their key hashes."""
        node = self._load(root)
        if isinstance(node, _Branch):
            for child, _ in node.children.values():
                yield from self.entries(child)
        else:
            yield from node.values()

    def count(self, root: str) -> int:
        node = self._load(root)
        return node.count if isinstance(node, _Branch) else len(node)

    def update(self, root: str, changes: Mapping[bytes, Entry | None]) -> str:
        """The root after upserts (an entry) and deletions (None), by key bytes."""
        hashed = {key_hash(key): entry for key, entry in changes.items()}
        if not hashed:
            return root
        return self._update(root, 0, dict(sorted(hashed.items())))[0]

    def reachable(self, root: str) -> Iterator[str]:
        """Every digest that this root keeps alive: its nodes and the states of its cells."""
        yield root
        node = self._load(root)
        if isinstance(node, _Branch):
            for child, _ in node.children.values():
                yield from self.reachable(child)
        else:
            for entry in node.values():
                yield entry.state

    def changes(self, before: str, after: str) -> Iterator[tuple[Entry | None, Entry | None]]:
        """The cells in which two roots differ; equal subtrees are not read."""
        if before == after:
            return
        one, other = self._load(before), self._load(after)
        if isinstance(one, _Branch) and isinstance(other, _Branch):
            for byte in sorted({*one.children, *other.children}):
                was, now = one.children.get(byte, (EMPTY, 0))[0], other.children.get(byte, (EMPTY, 0))[0]
                yield from self.changes(was, now)
            return
        old = {entry.key: entry for entry in self.entries(before)}
        new = {entry.key: entry for entry in self.entries(after)}
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield old.get(key), new.get(key)

    # --- nodes ---------------------------------------------------------------------------------------

    def _update(self, digest: str, depth: int, changes: dict[bytes, Entry | None]) -> tuple[str, int]:
        node = self._load(digest)
        if not isinstance(node, _Branch):
            for hashed, entry in changes.items():
                if entry is None:
                    node.pop(hashed, None)
                else:
                    node[hashed] = entry
            return self._build(dict(sorted(node.items())), depth)
        children = dict(node.children)
        for byte, group in _split(changes, depth).items():
            child, count = self._update(children.get(byte, (EMPTY, 0))[0], depth + 1, group)
            if count:
                children[byte] = (child, count)
            else:
                children.pop(byte, None)
        branch = _Branch(dict(sorted(children.items())))
        if branch.count > LEAF_ENTRIES_MAX:
            return self._store_branch(branch), branch.count
        leaf = {key_hash(e.key): e for child, _ in branch.children.values() for e in self.entries(child)}
        return self._store_leaf(leaf), len(leaf)

    def _build(self, leaf: _Leaf, depth: int) -> tuple[str, int]:
        if len(leaf) <= LEAF_ENTRIES_MAX:
            return self._store_leaf(leaf), len(leaf)
        children = {byte: self._build(group, depth + 1) for byte, group in _split(leaf, depth).items()}
        return self._store_branch(_Branch(children)), len(leaf)

    def _store_leaf(self, leaf: _Leaf) -> str:
        items: list[Value] = [[e.key, _raw(e.state), e.size, e.last_active_ns] for e in leaf.values()]
        return self._blobs.put(encode({"t": "Leaf", "c": items}))

    def _store_branch(self, branch: _Branch) -> str:
        items: list[Value] = [[byte, _raw(child), count] for byte, (child, count) in branch.children.items()]
        return self._blobs.put(encode({"t": "Branch", "c": items}))

    def _load(self, digest: str) -> _Branch | _Leaf:
        if digest == EMPTY:
            return {}
        body = self._blobs.get(digest)
        if digest_bytes(body) != digest:
            raise BlobCorrupt(f"the index node {digest} does not match its digest")
        node = decode_trusted(body)
        if node["t"] == "Branch":
            return _Branch({byte: (_text(child), count) for byte, child, count in node["c"]})
        entries = (Entry(key, _text(state), size, active) for key, state, size, active in node["c"])
        return {key_hash(entry.key): entry for entry in entries}


def _split(items: dict[bytes, T], depth: int) -> dict[int, dict[bytes, T]]:
    groups: dict[int, dict[bytes, T]] = {}
    for hashed, item in items.items():
        groups.setdefault(hashed[depth], {})[hashed] = item
    return groups


def _raw(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))


def _text(raw: bytes) -> str:
    return "sha256:" + raw.hex()
