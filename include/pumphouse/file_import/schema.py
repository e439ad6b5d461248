"""The schema of imported files: the texts of their DDLs run on a shadow, and what became of it are DDL jobs.

The shadow and the reading are those of captures (`pumphouse.capture.ddl`). A file says less of a statement than a
binlog does: neither its session's time zone nor when it ran. What depends on these is refused, unless the user gives
the statement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from pumphouse.archive.ddl import ArchivedJob
from pumphouse.capture.ddl import Schema
from pumphouse.capture.schemas import StoredSchema
from pumphouse.capture.shadow import Shadow, kind_of_program
from pumphouse.capture.source.model import Query
from pumphouse.capture.statements import Does, meaning
from pumphouse.errors import BinlogError, ImportRefused
from pumphouse.model.table import Job, TableInfo
from pumphouse.model.tso import MAX_TSO, Tso
from pumphouse.schema_import.changes import Known
from pumphouse.schema_import.columns import Raw

_UTC = "+00:00"
_AS_DUMPED = 1 << 26  # foreign_key_checks = 0: a dump has tables by name, and not those first to which others refer
_USE = re.compile(rb"use `((?:[^`]|``)+)`;\s?(.*)", re.DOTALL | re.IGNORECASE)
# TiDB's default collation of a character set, where it is another one than a MariaDB's or a MySQL's.
_COLLATIONS = {
    name: f"{name}_bin" for name in ("utf8mb4", "utf8", "utf8mb3", "ascii")
}  # fmt: skip
_CHARSET = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | /\*(?!!|M!).*?\*/ | (?:\#|--(?!\S))[^\n]*
    | \b(?:CHARACTER\s+SET|CHARSET)\s*=?\s*(?P<name>\w+)\b(?:\s*(?:,\s*)?(?:DEFAULT\s+)?(?=COLLATE\b))?
    | (?P<collate>\bCOLLATE\b)(?:\s*=?\s*(?P<latin1>latin1_\w+))? | (?P<mark>[(),])""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# Where a statement ends, and what has a ; that is no end.
_ENDS = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | /\*.*?\*/
    | (?:\#|--(?!\S))[^\n]* | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
_LEAD = re.compile(r"\A(?:\s|--[^\n]*\n|#[^\n]*\n|/\*(?!M?!(?!9999)).*?\*/)+", re.DOTALL)


def statements(text: str) -> list[str]:
    """What stands between the ``;`` of a text."""
    found, begin = [], 0
    for each in _ENDS.finditer(text):
        if each["end"]:
            found.append(text[begin : each.start()])
            begin = each.end()
    return [*found, text[begin:]]


def parted(text: bytes) -> tuple[str, bytes]:
    """Database and statement of a DDL as a Drainer writes it."""
    found = _USE.fullmatch(text)
    if found is None:
        return "", text.removesuffix(b";")
    return found[1].decode("utf-8", "replace").replace("``", "`"), found[2].removesuffix(b";")


def dropped(text: str, db: str) -> list[tuple[str, ...]]:
    """What a DROP TABLE or DROP DATABASE names, in lower case: databases are names of one part.

    A TiDB takes names whatever their capitals. Of other statements the shadow says that there is no such table; that of
    a DROP says nothing, since TiDB writes one for each table, with the same text.
    """
    return [tuple(part.lower() for part in name) for name in meaning(text, db).gone]


def as_tidb_reads(text: str) -> str:
    """With the collation that TiDB takes where a character set is named alone: servers of MySQL's kind take another.

    It is not alone where a column, or the options of a table or a database, name a collation anywhere. latin1 is
    utf8mb4: a TiDB does not check what it stores in it.
    """
    # Of an ALTER a comma parts two changes; of a CREATE, outside of all parentheses, two options of one thing.
    alters = re.match(r"ALTER\b", _LEAD.sub("", text), re.IGNORECASE)
    things, count = [0], 0
    edits: list[tuple[int, int, str, int | None]] = []
    collated = set[int]()
    for each in _CHARSET.finditer(text):
        if each["mark"] == "(":
            things.append(count := count + 1)
        elif each["mark"] == ")":
            del things[max(len(things) - 1, 1) :]
        elif each["mark"] and (alters or len(things) > 1):
            things[-1] = count = count + 1
        elif each["collate"]:
            collated.add(things[-1])
            if latin1 := each["latin1"]:
                twin = "utf8mb4_bin" if latin1.lower().endswith("_bin") else "utf8mb4_general_ci"
                edits.append((*each.span("latin1"), twin, None))
        elif charset := (each["name"] or "").lower():
            if charset == "latin1":
                charset = "utf8mb4"
                edits.append((*each.span("name"), charset, None))
            if collation := _COLLATIONS.get(charset):
                edits.append((each.end("name"), each.end("name"), f" COLLATE {collation}", things[-1]))
    for begin, end, new, thing in reversed(edits):
        if thing not in collated:
            text = text[:begin] + new + text[end:]
    return text


class DdlAt(NamedTuple):
    """Which DDL of the files: when it was committed, and its place among those of that time, from 1 (0 = it is alone).

    A batch of tables is one DDL a table, all of one commit ts.
    """

    commit_ts: Tso
    number: int = 0

    def __str__(self) -> str:
        return f"{self.commit_ts}#{self.number}" if self.number else f"{self.commit_ts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDdl:
    """One DDL of a file."""

    at: DdlAt
    text: bytes
    place: str  # for people


@dataclass(slots=True)
class FileSchema(AbstractContextManager["FileSchema"]):
    """The schema as of the last DDL that was applied.

    Args:
        schema: the shadow, and the history so far.
        instead: statements that run in place of the files'.
        _owed: texts of a DROP of several tables -> how often TiDB writes it yet, once for each of its tables.
    """

    schema: Schema
    instead: Mapping[DdlAt, str]
    _tables: dict[tuple[str, str], TableInfo] | None = field(default=None)
    _owed: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def start(cls, folder: Path, program: str, instead: Mapping[DdlAt, str]) -> Self:
        """Start the shadow, empty; ConfigError."""
        shadow = Shadow.start(folder, StoredSchema(server=kind_of_program(program)), program)
        # A TiDB writes the rows that its foreign keys change.
        known = Known.of([])
        return cls(
            Schema(
                shadow=shadow,
                known=known,
                own=frozenset(),
                without=lambda *_: False,
                writes_actions=True,
                of_tidb=True,
            ),
            instead,
        )

    def __exit__(self, *_: object) -> None:
        self.schema.shadow.close()

    @property
    def version(self) -> int:
        """Schema version that rows are of."""
        return self.schema.known.version

    @property
    def tables(self) -> dict[tuple[str, str], TableInfo]:
        """By database and name."""
        if self._tables is None:
            self._tables = self.schema.tables()
        return self._tables

    def begin(self, text: str, at: Tso, place: str) -> list[Job]:
        """The schema before the files: statements, each ended by a ``;``.

        Raises:
            ImportRefused: one of them does not run.
        """
        found, db = [], ""
        for number, each in enumerate(statements(text)):
            said = _LEAD.sub("", each)
            if not said.strip():
                continue
            if use := re.fullmatch(r"use\s+(?:`((?:[^`]|``)+)`|([^\s`]+))\s*", said, re.IGNORECASE):
                db = use[2] or use[1].replace("``", "`")
                continue
            where = f"{place}, statement {number + 1}"
            found += self._applied(
                db, said, DdlAt(at), where, zone=_UTC, flags=_AS_DUMPED,
                hint="write it as a MariaDB takes it, behind CREATE DATABASE and USE",
            )  # fmt: skip
        for raw in found:
            raw.pop("had_rows", None)
        return [Job.from_dict(raw) for raw in found]

    def apply(self, ddl: FileDdl) -> list[Raw]:
        """Jobs of a DDL, without times.

        Raises:
            ImportRefused: what it did cannot be told; its text, its place and the way out are named.
        """
        db, text = parted(ddl.text)
        said, zone = text.decode("utf-8", "replace"), ""
        again = self._owed.get(ddl.text, 0)
        if again:
            self._owed[ddl.text] = again - 1
        if ddl.at in self.instead:
            said, zone = self.instead[ddl.at].strip().rstrip(";"), _UTC
            if not said:
                return []
        elif again:
            if made := self._left(said, db):
                why = f"{made[0]} was made again behind the same DROP of several tables: is this the rest of it?"
                hint = f"if it is: --ddl {ddl.at}=  Else give the statement itself: --ddl {ddl.at}=STATEMENT"
                raise self._refused(ddl.place, said, ddl.at, why, hint)
            return []
        found = self._applied(db, said, ddl.at, ddl.place, zone=zone)
        for raw in found:
            if raw.get("had_rows"):
                name = f"{raw['schema_name']}.{raw['table_name']}"
                raise self._refused(ddl.place, said, ddl.at, f"what rows of {name} are behind it is not known")
        if left := self._left(said, db):
            why = f"{left[0]} is still there: it was created with other capitals, which this server takes for another"
            raise self._refused(ddl.place, said, ddl.at, why)
        if len(dropped(said, db)) > 1:
            self._owed[ddl.text] = len(found) - 1
        if len(found) == 1:
            found[0]["query"] = text.decode("utf-8", "replace")
        return found

    def _left(self, said: str, db: str) -> list[str]:
        """What a DROP names and is there."""
        folded = self._folded()
        return sorted(".".join(name) for name in dropped(said, db) if name in folded)

    def _databases(self) -> set[str]:
        return {info.name for info in self.schema.known.timeline.databases_at(MAX_TSO)}

    def _folded(self) -> set[tuple[str, ...]]:
        """Tables, and databases as names of one part, in lower case."""
        return {(db.lower(),) for db in self._databases()} | {(db.lower(), name.lower()) for db, name in self.tables}

    def _applied(
        self, db: str, text: str, at: DdlAt, place: str, *, zone: str, flags: int | None = None, hint: str = ""
    ) -> list[Raw]:
        query = Query(
            text=as_tidb_reads(text.rstrip("; \t\r\n")).encode(), schema=db, before=0, sql_mode=0, client_collation=45,
            connection_collation=46, server_collation=46, time_zone=zone, explicit_defaults=True,
            flags=flags,
        )  # fmt: skip
        if db and db not in self._databases():
            raise self._refused(place, text, at, f"no DDL made the database {db}", hint)
        try:
            jobs, _ = self.schema.apply(query)
        except BinlogError as error:
            raise self._refused(place, text, at, error.message, hint) from error
        read = meaning(text, db)
        if not jobs and read.creates and not read.emptied:
            raise self._refused(place, text, at, "it made no table: it names no database, or one was there", hint)
        if read.does is not Does.CHANGES and len([each for each in statements(text) if each.strip()]) > 1:
            raise self._refused(place, text, at, "it is more than one statement", hint)
        self._tables = None
        return jobs

    @staticmethod
    def _refused(place: str, text: str, at: DdlAt, why: str, hint: str = "") -> ImportRefused:
        return ImportRefused(
            f"{place}: the DDL {text[:300]!r} cannot be followed: {why}",
            hint=hint
            or "is a table missing that was there before the files? --schema FILE names it. Else give a statement "
            f"that a MariaDB takes and that means the same: --ddl {at}=STATEMENT (empty: it changes no table)",
            place=place,
        )


def timed(jobs: list[Raw], commit_ts: Tso, after: Tso, place: str) -> list[ArchivedJob]:
    """Jobs of one commit ts with times of their own, the last at it and the others just below.

    Raises:
        ImportRefused: something else of the files, or a window that has ended, has one of these times.
    """
    first = commit_ts - len(jobs) + 1
    if jobs and first <= after:
        raise ImportRefused(
            f"{place}: the DDL becomes {len(jobs)} jobs, and {first} to {after} is taken by what stands before it",
            hint="did an export end just before it, and was it imported by itself? Import all files at once, into "
            "another place (--archive URL). Else give the DDL as one statement of one change each (--ddl)",
            place=place,
        )
    found = []
    for ts, raw in enumerate(jobs, first):
        raw["start_ts"] = ts - 1
        raw["binlog"]["FinishedTS"] = ts
        job = Job.from_dict(raw)
        found.append(
            ArchivedJob(
                commit_ts=Tso(ts), start_ts=Tso(ts - 1), job_id=job.id, schema_state=job.schema_state,
                query=job.query.encode(), job=job.text,
            )
        )  # fmt: skip
    return found
