"""``file:///dir``: a cluster on one machine with no server (row W4).

    <dir>/cluster.json                    {"format_version":1,"cluster_id":N}; written last, makes the cluster exist
    <dir>/tso, tso.bound                  the clock (`pumphouse.registry.file_tso`)
    <dir>/registry.lock                   held over each read-modify-write of what is below
    <dir>/tidb-binlog/v1/pumps/<node id>  one node status, the same JSON as in etcd; drainers/ likewise
    <dir>/resolvers/<resolver id>         one registered resolver
    <dir>/captures/<capture id>           one registered capture

Names are percent-encoded where a file name needs it. Readers take no lock: files are replaced whole.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.durable import create_exclusive, fsync_dir, make_dirs, write_atomic
from pumphouse.errors import BinlogError, ConfigError, CorruptionError, UsageError
from pumphouse.library_log import library_logger
from pumphouse.model import strict
from pumphouse.model.node import REGISTRY_ROOT, NodeKind, NodeStatus, is_node_id
from pumphouse.model.tso import Tso
from pumphouse.registry import captures, resolvers
from pumphouse.registry.base import CaptureRecord, ResolverRecord, unreadable
from pumphouse.registry.file_tso import FileTso
from pumphouse.registry.lock import locked

log = library_logger(__name__)

FORMAT_VERSION = 1
# File systems take 255 bytes; a temporary file's name is longer by its suffix.
_LONGEST_NAME = 200


class FileCluster:
    """Cluster in a directory. Holds no descriptor between calls, so it may be used after a fork."""

    def __init__(self, directory: Path, *, create: bool = True, clock: Clock = SYSTEM_CLOCK) -> None:
        """Open, or make, the cluster of a directory; ConfigError if there is none and it is not to be made."""
        self._dir = directory.absolute()
        self._clock = clock
        if not (self._dir / "cluster.json").exists():
            if not create:
                raise ConfigError(
                    f"there is no cluster at {self.url}",
                    hint="check the setting cluster.url, and that its storage is there. A Pump makes one at its first "
                    "start, not on a data directory that belongs to a cluster already",
                    path=str(self._dir),
                    missing=True,
                )
            _create(self._dir)
        self._cluster_id = _read_cluster_id(self._dir / "cluster.json")
        self._tso = FileTso(self._dir, clock=clock)

    @property
    def url(self) -> str:
        """``file://`` and the absolute path."""
        return f"file://{self._dir}"

    def cluster_id(self) -> int:
        """Random, made with the directory; positive and below 2^62."""
        return self._cluster_id

    def tso(self) -> Tso:
        """A fresh timestamp; about 20 us."""
        return self._tso.next()

    def tsos(self, count: int) -> Sequence[Tso]:
        """In no more time."""
        return self._tso.take(count)

    def is_past(self, ts: int) -> bool:
        """Whether a timestamp can be told to lie in the past, without drawing one.

        About 1 us, or 6 where the last one given out must be looked up.
        """
        return self._tso.is_past(ts)

    def nodes(self, kind: NodeKind) -> list[NodeStatus]:
        """Every registered node of a kind, sorted by id."""
        found = [_read_status(kind, path) for path in _entries(self._folder(kind))]
        return sorted((status for status in found if status is not None), key=lambda status: status.node_id)

    def readable_nodes(self, kind: NodeKind) -> list[NodeStatus]:
        """`nodes` without those that cannot be read."""
        found = [_readable(kind, path) for path in _entries(self._folder(kind))]
        return sorted((status for status in found if status is not None), key=lambda status: status.node_id)

    def node(self, kind: NodeKind, node_id: str) -> NodeStatus | None:
        """One node, or None."""
        return _read_status(kind, self._folder(kind) / _file_name(node_id))

    def update_node(
        self,
        kind: NodeKind,
        node_id: str,
        change: Callable[[NodeStatus | None], NodeStatus | None],
        *,
        anew: bool = False,
    ) -> NodeStatus | None:
        """Read, change and write one node under the registry's lock; durable on return.

        ``change`` runs once and must not write to the registry itself (the lock is not reentrant).
        """
        path = self._folder(kind) / _file_name(node_id)
        with locked(self._dir / "registry.lock"):
            found = _readable(kind, path) if anew else _read_status(kind, path)
            wanted = change(found)
            if wanted is None:
                _remove(path)
            elif wanted != found:
                if found is None and not is_node_id(node_id):
                    raise UsageError(
                        f"{node_id!r} cannot be a node id", hint="printable characters, no slash", node_id=node_id
                    )
                if wanted.node_id != node_id:
                    raise UsageError(f"the status of node {wanted.node_id!r} cannot be stored under {node_id!r}")
                write_atomic(path, wanted.to_json())
            return wanted

    def resolvers(self) -> list[ResolverRecord]:
        """Every registered resolver, sorted by id, live or not."""
        found = []
        for path in _entries(self._dir / "resolvers"):
            data = _read(path)
            if data is not None:
                found.append(resolvers.read(unquote(path.name), data))
        return sorted(found, key=lambda record: record.resolver_id)

    def put_resolver(self, record: ResolverRecord) -> None:
        """Register or heartbeat; the same id replaces, an overlap with another live one raises ResolverOverlap."""
        path = self._dir / "resolvers" / _file_name(record.resolver_id)
        with locked(self._dir / "registry.lock"):
            resolvers.refuse_overlap(record, self.resolvers(), self._clock.now())
            write_atomic(path, resolvers.to_json(record))

    def delete_resolver(self, resolver_id: str) -> None:
        """Remove; a missing one is no error."""
        with locked(self._dir / "registry.lock"):
            _remove(self._dir / "resolvers" / _file_name(resolver_id))

    def captures(self) -> list[CaptureRecord]:
        """Every registered capture, sorted by id."""
        read = [captures.from_json(*each) for each in self._capture_values()]
        return sorted(read, key=lambda record: record.capture_id)

    def readable_captures(self) -> list[CaptureRecord]:
        """`captures` without those that cannot be read."""
        return captures.readable(self._capture_values())

    def _capture_values(self) -> list[tuple[bytes, str]]:
        folder = self._dir / "captures"
        found = [(path, _read(path)) for path in _entries(folder)] if folder.exists() else []
        return [(data, str(path)) for path, data in found if data is not None]

    def update_capture(
        self, capture_id: str, change: Callable[[CaptureRecord | None], CaptureRecord | None]
    ) -> CaptureRecord | None:
        """Read, change and write one capture under the registry's lock; durable on return."""
        path = self._dir / "captures" / _file_name(capture_id)
        with locked(self._dir / "registry.lock"):
            data = _read(path)
            found = None if data is None else captures.from_json(data, str(path))
            wanted = change(found)
            if wanted is None:
                _remove(path)
            elif wanted != found:
                make_dirs(path.parent)  # a cluster that is older than captures has none
                write_atomic(path, captures.to_json(wanted))
            return wanted

    def close(self) -> None:
        """Nothing is held open."""

    def _folder(self, kind: NodeKind) -> Path:
        return self._dir / REGISTRY_ROOT.lstrip("/") / kind.value


