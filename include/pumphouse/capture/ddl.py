"""What a DDL of the source is to the history: its statement runs on the shadow, and what became of it are DDL jobs.

The reader and the planner are those of `schema import`. What that asks a person, whether something was dropped or
renamed, the statement says here (`pumphouse.capture.statements`). A change that no job can say, and one whose rows no
binlog has, makes the table a new one: it is dropped and created in the history, and the job says that it has rows
already. Loads and restores stop there, by name, until a dump begins behind it: nothing is guessed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import structlog
from pymysql.err import MySQLError

from pumphouse.capture.keys import acting_keys
from pumphouse.capture.schemas import StoredSchema
from pumphouse.capture.shadow import Shadow, zone_offset_s
from pumphouse.capture.source.model import Query
from pumphouse.capture.statements import Does, Meaning, Name, meaning, unencrypted
from pumphouse.errors import CaptureRefused, SchemaError
from pumphouse.model.table import STRINGS, ColumnFlag, MysqlType, TableInfo
from pumphouse.model.tso import MAX_TSO
from pumphouse.mysql import ServerConnection
from pumphouse.schema.actions import Action, is_system
from pumphouse.schema.dialect import Dialect
from pumphouse.schema_import.changes import Asked, Known, Zone, plan_jobs
from pumphouse.schema_import.columns import NOW, Raw
from pumphouse.schema_import.read import Found, read_schema

log = structlog.get_logger()

_ANSI_QUOTES, _NO_BACKSLASH = 1 << 2, 1 << 20
# Above them each server has modes of its own; these are the same in all servers, and in TiDB.
_COMMON_MODES = (1 << 32) - 1
# TIME_ROUND_FRACTIONAL and TIME_TRUNCATE_FRACTIONAL.
_MARIADB_ROUNDS, _MYSQL_CUTS = 1 << 34, 1 << 32
_TIMES = (MysqlType.TIMESTAMP, MysqlType.DATETIME)
_LOST = "was left out, and the shadow did not take its DDL: what it is now is not known"


class _Unsayable(Exception):
    """A new column whose values in old rows nobody can say."""

    def __init__(self, name: Name, column: str) -> None:
        super().__init__(f"{'.'.join(name)}.{column}: its values in the rows that were there before are not known")
        self.name = name


@dataclass(slots=True, kw_only=True)
class Schema:
    """The source's schema as the capture knows it: the shadow, and what the history has.

    ``own``: databases that are never captured, in lower case; ``without``: whether a table is left out.
    ``writes_actions``: whether the source writes what foreign keys change; its shadow need not be set as it is.
    ``of_tidb``: the statements are a TiDB's, which cast its rows itself.
    """

    shadow: Shadow
    known: Known
    own: frozenset[str]
    without: Callable[[str, str], bool]
    writes_actions: bool
    of_tidb: bool = False
    notes: set[str] = field(default_factory=set)

    def tables(self) -> dict[Name, TableInfo]:
        """What the history has now, by (database, name); not views and sequences."""
        return {
            version.name: version.table
            for version in self.known.timeline.tables_at(MAX_TSO)
            if not version.table.is_view and not version.table.is_sequence
        }

    def apply(self, query: Query) -> tuple[list[Raw], bool]:
        """Run a statement.

        Returns:
            the jobs, in order and without times, which `known` has already; whether the shadow may have changed.

        Raises:
            CaptureRefused: it cannot be followed.
        """
        text = self.shadow.decoded(query)
        mode = query.sql_mode or 0
        ansi_quotes, backslash = bool(mode & _ANSI_QUOTES), not mode & _NO_BACKSLASH
        said = meaning(text, query.schema, ansi_quotes=ansi_quotes, backslash=backslash)
        if said.does is Does.NOTHING:
            return [], False
        if said.does is Does.ROUTINE:
            try:
                self.shadow.run(query, text)
            except CaptureRefused as error:  # a view that calls it is left out then
                log.warning("routine_left_out", statement=text[:200], reason=error.message)
            return [], True
        plain = unencrypted(text, ansi_quotes=ansi_quotes, backslash=backslash)
        if plain != text and query.text == text.encode():
            query = replace(query, text=plain.encode())
        try:
            self._refuse(said, query, text)
            self.shadow.run(query, text, gone=said.gone)
        except CaptureRefused as error:  # an engine that the shadow has not, perhaps
            if not said.names or not all(self._left_out(*name) for name in said.names):
                raise
            log.warning("left_out_table_not_followed", statement=text[:200], reason=error.message)
            self.shadow.settle(said.names, set() if query.error else said.ended, taken=False)
        else:
            made = {said.fresh} if said.fresh is not None else set()
            self.shadow.settle(said.names, said.ended | made, taken=True)
        self.refuse_actions()
        self._refuse_engines(text)
        found = self.found()
        if not self.shadow.zone(query):
            self._refuse_moments(found, text)
        jobs = self._plan(found, said, query, text)
        log.info("ddl", statement=text[:500], jobs=[job["query"] for job in jobs])
        return jobs, True

    def reconcile(self, had_rows: Callable[[str, str], bool], *, anew: bool = False) -> list[Raw]:
        """Jobs that bring the history to the shadow's schema, when a capture starts; `known` has them then.

        What is left out by a setting goes; what was left out, or is new, comes, with the rows that it has. ``anew``:
        nothing that the history says of rows counts any more.

        Raises:
            SchemaError: the history has what the source has not.
            CaptureRefused: a table that was left out comes back, and its DDL was not followed meanwhile.
        """
        back = sorted(".".join(name) for name in self.shadow.unfollowed if not self._left_out(*name))
        if back:
            raise CaptureRefused(
                f"{', '.join(back[:5])} {_LOST}",
                hint="leave it out as before ([capture] without), or `pumphouse capture run --anew` begins with it "
                "(docs/capture.md)",
                table=back[0],
            )
        self.refuse_actions()
        found = self.found()
        gone = [name for name in self.tables() if name not in found.tables and (anew or self.without(*name))]
        drop = {".".join(name) for name in gone} | {
            info.name for info in self.known.timeline.databases_at(MAX_TSO) if anew and info.name not in found.databases
        }
        if anew:
            drop |= {".".join(name) for name in self.tables()}
        asked = Asked(drop=tuple(sorted(drop)))
        jobs = plan_jobs(self.known, found, asked, dialect=self._dialect, zone=Zone(unknown=True), fill=_nobody_knows)
        for raw in jobs:
            if raw["type"] != Action.CREATE_TABLE.value:
                continue
            try:
                had = had_rows(raw["schema_name"], raw["table_name"])
            except MySQLError as error:
                raise CaptureRefused(
                    f"{raw['schema_name']}.{raw['table_name']} was there where the capture is, and cannot be read on "
                    f"the source now: {error.args[-1]}",
                    hint="whether it had rows cannot be told: leave it out ([capture] without), or "
                    "`pumphouse capture run --anew` (docs/capture.md)",
                ) from error
            if had:
                raw["had_rows"] = True
        if anew and jobs:
            jobs[-1]["anew"] = True  # behind it, the source may give GTIDs again
        self.known = self.known.plus(jobs)
        return jobs

    def found(self) -> Found:
        """The shadow's schema, without what is left out; CaptureRefused where something of it fits no job."""
        skip = {*self.own}
        for name in self.shadow_tables():
            if self.without(*name):
                skip.add(".".join(name).lower())
        try:
            found, _ = read_schema(self.shadow.connection, "", skip, still=True)
        except SchemaError as error:
            raise CaptureRefused(
                error.message,
                hint='change it on the source, or leave the tables out: [capture] without = ["database.table"]',
            ) from error
        if fresh := [note for note in dict.fromkeys(found.notes) if note not in self.notes]:
            self.notes.update(fresh)
            log.info("not_in_the_history", notes=fresh)
        return found

    @property
    def folds(self) -> bool:
        """Whether names that differ by case alone are one table's."""
        return self.shadow.kind.lower_case_table_names != 0

    @property
    def _dialect(self) -> Dialect:
        return Dialect.of_version(self.shadow.kind.version)

    def shadow_tables(self) -> list[Name]:
        """Every table of the shadow."""
        return [
            (str(db), str(name))
            for db, name in _rows(
                self.shadow.connection,
                "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE <> 'VIEW'",
            )
        ]

    def refuse_actions(self) -> None:
        """CaptureRefused where foreign keys change rows of which the binlog says nothing."""
        found = [] if self.writes_actions else acting_keys(self.shadow.connection, self.own, self.without)
        if found:
            raise CaptureRefused(
                "rows that these foreign keys change are in no binlog: " + ", ".join(map(str, found)),
                hint="`pumphouse capture check` prints the statements that put triggers in their place; or leave the "
                'tables that refer out: [capture] without = ["database.table"]',
            )

    def stored(self) -> StoredSchema:
        """The shadow's schema, to be kept."""
        return self.shadow.stored()

    def _refuse(self, said: Meaning, query: Query, text: str) -> None:
        """CaptureRefused where a statement changed rows, or a part of the schema, and nothing says which."""
        why = ""
        if query.error and not said.replaces:
            why = f"it ended with error {query.error} on the source, and how much of it was done is not known"
        elif said.ignores and said.table is not None and not self._left_out(*said.table):
            why = "ALTER IGNORE TABLE deletes the rows that clash, and they are in no binlog"
        elif lost := self.shadow.lost(said.changed):  # with IF EXISTS, the shadow would take it
            why = f"{', '.join(lost)} {_LOST}"
        if why:
            raise CaptureRefused(
                f"the statement {text[:500]!r} cannot be followed: {why}",
                hint="`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
            )

    def _refuse_engines(self, text: str) -> None:
        found = other_engines(self.shadow.connection, self._left_out)
        if found:
            raise CaptureRefused(
                f"the statement {text[:500]!r} makes "
                + "; ".join(f"{name} ({engine})" for name, engine in found)
                + ": such an engine keeps no rows, or is not transactional",
                hint="leave the table out: [capture] without; `pumphouse capture run --anew` goes on behind it "
                "(docs/capture.md)",
            )

    def _refuse_moments(self, found: Found, text: str) -> None:
        """CaptureRefused where a statement's moments became points in time by a zone that is not known."""
        tables = self.tables()
        for name, raw in found.tables.items():
            old = tables.get(name)
            if fresh := _moments(raw) - (_moments(old.raw) if old is not None else set()):
                raise CaptureRefused(
                    f"the statement {text[:500]!r} gives {'.'.join(name)} moments in the time zone of the source's "
                    f"host, which is not known: {', '.join(sorted(fresh))}",
                    hint="SET GLOBAL time_zone to a name or an offset, and leave tables with such columns out, or "
                    "`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
                )

    def _left_out(self, db: str, table: str) -> bool:
        return db.lower() in self.own or self.without(db, table)

    # -- planning

    def _plan(self, found: Found, said: Meaning, query: Query, text: str) -> list[Raw]:
        anew = {self._known_name(name) for name in said.anew} - {None}
        while True:
            asked = self._asked(found, said, anew)
            try:
                jobs = plan_jobs(
                    self.known,
                    found,
                    asked,
                    dialect=self._dialect,
                    zone=self._zone(query),
                    fill=lambda db, table, column: self._fill(found, query, db, table, column),
                )
                break
            except _Unsayable as error:
                new = self._before(error.name, asked)
            except SchemaError as error:
                new = self._blamed(error, asked)
                if new is None:
                    raise CaptureRefused(
                        f"no DDL job can say what {text[:500]!r} did: {error.message}",
                        hint="`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
                    ) from error
            if new is None or new in anew:
                raise CaptureRefused(
                    f"no DDL job can say what {text[:500]!r} did",
                    hint="`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
                )
            anew.add(new)
        for raw in jobs:
            name = raw["schema_name"], raw["table_name"]
            if raw["type"] == Action.CREATE_TABLE.value and (not said.creates or name in anew):
                raw["had_rows"] = True
                log.warning("table_anew", table=".".join(name), statement=text[:500])
        self.known = self.known.plus(jobs)
        return jobs

    def _known_name(self, name: Name, *, sequences: bool = False) -> Name | None:
        """A table of the history by its name in any case."""
        tables: Collection[Name] = self.tables()
        if sequences:
            there = self.known.timeline.tables_at(MAX_TSO)
            tables = {version.name for version in there if not version.table.is_view}
        if name in tables or not self.folds:
            return name if name in tables else None
        return next((each for each in tables if _folded(each) == _folded(name)), None)

    def _asked(self, found: Found, said: Meaning, anew: Collection[Name | None]) -> Asked:
        """What a person would say of this statement."""
        drop = {name for name in anew if name is not None}
        drop |= {name for each in said.emptied if (name := self._known_name(each)) is not None}
        moved: dict[Name, Name] = {}
        for old, new in said.renamed.items():
            before, after = self._known_name(old, sequences=True), _found_name(found, new, folds=self.folds)
            if before is None or before in drop:
                continue
            if after is None:
                drop.add(before)  # under its new name it is left out
            else:
                moved[before] = after
        rename = {".".join(before): ".".join(after) for before, after in moved.items()}
        parts: set[str] = set()
        if said.table is not None and (before := self._known_name(said.table)) is not None and before not in drop:
            after = moved.get(before, before)
            columns = self._columns(found, said, before, after)
            if columns is None:  # dropped and added in one statement: another column
                drop.add(before)
                rename.pop(".".join(before), None)
            else:
                parts, renamed = columns
                rename |= renamed
        names = {".".join(name) for name in drop} | parts
        if said.drops:
            names |= self._gone(found)
        return Asked(drop=tuple(sorted(names)), rename=rename, reorganized=said.reorganizes)

    def _columns(
        self, found: Found, said: Meaning, before: Name, after: Name
    ) -> tuple[set[str], dict[str, str]] | None:
        """Columns and partitions that an ALTER dropped, and columns that it renamed; None = one is not what it was."""
        columns, partitions = _names_of(self.tables()[before])
        there = {column["name"]["L"] for column in found.tables.get(after, {}).get("cols") or ()}
        there -= {new.lower() for _, new in said.columns}
        place = ".".join(after)
        renamed = {f"{place}.{columns[old.lower()]}": new for old, new in said.columns if old.lower() in columns}
        dropped = set()
        for each in said.dropped:
            if each.lower() in columns and each.lower() in there:
                return None
            named = columns.get(each.lower()) or partitions.get(each.lower())
            if named is not None:
                dropped.add(f"{place}.{named}")
        return dropped, renamed

    def _gone(self, found: Found) -> set[str]:
        """Everything that the history has and the server has not; what a database takes along is named by it."""
        databases = {info.name for info in self.known.timeline.databases_at(MAX_TSO)} - set(found.databases)
        tables = {
            ".".join(version.name)
            for version in self.known.timeline.tables_at(MAX_TSO)
            if not version.table.is_view and version.name not in found.tables and version.db not in databases
        }
        return tables | databases

    def _before(self, name: Name, asked: Asked) -> Name | None:
        """The name that a table had before the statement."""
        old = next((old for old, new in asked.rename.items() if new == ".".join(name)), ".".join(name))
        return next((each for each in self.tables() if ".".join(each) == old), None)

    def _blamed(self, error: SchemaError, asked: Asked) -> Name | None:
        """The table that an error of the plan is about, as it was called before; None = of none alone."""
        named: Iterable[str] = ()
        if isinstance(error.facts.get("table"), str):
            named = [error.facts["table"]]
        elif gone := error.facts.get("gone"):
            named = [str(gone[0])]
        for text in named:
            for name in self.tables():
                shown = asked.rename.get(".".join(name), ".".join(name))
                if text == shown or text.startswith(shown + "."):
                    return name
        return None

    def _zone(self, query: Query) -> Zone:
        name = self.shadow.zone(query)
        mode = None if query.sql_mode is None else query.sql_mode & _COMMON_MODES
        server = self._cast_by(query.sql_mode)
        if not name:
            return Zone(unknown=True, sql_mode=mode, server=server)
        if not name[0].isalpha():
            offset = zone_offset_s(self.shadow.offset(query))
            return Zone(name="", offset=offset, sql_mode=mode, server=server)
        return Zone(name=name, sql_mode=mode, server=server)

    def _cast_by(self, mode: int | None) -> Raw:
        """What cast the rows that were there, for jobs: the kind of server, and whether it rounds seconds."""
        if self.of_tidb:
            return {"kind": Dialect.TIDB.value, "rounds": True}
        if mode is None:
            return {}
        rounds = mode & _MARIADB_ROUNDS if self._dialect is Dialect.MARIADB else not mode & _MYSQL_CUTS
        return {"kind": self._dialect.value, "rounds": bool(rounds)}

    def _fill(self, found: Found, query: Query, db: str, table: str, column: str) -> str | None:
        """What rows that were there before have in a new column whose default is computed."""
        raw = next(each for each in found.tables[db, table]["cols"] if each["name"]["O"] == column)
        if not query.seconds:
            raise _Unsayable((db, table), column)
        now, kind = NOW.fullmatch(str(raw.get("default") or "")), raw["type"]
        if now is None or kind["Flag"] & ColumnFlag.AUTO_INCREMENT or not _takes_now(kind):
            raise _Unsayable((db, table), column)
        at = dt.datetime.fromtimestamp(query.seconds, dt.UTC).replace(microsecond=query.micros)
        if kind["Tp"] != MysqlType.TIMESTAMP:
            if not self.shadow.zone(query):
                raise _Unsayable((db, table), column)
            at += dt.timedelta(seconds=zone_offset_s(self.shadow.offset(query)))
        if kind["Tp"] == MysqlType.DATE:
            return f"{at:%Y-%m-%d}"
        # The function has its own digits, and the column may have more.
        fraction = f"{at.microsecond:06d}"[: int(now[1] or 0)]
        if kind["Tp"] in _TIMES:
            fraction = fraction.ljust(6, "0")[: max(0, int(kind["Decimal"]))]
        text = f"{at:%Y-%m-%d %H:%M:%S}" + (fraction and f".{fraction}")
        if kind["Tp"] not in _TIMES and len(text) > int(kind["Flen"]):
            raise _Unsayable((db, table), column)
        return text


