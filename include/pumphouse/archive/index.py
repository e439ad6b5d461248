"""Index: runs of windows as columns, an object each, so that very many windows are read by few requests (row A6).

It is derived from the manifests, and they decide: a run that is missing, damaged or does not chain costs the time to
read the manifests, and nothing else. A run is named by its range and the digest of its bytes, so whoever writes it
writes the same, and nobody has to win. It never holds the newest windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from pumphouse.archive import layout
from pumphouse.archive.document import sha256
from pumphouse.archive.windows import SCHEMA, Reader, Windows, side_by_side
from pumphouse.errors import BadManifest, BinlogError
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore

log = structlog.get_logger()

_KIND = {"pumphouse.kind": "index", "pumphouse.format_version": "1"}
REMEDY = "delete it: the next snapshots write it again"
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


def encode(windows: Windows, cluster_id: int) -> tuple[Run, bytes]:
    """A run of windows as stored."""
    facts = {**_KIND, "cluster_id": str(cluster_id), "previous": windows.previous}
    sink = pa.BufferOutputStream()
    table = windows.table().replace_schema_metadata(facts)
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    return Run(windows.start, windows.end, sha256(data)), data


def decode(run: Run, data: bytes, cluster_id: int, read: Reader) -> Windows:
    """What a run holds, held against its name; BadManifest."""
    if sha256(data) != run.digest:
        raise _broken(run, f"is damaged: its bytes have the digest {sha256(data)}", "sha256")
    try:
        schema = pq.read_schema(pa.BufferReader(data))
        facts = {name.decode(): value.decode() for name, value in (schema.metadata or {}).items()}
        if not schema.equals(SCHEMA):
            raise _broken(run, "has other columns", "schema")
        found = Windows.held(data, facts.get("previous", ""), read)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _broken(run, f"cannot be read: {error}", "parquet") from error
    if not _KIND.items() <= facts.items():
        raise _broken(run, f"says of itself {facts}; this release reads {_KIND}", "kind")
    if facts.get("cluster_id") != str(cluster_id):
        raise _broken(run, f"belongs to cluster {facts.get('cluster_id')}, not {cluster_id}", "cluster")
    if not found or any(found.bounds[name].null_count for name in found.bounds.schema.names):
        raise _broken(run, "lacks values", "field")
    if (found.start, found.end) != (run.start, run.end) or not side_by_side(found):
        raise _broken(run, "holds windows that are not those of its name, side by side", "range")
    return found


def runs_in(store: ObjectStore) -> list[Run]:
    """Names of the runs that there are, in order of their ranges; what has no such name is none."""
    found = (layout.index_range(each.key) for each in store.list(layout.INDEX))
    return sorted(Run(*each) for each in found if each is not None)


def read_runs(
    store: ObjectStore, runs: Sequence[Run], cluster_id: int, read: Reader, *, since: Tso, upto: Tso
) -> Iterator[Windows]:
    """Runs from the newest one that begins at or below ``since`` on, up to ``upto``, in order; no damaged ones."""

    def bytes_of(run: Run) -> bytes | BinlogError:
        try:
            return store.get(run.key)
        except BinlogError as error:
            return error

    def whole(run: Run, data: bytes | BinlogError) -> Windows | None:
        try:
            if isinstance(data, BinlogError):
                raise data
            return decode(run, data, cluster_id, read)
        except BinlogError as error:
            log.warning("index_run_left_out", key=run.key, why=error.message, hint=REMEDY)
            return None

    wanted = [each for each in runs if each.start < upto]
    before = [each for each in wanted if each.start <= since]
    while before:  # where the windows from there on begin is known by a run that is whole
        run = before.pop()
        if (found := whole(run, bytes_of(run))) is not None:
            yield found
            break
    later = [each for each in wanted if each.start > since]
    with ThreadPoolExecutor(_READERS) as pool:  # which reads; what is read in here takes less memory
        yield from filter(None, map(whole, later, pool.map(bytes_of, later)))


def _broken(run: Run, what: str, reason: str) -> BadManifest:
    return BadManifest(f"{run.key} {what}", hint=REMEDY, path=run.key, offset=0, reason=reason)
