"""Every kind of DDL that the demo runs, as a function that returns a step for `pumphouse.demo.ddl.DdlEngine.run`."""

from __future__ import annotations

import copy
from typing import Any

from pumphouse.demo.catalog import Catalog
from pumphouse.demo.columns import (
    Col,
    Idx,
    Raw,
    Table,
    add_index,
    cistr,
    empty_info,
    field_type,
    partition_definition,
    partitions_sql,
)
from pumphouse.demo.ddl import Change, Step
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import ColumnFlag, JobState
from pumphouse.schema.actions import Action
from pumphouse.schema.ident import literal, qualified, quote

_PUBLIC = SchemaState.PUBLIC.value
_NONE = SchemaState.NONE.value


def _table_change(catalog: Catalog, db: str, name: str, action: Action, sql: str, **more: Any) -> tuple[Change, Raw]:
    """A change of one table that stays under its name; the caller edits the returned TableInfo."""
    info = copy.deepcopy(catalog.tables[db, name])
    change = Change(
        action=action,
        query=sql,
        sql=[sql],
        db=db,
        table=name,
        schema_id=catalog.dbs[db]["id"],
        table_id=info["id"],
        info=info,
        tables={(db, name): info},
        **more,
    )
    return change, info


def create_schema(db: str) -> Step:
    """CREATE DATABASE."""

    def step(catalog: Catalog) -> Change:
        db_id = catalog.take_id()
        info: Raw = {
            "id": db_id,
            "db_name": cistr(db),
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "state": _PUBLIC,
            "policy_ref_info": None,
        }
        sql = f"CREATE DATABASE {quote(db)}"
        return Change(
            action=Action.CREATE_SCHEMA,
            query=sql,
            sql=[f"{sql} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"],
            db=db,
            schema_id=db_id,
            db_info=info,
            dbs={db: info},
        )

    return step


def drop_schema(db: str) -> Step:
    """DROP DATABASE, with everything in it."""

    def step(catalog: Catalog) -> Change:
        info = {**catalog.dbs[db], "state": _NONE}
        inside = {key: raw for key, raw in catalog.tables.items() if key[0] == db}
        sql = f"DROP DATABASE {quote(db)}"
        return Change(
            action=Action.DROP_SCHEMA,
            query=sql,
            sql=[sql],
            db=db,
            schema_id=info["id"],
            db_info=info,
            raw_args=[[raw["id"] for raw in inside.values()]],
            schema_state=_NONE,
            versions=3,
            tables=dict.fromkeys(inside),
            dbs={db: None},
        )

    return step


def create_table(db: str, table: Table) -> Step:
    """CREATE TABLE."""

    def step(catalog: Catalog) -> Change:
        table_id = catalog.take_id()
        info = table.info(table_id, [catalog.take_id() for _ in table.ranges], 0)
        return Change(
            action=Action.CREATE_TABLE,
            query=table.sql(),
            sql=[table.sql()],
            db=db,
            table=table.name,
            schema_id=catalog.dbs[db]["id"],
            table_id=table_id,
            info=info,
            tables={(db, table.name): info},
        )

    return step


def drop_table(db: str, name: str) -> Step:
    """DROP TABLE."""

    def step(catalog: Catalog) -> Change:
        change, info = _table_change(catalog, db, name, Action.DROP_TABLE, f"DROP TABLE {quote(name)}")
        info["state"] = change.schema_state = _NONE
        change.versions = 3
        change.raw_args = ["dIAAAAAAAABv", [], [f"schema/{db}/{name}"]]
        change.tables = {(db, name): None}
        return change

    return step


def truncate_table(db: str, name: str) -> Step:
    """TRUNCATE TABLE: the table gets a new id; the job's table_id is the old one."""

    def step(catalog: Catalog) -> Change:
        change, info = _table_change(catalog, db, name, Action.TRUNCATE_TABLE, f"TRUNCATE TABLE {quote(name)}")
        info["id"] = catalog.take_id()
        for definition in (info["partition"] or {}).get("definitions") or ():
            definition["id"] = catalog.take_id()
        change.raw_args = ["dIAAAAAAAABY", None]
        return change

    return step


