"""Names in directories are durable before anything is answered that needs them: looked at call by call.

`CrashFs` takes it for granted that the real file system of the store syncs directories. Here the calls of the process
are recorded, and a model of what a power loss leaves is asked at every answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pump_service.store.fs import FileSystem
from tests.support.storekit import commit, open_store, prewrite, settle, stream, write

pytestmark = pytest.mark.row("P3", "P15")

# May be lost, and are made again: LevelDB, summaries, what is preallocated, temporary files before their rename.
_DERIVED = ("/kv", "/files/", "/reserve", "/.lock")


class Calls:
    """Names that were made, moved or removed and are not durable yet; files with bytes that are not."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self.names: dict[str, set[str]] = {}  # directory -> names that changed since its last sync
        self.dirty: set[str] = set()
        self.syncs = 0
        self._open, self._rename, self._unlink = os.open, os.rename, os.unlink
        for name in (
            "open",
            "rename",
            "replace",
            "unlink",
            "mkdir",
            "pwrite",
            "pwritev",
            "write",
            "ftruncate",
            "fsync",
            "fdatasync",
        ):
            patch.setattr(os, name, self._around(name, getattr(os, name)))

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **kwargs: Any) -> Any:
            existed = name == "open" and os.path.lexists(str(args[0]))
            result = call(*args, **kwargs)
            if name == "open" and args[1] & os.O_CREAT and not existed:
                self._changed(str(args[0]))
            elif name in ("rename", "replace"):
                self._changed(str(args[0])), self._changed(str(args[1]))
                if str(args[0]) in self.dirty:
                    self.dirty.add(str(args[1]))
            elif name in ("unlink", "mkdir"):
                self._changed(str(args[0]))
                self.dirty.discard(str(args[0]))
            elif name in ("pwrite", "pwritev", "write", "ftruncate"):
                self._of(args[0], self.dirty.add)
            elif name in ("fsync", "fdatasync"):
                self.syncs += 1
                self._of(args[0], self._synced)
            return result

        return around

    def _of(self, fd: int, action: Callable[[str], Any]) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.startswith(self.root):
            action(path)

    def _changed(self, path: str) -> None:
        if path.startswith(self.root):
            directory, _, name = path.rpartition("/")
            self.names.setdefault(directory, set()).add(name)

    def _synced(self, path: str) -> None:
        self.dirty.discard(path)
        self.names.pop(path, None)

    def at_risk(self) -> list[str]:
        """What a power loss could take now."""
        names = [f"{directory}/{name}" for directory, changed in self.names.items() for name in changed]
        found = [path for path in [*names, *self.dirty] if not any(part in path for part in _DERIVED)]
        return sorted(path.removeprefix(self.root) for path in found)


def test_at_every_answer_all_names_and_bytes_it_stands_on_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(tmp_path, monkeypatch)
    store = open_store(tmp_path / "new" / "data", value_log_file_bytes=4096)
    assert calls.at_risk() == [], "after a first start"
    for n in range(30):
        assert write(store, prewrite(100 + 10 * n, b"v" * 700), commit(100 + 10 * n, 105 + 10 * n)) == [None, None]
        assert calls.at_risk() == [], f"at answer {n}"
    settle(store)
    assert write(store, commit(397, 401)) == [None]  # an orphan, which is noted in a file of ours
    settle(store)
    store.accept(397, 401, "test")
    assert calls.at_risk() == [], "after a late commit was noted and accepted"
    assert store.gc.collect({"archive": 250}, 1 << 60).freed_files >= 2
    assert calls.at_risk() == [], "after GC"
    store.close()
    assert calls.at_risk() == [], "after a stop"
    assert calls.syncs > 40
    store = open_store(tmp_path / "new" / "data", value_log_file_bytes=4096)
    assert calls.at_risk() == [], "after a second start"
    assert len(stream(store, 250)) == 16  # the orphan too: only the archive's own record settles it
    store.close()


def test_without_the_sync_of_the_directory_this_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(tmp_path, monkeypatch)
    fs = FileSystem()
    monkeypatch.setattr("pumphouse.durable.fsync_dir", lambda _path: None)
    fs.open_log(tmp_path / "000000.vlog", create=True).close()
    assert calls.at_risk() == ["/000000.vlog"]
