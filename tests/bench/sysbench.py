"""The workload of the load benchmarks: sysbench's table, a little wider; transactions of 5 inserts, 3 updates, 2 deletes.

id bigint unsigned primary key, k int with an index, c char(120) filled to 119, pad char(60) filled to 59, amount
decimal(12,2), status tinyint unsigned, created datetime, updated timestamp(3) null, name varchar(64), flags int
unsigned, note varchar(255). Updates change k, c, amount and status of random live rows.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from pumphouse.codec import payload, row
from pumphouse.model.table import TableInfo

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


@cache
def _letters() -> bytes:
    """Text is cut from it: farther apart than a compressor looks back, and made at once."""
    return base64.b64encode(random.Random(0).randbytes(24 << 20))


class Workload:
    """Makes the transactions, the same for the same seed; with ``hot`` of them, the rows go round in one set of keys."""

    def __init__(self, seed: int = 1, table_id: int = 51, hot: int = 0) -> None:
        self._hot = hot
        self.table = TableInfo.from_dict(table_json(table_id=table_id))
        self._random = random.Random(seed)
        self._live: dict[int, dict[int, Any]] = {}
        self._ids: list[int] = []
        self._next = 1
        self._letters = _letters()

    def _text(self, length: int) -> bytes:
        at = int(self._random.random() * (len(self._letters) - length))
        return self._letters[at : at + length]

    def _row(self, id_: int) -> dict[int, Any]:
        pick = self._random
        return {
            1: id_,
            2: pick.randrange(1 << 30),
            3: self._text(119),
            4: self._text(59),
            5: f"{pick.randrange(10**9)}.{pick.randrange(100):02d}",
            6: pick.randrange(256),
            7: f"2026-{pick.randrange(1, 13):02d}-{pick.randrange(1, 29):02d} 10:{pick.randrange(60):02d}:00",
            8: None if pick.random() < 0.1 else f"2026-11-21 07:30:{pick.randrange(60):02d}.{pick.randrange(1000):03d}",
            9: self._text(12),
            10: pick.randrange(1 << 32),
            11: self._text(40),
        }

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
                self._live[id_] = self._row(id_)
                value.insert(self.table.id, row.encode_insert(self.table, self._live[id_]))
            self._ids.extend(fresh)
            touched = [self._take() for _ in range(10 if full else 5)]
            gone = touched[3:] if not full else []
            for id_ in touched[: -len(gone) or None]:
                old = self._live[id_]
                new = {**old, **{n: v for n, v in self._row(id_).items() if n in (2, 3, 5, 6)}}
                value.update(self.table.id, row.encode_update(self.table, old, new))
                self._live[id_] = new
            for id_ in gone:
                value.delete(self.table.id, row.encode_delete(self.table, self._live.pop(id_)))
            self._ids.extend(touched[: len(touched) - len(gone)])
            yield value.build()

    @property
    def rows(self) -> int:
        """Rows that are live now."""
        return len(self._live)
