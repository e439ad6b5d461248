"""The jobs that bring a history to what a server has now (pure).

What destroys rows is never inferred. A database, table, column or partition that the history has and the server has
not was dropped or renamed, and only the user knows: ``drop`` and ``rename`` say it. What leaves no trace cannot be
found: TRUNCATE, EXCHANGE PARTITION, an object dropped and made anew (``drop`` says that, too).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pumphouse.errors import SchemaError, UsageError
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import ColumnInfo, Job, JobState, TableInfo, cistr
from pumphouse.model.tso import MAX_TSO, Tso
from pumphouse.schema.actions import Action, is_system
from pumphouse.schema.alter import alter_clauses
from pumphouse.schema.column_sql import column_sql
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.render import render
from pumphouse.schema.table_sql import checks, create_object, index_sql, plain_indexes, table_charset
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob
from pumphouse.schema_import.columns import Raw, named
from pumphouse.schema_import.partitions import partition_steps, renamed_in
from pumphouse.schema_import.read import Found, Name

_PUBLIC, _NONE = SchemaState.PUBLIC.value, SchemaState.NONE.value
# Ids below stay free, as those of a cluster's own objects.
_FIRST_ID = 101

Fill = Callable[[str, str, str], str | None]
"""(database, table, column) -> the one value that a new column has in all rows, None = NULL or no rows; SchemaError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says. Names are DB, DB.TABLE, DB.TABLE.COLUMN or DB.TABLE.PARTITION; ``skip`` in lower case.

    ``reorganized``: one statement reorganized partitions and did no more, so the last of ranges may have been extended.
    """

    database: str = ""
    reorganized: bool = False
    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Zone:
    """Time zone of the server's sessions, as jobs have it; ``unknown``: the host's, which is not UTC.

    ``sql_mode``: of the session, in the servers' bits, which are TiDB's; None = a strict one. ``server``: what the
    values were cast by, as `pumphouse.schema.conversion.Cast` has it; {} = that is not known.
    """

    name: str = "UTC"
    offset: int = 0
    unknown: bool = False
    sql_mode: int | None = None
    server: Mapping[str, Any] = field(default_factory=dict)


END = MAX_TSO


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the history has: its tables, the next free id, and the last schema version."""

    timeline: Timeline
    next_id: int = _FIRST_ID
    version: int = 0

    @classmethod
    def of(cls, history: Sequence[Job]) -> Self:
        """Of all jobs."""
        return cls(
            timeline=Timeline.of_history(history),
            next_id=max([_FIRST_ID, *(1 + each for job in history for each in _ids(job))]),
            version=max((job.schema_version for job in history), default=0),
        )

    def plus(self, raws: Sequence[Raw]) -> Self:
        """With the jobs of a plan behind it."""
        jobs = [Job.from_dict(raw) for raw in raws]
        after = max((event.commit_ts for event in self.timeline.events[-1:]), default=0)
        timed = [TimedJob(Tso(after + number), job) for number, job in enumerate(jobs, 1)]
        return replace(
            self,
            timeline=self.timeline.fold(timed),
            next_id=max([self.next_id, *(1 + each for job in jobs for each in _ids(job))]),
            version=max([self.version, *(job.schema_version for job in jobs)]),
        )


def plan_jobs(known: Known, found: Found, asked: Asked, *, dialect: Dialect, zone: Zone, fill: Fill) -> list[Raw]:
    """Jobs, in order, without times; [] when the history has everything.

    Raises:
        SchemaError: something is gone and nobody said what became of it; or no job can say what changed.
        UsageError: something was said of what is not there.
    """
    plan = _Plan(known, found, asked, dialect, zone, fill)
    plan.make()
    plan.prove()
    return plan.jobs


