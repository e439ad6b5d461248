"""Memory of a load by Spark, of a window and of one ten times as large (a campaign).

Of 10 GB it takes some 20 GB of disk. PUMPHOUSE_WINDOW_GB makes it smaller.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.codec import payload, row
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.settings import Settings
from tests.bench.harness import Watch
from tests.support.madearchive import MadeSource, column

GB = 1_000_000_000
LARGE_GB = float(os.environ.get("PUMPHOUSE_WINDOW_GB", "10"))
_CHANGES = 10
# Payloads of transactions, their number, and (id, n) of each row at the end.
Made = tuple[Iterator[bytes], int, dict[int, int]]


def rows_changed_often(source: MadeSource, size: int) -> Made:
    """Updates of 4,000 rows of 1 kB: a decoder holds the last of each."""
    rng, texts = random.Random(1), _texts(1_000)
    info = source.tables["t"].info

    def made(number: int) -> tuple[bytes, list[int]]:
        value = payload.PrewriteValueBuilder(source.schema_version)
        ids = rng.sample(range(4_000), _CHANGES)
        for id_ in ids:
            new = {1: id_, 2: next(texts), 3: number}
            value.update(info.id, row.encode_update(info, {**new, 3: 0}, new, handle=id_))
        return value.build(), ids

    templates = [made(number) for number in range(1, 2_001)]
    count = size // len(templates[0][0])
    order = [rng.randrange(len(templates)) for _ in range(count)]
    last: dict[int, int] = {}
    for at in order:
        last |= dict.fromkeys(templates[at][1], at + 1)
    return (templates[at][0] for at in order), count, last


def rows_that_come_and_go(source: MadeSource, size: int) -> Made:
    """Rows of 4 kB, all inserted before the first is deleted: each goes through the shuffle, few reach the server."""
    info = source.tables["t"].info
    half = size // (2 * _CHANGES * 4_050)
    stay = 100

    def values() -> Iterator[bytes]:
        for gone in (False, True):
            texts = _texts(4_000)
            for at in range(half):
                value = payload.PrewriteValueBuilder(source.schema_version)
                for id_ in range(at * _CHANGES, (at + 1) * _CHANGES):
                    held = {1: id_, 2: next(texts), 3: id_}
                    if not gone:
                        value.insert(info.id, row.encode_insert(info, held, handle=id_))
                    elif id_ >= stay:
                        value.delete(info.id, row.encode_delete(info, held, handle=id_))
                if not gone or at * _CHANGES >= stay:
                    yield value.build()

    return values(), 2 * half - stay // _CHANGES, {id_: id_ for id_ in range(stay)}


def _texts(length: int) -> Iterator[bytes]:
    """Values that a compressor finds little in, the same each time."""
    rng = random.Random(2)
    text = rng.randbytes(4 << 20).hex().encode()
    while True:
        at = rng.randrange(len(text) - length)
        yield text[at : at + length]


def load_measured(settings: Settings, window: Path) -> tuple[float, float]:
    """Load in a process of its own; MB of its tree at most, seconds."""
    target = settings.target
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.load", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PUMPHOUSE_CLUSTER__URL": settings.cluster.url,
            "PUMPHOUSE_ARCHIVE__ROOT": settings.archive.root,
            "PUMPHOUSE_LOAD__ENGINE": "spark",
            "PUMPHOUSE_TARGET__HOST": target.host,
            "PUMPHOUSE_TARGET__PORT": str(target.port),
            "PUMPHOUSE_TARGET__USER": target.user,
            "PUMPHOUSE_TARGET__PASSWORD": target.password.get_secret_value(),
            "SPARK_LOCAL_DIRS": str(window),
        },
    )
    with Watch(child.pid) as watch:
        out, _ = child.communicate()
    assert child.returncode == 0
    assert json.loads(out.strip().splitlines()[-1])["inserted"]
    return watch.peak_rss_mb, watch.seconds


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.row("L4", "L5")
@pytest.mark.parametrize("of", [rows_changed_often, rows_that_come_and_go])
def test_a_window_ten_times_as_large_takes_at_most_half_as_much_memory_again(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    tmp_path: Path,
    of: Callable[[MadeSource, int], Made],
    record_property: Callable[[str, object], None],
) -> None:
    peaks: list[float] = []
    for gb in (LARGE_GB / 10, LARGE_GB):
        for name in ("d", "pumphouse"):
            target.execute(f"DROP DATABASE IF EXISTS {name}")
        source.begin_anew()
        source.create_table("t", [column(1, "id", flag=3), column(2, "s", MysqlType.BLOB), column(3, "n")])
        source.genesis()
        values, count, last = of(source, int(gb * GB))
        source.cut_of(values, count)
        peak, seconds = load_measured(settings, tmp_path)
        peaks.append(peak)
        record_property(f"peak_mb_of_{gb:g}_gb", round(peak))
        record_property(f"seconds_of_{gb:g}_gb", round(seconds))
        record_property(f"changes_of_{gb:g}_gb", count * _CHANGES)
        found: dict[Any, Any] = dict(target.query("SELECT id, n FROM d.t"))
        assert found == last
    source.begin_anew()
    assert peaks[1] <= 1.5 * peaks[0]
