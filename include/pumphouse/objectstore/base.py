"""The object-store seam: a handful of verbs, the same for ``s3://`` and ``file://`` (rows A1, A4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pumphouse.errors import StoreError


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object. Keys are relative to the root, with ``/`` and no leading slash.

    ``put_s``: Unix time of its last put, by the store's clock.
    """

    key: str
    size: int
    put_s: float


class ObjectStore(Protocol):
    """Objects under one root. Every method raises StoreUnavailable when the store does not answer."""

    @property
    def url(self) -> str:
        """The root, without secrets."""
        ...

    def get(self, key: str) -> bytes:
        """Whole object; ObjectNotFound."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start+length); shorter at the end; ObjectNotFound."""
        ...

    def size(self, key: str) -> int:
        """Bytes of an object; ObjectNotFound."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Create or replace; idempotent."""
        ...

    def put_file(self, key: str, path: Path, *, move: bool = False, seldom: bool = False) -> None:
        """Upload a local file (multipart where large); idempotent. StoreError where there is none.

        ``move``: the local file may be gone then. ``seldom``: it will hardly be read.
        """
        ...

    def get_file(self, key: str, path: Path) -> None:
        """Download to a local file; ObjectNotFound."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create or raise ObjectExists; of several writers exactly one wins.

        A retry of a put that did succeed also raises ObjectExists: the caller reads back and compares. After a time-out
        (StoreUnavailable) nobody knows; the caller reads back and puts the same bytes again.
        """
        ...

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with prefix, sorted by key; those behind ``after`` alone."""
        ...

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Names of the folders directly below a prefix (``""`` or ``…/``), sorted; what lies in them is not listed."""
        ...

    def delete(self, key: str) -> None:
        """Remove; a missing object is no error."""
        ...

    def losing(self, prefix: str = "") -> tuple[str, ...]:
        """Rules of the store that take objects below a prefix away by themselves, a phrase each; none if unknown."""
        ...


def check_key(key: str) -> None:
    """Refuse a key that could leave the root (``..``, empty parts, a leading slash)."""
    if not key or any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        raise StoreError(f"{key!r} is no key of an object", key=key)


def check_file(path: Path, where: str) -> None:
    """Refuse to put a local file that is not there: the store is not to blame."""
    if not path.is_file():
        raise StoreError(f"{path}, which was to go to {where}, is not there", hint="does something tidy up TMPDIR?")