class _Plan:
    def __init__(self, known: Known, found: Found, asked: Asked, dialect: Dialect, zone: Zone, fill: Fill) -> None:
        self.known = known
        self.timeline = known.timeline
        self.found, self.asked, self.dialect, self.zone, self.fill = found, asked, dialect, zone, fill
        self.jobs: list[Raw] = []
        self._next = known.next_id
        self._version = known.version
        self._dbs: dict[str, Raw] = {
            info.name: {**info.raw, "id": info.id}
            for info in self.timeline.databases_at(END)
            if not is_system(info.name) and info.name.lower() not in asked.skip and self._mine(info.name)
        }
        self._tables: dict[Name, Raw] = {
            v.name: v.table.raw
            for v in self.timeline.tables_at(END)
            if v.db in self._dbs and ".".join(v.name).lower() not in asked.skip and v.name not in found.kept
        }
        self._said: set[str] = set()
        self._unsaid: list[str] = []

    def _mine(self, db: str) -> bool:
        return not self.asked.database or db == self.asked.database

    def make(self) -> None:
        """Everything, in an order that a target can follow."""
        self._drop_views()
        self._drop_tables()
        self._databases()
        self._renames()
        self._drop_databases()
        self._sequences()
        self._alter_tables()
        self._create_tables()
        self._views()
        if self._unsaid:
            raise SchemaError(
                f"the history has what the server has not: {', '.join(self._unsaid)}",
                hint="nothing that holds rows is taken for dropped or renamed unless you say so, once for each: "
                + " ".join(f"--drop {each}" for each in self._unsaid)
                + ", or --rename OLD=NEW. Is it there, the user may not see it: GRANT SELECT ON `DB`.* shows it",
                gone=self._unsaid,
            )
        told = {*self.asked.drop, *self.asked.rename}
        if wrong := sorted(told - self._said):
            raise UsageError(
                f"--drop or --rename names what the history has not: {', '.join(wrong)}",
                hint="leave it out; names are DB.TABLE, DB.TABLE.COLUMN or DB.TABLE.PARTITION",
            )

    def prove(self) -> None:
        """Every job renders, and the history with the jobs says what the server has."""
        after = self.known.plus(self.jobs).timeline
        for event in after.events[len(self.timeline.events) :]:
            render(event, self.dialect, keep_schema="")  # of no target: each has its own
        shown = {v.name: v.table for v in after.tables_at(END) if v.name in self.found.tables}
        for name, raw in self.found.tables.items():
            info = shown.get(name)
            if info is None or _shown(name[0], info, self.dialect) != _shown(
                name[0], TableInfo.from_dict(raw), self.dialect
            ):
                raise SchemaError(
                    f"no DDL job can say how {'.'.join(name)} changed",
                    hint="undo the change, or make the table anew under another name; or leave it alone: "
                    f"--skip {'.'.join(name)}",
                    table=".".join(name),
                )

    # -- small things

    def _id(self) -> int:
        self._next += 1
        return self._next - 1

    def _dropped(self, name: str) -> bool:
        if name in self.asked.drop:
            self._said.add(name)
            return True
        return False

    def _renamed(self, name: str) -> str | None:
        if name in self.asked.rename:
            self._said.add(name)
            return self.asked.rename[name]
        return None

    def _job(self, action: Action, query: str, db: str, **more: Any) -> None:
        """``more``: table, table_id, schema_id, info, db_info, infos, raw_args, state, sub_jobs, reorg."""
        self._version += 1
        info: Raw | None = more.get("info")
        table = more.get("table", "" if info is None else cistr(info["name"]))
        sub_jobs = more.get("sub_jobs")
        state = more.get("state", _PUBLIC)
        self.jobs.append(
            {
                "id": self._id(),
                "type": action.value,
                "schema_id": more.get("schema_id") or self._dbs[db]["id"],
                "table_id": more.get("table_id", 0 if info is None else info["id"]),
                "schema_name": db,
                "table_name": table,
                "state": JobState.SYNCED.value,
                "schema_state": state,
                "query": query,
                "raw_args": more.get("raw_args"),
                "start_ts": 0,
                "binlog": {
                    "SchemaVersion": self._version,
                    "DBInfo": more.get("db_info"),
                    "TableInfo": copy.deepcopy(info),
                    "FinishedTS": 0,
                    "MultipleTableInfos": more.get("infos"),
                },
                "version": 1,
                "reorg_meta": more.get("reorg"),
                "multi_schema_info": None if sub_jobs is None else {"sub_jobs": sub_jobs, "revertible": False},
            }
        )

    # -- databases

    def _databases(self) -> None:
        for name, raw in self.found.databases.items():
            old = self._dbs.get(name)
            charset = f"CHARACTER SET {raw['charset']} COLLATE {raw['collate']}"
            if old is None:
                self._dbs[name] = {**raw, "id": self._id()}
                query = f"CREATE DATABASE {quote(name)} {charset}"
                self._job(Action.CREATE_SCHEMA, query, name, db_info=self._dbs[name])
            elif (old.get("charset"), old.get("collate")) != (raw["charset"], raw["collate"]):
                self._dbs[name] = {**raw, "id": old["id"]}
                query = f"ALTER DATABASE {quote(name)} {charset}"
                self._job(Action.MODIFY_SCHEMA_CHARSET, query, name, db_info=self._dbs[name])

    def _drop_databases(self) -> None:
        for name in [name for name in self._dbs if name not in self.found.databases]:
            inside = [table for table in self._tables if table[0] == name]
            if not self._dropped(name):
                self._unsaid.append(name)
                continue
            info = {**self._dbs[name], "state": _NONE}
            ids = [self._tables.pop(table)["id"] for table in inside]
            query = f"DROP DATABASE {quote(name)}"
            self._job(Action.DROP_SCHEMA, query, name, db_info=info, raw_args=[ids], state=_NONE)
            del self._dbs[name]

    # -- tables

    def _drop_tables(self) -> None:
        for name, raw in list(self._tables.items()):
            if raw.get("view") or not self._dropped(".".join(name)):
                continue
            kind = "SEQUENCE" if raw.get("sequence") else "TABLE"
            action = Action.DROP_SEQUENCE if raw.get("sequence") else Action.DROP_TABLE
            self._drop_one(name, action, f"DROP {kind} {qualified(*name)}")

    def _drop_one(self, name: Name, action: Action, query: str) -> None:
        info = {**self._tables.pop(name), "state": _NONE}
        self._job(action, query, name[0], info=info, state=_NONE)

    def _renames(self) -> None:
        moves: list[tuple[Name, Name, Raw]] = []
        for name, raw in list(self._tables.items()):
            said = None if raw.get("view") else self._renamed(".".join(name))
            if said is None:
                continue
            new = self._target(name, said)
            if bool(self.found.tables[new].get("sequence")) != bool(raw.get("sequence")):
                raise UsageError(f"{'.'.join(name)} and {'.'.join(new)} are not of one kind")
            moves.append((name, new, self._tables.pop(name)))
        if not moves:
            return
        infos = []
        for _, new, raw in moves:
            if new in self._tables:
                raise UsageError(
                    f"{'.'.join(new)} is in the history already", hint=f"was it dropped before: --drop {'.'.join(new)}"
                )
            infos.append({**raw, "name": named(new[1])})
            self._tables[new] = infos[-1]
        pairs = ", ".join(f"{qualified(*old)} TO {qualified(*new)}" for old, new, _ in moves)
        if len(moves) == 1:
            self._job(Action.RENAME_TABLE, f"RENAME TABLE {pairs}", moves[0][1][0], info=infos[0])
            return
        args = [
            [self._dbs[old[0]]["id"] for old, _, _ in moves],
            [self._dbs[new[0]]["id"] for _, new, _ in moves],
            [named(new[1]) for _, new, _ in moves],
            [raw["id"] for raw in infos],
            [named(old[0]) for old, _, _ in moves],
            [named(old[1]) for old, _, _ in moves],
        ]
        self._job(
            Action.RENAME_TABLES,
            f"RENAME TABLE {pairs}",
            moves[0][0][0],
            table_id=infos[0]["id"],
            infos=copy.deepcopy(infos),
            raw_args=args,
        )

    def _target(self, old: Name, said: str) -> Name:
        for name in self.found.tables:
            if said in (".".join(name), name[1] if name[0] == old[0] else None):
                return name
        raise UsageError(f"--rename {'.'.join(old)}={said}: the server has no {said}")

    def _sequences(self) -> None:
        for name, raw in self.found.tables.items():
            old = self._tables.get(name)
            if not raw.get("sequence"):
                continue
            if old is None:
                self._create(name, raw, Action.CREATE_SEQUENCE)
            elif old.get("sequence") != raw["sequence"]:
                info = {**old, "sequence": raw["sequence"]}
                self._tables[name] = info
                self._job(Action.ALTER_SEQUENCE, f"ALTER SEQUENCE {qualified(*name)}", name[0], info=info)

    def _create_tables(self) -> None:
        for name, raw in self.found.tables.items():
            if name not in self._tables and not raw.get("view") and not raw.get("sequence"):
                self._create(name, self._identified(name, raw, None), Action.CREATE_TABLE)

    def _create(self, name: Name, raw: Raw, action: Action) -> None:
        info = {**raw, "id": self._id()}
        self._tables[name] = info
        self._job(action, create_object(name[0], TableInfo.from_dict(info), Dialect.MYSQL), name[0], info=info)

    def _alter_tables(self) -> None:
        for name, old in list(self._tables.items()):
            raw = self.found.tables.get(name)
            if old.get("view"):
                continue
            if raw is None:
                if name[0] in self.found.databases:
                    self._unsaid.append(".".join(name))
                continue
            if raw.get("view") or bool(raw.get("sequence")) != bool(old.get("sequence")):
                # Another kind of thing has its name now.
                self._unsaid.append(".".join(name))
            elif not raw.get("sequence"):
                self._alter(name, old, raw)

    # -- one table

    def _identified(self, name: Name, raw: Raw, old: Raw | None) -> Raw:
        """``raw`` with ids of columns, keys and, for a new table, partitions; ``old`` = the table so far."""
        info = copy.deepcopy(raw)
        used = [old, *(v.table.raw for v in self.timeline.versions.get(old["id"], ()))] if old else []
        info["max_col_id"] = _largest(used, "max_col_id", "cols")
        info["max_idx_id"] = _largest(used, "max_idx_id", "index_info")
        info["max_cst_id"] = _largest(used, "max_cst_id", "constraint_info")
        self._identify_columns(name, info, old)
        places = {column["name"]["L"]: column["offset"] for column in info["cols"]}
        for index in info["index_info"] or ():
            for part in index["idx_cols"]:
                part["offset"] = places[part["name"]["L"]]
        self._identify_indexes(info, old)
        known = {cistr(each["constraint_name"]): each["id"] for each in (old or {}).get("constraint_info") or ()}
        for check in info["constraint_info"] or ():
            check["id"] = known.get(cistr(check["constraint_name"])) or _take(info, "max_cst_id")
        if old is None:
            for definition in (info["partition"] or {}).get("definitions") or ():
                definition["id"] = self._id()
            return info
        kept = {key: value for key, value in old.items() if key not in info}
        return kept | info | {"id": old["id"], "auto_inc_id": old.get("auto_inc_id") or 0}

    def _identify_columns(self, name: Name, info: Raw, old: Raw | None) -> None:
        before = {cistr(column["name"]).lower(): column for column in (old or {}).get("cols") or ()}
        place = ".".join(name)
        now = {column["name"]["L"] for column in info["cols"]}
        paths = {key: f"{place}.{cistr(column['name'])}" for key, column in before.items()}
        moved = {
            key: said.removeprefix(place + ".").lower()
            for key, path in paths.items()
            if (said := self._renamed(path)) is not None
        }
        taken = set(moved.values())  # one that is gone may have had the name
        was: dict[str, Raw] = {}
        for key, column in before.items():
            path = paths[key]
            if key in moved:
                if moved[key] not in now:
                    raise UsageError(f"--rename {path}={moved[key]}: {place} has no column {moved[key]}")
                was[moved[key]] = column
            elif self._dropped(path):
                if key in now - taken:
                    raise UsageError(
                        f"--drop {path}: the server has that column",
                        hint="was it dropped and added anew, the import has to run in between",
                    )
            elif key in now - taken:
                was[key] = column
            else:
                self._unsaid.append(path)
        for offset, column in enumerate(info["cols"]):
            column["offset"] = offset
            found = was.get(column["name"]["L"])
            if found is not None:
                column["id"] = found["id"]
                for key in ("origin_default", "origin_default_bit"):
                    column[key] = found.get(key)
            else:
                column["id"] = _take(info, "max_col_id")
                if old is not None:
                    self._origin(name, column)

    def _origin(self, name: Name, column: Raw) -> None:
        """What rows that were there before have in a new column."""
        info = ColumnInfo.from_dict(column)
        if info.generated:
            return
        text = str(info.default or "")
        now = info.type.tp in _TIMES and text.startswith("CURRENT_TIMESTAMP")
        if info.default_is_expr or now or info.type.flag & _AUTO:
            column["origin_default"] = self.fill(*name, info.name)
        elif info.default_bit is not None:
            column["origin_default_bit"] = info.default_bit
        elif info.default is not None:
            column["origin_default"] = text
        elif info.type.elems and info.type.not_null and info.type.tp == _ENUM:
            column["origin_default"] = info.type.elems[0]
        elif info.type.not_null and info.type.tp == _JSON and self.dialect is Dialect.MYSQL:
            column["origin_default"] = "null"  # a MariaDB's rows have an empty text, as any target of that kind

    def _identify_indexes(self, info: Raw, old: Raw | None) -> None:
        before = {cistr(index["idx_name"]).lower(): index for index in (old or {}).get("index_info") or ()}
        names = {column["id"]: column["name"]["L"] for column in info["cols"]}
        carried = {
            cistr(column["name"]).lower(): names.get(column["id"], "") for column in (old or {}).get("cols") or ()
        }
        old_keys = {key: _index_key(index, carried) for key, index in before.items()}
        indexes = info["index_info"] or ()
        gone = {key for key in before if key not in {index["idx_name"]["L"] for index in indexes}}
        for index in indexes:
            key = index["idx_name"]["L"]
            same = key if old_keys.get(key) == _index_key(index) else None
            if same is None and key not in before:
                # The same key under another name was renamed: no row depends on whether it was.
                same = next((each for each in sorted(gone) if old_keys[each] == _index_key(index)), None)
                gone.discard(same or "")
            index["id"] = before[same]["id"] if same is not None else _take(info, "max_idx_id")

    def _alter(self, name: Name, old: Raw, raw: Raw) -> None:
        if rest := _misread(old, raw):
            place = ".".join(name)
            raise SchemaError(
                f"{place}.{rest} is the server's DEFAULT partition, and the history has it as VALUES IN (0)",
                hint=f"an earlier release read it so, and no DDL of a target can put it right: make the table anew by "
                f"`schema import --drop {place}` or `capture run --anew`, then dump, and `load --resync {place}`",
                table=place,
            )
        new = self._identified(name, raw, old)
        new["partition"] = renamed_in(old.get("partition"), old["cols"], new["cols"])
        before, after = TableInfo.from_dict(old), TableInfo.from_dict(new)
        parts = _parts(before, after)
        if parts:
            self._tables[name] = new
            self._alter_job(name, before, after, parts)
        steps = partition_steps(
            self._tables[name], raw, name, self._dropped, self._id, reorganized=self.asked.reorganized
        )
        for action, query, info, more in steps:
            self._tables[name] = info
            self._job(action, query, name[0], info=info, **more)

    def _alter_job(self, name: Name, before: TableInfo, after: TableInfo, parts: list[tuple[Action, Any]]) -> None:
        one = len(parts) == 1
        action = parts[0][0] if one else Action.MULTI_SCHEMA_CHANGE
        sub_jobs = None if one else [_sub_job(kind, args) for kind, args in parts]
        probe = Job.from_dict(
            {"id": 0, "type": action.value, "state": 0, "multi_schema_info": sub_jobs and {"sub_jobs": sub_jobs}}
        )
        clauses = alter_clauses(probe, name[0], before, after, Dialect.MYSQL)
        if clauses.zoned and self.zone.unknown:
            raise SchemaError(
                f"{'.'.join(name)}: a TIMESTAMP changed its type in the host's time zone, which is not UTC",
                hint="set the server's time_zone to a name or an offset, for the sessions that change tables, too",
                table=".".join(name),
            )
        reorg: Raw = {"location": {"name": self.zone.name, "offset": self.zone.offset}}
        if self.zone.sql_mode is not None:
            reorg["sql_mode"] = self.zone.sql_mode
        if self.zone.server:
            reorg["server"] = dict(self.zone.server)
        query = "; ".join(
            f"ALTER TABLE {qualified(*name)} {', '.join(each)}" for each in (clauses.first, clauses.then) if each
        )
        self._job(action, query, name[0], info=after.raw, sub_jobs=sub_jobs, reorg=reorg, raw_args=parts[0][1])

    # -- views

    def _drop_views(self) -> None:
        for name, raw in list(self._tables.items()):
            if raw.get("view") and not (self.found.tables.get(name) or {}).get("view"):
                self._dropped(".".join(name))
                if name[0] in self.found.databases:
                    self._drop_one(name, Action.DROP_VIEW, f"DROP VIEW {qualified(*name)}")

    def _views(self) -> None:
        waiting = {
            name: raw
            for name, raw in self.found.tables.items()
            if raw.get("view") and not _same_view(self._tables.get(name), raw)
        }
        while waiting:
            ready = [
                name
                for name, raw in waiting.items()
                if not any(
                    f"{quote(other[0])}.{quote(other[1])}" in raw["view"]["view_select"]
                    for other in waiting
                    if other != name
                )
            ]
            for name in ready or list(waiting):
                self._create(name, waiting.pop(name), Action.CREATE_VIEW)


