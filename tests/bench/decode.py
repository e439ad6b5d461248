"""Decoding: payloads to Arrow columns, walk and images together, against the readable reference on a sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from pumphouse.archive.segment import ROW_GROUP_BYTES
from pumphouse.codec import columnar, payload
from pumphouse.codec.layout import RowLayout
from pumphouse.model.binlog import MutationType
from tests.bench.harness import Result, Watch
from tests.bench.sysbench import Workload
from tests.support import rowreference

_TXNS, _REPEATS = 10_000, 10
_KEY = ("id",)


def _reference_rate(workload: Workload, values: list[bytes]) -> float:
    began, rows = time.perf_counter(), 0
    for value in values:
        for _, kind, image in rowreference.row_changes(value):
            if kind == MutationType.INSERT:
                rowreference.decode_insert(workload.table, image)
            elif kind == MutationType.UPDATE:
                rowreference.decode_update(workload.table, image)
            else:
                rowreference.decode_delete(workload.table, image)
            rows += 1
    return rows / (time.perf_counter() - began)


def _decode(groups: list[pa.Array], layout: RowLayout, keys: RowLayout) -> int:
    """As they are read, a row group at a time; of a row that goes or changes, its key says which one it is."""
    rows = 0
    for payloads in groups:
        found = columnar.walk(payloads)
        for op in (columnar.INSERT, columnar.UPDATE, columnar.DELETE):
            some = found.take(found.op == op)
            for block in columnar.blocks(some.row_len):
                shape = keys if op == columnar.DELETE else layout
                columnar.decode_images(found.data, some.row_start[block], some.row_len[block], op, shape, _KEY)
        rows += len(found)
    return rows


def bench(work: Path, runs: int) -> Result:
    """300-byte rows of 11 columns."""
    del work
    workload = Workload()
    values = list(workload.transactions(_TXNS, 1))
    merged = [
        payload.merge(payload.make_prewrite(n * 4 + 1, b"k", v), payload.make_commit(n * 4 + 1, n * 4 + 3, b"k"))
        for n, v in enumerate(values)
    ]
    step = len(merged) * ROW_GROUP_BYTES // sum(map(len, merged))
    groups = [pa.array(merged[at : at + step], pa.large_binary()) for at in range(0, len(merged), step)]
    size = sum(group.nbytes for group in groups)
    layout = RowLayout.of(workload.table, workload.table, _KEY)
    keys = RowLayout.of(workload.table, workload.table, _KEY, only=_KEY)
    _decode([groups[0].slice(0, 10)], layout, keys)  # kernels compile, or load from their cache
    samples = []
    for _ in range(runs):
        with Watch() as watch:
            rows = sum(_decode(groups, layout, keys) for _ in range(_REPEATS))
        samples.append(watch.sample(rows, mb_per_s=_REPEATS * size / 1e6 / watch.seconds))
    return Result("decode", "rows/s", samples, "reference codec", _reference_rate(workload, values[:500]))


BENCHES: dict[str, Callable[[Path, int], Result]] = {"decode": bench}
