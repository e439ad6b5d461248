"""Very many windows behind each other, written as fast as a file system takes them: copies of the last one of a made archive."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pumphouse.archive import layout
from pumphouse.archive.manifest import Manifest
from pumphouse.model.tso import Tso
from tests.support.madearchive import MadeSource

_STEP_MS = 10_000  # of each, so that very many end before now


def add_windows(source: MadeSource, count: int, *, objects: bool = False) -> Tso:
    """Add so many windows; returns where they end.

    Args:
        source: its archive has at least one window, without DDL.
        count: how many.
        objects: their segments are there too: links to those of the last window. Their rows are those of the last
            window, so only their names and sizes are right.
    """
    archive = source.archive
    last = archive.last()
    assert last is not None
    assert last.ddl is None
    folder = source.root / str(source.cluster_id)
    body = (folder / last.key).read_text()
    body = body[: body.rindex(',\n  "sha256"')]
    commits = sorted({ts for each in last.segments for ts in (each.min_commit_ts, each.max_commit_ts)})
    tokens = {last.start: "@start@", last.fence: "@fence@", last.end: "@end@"}
    tokens |= {ts: f"@commit{n}@" for n, ts in enumerate(commits)}
    for ts, token in tokens.items():
        body = body.replace(str(int(ts)), token)
    body = body.replace(last.previous, "@previous@")
    names = [each.key for each in last.segments] if objects else []
    start, digest, key, text = last.end, last.sha256, last.key, ""
    for _ in range(count):
        end = Tso(start + (_STEP_MS << 18))
        text = body.replace("@start@", str(int(start))).replace("@end@", str(int(end)))
        text = text.replace("@fence@", str(int(end) + 1)).replace("@previous@", digest)
        for n in range(len(commits)):
            text = text.replace(f"@commit{n}@", str(int(start) + (n + 1 << 18)))
        text += f',\n  "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n'
        key = layout.window_key(start)
        _write(folder / key, text.encode())
        for name in names:
            _link(
                folder / name,
                folder / name.replace(layout.window_folder(last.start, last.end), layout.window_folder(start, end)),
            )
        start, digest = end, hashlib.sha256(text.encode()).hexdigest()
    newest = Manifest.from_json(key, text.encode())
    archive.write_head(newest)
    source.previous, source.ts = (newest.end, newest.sha256), int(newest.end)
    return newest.end


def _write(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, data)
    os.close(file)


def _link(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    os.link(old, new)