_AUTO, _ENUM, _JSON = 512, 247, 245
_TIMES = (7, 12)  # TIMESTAMP, DATETIME


def _ids(job: Job) -> Iterable[int]:
    """Every id that a job uses up."""
    yield from (job.id, job.schema_id, job.table_id, 0 if job.db_info is None else job.db_info.id)
    for table in job.tables:
        yield from (table.id, *table.partition_ids)


def _largest(tables: Sequence[Raw], counter: str, objects: str) -> int:
    found = [int(table.get(counter) or 0) for table in tables]
    found += [int(each["id"]) for table in tables for each in table.get(objects) or ()]
    return max(found, default=0)


def _take(info: Raw, counter: str) -> int:
    info[counter] += 1
    return int(info[counter])


def _index_key(index: Raw, carried: Mapping[str, str] | None = None) -> tuple[Any, ...]:
    """What makes an index, but for its name; ``carried``: columns' names now by those of before."""
    parts = []
    for part in index["idx_cols"]:
        key = cistr(part["name"]).lower()
        parts.append((key if carried is None else carried.get(key, ""), int(part.get("length", -1))))
    return tuple(parts), bool(index.get("is_unique")), bool(index.get("is_primary"))


def _column_key(column: ColumnInfo) -> tuple[str, ...]:
    return column.name, column_sql(column, Dialect.MARIADB), column.type.charset, column.type.collate


