"""Index: runs of windows as columns, an object each, so that very many windows are read by few requests (row A6).

It is derived from the manifests, and they decide: a run that is missing, damaged or does not chain costs the time to
read the manifests, and nothing else. It never holds the newest windows, so a manifest hangs on each run: one on which
none does is of another chain, and counts for nothing. What deletes, and what proves, reads no runs at all. A run is
named by its range and the digest of its bytes, so whoever writes it writes the same, and nobody has to win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from pumphouse.archive import layout
from pumphouse.archive.document import sha256
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.manifest import Manifest, check_link
from pumphouse.archive.windows import SCHEMA, Reader, Windows, side_by_side
from pumphouse.errors import BadManifest, BinlogError, ObjectNotFound
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore

log = structlog.get_logger()

_KIND = {"pumphouse.kind": "index", "pumphouse.format_version": "1"}
REMEDY = "delete it: the next snapshots write it again"
_NEWER = "a newer release of Pumphouse wrote it, or delete it: the next snapshots write it again"
_READERS = 8


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """An object of the index, as its name says."""

    start: Tso
    end: Tso
    digest: str

    @property
    def key(self) -> str:
        """Its name in the archive."""
        return layout.index_key(self.start, self.end, self.digest)


def encode(windows: Windows, genesis: Genesis) -> tuple[Run, bytes]:
    """A run of windows as stored."""
    facts = {**_KIND, **_of(genesis), "previous": windows.previous}
    sink = pa.BufferOutputStream()
    table = windows.table().replace_schema_metadata(facts)
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    return Run(windows.start, windows.end, sha256(data)), data


def decode(run: Run, data: bytes, genesis: Genesis, read: Reader) -> Windows:
    """What a run holds, held against its name and the archive's genesis; BadManifest."""
    if sha256(data) != run.digest:
        raise _broken(run, f"is damaged: its bytes have the digest {sha256(data)}", "sha256")
    try:
        schema = pq.read_schema(pa.BufferReader(data))
        facts = {name.decode(): value.decode() for name, value in (schema.metadata or {}).items()}
        if not _KIND.items() <= facts.items():
            raise _broken(run, f"says of itself {facts}; this release reads {_KIND}", "kind", _NEWER)
        if not _of(genesis).items() <= facts.items():
            raise _broken(run, f"is of another archive: it says {facts}, and not {_of(genesis)}", "genesis")
        if not schema.equals(SCHEMA):  # whose columns hold no nulls
            raise _broken(run, "has other columns", "schema")
        found = Windows.held(data, facts.get("previous", ""), read)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _broken(run, f"cannot be read: {error}", "parquet") from error
    if not found or (found.start, found.end) != (run.start, run.end) or not side_by_side(found):
        raise _broken(run, "holds windows that are not those of its name, side by side", "range")
    return found


def runs_in(store: ObjectStore) -> list[Run]:
    """Names of the runs that there are, in order of their ranges; what has no such name is none."""
    found: list[Run] = []
    for each in store.list(layout.INDEX):
        named = layout.index_range(each.key)
        if named is None:
            log.warning("index_run_left_out", key=each.key, why="it has no name of a run", hint="delete it")
        else:
            found.append(Run(*named))
    return sorted(found)


def read_runs(
    store: ObjectStore,
    runs: Sequence[Run],
    genesis: Genesis,
    manifests: Callable[[Sequence[str]], list[Manifest]],
    read: Reader,
    *,
    since: Tso,
    upto: Tso,
) -> Iterator[Windows]:
    """Runs from the newest one that begins at or below ``since`` on, up to ``upto``, in order.

    Damaged ones are left out, and those on which the manifest behind them does not hang.
    """

    def got(run: Run) -> tuple[bytes, Manifest] | BinlogError:
        try:
            return store.get(run.key), manifests([layout.window_key(run.end)])[0]
        except (BadManifest, ObjectNotFound) as error:
            return error

    def whole(run: Run, found: tuple[bytes, Manifest] | BinlogError) -> Windows | None:
        try:
            if isinstance(found, BinlogError):
                raise found
            data, behind = found
            windows = decode(run, data, genesis, read)
            check_link(behind, cluster_id=genesis.cluster_id, end=run.end, digest=windows.digest)
        except (BadManifest, ObjectNotFound) as error:
            hint = error.hint if error.facts.get("path") == run.key else ""
            log.warning("index_run_left_out", key=run.key, why=error.message, hint=hint)
            return None
        return windows

    wanted = [each for each in runs if each.start < upto]
    before = [each for each in wanted if each.start <= since]
    while before:  # where the windows from there on begin is known by a run that is whole
        run = before.pop()
        if (found := whole(run, got(run))) is not None:
            yield found
            break
    later = [each for each in wanted if each.start > since]
    with ThreadPoolExecutor(_READERS) as pool:  # which reads; what is read in here takes less memory
        yield from filter(None, map(whole, later, pool.map(got, later)))


def _of(genesis: Genesis) -> dict[str, str]:
    return {"cluster_id": str(genesis.cluster_id), "genesis": genesis.sha256}


def _broken(run: Run, what: str, reason: str, hint: str = REMEDY) -> BadManifest:
    return BadManifest(f"{run.key} {what}", hint=hint, path=run.key, offset=0, reason=reason)
