"""Who runs the stages of a load: this process (`LocalEngine`) or Spark (`spark_tasks`). Same functions, same units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pumphouse.clock import Throttle
from pumphouse.loader import stages
from pumphouse.loader.blob import Blob
from pumphouse.loader.context import LoadContext
from pumphouse.loader.plan import UnitId
from pumphouse.loader.stages import ApplyContext, UnitSummary
from pumphouse.loader.work import SegmentPart


class Engine(Protocol):
    """Prepares the units of a plan once, then applies them phase by phase."""

    @property
    def where(self) -> str:
        """Where the plan that was prepared last runs, and why there."""
        ...

    def prepare(self, context: LoadContext, pieces: Sequence[SegmentPart]) -> list[UnitSummary]:
        """Decode and fold; what there is to apply."""
        ...

    def apply(self, context: ApplyContext, units: Sequence[UnitId]) -> int:
        """Apply these units, several at once, all of one phase, of a table one epoch; returns the rows applied now."""
        ...

    def close(self) -> None:
        """Let go of what was prepared."""
        ...

    def stop(self) -> None:
        """Let go of everything; nothing is prepared after it."""
        ...


class LocalEngine:
    """Everything in this process; for small windows, and the measure that Spark's result is held against."""

    def __init__(self, connections: int = 2) -> None:
        self._connections = connections
        self._units: dict[UnitId, list[Blob]] = {}

    @property
    def where(self) -> str:
        """Where its plans run."""
        return "in this process"

    def prepare(self, context: LoadContext, pieces: Sequence[SegmentPart]) -> list[UnitSummary]:
        """Decode and fold; what there is to apply."""
        groups: dict[tuple[int, int, int, int], list[Blob]] = defaultdict(list)
        self._units = defaultdict(list)

        def fold(key: tuple[int, int, int, int]) -> list[Blob]:
            return list(stages.fold(context.plan, groups.pop(key)))

        lying = [piece for piece in pieces if piece.table_id in context.plan.whole]
        dealt = deal([piece for piece in pieces if piece.table_id not in context.plan.whole], self._connections)
        with ThreadPoolExecutor(self._connections, thread_name_prefix="prepare") as pool:
            for found in pool.map(lambda some: list(stages.decode(context, some)), [lying, *dealt]):
                for blob in found:
                    groups[blob.group].append(blob)
            for folded in pool.map(fold, sorted(groups)):
                for blob in folded:
                    self._units[blob.unit].append(blob)
        return stages.summarize(
            (b.epoch, b.table_id, b.bucket, b.phase, b.rows, b.size) for blobs in self._units.values() for b in blobs
        )

    def apply(self, context: ApplyContext, units: Sequence[UnitId]) -> int:
        """Apply these units, several at once; returns the rows applied now."""
        return apply_here(context, [self._units[unit] for unit in units], connections=self._connections)

    def close(self) -> None:
        """Let go of what was prepared."""
        self._units = {}

    def stop(self) -> None:
        """Let go of everything."""
        self.close()


class AutoEngine:
    """The local engine for a plan of few bytes, Spark for any other: a session costs more than a small plan does.

    ``master``: of Spark; it is not asked, nor even looked for, while plans are small.
    """

    def __init__(self, local: Engine, spark: Callable[[], Engine], local_bytes: int, master: str) -> None:
        self._local = local
        self._master = master
        self._why = ""
        self._make_spark = spark
        self._spark: Engine | None = None
        self._local_bytes = local_bytes
        self._now = local

    def prepare(self, context: LoadContext, pieces: Sequence[SegmentPart]) -> list[UnitSummary]:
        """Choose, decode and fold; what there is to apply."""
        # The others are units as they lie, and read one by one.
        size = sum(piece.bytes for piece in pieces if piece.table_id not in context.plan.whole)
        if self._local_bytes and size <= self._local_bytes:
            self._now = self._local
            most = f"load.local_bytes = {self._local_bytes:,}"
            self._why = f"{size:,} bytes to merge, up to {most}; Spark at {self._master} not used"
        else:
            self._now = self._spark = self._spark or self._make_spark()
            self._why = f"{size:,} bytes to merge, above load.local_bytes = {self._local_bytes:,}"
        return self._now.prepare(context, pieces)

    @property
    def where(self) -> str:
        """Where the last plan ran, and its size."""
        return f"{self._now.where} ({self._why})" if self._why else self._now.where

    def apply(self, context: ApplyContext, units: Sequence[UnitId]) -> int:
        """Apply these units; returns the rows applied now."""
        return self._now.apply(context, units)

    def close(self) -> None:
        """Let go of what was prepared."""
        self._now.close()

    def stop(self) -> None:
        """Let go of everything."""
        self._local.stop()
        if self._spark is not None:
            self._spark.stop()


def deal(pieces: Sequence[SegmentPart], most: int) -> list[list[SegmentPart]]:
    """Spread pieces over so many tasks, the largest first to the lightest task."""
    tasks: list[list[SegmentPart]] = [[] for _ in range(max(1, min(most, len(pieces))))]
    weights = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda p: (-p.bytes, p.segment.key)):
        at = weights.index(min(weights))
        tasks[at].append(piece)
        weights[at] += piece.bytes
    for task in tasks:  # in the order in which small ones lie in a pack: what is read for one has the next
        task.sort(key=lambda p: p.segment.key)
    return tasks


def apply_here(context: ApplyContext, units: Sequence[Sequence[Blob]], *, connections: int) -> int:
    """Apply units in this process, over so many connections; returns the rows applied now."""
    together: dict[object, list[Sequence[Blob]]] = {}
    for at, unit in enumerate(units):
        together.setdefault(stages.scan_of(unit) or at, []).append(unit)
    dealt = list(together.values())
    lanes = [lane for lane in (dealt[at::connections] for at in range(connections)) if lane]
    throttle = Throttle(context.bytes_per_s)

    def run(lane: Sequence[Sequence[Sequence[Blob]]]) -> int:
        blobs = (blob for some in lane for unit in some for blob in unit)
        return sum(rows for _, rows, done in stages.apply(context, blobs, throttle) if done)

    with ThreadPoolExecutor(connections, thread_name_prefix="load") as pool:
        return sum(pool.map(run, lanes))