def _parts(before: TableInfo, after: TableInfo) -> list[tuple[Action, Any]]:
    """What changed, as (type of job, its arguments); partitions and AUTO_INCREMENT, which rows move, aside."""
    old, new = {c.id: c for c in before.public_columns}, {c.id: c for c in after.public_columns}
    parts: list[tuple[Action, Any]] = []
    parts += [(Action.DROP_COLUMN, [named(c.name)]) for c in before.public_columns if c.id not in new]
    parts += [(Action.ADD_COLUMN, [c.raw]) for c in after.public_columns if c.id not in old]
    parts += [
        (Action.MODIFY_COLUMN, None)
        for c in after.public_columns
        if c.id in old and _column_key(old[c.id]) != _column_key(c)
    ]
    if [i for i in old if i in new] != [i for i in new if i in old] and not any(
        action is Action.MODIFY_COLUMN for action, _ in parts
    ):
        parts.append((Action.MODIFY_COLUMN, None))
    names = {c.name.lower(): new[c.id].name.lower() for c in before.public_columns if c.id in new}
    was = [(names.get(p.name.lower(), ""), p.length) for p in before.primary_key()]
    now = [(p.name.lower(), p.length) for p in after.primary_key()]
    if was != now:
        parts += [(Action.DROP_PRIMARY_KEY, None)] if was else []
        parts += [(Action.ADD_PRIMARY_KEY, None)] if now else []
    parts += _key_parts(before, after)
    constraints = checks(before), checks(after)
    parts += [(Action.DROP_CHECK, None) for name, text in constraints[0].items() if constraints[1].get(name) != text]
    parts += [(Action.ADD_CHECK, None) for name, text in constraints[1].items() if constraints[0].get(name) != text]
    if (before.charset, before.collate) != (after.charset, after.collate):
        parts.append((Action.MODIFY_TABLE_CHARSET, None))
    if before.comment != after.comment:
        parts.append((Action.MODIFY_TABLE_COMMENT, None))
    return parts


