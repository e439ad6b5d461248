"""Import of binlog files by the command: the million row changes that `export_pb` writes, into an archive on disk.

CPU and memory are those of the command's process tree, with its shadow server. The baseline is the same rows through
protobuf's library and the codec's reference, a row at a time, on a sample.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pumphouse.codec import row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE
from pumphouse.export.run import export_pb
from pumphouse.model.binlog import MutationType
from pumphouse.objectstore.file import FileStore
from tests.bench.harness import Result, Sample, Watch
from tests.bench.sysbench import Workload, archive
from tests.support import pbmessages, rowreference
from tests.support.madearchive import MadeSource

_TXNS, _CHANGES = 100_000, 10
_OPS = {MutationType.INSERT: INSERT, MutationType.UPDATE: UPDATE, MutationType.DELETE_ROW: DELETE}


def _import(files: Path, schema: Path, root: Path) -> Sample:
    shutil.rmtree(root, ignore_errors=True)
    words = ["archive", "import", "--format", "pb", "--schema", str(schema), "--empty", "--json", str(files)]
    child = subprocess.Popen(
        [sys.executable, "-m", "pumphouse", *words, "--archive", f"file://{root}"],
        stdout=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    with Watch(child.pid) as watch:
        told, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"the import failed with exit code {child.returncode}")
    changes = json.loads(told)["changes"]
    if changes != _TXNS * _CHANGES:
        raise RuntimeError(f"{changes} of {_TXNS * _CHANGES} row changes were imported")
    size = sum(each.stat().st_size for each in files.glob("binlog-*"))
    return watch.sample(changes, mb_per_s=size / 1e6 / watch.seconds)


def _plain_rate() -> float:
    """Row changes a second, a row at a time."""
    workload = Workload()
    encode: dict[int, Callable[..., bytes]] = {
        INSERT: row.encode_insert, UPDATE: row.encode_update, DELETE: row.encode_delete,
    }  # fmt: skip
    decode = {
        INSERT: rowreference.decode_insert,
        UPDATE: rowreference.decode_update,
        DELETE: rowreference.decode_delete,
    }
    events = []
    for value in workload.transactions(200, 1):
        for _, kind, image in rowreference.row_changes(value):
            op = _OPS[MutationType(kind)]
            made = pbmessages.event("d", workload.table, workload.table, op, image)
            events.append((op, made.SerializeToString(), decode[op](workload.table, image)))
    began = time.perf_counter()
    for op, data, values in events:
        pbmessages.values_of(pbmessages.Event.FromString(data))
        encode[op](workload.table, *(values if isinstance(values, tuple) else (values,)))
    return len(events) / (time.perf_counter() - began)


def bench(work: Path, runs: int) -> Result:
    """The import reads what `export_pb` writes."""
    source = MadeSource(work / "archive")
    _, since = archive(source, _TXNS)
    files, schema = work / "files", work / "schema.sql"
    export_pb(source.archive, FileStore(files), since=since, upto=None)
    schema.write_text(SCHEMA)
    _import(files, schema, work / "first")  # kernels compile, or load from their cache
    samples = [_import(files, schema, work / "imported") for _ in range(runs)]
    return Result("import_pb", "changes/s", samples, "protobuf's library and the codec, a row at a time", _plain_rate())


SCHEMA = """CREATE DATABASE d;
USE d;
CREATE TABLE sbtest (id BIGINT UNSIGNED PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL,
  amount DECIMAL(12,2), status TINYINT UNSIGNED, created DATETIME, updated TIMESTAMP(3) NULL, name VARCHAR(64),
  flags INT UNSIGNED, note VARCHAR(255), KEY k (k));
"""
BENCHES: dict[str, Callable[[Path, int], Result]] = {"import_pb": bench}
