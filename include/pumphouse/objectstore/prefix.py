"""A store seen from below one of its prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pumphouse.objectstore.base import ObjectInfo, ObjectStore


class PrefixStore:
    """The same store; every key is taken relative to a prefix that ends in ``/``."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @property
    def url(self) -> str:
        """The root with the prefix."""
        return f"{self._store.url}/{self._prefix}".rstrip("/")

    def get(self, key: str) -> bytes:
        """Whole object."""
        return self._store.get(self._prefix + key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start+length)."""
        return self._store.get_range(self._prefix + key, start, length)

    def size(self, key: str) -> int:
        """Bytes of an object."""
        return self._store.size(self._prefix + key)

    def put(self, key: str, data: bytes) -> None:
        """Create or replace."""
        self._store.put(self._prefix + key, data)

    def put_file(self, key: str, path: Path, *, move: bool = False, seldom: bool = False) -> None:
        """Upload a local file."""
        self._store.put_file(self._prefix + key, path, move=move, seldom=seldom)

    def get_file(self, key: str, path: Path) -> None:
        """Download to a local file."""
        self._store.get_file(self._prefix + key, path)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create or raise ObjectExists."""
        self._store.put_if_absent(self._prefix + key, data)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with prefix, sorted."""
        for each in self._store.list(self._prefix + prefix, after=after and self._prefix + after):
            yield ObjectInfo(each.key[len(self._prefix) :], each.size, each.put_s)

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Names of the folders directly below a prefix."""
        return self._store.folders(self._prefix + prefix)

    def delete(self, key: str) -> None:
        """Remove."""
        self._store.delete(self._prefix + key)

    def losing(self, prefix: str = "") -> tuple[str, ...]:
        """Rules of the store that take objects away."""
        return self._store.losing(self._prefix + prefix)