def _key_parts(before: TableInfo, after: TableInfo) -> list[tuple[Action, Any]]:
    old = {index.id: index for index in plain_indexes(before)}
    new = {index.id: index for index in plain_indexes(after)}
    parts: list[tuple[Action, Any]] = []
    parts += [(Action.DROP_INDEX, None) for each in old if each not in new]
    parts += [(Action.ADD_INDEX, None) for each in new if each not in old]
    for each, index in new.items():
        was = old.get(each)
        if was is None:
            continue
        if was.name != index.name:
            parts.append((Action.RENAME_INDEX, None))
        if was.invisible != index.invisible:
            parts.append((Action.ALTER_INDEX_VISIBILITY, None))
        if was.comment != index.comment:
            parts += [(Action.DROP_INDEX, None), (Action.ADD_INDEX, None)]
    return parts


def _sub_job(action: Action, args: Any) -> Raw:
    state = _NONE if action in {Action.DROP_COLUMN, Action.DROP_INDEX, Action.DROP_PRIMARY_KEY} else _PUBLIC
    return {
        "type": action.value,
        "raw_args": args or [],
        "schema_state": state,
        "snapshot_ver": 0,
        "revertible": False,
        "state": JobState.DONE.value,
        "row_count": 0,
        "warning": None,
        "schema_version": 0,
        "reorg_tp": 3,
    }