def rename_table(db: str, name: str, new: str) -> Step:
    """RENAME TABLE."""

    def step(catalog: Catalog) -> Change:
        sql = f"RENAME TABLE {quote(name)} TO {quote(new)}"
        change, info = _table_change(catalog, db, name, Action.RENAME_TABLE, sql)
        info["name"] = cistr(new)
        change.tables = {(db, name): None, (db, new): info}
        return change

    return step


def rename_tables(db: str, pairs: list[tuple[str, str]]) -> Step:
    """RENAME TABLE a TO b, c TO d, …: one job; names may go round in a circle."""

    def step(catalog: Catalog) -> Change:
        sql = "RENAME TABLE " + ", ".join(f"{qualified(db, old)} TO {qualified(db, new)}" for old, new in pairs)
        now: dict[str, Raw | None] = {}
        for old, new in pairs:
            found = now.get(old) or catalog.tables[db, old]
            now[old] = None
            now[new] = {**copy.deepcopy(found), "name": cistr(new)}
        moved = [raw for raw in now.values() if raw is not None]
        schema_id = catalog.dbs[db]["id"]
        ids = [raw["id"] for raw in moved]
        return Change(
            action=Action.RENAME_TABLES,
            query=sql,
            sql=[sql],
            db=db,
            table="",
            schema_id=schema_id,
            table_id=ids[0],
            infos=moved,
            raw_args=[
                [schema_id] * len(moved),
                [schema_id] * len(moved),
                [raw["name"] for raw in moved],
                ids,
                [cistr(db)] * len(moved),
                [cistr(old) for old in now if catalog.tables.get((db, old))],
            ],
            tables={(db, name): raw for name, raw in now.items()},
        )

    return step


def add_column(db: str, name: str, column: Col, *, after: str | None = None) -> Step:
    """ALTER TABLE ADD COLUMN, at the end or after a column."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} ADD COLUMN {column.sql()}" + (f" AFTER {quote(after)}" if after else "")
        change, info = _table_change(catalog, db, name, Action.ADD_COLUMN, sql, reorg=True, versions=4)
        _insert_column(info, column, after)
        return change

    return step


def _insert_column(info: Raw, column: Col, after: str | None) -> None:
    info["max_col_id"] += 1
    cols = info["cols"]
    at = len(cols) if after is None else _position(info, after) + 1
    cols.insert(at, column.info(info["max_col_id"], at, added=True))
    _renumber(info)


def _position(info: Raw, column: str) -> int:
    return next(number for number, c in enumerate(info["cols"]) if c["name"]["O"] == column)


def _renumber(info: Raw) -> None:
    offsets = {}
    for number, column in enumerate(info["cols"]):
        column["offset"] = offsets[column["name"]["L"]] = number
    for index in info["index_info"] or ():
        for part in index["idx_cols"]:
            part["offset"] = offsets[part["name"]["L"]]


def drop_column(db: str, name: str, column: str) -> Step:
    """ALTER TABLE DROP COLUMN: two pairs of binlogs, delete-only first; one job."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} DROP COLUMN {quote(column)}"
        change, info = _table_change(catalog, db, name, Action.DROP_COLUMN, sql, reorg=True, versions=2)
        half = copy.deepcopy(info)
        at = _position(half, column)
        # TiDB moves a column that goes to the end.
        going = half["cols"].pop(at)
        going["state"] = SchemaState.DELETE_ONLY.value
        half["cols"].append(going)
        _renumber(half)
        change.delete_only = half
        del info["cols"][at]
        _renumber(info)
        change.schema_state = _NONE
        change.raw_args = [cistr(column), False, [], []]
        return change

    return step


