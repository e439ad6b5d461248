"""DDL jobs as TiDB writes them, made in tests: a catalog of TableInfo JSON that each DDL changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from pumphouse.model.table import Job, TableInfo
from pumphouse.model.tso import Tso, compose
from pumphouse.schema.actions import Action
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob

Raw = dict[str, Any]
START = compose(1_795_000_000_000)


def name(text: str) -> Raw:
    return {"O": text, "L": text.lower()}


def col(
    title: str, tp: int, *, flag: int = 0, flen: int = -1, decimal: int = -1, text: bool = False, **more: Any
) -> Raw:
    charset = more.pop("charset", "utf8mb4" if text else "binary")
    collate = more.pop("collate", f"{charset}_bin" if text else "binary")
    field = {"Tp": tp, "Flag": flag, "Flen": flen, "Decimal": decimal, "Charset": charset, "Collate": collate}
    return {
        "id": more.pop("id", 0),
        "name": name(title),
        "offset": 0,
        "origin_default": None,
        "origin_default_bit": None,
        "default": None,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "state": 5,
        "comment": "",
        "hidden": False,
        "type": field | {"Elems": more.pop("elems", None)},
        **more,
    }


def int_col(title: str, **more: Any) -> Raw:
    return col(title, 3, flen=11, decimal=0, **more)


def key(title: str, *columns: str | tuple[str, int], unique: bool = False, primary: bool = False, **more: Any) -> Raw:
    parts = [(c, -1) if isinstance(c, str) else c for c in columns]
    return {
        "id": more.pop("id", 0),
        "idx_name": name(title),
        "idx_cols": [{"name": name(c), "offset": 0, "length": length} for c, length in parts],
        "is_unique": unique or primary,
        "is_primary": primary,
        "is_invisible": False,
        "state": 5,
        "comment": "",
        **more,
    }


class Source:
    """A cluster's DDL history. Every method is one job; `jobs` is what its history and binlogs say."""

    def __init__(self) -> None:
        self.jobs: list[TimedJob] = []
        self.dbs: dict[str, int] = {}
        self.tables: dict[str, Raw] = {}
        self._id = 100
        self._version = 10
        self._ts = int(START)

    def take(self) -> int:
        self._id += 1
        return self._id

    def timeline(self) -> Timeline:
        return Timeline.empty().fold(self.jobs)

    def info(self, table: str) -> TableInfo:
        return TableInfo.from_dict(self.tables[table])

    def job(self, action: int, db: str, table: str = "", *, table_id: int = 0, **more: Any) -> TimedJob:
        """One job; keyword arguments in capitals go into ``binlog``."""
        self._version += 2
        self._ts += 1000 << 18
        binlog = {k: more.pop(k) for k in list(more) if k[0].isupper()}
        raw = {
            "id": self.take(),
            "type": int(action),
            "schema_id": more.pop("schema_id", self.dbs.get(db, 0)),
            "table_id": table_id,
            "schema_name": db,
            "table_name": table,
            "state": 6,
            "schema_state": 5,
            "query": more.pop("query", f"-- {int(action)}"),
            "binlog": {"SchemaVersion": self._version, "FinishedTS": self._ts + 7, **binlog},
            **more,
        }
        timed = TimedJob(Tso(self._ts), Job.from_dict(copy.deepcopy(raw)))
        self.jobs.append(timed)
        return timed

    # -- DDL

    def create_db(self, db: str, charset: str = "utf8mb4", collate: str = "utf8mb4_bin") -> TimedJob:
        self.dbs[db] = self.take()
        return self.job(Action.CREATE_SCHEMA, db, DBInfo=self._db(db, charset, collate))

    def _db(self, db: str, charset: str, collate: str) -> Raw:
        return {"id": self.dbs[db], "db_name": name(db), "charset": charset, "collate": collate, "state": 5}

    def alter_db(self, db: str, charset: str, collate: str) -> TimedJob:
        return self.job(Action.MODIFY_SCHEMA_CHARSET, db, DBInfo=self._db(db, charset, collate))

    def drop_db(self, db: str) -> TimedJob:
        job = self.job(Action.DROP_SCHEMA, db, DBInfo=self._db(db, "utf8mb4", "utf8mb4_bin"), schema_state=0)
        self.tables = {k: v for k, v in self.tables.items() if not k.startswith(db + ".")}
        return job

    def make(self, table: str, cols: list[Raw], keys: list[Raw] | None = None, **more: Any) -> Raw:
        """TableInfo JSON with ids and offsets filled in."""
        raw: Raw = {
            "id": self.take(),
            "name": name(table.split(".")[1]),
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "cols": copy.deepcopy(cols),
            "index_info": copy.deepcopy(keys) or None,
            "state": 5,
            "pk_is_handle": any(c["type"]["Flag"] & 2 for c in cols) and not any(k["is_primary"] for k in keys or ()),
            "is_common_handle": False,
            "comment": "",
            "max_col_id": 0,
            "max_idx_id": 0,
            **more,
        }
        return tidy(raw)

    def create(
        self, table: str, cols: list[Raw], keys: list[Raw] | None = None, *, action: int = 3, **more: Any
    ) -> TimedJob:
        raw = self.make(table, cols, keys, **more)
        return self.create_raw(table, raw, action=action)

    def create_raw(self, table: str, raw: Raw, *, action: int = 3) -> TimedJob:
        self.tables[table] = raw
        db, short = table.split(".")
        return self.job(action, db, short, table_id=raw["id"], TableInfo=raw)

    def alter(self, table: str, action: int, change: Callable[[Raw], Any], **more: Any) -> TimedJob:
        """Any DDL after which the job carries the table as it is now."""
        raw = copy.deepcopy(self.tables[table])
        change(raw)
        self.tables[table] = tidy(raw)
        db, short = table.split(".")
        return self.job(action, db, short, table_id=raw["id"], TableInfo=raw, **more)

    def drop(self, table: str, *, action: int = 4, **more: Any) -> TimedJob:
        raw = self.tables.pop(table)
        db, short = table.split(".")
        return self.job(action, db, short, table_id=raw["id"], TableInfo=raw, schema_state=0, **more)

    def recover(self, table: str, raw: Raw) -> TimedJob:
        return self.create_raw(table, {**raw, "name": name(table.split(".")[1])}, action=Action.RECOVER_TABLE)

    def truncate(self, table: str) -> TimedJob:
        old = self.tables[table]
        raw = {**copy.deepcopy(old), "id": self.take()}
        for definition in (raw.get("partition") or {}).get("definitions") or ():
            definition["id"] = self.take()
        self.tables[table] = raw
        db, short = table.split(".")
        return self.job(Action.TRUNCATE_TABLE, db, short, table_id=old["id"], TableInfo=raw)

    def rename(self, old: str, new: str) -> TimedJob:
        raw = {**self.tables.pop(old), "name": name(new.split(".")[1])}
        self.tables[new] = raw
        db, short = old.split(".")
        return self.job(
            Action.RENAME_TABLE, db, short, table_id=raw["id"], TableInfo=raw, schema_id=self.dbs[new.split(".")[0]]
        )

    def rename_many(self, query: str, pairs: list[tuple[str, str]], **more: Any) -> TimedJob:
        """As the history keeps it: each table as every rename left it, no arguments."""
        moved: list[Raw] = []
        for old, new in pairs:
            raw = {**self.tables.pop(old), "name": name(new.split(".")[1])}
            self.tables[new] = raw
            moved.append(raw)
        db = pairs[0][0].split(".")[0]
        return self.job(
            Action.RENAME_TABLES,
            db,
            table_id=moved[0]["id"],
            query=query,
            TableInfo=moved[-1],
            MultipleTableInfos=moved,
            **more,
        )

    def exchange(self, partitioned: str, partition: str, plain: str) -> TimedJob:
        """The ids change places, as TiDB does it."""
        pt, nt = copy.deepcopy(self.tables[partitioned]), copy.deepcopy(self.tables[plain])
        definition = next(d for d in pt["partition"]["definitions"] if d["name"]["O"] == partition)
        old_id = nt["id"]
        definition["id"], nt["id"] = nt["id"], definition["id"]
        self.tables[partitioned], self.tables[plain] = pt, nt
        db, short = plain.split(".")
        return self.job(Action.EXCHANGE_PARTITION, db, short, table_id=old_id, TableInfo=pt)

    def partitions(self, *specs: tuple[str, Any], type_: int = 1, expr: str = "", columns: tuple[str, ...] = ()) -> Raw:
        """PartitionInfo; each spec is a name and its bound (text = less than, list = values, None = hash)."""
        definitions = []
        for title, bound in specs:
            definition: Raw = {"id": self.take(), "name": name(title), "less_than": None, "in_values": None}
            if isinstance(bound, str):
                definition["less_than"] = [bound]
            elif bound is not None:
                definition["in_values"] = [[str(v)] for v in bound]
            definitions.append(definition)
        return {
            "type": type_,
            "expr": expr,
            "columns": [name(c) for c in columns] or None,
            "enable": True,
            "definitions": definitions,
            "num": len(definitions),
        }


