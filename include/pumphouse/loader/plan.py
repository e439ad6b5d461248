"""What a plan says: the range, where its epochs end, and how its units are made. Pure; stored in `plan.spec`.

A retry finishes the plan that it finds with that plan's settings, so units are the same in every attempt.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Self

from pumphouse.errors import CorruptionError
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.model.tso import Tso

SPEC_VERSION = 3
MAX_BUCKETS = 4096
# What a unit aims at on a TiDB, which holds a transaction in memory, with its indexes: 100 MiB if not told otherwise.
TIDB_UNIT_BYTES = 16 << 20
# Below this a table's changes are one unit: a second connection would cost more than it brings.
_SMALL_BYTES = 2 << 20


class Mode(StrEnum):
    """How a plan's changes reach the target."""

    BASE = "base"  # rows of a dump and the log over them, into tables that were made empty
    MERGE = "merge"  # net change per key
    REPLAY = "replay"  # change by change, in commit order (`pumphouse.replay.load`)
    REPEAT = "repeat"  # a finished range once more, by force: tables with a key only, nothing else moves


# DDL is part of these.
ORDERED = frozenset({Mode.MERGE, Mode.REPLAY})


class Phase(IntEnum):
    """Within an epoch all deletes are committed before the first insert."""

    DELETE = 0
    INSERT = 1


@dataclass(frozen=True, slots=True, order=True)
class UnitId:
    """One transaction of a plan, the same in every attempt."""

    epoch: int
    phase: int
    table_id: int
    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One plan row.

    Args:
        task: name of the load.
        number: number within the task.
        from_ts: commit ts > this.
        to_ts: commit ts <= this.
        mode: see `Mode`.
        boundaries: commit ts of the DDLs that end epochs, ascending.
        touched: ids of the tables whose epochs end at each boundary (`pumphouse.loader.epochs`); None: every table's at
            each, in a plan of an older release.
        buckets: table id -> number of buckets; 1 where it is not named.
        ranges: table id -> where its buckets but the first begin, ascending, as ranks of the key's first column
            (`pumphouse.codec.columnar.key_rank`). Tables that are not named are cut by a hash of the key.
        archive: digest of the manifests that the range lies in.
        skipped: tables left out by name, with the reason.
        without: commit ts of transactions whose rows are left out by a rule.
        ruled: commit ts of DDLs that a rule skips or replaces: rows from before them are loaded before them.
        only: tables, ``database.table`` in lower case, that a resync or a restore of parts is of; () = all.
        where: which of their rows; of each change the key before and the key after it count by themselves.
        whole: ids of the tables of which the log says nothing over the dump: each of their segments is a unit.
    """

    task: str
    number: int
    from_ts: Tso
    to_ts: Tso
    mode: Mode
    boundaries: tuple[int, ...] = ()
    touched: tuple[tuple[int, ...], ...] | None = ()
    buckets: Mapping[int, int] = field(default_factory=dict)
    ranges: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    archive: str = ""
    skipped: Mapping[str, str] = field(default_factory=dict)
    without: tuple[int, ...] = ()
    ruled: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    where: Predicate = ALL_ROWS
    whole: frozenset[int] = frozenset()

    def bucket_count(self, table_id: int) -> int:
        """Buckets of a table."""
        return self.buckets.get(table_id, 1)

    def spec(self) -> str:
        """Canonical JSON of what is not a column of its own."""
        return json.dumps(
            {
                # An older release would count the units otherwise, and leave rows out.
                "version": SPEC_VERSION if self.whole else 1 if self.touched is None else 2,
                "boundaries": list(self.boundaries),
                **({} if self.touched is None else {"touched": [list(tables) for tables in self.touched]}),
                "buckets": {str(k): v for k, v in sorted(self.buckets.items())},
                "archive": self.archive,
                "skipped": dict(self.skipped),
                **({"ranges": {str(k): list(v) for k, v in sorted(self.ranges.items())}} if self.ranges else {}),
                **({"without": list(self.without)} if self.without else {}),
                **({"ruled": list(self.ruled)} if self.ruled else {}),
                **({"only": self.only[0] if len(self.only) == 1 else self.only} if self.only else {}),
                **({"where": self.where.to_dict()} if self.where else {}),
                **({"whole": sorted(self.whole)} if self.whole else {}),
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    def digest(self) -> str:
        """SHA-256 over everything that decides what the units are."""
        return _digest(self.task, self.number, self.from_ts, self.to_ts, self.mode, self.spec())

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Read (task, number, from_ts, to_ts, mode, spec, digest); CorruptionError when it was changed."""
        task, number, from_ts, to_ts, mode, spec, digest = row
        try:
            data = json.loads(spec)
            plan = cls(
                task=task,
                number=int(number),
                from_ts=Tso(int(from_ts)),
                to_ts=Tso(int(to_ts)),
                mode=Mode(mode),
                boundaries=tuple(data["boundaries"]),
                touched=tuple(map(tuple, data["touched"])) if "touched" in data else None,
                buckets={int(k): int(v) for k, v in data["buckets"].items()},
                ranges={int(k): tuple(v) for k, v in data.get("ranges", {}).items()},
                archive=data["archive"],
                skipped=data["skipped"],
                without=tuple(data.get("without", ())),
                ruled=tuple(data.get("ruled", ())),
                only=(only,) if isinstance(only := data.get("only", ()), str) else tuple(only),
                where=Predicate.from_dict(data["where"]) if "where" in data else ALL_ROWS,
                whole=frozenset(data.get("whole", ())),
            )
            int(data["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"plan {number} of task {task} cannot be read: {error!r}") from error
        # Over what is written there, not over what this release would write: an older one may have said less.
        if _digest(task, number, from_ts, to_ts, mode, spec) != digest:
            raise CorruptionError(
                f"plan {number} of task {task} is not the one that was written", hint="a plan row was edited"
            )
        if int(data["version"]) > SPEC_VERSION:
            raise CorruptionError(
                f"plan {number} of task {task} was begun by a newer release of Pumphouse", hint="upgrade"
            )
        return plan

    def to_dict(self) -> dict[str, Any]:
        """For reports."""
        return {**asdict(self), "whole": sorted(self.whole)}


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def bucket_counts(
    table_bytes: Mapping[int, int],
    *,
    unit_bytes: int,
    connections: int,
    fixed: int = 0,
    scanned: Container[int] = (),
) -> dict[int, int]:
    """Buckets for each table from the bytes that the manifests count for it; 1 is left out.

    ``scanned``: tables without a key, of which each unit that deletes reads every row; they get as few as they can.
    """
    counts = {}
    for table_id, size in table_bytes.items():
        if fixed:
            count = fixed
        elif size < _SMALL_BYTES:
            count = 1
        else:
            count = max(math.ceil(size / unit_bytes), 1 if table_id in scanned else connections)
        if count > 1:
            counts[table_id] = min(count, MAX_BUCKETS)
    return counts
