"""What a database or a table of the source is called on a target: the one place that decides it. Pure.

Rules, plans, the schema history and messages speak the source's names. A name of the target comes into being here, on
the last step: where rows are given their table (`pumphouse.loader.tables`) and where a statement is made.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pumphouse.errors import ConfigError
from pumphouse.model.table import DbInfo, TableInfo, cistr
from pumphouse.schema.actions import is_system
from pumphouse.schema.ident import qualified
from pumphouse.schema.versions import Change, DdlEvent, TableVersion

# `db`.`table` in the text of a view or a default; texts in quotes are passed over.
_NAMES = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`((?:[^`]|``)+)`\s*\.\s*`((?:[^`]|``)+)`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Routes:
    """Other names on a target; none: every name is the source's.

    ``databases``: name in lower case -> name there. ``tables``: (``database.table`` in lower case, the same there),
    each with one ``*`` or none in the table's name; the first that fits counts, before its database.
    """

    databases: tuple[tuple[str, str], ...] = ()
    tables: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, databases: Mapping[str, str], tables: Mapping[str, str]) -> Self:
        """Whatever their order: a name before a pattern, a longer pattern before a shorter one."""
        return cls(
            tuple(sorted((name.lower(), to) for name, to in databases.items())),
            tuple(
                sorted(
                    ((name.lower(), to) for name, to in tables.items()),
                    key=lambda each: ("*" in each[0], -len(each[0]), each),
                )
            ),
        )

    def __bool__(self) -> bool:
        return bool(self.databases or self.tables)

    def database(self, db: str) -> str:
        """A database's name there."""
        return dict(self.databases).get(db.lower(), db)

    def table(self, db: str, name: str) -> tuple[str, str]:
        """A table's database and name there; the server's own keep theirs."""
        for pattern, to in self.tables if not is_system(db) else ():
            star = _star(pattern, f"{db}.{name}")
            if star is not None:
                there, _, called = to.partition(".")
                return there, called.replace("*", star)
        return self.database(db), name

    def places(self, databases: Iterable[str]) -> list[str]:
        """Databases there that tables of these may lie in."""
        return sorted({self.database(each) for each in databases if not is_system(each)} | self.beside)

    @property
    def beside(self) -> set[str]:
        """Databases there that rules of tables name: no DDL of the source makes them."""
        return {to.partition(".")[0] for _, to in self.tables}

    def version(self, version: TableVersion) -> TableVersion:
        """A table as it is there, with the names in its foreign keys, its view's text and its defaults."""
        if not self:
            return version
        db, name = self.table(*version.name)
        return replace(version, db=db, table=self._info(version.db, version.table, name))

    def _info(self, db: str, table: TableInfo, name: str) -> TableInfo:
        raw: dict[str, Any] = dict(table.raw)
        if table.is_view:
            raw["view"] = {**raw["view"], "view_select": self.text(str(raw["view"].get("view_select")))}
        if raw.get("fk_info"):
            raw["fk_info"] = [self._reference(db, each) for each in raw["fk_info"]]
        columns = tuple(
            replace(column, default=self.text(str(column.default))) if column.default_is_expr else column
            for column in table.columns
        )
        return replace(table, name=name, columns=columns, raw=raw)

    def _reference(self, db: str, key: dict[str, Any]) -> dict[str, Any]:
        ref_db, ref_table = self.table(cistr(key.get("ref_schema")) or db, cistr(key.get("ref_table")))
        return {**key, "ref_schema": _cistr(ref_db), "ref_table": _cistr(ref_table)}

    def text(self, sql: str) -> str:
        """A text of the source with the names of there, where it names tables with their database, as TiDB does."""

        def put(found: re.Match[str]) -> str:
            if found[1] is None:
                return found[0]
            name = found[1].replace("``", "`"), found[2].replace("``", "`")
            there = self.table(*name)
            return found[0] if there == name else qualified(*there)

        return _NAMES.sub(put, sql)

    def info(self, info: DbInfo | None) -> DbInfo | None:
        """A database as it is there."""
        return None if info is None else replace(info, name=self.database(info.name))

    def event(self, event: DdlEvent) -> DdlEvent:
        """A DDL as it is carried out there."""
        if not self:
            return event

        def side(version: TableVersion | None) -> TableVersion | None:
            return None if version is None else self.version(version)

        changes = tuple(Change(side(each.before), side(each.after)) for each in event.changes)
        return replace(event, changes=changes, db_before=self.info(event.db_before), db_after=self.info(event.db_after))

    def source_of(self, there: str, names: Iterable[tuple[str, str]]) -> str:
        """Which of these tables of the source is called so there; the name itself where none is."""
        found = (".".join(name) for name in names if ".".join(self.table(*name)).lower() == there.lower())
        return next(found, there)

    def require_apart(self, databases: Iterable[str], tables: Iterable[tuple[str, str]]) -> None:
        """ConfigError where two of the source would be one there, or a database there would not be theirs alone."""
        known = {name for name in databases if not is_system(name)}
        _one_each({name: self.database(name).lower() for name in known}, "databases")
        whose = {self.database(name).lower(): name for name in known}
        for pattern, to in self.tables:
            there, own = to.partition(".")[0], pattern.partition(".")[0]
            other = whose.get(there.lower())
            if is_system(there) or (other is not None and other.lower() != own):
                what = "the server's own" if is_system(there) else f"what the source's database {other} is there"
                raise ConfigError(
                    f"load.rules routes {pattern} into {there}, which is {what}",
                    hint="route it into a database of its own: what the source does to a database is done to all of it",
                )
        _one_each({".".join(name): ".".join(self.table(*name)).lower() for name in tables}, "tables")


NO_ROUTES = Routes()


def _one_each(names: Mapping[str, str], what: str) -> None:
    by_place: dict[str, list[str]] = defaultdict(list)
    for name, there in names.items():
        by_place[there].append(name)
    for there, several in sorted(by_place.items()):
        if len({each.lower() for each in several}) > 1:
            raise ConfigError(
                f"load.rules makes one of {len(several)} {what} of the source: {', '.join(sorted(several))} would all "
                f"be {there} on the target, and their rows could not be told apart",
                hint="route each to a name of its own",
            )


def _star(pattern: str, name: str) -> str | None:
    """What the star of a pattern stands for ('' where it has none); None where the name does not fit."""
    head, star, tail = pattern.partition("*")
    low = name.lower()
    if not star:
        return "" if low == head else None
    if len(low) < len(head) + len(tail) or not (low.startswith(head) and low.endswith(tail)):
        return None
    return name[len(head) : len(name) - len(tail)]


def _cistr(name: str) -> dict[str, str]:
    return {"O": name, "L": name.lower()}