def _create(directory: Path) -> None:
    """Make the cluster; of several processes at once one wins and the others use what it made."""
    for kind in NodeKind:
        make_dirs(directory / REGISTRY_ROOT.lstrip("/") / kind.value)
    make_dirs(directory / "resolvers")
    with locked(directory / "registry.lock"):
        if (directory / "cluster.json").exists():
            return
        # The clock's bound first: a cluster that exists must have one, or a lost file could not be told from a new one.
        FileTso.create(directory)
        cluster_id = secrets.randbelow((1 << 62) - 1) + 1
        text = json.dumps({"format_version": FORMAT_VERSION, "cluster_id": cluster_id}, separators=(",", ":"))
        create_exclusive(directory / "cluster.json", text.encode())


def _read_cluster_id(path: Path) -> int:
    try:
        data = strict.loads(path.read_bytes())
        version, cluster_id = data["format_version"], strict.integer(data["cluster_id"], 1, (1 << 64) - 1)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} names no cluster", path=str(path), reason=str(error)) from error
    if version != FORMAT_VERSION:
        raise CorruptionError(
            f"{path} has format_version {version}, this program reads {FORMAT_VERSION}", path=str(path)
        )
    return cluster_id


def _file_name(node_id: str) -> str:
    name = quote(node_id, safe=":@+=,~")
    if name.startswith("."):  # hidden names are temporary files
        name = "%2E" + name[1:]
    if not name or len(name) > _LONGEST_NAME:
        raise UsageError(f"{node_id!r} cannot be a node id", hint="1 to 200 characters", node_id=node_id)
    return name


def _entries(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _read_status(kind: NodeKind, path: Path) -> NodeStatus | None:
    data = _read(path)
    if data is None:
        return None
    try:
        return NodeStatus.from_json(data)
    except BinlogError as error:
        raise unreadable(kind, unquote(path.name), str(path), error) from error


def _readable(kind: NodeKind, path: Path) -> NodeStatus | None:
    try:
        return _read_status(kind, path)
    except CorruptionError as error:
        log.warning("node_status_unreadable", error=str(error))
        return None


def _remove(path: Path) -> None:
    if path.exists():
        path.unlink()
        fsync_dir(path.parent)