def modify_column(db: str, name: str, column: Col) -> Step:
    """ALTER TABLE MODIFY COLUMN to a type that holds every old value."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} MODIFY COLUMN {column.sql()}"
        change, info = _table_change(catalog, db, name, Action.MODIFY_COLUMN, sql, reorg=True, raw_args=[[], []])
        at = _position(info, column.name)
        old = info["cols"][at]
        new = column.info(old["id"], at)
        keys = ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY
        new["type"]["Flag"] |= old["type"]["Flag"] & int(keys)
        new |= {"origin_default": old["origin_default"], "origin_default_bit": old["origin_default_bit"]}
        info["cols"][at] = new
        return change

    return step


def set_default(db: str, name: str, column: str, default: str) -> Step:
    """ALTER TABLE ALTER COLUMN SET DEFAULT."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} ALTER COLUMN {quote(column)} SET DEFAULT {literal(default)}"
        change, info = _table_change(catalog, db, name, Action.SET_DEFAULT_VALUE, sql)
        found = info["cols"][_position(info, column)]
        found["default"] = default
        found["type"]["Flag"] &= ~int(ColumnFlag.NO_DEFAULT)
        return change

    return step


def create_index(db: str, name: str, index: Idx) -> Step:
    """ALTER TABLE ADD INDEX, unique or not."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} ADD {index.sql()}"
        change, info = _table_change(catalog, db, name, Action.ADD_INDEX, sql, reorg=True, versions=4)
        add_index(info, index)
        return change

    return step


def drop_index(db: str, name: str, index: str) -> Step:
    """ALTER TABLE DROP INDEX."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} DROP INDEX {quote(index)}"
        change, info = _table_change(catalog, db, name, Action.DROP_INDEX, sql, versions=4)
        gone = next(i for i in info["index_info"] if i["idx_name"]["O"] == index)
        info["index_info"] = [i for i in info["index_info"] if i is not gone] or None
        column = info["cols"][gone["idx_cols"][0]["offset"]]
        column["type"]["Flag"] &= ~int(ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY)
        change.schema_state = _NONE
        change.raw_args = [cistr(index), False, gone["id"], []]
        return change

    return step


def rename_index(db: str, name: str, index: str, new: str) -> Step:
    """ALTER TABLE RENAME INDEX."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} RENAME INDEX {quote(index)} TO {quote(new)}"
        change, info = _table_change(catalog, db, name, Action.RENAME_INDEX, sql)
        next(i for i in info["index_info"] if i["idx_name"]["O"] == index)["idx_name"] = cistr(new)
        return change

    return step


def comment_table(db: str, name: str, comment: str) -> Step:
    """ALTER TABLE COMMENT."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} COMMENT = {literal(comment)}"
        change, info = _table_change(catalog, db, name, Action.MODIFY_TABLE_COMMENT, sql)
        info["comment"] = comment
        return change

    return step


def multi_change(db: str, name: str, *, add: Col, drop: str, index: Idx) -> Step:
    """ALTER TABLE with several parts: one job of type multi-schema change."""

    def step(catalog: Catalog) -> Change:
        parts = f"ADD COLUMN {add.sql()}, DROP COLUMN {quote(drop)}, ADD {index.sql()}"
        sql = f"ALTER TABLE {quote(name)} {parts}"
        change, info = _table_change(catalog, db, name, Action.MULTI_SCHEMA_CHANGE, sql, reorg=True, versions=13)
        _insert_column(info, add, None)
        del info["cols"][_position(info, drop)]
        _renumber(info)
        add_index(info, index)
        change.schema_state = _NONE
        kinds = (Action.ADD_COLUMN, Action.DROP_COLUMN, Action.ADD_INDEX)
        change.sub_jobs = [
            {
                "type": kind.value,
                "raw_args": [],
                "schema_state": _NONE if kind is Action.DROP_COLUMN else _PUBLIC,
                "snapshot_ver": 0,
                "revertible": False,
                "state": JobState.DONE.value,
                "row_count": 0,
                "warning": None,
                "schema_version": 0,
                "reorg_tp": 3,
            }
            for kind in kinds
        ]
        return change

    return step


