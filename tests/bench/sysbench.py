"""The workload of the load benchmarks: sysbench's table, a little wider; transactions of 5 inserts, 3 updates, 2 deletes.

id bigint unsigned primary key, k int with an index, c char(120) filled to 119, pad char(60) filled to 59, amount
decimal(12,2), status tinyint unsigned, created datetime, updated timestamp(3) null, name varchar(64), flags int
unsigned, note varchar(255). Updates change k, c, amount and status of random live rows.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pumphouse.codec import payload, row
from pumphouse.codec.datum import VARINT
from pumphouse.codec.number import append_uvarint, append_varint
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import Tso
from tests.support.madearchive import MadeSource

_LENGTHS = {"c": 119, "pad": 59, "name": 12, "note": 40}
_NOT_NULL, _PRI, _UNSIGNED, _MULTIPLE = 1, 2, 32, 8


def _column(
    id_: int, name: str, tp: int, flen: int, *, flag: int = 0, decimal: int = 0, text: bool = False
) -> dict[str, Any]:
    charset, collate = ("utf8mb4", "utf8mb4_bin") if text else ("binary", "binary")
    return {
        "id": id_,
        "name": {"O": name, "L": name},
        "offset": id_ - 1,
        "type": {
            "Tp": tp, "Flag": flag, "Flen": flen, "Decimal": decimal, "Charset": charset, "Collate": collate, "Elems": None,
        },
        "state": 5,
    }  # fmt: skip


def table_json(name: str = "sbtest", table_id: int = 51) -> dict[str, Any]:
    """TableInfo JSON."""
    columns = [
        _column(1, "id", 8, 20, flag=_NOT_NULL | _PRI | _UNSIGNED),
        _column(2, "k", 3, 11, flag=_NOT_NULL | _MULTIPLE),
        _column(3, "c", 254, 120, flag=_NOT_NULL, text=True),
        _column(4, "pad", 254, 60, flag=_NOT_NULL, text=True),
        _column(5, "amount", 246, 12, decimal=2),
        _column(6, "status", 1, 3, flag=_UNSIGNED),
        _column(7, "created", 12, 19),
        _column(8, "updated", 7, 23, decimal=3),
        _column(9, "name", 15, 64, text=True),
        _column(10, "flags", 3, 10, flag=_UNSIGNED),
        _column(11, "note", 15, 255, text=True),
    ]
    return {
        "id": table_id,
        "name": {"O": name, "L": name},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": columns,
        "index_info": [
            {
                "id": 1,
                "idx_name": {"O": "k", "L": "k"},
                "tbl_name": {"O": "", "L": ""},
                "idx_cols": [{"name": {"O": "k", "L": "k"}, "offset": 1, "length": -1}],
                "state": 5,
                "is_unique": False,
                "is_primary": False,
            }
        ],
        "state": 5,
        "pk_is_handle": True,
        "is_common_handle": False,
        "max_col_id": 11,
        "version": 5,
    }


@dataclass(frozen=True)
class _Parts:
    """What row images are put together from: pairs of column id and value, as the codec makes them.

    A text is its prefix and letters. Neither these nor the ``numbers`` repeat as near as a compressor looks back.
    """

    prefixes: dict[str, bytes]  # of id too
    letters: bytes
    numbers: list[tuple[bytes, ...]]  # k; amount and status; created and updated, also as an inserted row has it; flags


@cache
def _parts() -> _Parts:
    table, pick = TableInfo.from_dict(table_json()), random.Random(0)

    def pairs(**values: Any) -> bytes:
        only = replace(table, columns=tuple(c for c in table.columns if c.name in values))
        return row.encode_delete(only, {c.id: values.get(c.name) for c in table.columns})

    def numbers() -> tuple[bytes, ...]:
        day = f"{pick.randrange(1, 13):02d}-{pick.randrange(1, 29):02d}"
        created = pairs(created=f"2026-{day} 10:{pick.randrange(60):02d}:00")
        at = f"2026-11-21 07:30:{pick.randrange(60):02d}.{pick.randrange(1000):03d}" if pick.random() > 0.1 else None
        return (
            pairs(k=pick.randrange(1 << 30)),
            pairs(amount=f"{pick.randrange(10**9)}.{pick.randrange(100):02d}", status=pick.randrange(256)),
            created + pairs(updated=at),
            created + (pairs(updated=at) if at else b""),
            pairs(flags=pick.randrange(1 << 32)),
        )

    return _Parts(
        {name: pairs(**{name: b" " * length})[:-length] for name, length in _LENGTHS.items()}
        | {"id": pairs(id=1)[:-1]},
        base64.b64encode(pick.randbytes(24 << 20)),
        [numbers() for _ in range(1 << 16)],
    )


class Workload:
    """Makes the transactions, the same for the same seed; with ``hot`` of them, the rows go round in one set of keys."""

    def __init__(self, seed: int = 1, table_id: int = 51, hot: int = 0) -> None:
        self._hot = hot
        self.table = TableInfo.from_dict(table_json(table_id=table_id))
        self._random = random.Random(seed)
        self._live: dict[int, tuple[bytes, ...]] = {}  # id, k, c, pad, amount and status, the others
        self._ids: list[int] = []
        self._next = 1
        self._parts = _parts()
        self._letter = self._random.randrange(len(self._parts.letters))
        self._number = self._random.randrange(len(self._parts.numbers))

    def _text(self, name: str) -> bytes:
        at, end = self._letter, self._letter + _LENGTHS[name]
        if end > len(self._parts.letters):
            at, end = 0, _LENGTHS[name]
        self._letter = end
        return self._parts.prefixes[name] + self._parts.letters[at:end]

    def _numbers(self) -> tuple[bytes, ...]:
        self._number = (self._number + 1) % len(self._parts.numbers)
        return self._parts.numbers[self._number]

    def _insert(self, id_: int) -> bytes:
        key, handle = bytearray(self._parts.prefixes["id"]), bytearray((VARINT,))
        append_uvarint(key, id_)
        append_varint(handle, id_)
        k, state, dates, inserted, flags = self._numbers()
        body = (k, self._text("c"), self._text("pad"), state)
        rest = self._text("name") + flags + self._text("note")
        self._live[id_] = (bytes(key), *body, dates + rest)
        return b"".join((handle, *body, inserted, rest))

    def _update(self, id_: int) -> bytes:
        key, _, _, pad, _, rest = old = self._live[id_]
        k, state, *_ = self._numbers()
        self._live[id_] = new = (key, k, self._text("c"), pad, state, rest)
        return b"".join(old + new)

    def _take(self) -> int:
        at = self._random.randrange(len(self._ids))
        self._ids[at], self._ids[-1] = self._ids[-1], self._ids[at]
        return self._ids.pop()

    def transactions(self, count: int, schema_version: int) -> Iterator[bytes]:
        """Prewrite values of 10 row changes each."""
        for _ in range(count):
            value = payload.PrewriteValueBuilder(schema_version)
            full = 0 < self._hot <= len(self._ids)
            fresh = range(0) if full else range(self._next, self._next + 5)
            self._next += len(fresh)
            for id_ in fresh:
                value.insert(self.table.id, self._insert(id_))
            self._ids.extend(fresh)
            touched = [self._take() for _ in range(10 if full else 5)]
            gone = touched[3:] if not full else []
            for id_ in touched[: -len(gone) or None]:
                value.update(self.table.id, self._update(id_))
            for id_ in gone:
                value.delete(self.table.id, b"".join(self._live.pop(id_)))
            self._ids.extend(touched[: len(touched) - len(gone)])
            yield value.build()

    @property
    def rows(self) -> int:
        """Rows that are live now."""
        return len(self._live)


def archive(
    source: MadeSource, transactions: int, *, tables: Sequence[str] = ("sbtest",), hot: int = 0
) -> tuple[list[Workload], Tso]:
    """Archive one window of so many transactions in all, of each table in turn; what they are, and where it begins."""
    raw = table_json()
    every = [
        Workload(seed, source.create_table(name, raw["cols"], index_info=raw["index_info"]), hot)
        for seed, name in enumerate(tables, 1)
    ]
    genesis = source.genesis()
    streams = [each.transactions(transactions // len(every), source.schema_version) for each in every]
    for values in zip(*streams, strict=True):
        for value in values:
            source.commit(source.tick(1), value)
    source.cut()
    return every, genesis
