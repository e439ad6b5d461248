"""What happens to a source by a seed: tables with and without a key, random DML and DDL, windows of both."""

from __future__ import annotations

import random
from typing import Any

from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from tests.support.madearchive import MadeSource, column

Rows = dict[str, Any]


class Happenings:
    """One source, its archive, and one generator of what comes next."""

    def __init__(self, source: MadeSource, seed: int) -> None:
        self.source = source
        self.rng = random.Random(seed)
        self.number = 0
        self.published = 0
        self.keyed: set[str] = set()  # names of tables whose key is their first column
        # Moments that a restore may ask for, with the rows of each.
        self.marks: list[tuple[Tso, Rows]] = []
        for _ in range(3):
            self.create()
        self.write(6)
        at = source.genesis()
        self.marks.append((at, source.snapshot()))

    def create(self) -> None:
        """A table, with a key or without."""
        self.number += 1
        name = f"t{self.number}"
        keyed = self.rng.random() < 0.7
        columns = [column(1, "id", flag=3 if keyed else 0), column(2, "s", MysqlType.VARCHAR), column(3, "n")]
        self.source.create_table(name, columns, pk_is_handle=keyed)
        self.keyed |= {name} if keyed else set()

    def write(self, transactions: int) -> None:
        """So many transactions over one or two tables each."""
        rng, source = self.rng, self.source
        for _ in range(transactions):
            with source.txn() as t:
                for name in rng.sample(sorted(source.tables), min(2, len(source.tables))):
                    self._change(t, name)

    def _change(self, t: Any, name: str) -> None:
        rng, held = self.rng, self.source.tables[name]
        known = sorted(held.rows)
        names = [c.name for c in held.info.public_columns if c.name not in ("id", "s")]
        if known and rng.random() < 0.3:
            t.delete(name, rng.choice(known))
        elif known and rng.random() < 0.5:
            moved = {"id": max(known) + 1} if held.info.pk_is_handle and rng.random() < 0.2 else {}
            t.update(name, rng.choice(known), s=rng.choice([None, b"upd", b"\t\\"]), **moved)
        else:
            values = {each: rng.randrange(100) for each in names}
            id_ = max(known, default=0) + 1 if held.info.pk_is_handle else rng.randrange(3)
            t.insert(name, id=id_, s=rng.choice([b"a", b"A ", None]), **values)

    def fill(self, rows: int) -> None:
        """So many rows into one table, in one transaction."""
        name = self.rng.choice(sorted(self.source.tables))
        held = self.source.tables[name]
        others = [c.name for c in held.info.public_columns if c.name not in ("id", "s")]
        first = max(held.rows, default=0) + 1 if held.info.pk_is_handle else 0
        with self.source.txn() as t:
            for n in range(rows):
                t.insert(name, id=first + n, s=b"x" * 60, **dict.fromkeys(others, n))

    def change_schema(self) -> None:
        """One DDL."""
        rng, source = self.rng, self.source
        name = rng.choice(sorted(source.tables))
        held = source.tables[name]
        extra = [c for c in held.info.public_columns if c.id > 3]
        kind = rng.choice(["add", "add", "drop column", "create", "drop", "truncate", "rename"])
        if kind == "drop column" and extra:
            source.drop_column(name, extra[0].name)
        elif kind == "drop" and len(source.tables) > 2:
            source.drop_table(name)
        elif kind == "truncate":
            source.truncate(name)
        elif kind == "rename":
            self.number += 1
            source.rename_table(name, f"r{self.number}")
            self.keyed |= {f"r{self.number}"} if name in self.keyed else set()
        elif kind == "create":
            self.create()
        else:
            self.number += 1
            source.add_column(name, column(10 + self.number, f"c{self.number}", default="5", origin_default="5"))

    def publish(self) -> None:
        """A window, most often with DDL in it."""
        self.published += 1
        self.write(self.rng.randrange(4))
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            self.change_schema()
            self.write(self.rng.randrange(3))
        self.marks.append((Tso(self.source.tick()), self.source.snapshot()))
        self.write(self.rng.randrange(3))
        self.marks.append((self.source.cut(), self.source.snapshot()))
