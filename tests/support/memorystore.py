"""Object stores in memory: a proper one, one that ignores conditional puts, one that fails on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pumphouse.errors import ObjectExists, ObjectNotFound
from pumphouse.objectstore.base import ObjectInfo, check_file, check_key


class MemoryStore:
    """Objects in a dict."""

    def __init__(self, url: str = "memory://") -> None:
        self._url = url
        self.objects: dict[str, bytes] = {}
        self.put_s: dict[str, float] = {}
        self.clock: Callable[[], float] = time.time
        self.rules: tuple[str, ...] = ()
        self.lock = threading.Lock()
        # Called as hook(verb, key) before each write; may raise to play a failing store.
        self.before: Callable[[str, str], None] = lambda verb, key: None
        self.after: Callable[[str, str], None] = lambda verb, key: None

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        check_key(key)
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFound(f"there is no {key}", key=key) from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        self.before("put", key)
        self.objects[key] = bytes(data)
        self.put_s.pop(key, None)
        self.after("put", key)

    def put_file(self, key: str, path: Path, *, move: bool = False, seldom: bool = False) -> None:
        check_file(path, f"{self.url}/{key}")
        self.put(key, path.read_bytes())

    def get_file(self, key: str, path: Path) -> None:
        path.write_bytes(self.get(key))

    def put_if_absent(self, key: str, data: bytes) -> None:
        check_key(key)
        self.before("put_if_absent", key)
        with self.lock:
            if key in self.objects:
                raise ObjectExists(f"{key} exists", key=key)
            self.objects[key] = bytes(data)
        self.after("put_if_absent", key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        found = [(k, v) for k, v in sorted(self.objects.items()) if k.startswith(prefix) and k > after]
        return iter([ObjectInfo(k, len(v), self.put_s.get(k, self.clock())) for k, v in found])

    def folders(self, prefix: str = "") -> Iterator[str]:
        rest = (key[len(prefix) :] for key in self.objects if key.startswith(prefix))
        return iter(sorted({key.partition("/")[0] for key in rest if "/" in key}))

    def delete(self, key: str) -> None:
        check_key(key)
        self.before("delete", key)
        self.objects.pop(key, None)
        self.after("delete", key)

    def losing(self, prefix: str = "") -> tuple[str, ...]:
        return self.rules


class CarelessStore(MemoryStore):
    """Ignores the condition, as rclone's and s3rver's S3 servers do."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.put(key, data)