def _takes_now(kind: Raw) -> bool:
    """Whether a column has a moment as it is written; a number or a TIME is something else of it."""
    is_text = kind["Tp"] in STRINGS and kind["Charset"] != "binary"
    return is_text or kind["Tp"] in (*_TIMES, MysqlType.DATE)


def _nobody_knows(db: str, table: str, column: str) -> str | None:
    raise SchemaError(
        f"{db}.{table}.{column} is new, and what it has in the rows that were there before is not known",
        hint="`pumphouse capture run --anew` begins anew (docs/capture.md)",
    )


def _found_name(found: Found, name: Name, *, folds: bool) -> Name | None:
    if name in found.tables or not folds:
        return name if name in found.tables else None
    return next((each for each in found.tables if _folded(each) == _folded(name)), None)


def _moments(table: Raw) -> set[str]:
    """Literals of a table that were made points in time: defaults of TIMESTAMPs, and bounds of partitions by them."""
    found = {
        f"{column['name']['L']} DEFAULT {column['default']}"
        for column in table.get("cols") or ()
        if column["type"]["Tp"] == MysqlType.TIMESTAMP
        and str(column.get("default") or "0000")[:4].isdigit()
        and str(column.get("default") or "0000")[:4] != "0000"
    }
    partition = table.get("partition") or {}
    if "unix_timestamp" in str(partition.get("expr") or "").lower():
        found |= {f"partition {each['name']['L']} {each['less_than']}" for each in partition.get("definitions") or ()}
    return found


def _folded(name: Name) -> Name:
    return name[0].lower(), name[1].lower()


def _names_of(table: TableInfo) -> tuple[dict[str, str], dict[str, str]]:
    """Columns and partitions of a table, lower case -> as they are spelled."""
    columns = {column.name.lower(): column.name for column in table.public_columns}
    definitions = (table.raw.get("partition") or {}).get("definitions") or ()
    partitions = {str(each["name"]["L"]): str(each["name"]["O"]) for each in definitions}
    return columns, partitions


def other_engines(connection: ServerConnection, without: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """Tables, and their engines, that keep no rows or are not transactional."""
    return [
        (f"{db}.{table}", str(engine))
        for db, table, engine in _rows(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES"
            " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND ENGINE NOT IN"
            " (SELECT ENGINE FROM information_schema.ENGINES WHERE TRANSACTIONS = 'YES') ORDER BY 1, 2",
        )
        if not is_system(str(db)) and not without(str(db), str(table))
    ]


def _rows(connection: ServerConnection, sql: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