def _same_view(old: Raw | None, new: Raw) -> bool:
    said = ("view_select", "view_algorithm", "view_security")
    view = (old or {}).get("view")
    return view is not None and all(view.get(key) == new["view"][key] for key in said)


def _misread(old: Raw, new: Raw) -> str:
    """A partition DEFAULT that the history has for the value 0; its rows would go with a DROP PARTITION. '' = none."""
    had, has = (
        {cistr(each["name"]): each.get("in_values") for each in (raw.get("partition") or {}).get("definitions") or ()}
        for raw in (old, new)
    )
    return next((name for name, values in has.items() if values == [["DEFAULT"]] and had.get(name) == [["0"]]), "")


def _shown(db: str, info: TableInfo, dialect: Dialect) -> Any:
    """What a target would be given, but for the order of keys."""
    if info.is_view or info.is_sequence:
        return create_object(db, info, dialect)
    raw = {**info.raw, "auto_inc_id": 0, "index_info": [i for i in info.raw.get("index_info") or () if i["is_primary"]]}
    bare = TableInfo.from_dict({**raw, "constraint_info": None, "comment": ""})
    keys = sorted(index_sql(index, dialect) for index in plain_indexes(info))
    text = create_object(db, bare, dialect).replace(" AUTO_INCREMENT", "")
    return text, keys, checks(info), info.comment, table_charset(info, dialect)
