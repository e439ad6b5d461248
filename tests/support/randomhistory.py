"""Random DDL histories of many tables: every kind of job that ties tables to each other, or gives one a new id."""

from __future__ import annotations

import copy
import random

from pumphouse.schema.actions import Action
from pumphouse.schema.versions import TimedJob
from tests.support.schemajobs import Raw, Source, add, col, find, int_col, name, remove, tidy

_ID = int_col("id", flag=4099)


class RandomHistory(Source):
    """A source that does anything, by a seed. ``schemas``: how many databases there are at once."""

    def __init__(self, seed: int, schemas: int = 3) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self._number = 0
        self._gone: list[tuple[str, Raw]] = []
        for _ in range(schemas):
            self.create_db(self._fresh("d"))

    def run(self, jobs: int, *, without: tuple[str, ...] = ()) -> list[TimedJob]:
        """So many more jobs."""
        kinds = {
            "create": 5, "alter": 8, "drop": 2, "truncate": 2, "rename": 2, "swap": 2, "exchange": 3, "batch": 1,
            "recover": 1, "view": 1, "partition": 1, "drop_db": 0.3, "alter_db": 0.3, "silent": 0.5,
        }  # fmt: skip
        names, weights = zip(*((k, w) for k, w in kinds.items() if k not in without), strict=True)
        end = len(self.jobs) + jobs
        while len(self.jobs) < end:
            getattr(self, f"_{self.random.choices(names, weights)[0]}")()
        return self.jobs[-jobs:]

    def _fresh(self, letter: str) -> str:
        self._number += 1
        return f"{letter}{self._number}"

    def schema(self) -> str:
        return self.random.choice(sorted(self.dbs))

    def _table(self, *, partitioned: bool | None = None) -> str | None:
        found = [
            key
            for key, raw in self.tables.items()
            if not raw.get("view") and partitioned in (None, bool(raw.get("partition")))
        ]
        return self.random.choice(found) if found else None

    def _name(self) -> str:
        """A free name, now and then one that an earlier table had."""
        old = [key for key, _ in self._gone if key not in self.tables and key.split(".")[0] in self.dbs]
        if old and self.random.random() < 0.3:
            return self.random.choice(old)
        return f"{self.schema()}.{self._fresh('t')}"

    def make_raw(self, table: str) -> Raw:
        raw = self.make(table, [_ID, *(int_col(self._fresh("c")) for _ in range(self.random.randint(1, 4)))])
        if self.random.random() < 0.4:
            raw["partition"] = self.partitions(("p0", "10"), ("p1", "20"), expr="`id`")
        return raw

    def _create(self) -> None:
        table = self._name()
        self.create_raw(table, self.make_raw(table))

    def _batch(self) -> None:
        names = sorted({self._name() for _ in range(3)})
        schema = names[0].split(".")[0]
        made = {n: self.make_raw(n) for n in names if n.split(".")[0] == schema}
        self.tables |= made
        self.job(Action.CREATE_TABLES, schema, MultipleTableInfos=list(made.values()))

    def _alter(self) -> None:
        if table := self._table():
            extra = [c["name"]["O"] for c in self.tables[table]["cols"][1:]]
            what = self.random.random()
            if what < 0.5 or not extra:
                self.alter(table, Action.ADD_COLUMN, lambda t: add(t, int_col(self._fresh("c"))))
            elif what < 0.7:
                self.alter(table, Action.DROP_COLUMN, lambda t: remove(t, self.random.choice(extra)))
            else:
                self._modify(table, self.random.choice(extra))

    def _modify(self, table: str, column: str) -> None:
        """Another type: the column is a new one, with a new id."""

        def change(raw: Raw) -> None:
            old = find(raw, column)
            at = raw["cols"].index(old)
            raw["cols"][at] = col(column, 15, flen=20, text=True)

        self.alter(table, Action.MODIFY_COLUMN, change, query=f"ALTER TABLE t MODIFY COLUMN {column} VARCHAR(20)")

    def _drop(self) -> None:
        if table := self._table():
            self._gone.append((table, self.tables[table]))
            self.drop(table)

    def _recover(self) -> None:
        if self._gone:
            table, raw = self._gone.pop(self.random.randrange(len(self._gone)))
            if table not in self.tables and table.split(".")[0] in self.dbs:
                self.recover(table, raw)

    def _truncate(self) -> None:
        if table := self._table():
            self.truncate(table)

    def _rename(self) -> None:
        if table := self._table():
            new = self._name()
            if new not in self.tables:
                self.rename(table, new)

    def _swap(self) -> None:
        a, b = self._table(), self._table()
        if a is not None and b is not None and a != b and a.split(".")[0] == b.split(".")[0]:
            x = f"{self.schema()}.{self._fresh('x')}"
            first, second = self.tables.pop(a), self.tables.pop(b)
            moved = [
                {**first, "name": name(x.split(".")[1])},
                {**second, "name": name(a.split(".")[1])},
            ]
            self.tables[x], self.tables[a] = moved
            self.job(
                Action.RENAME_TABLES, a.split(".")[0], table_id=first["id"], TableInfo=moved[-1],
                MultipleTableInfos=moved, query=f"RENAME TABLE {a} TO {x}, {b} TO {a}",
            )  # fmt: skip

    def _exchange(self) -> None:
        whole, plain = self._table(partitioned=True), self._table(partitioned=False)
        if whole is not None and plain is not None:
            self.exchange(whole, self.random.choice(["p0", "p1"]), plain)

    def _partition(self) -> None:
        """PARTITION BY: the table goes on under a new id."""
        if table := self._table(partitioned=False):
            old = self.tables[table]
            new = {**copy.deepcopy(old), "id": self.take()}
            new["partition"] = self.partitions(("p0", "10"), ("p1", "20"), expr="`id`")
            self.tables[table] = new
            self.job(Action.PARTITION_BY, *table.split("."), table_id=old["id"], TableInfo=new)

    def _view(self) -> None:
        """CREATE OR REPLACE VIEW: one name, always another id."""
        table = f"{self.schema()}.v"
        raw = tidy({**self.make(table, [_ID]), "view": {"view_select": "SELECT 1"}})
        self.create_raw(table, raw, action=Action.CREATE_VIEW)

    def _drop_db(self) -> None:
        schema = self.schema()
        before = dict(self.tables)
        dropped = self.drop_db(schema)
        if self.random.random() < 0.5:
            self.job(Action.RECOVER_SCHEMA, schema, DBInfo=dropped.job.raw["binlog"]["DBInfo"])
            self.tables = before
            return
        del self.dbs[schema]
        # Mostly under the same name, which has another id then.
        self.create_db(schema if self.random.random() < 0.7 else self._fresh("d"))

    def _alter_db(self) -> None:
        self.alter_db(self.schema(), "utf8mb4", "utf8mb4_general_ci")

    def _silent(self) -> None:
        self.job(Action.CREATE_RESOURCE_GROUP, "")