def tidy(raw: Raw) -> Raw:
    """Give new columns and indexes their ids, and everything its offset."""
    for at, column in enumerate(raw["cols"]):
        if not column["id"]:
            raw["max_col_id"] += 1
            column["id"] = raw["max_col_id"]
        column["offset"] = at
    offsets = {c["name"]["L"]: c["offset"] for c in raw["cols"]}
    for index in raw["index_info"] or ():
        if not index["id"]:
            raw["max_idx_id"] += 1
            index["id"] = raw["max_idx_id"]
        for part in index["idx_cols"]:
            part["offset"] = offsets[part["name"]["L"]]
    return raw


def find(raw: Raw, column: str) -> Raw:
    return next(c for c in raw["cols"] if c["name"]["O"] == column)


def add(raw: Raw, column: Raw, at: int | None = None) -> None:
    raw["cols"].insert(len(raw["cols"]) if at is None else at, column)


def remove(raw: Raw, column: str) -> None:
    raw["cols"].remove(find(raw, column))


def add_key(raw: Raw, index: Raw) -> None:
    raw["index_info"] = [*(raw["index_info"] or []), index]


def remove_key(raw: Raw, title: str) -> None:
    raw["index_info"] = [k for k in raw["index_info"] if k["idx_name"]["O"] != title] or None