def add_partition(db: str, name: str, partition: str, bound: str) -> Step:
    """ALTER TABLE ADD PARTITION at the upper end of a range."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} ADD PARTITION ({partitions_sql({partition: bound})})"
        change, info = _table_change(catalog, db, name, Action.ADD_PARTITION, sql, versions=2)
        info["partition"]["definitions"].append(partition_definition(catalog.take_id(), partition, bound))
        info["partition"]["num"] += 1
        return change

    return step


def drop_partition(db: str, name: str, partition: str) -> Step:
    """ALTER TABLE DROP PARTITION, with its rows."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} DROP PARTITION {quote(partition)}"
        change, info = _table_change(catalog, db, name, Action.DROP_PARTITION, sql, versions=3)
        kept = [d for d in info["partition"]["definitions"] if d["name"]["O"] != partition]
        gone = [d["id"] for d in info["partition"]["definitions"] if d["name"]["O"] == partition]
        info["partition"] |= {"definitions": kept, "num": len(kept)}
        change.schema_state = _NONE
        change.raw_args = [gone]
        return change

    return step


def truncate_partition(db: str, name: str, partition: str) -> Step:
    """ALTER TABLE TRUNCATE PARTITION: it gets a new id."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} TRUNCATE PARTITION {quote(partition)}"
        change, info = _table_change(catalog, db, name, Action.TRUNCATE_PARTITION, sql)
        found = next(d for d in info["partition"]["definitions"] if d["name"]["O"] == partition)
        change.raw_args = [[found["id"]]]
        found["id"] = catalog.take_id()
        change.schema_state = _NONE
        return change

    return step


def create_view(db: str, name: str, table: str, columns: list[str]) -> Step:
    """CREATE VIEW of some columns of a table."""

    def step(catalog: Catalog) -> Change:
        table_id = catalog.take_id()
        chosen = ", ".join(f"{quote(c)} AS {quote(c)}" for c in columns)
        select = f"SELECT {chosen} FROM {qualified(db, table)}"  # noqa: S608 - names are quoted
        info = empty_info(table_id, name, 0)
        info |= {
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "cols": [_view_column(number, column) for number, column in enumerate(columns)],
            "view": {
                "view_algorithm": 0,
                "view_definer": {
                    "Username": "",
                    "Hostname": "",
                    "CurrentUser": True,
                    "AuthUsername": "",
                    "AuthHostname": "",
                    "AuthPlugin": "",
                },
                "view_security": 0,
                "view_select": select,
                "view_checkoption": 1,
                "view_cols": None,
            },
        }
        sql = f"CREATE VIEW {quote(name)} AS {select}"
        return Change(
            action=Action.CREATE_VIEW,
            query=sql,
            sql=[sql],
            db=db,
            table=name,
            schema_id=catalog.dbs[db]["id"],
            table_id=table_id,
            info=info,
            tables={(db, name): info},
        )

    return step


def _view_column(offset: int, name: str) -> Raw:
    raw = Col(name=name, type="int").info(offset + 1, offset)
    raw["type"] = {
        **field_type(Col(name=name, type="int")), "Tp": 0, "Flag": 0, "Flen": 0, "Charset": "", "Collate": "",
    }  # fmt: skip
    return {**raw, "version": 0}


def drop_view(db: str, name: str) -> Step:
    """DROP VIEW."""

    def step(catalog: Catalog) -> Change:
        change, info = _table_change(catalog, db, name, Action.DROP_VIEW, f"DROP VIEW {quote(name)}", versions=3)
        info["state"] = change.schema_state = _NONE
        change.tables = {(db, name): None}
        return change

    return step


def failed_unique_index(db: str, name: str, index: Idx) -> Step:
    """ALTER TABLE ADD UNIQUE INDEX that met a duplicate: a job that was rolled back, with its binlog."""

    def step(catalog: Catalog) -> Change:
        sql = f"ALTER TABLE {quote(name)} ADD {index.sql()}"
        change, _ = _table_change(catalog, db, name, Action.ADD_INDEX, sql, reorg=True, versions=2)
        change.sql = []
        change.state = JobState.ROLLBACK_DONE
        change.schema_state = _NONE
        change.tables = {}
        return change

    return step
