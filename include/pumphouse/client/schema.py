"""The tables of a history as an application needs them to build row images: infos by name, and rows by column name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pumphouse.codec.datum import Kind, Value, kind_of
from pumphouse.codec.defaults import ordinal
from pumphouse.errors import CodecError, ConfigError, UnknownTable
from pumphouse.model.table import ColumnInfo, TableInfo
from pumphouse.model.tso import MAX_TSO
from pumphouse.schema.generated import carried
from pumphouse.schema.history import JobSource, open_history
from pumphouse.schema.timeline import Timeline
from pumphouse.settings import SchemaSettings


class Tables(Mapping[tuple[str, str], TableInfo]):
    """(database, table) -> info, as of one schema version; a picture that does not change.

    After a DDL is in the history it has to be made again: row images carry the version that they were built for.
    """

    def __init__(self, infos: Mapping[tuple[str, str], TableInfo], schema_version: int) -> None:
        self._infos = dict(infos)
        self.schema_version = schema_version

    def __getitem__(self, name: tuple[str, str]) -> TableInfo:
        try:
            return self._infos[name]
        except KeyError:
            raise UnknownTable(
                f"the history has no table {'.'.join(name)} at schema version {self.schema_version}",
                hint="`pumphouse schema import` brings it there",
            ) from None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos


def tables(history: str | SchemaSettings | JobSource, password: str = "") -> Tables:
    """Read the tables that the history has now.

    Args:
        history: As the setting schema.history: ``mysql://user@host:port/schema.table``, ``http://tidb:10080``; or the
            section, where the server is reached by TLS.
        password: Of a ``mysql://`` history that is given as text.

    Raises:
        HistoryUnavailable: it does not answer.
        SchemaError: its jobs contradict each other.
    """
    if isinstance(history, str):
        history = SchemaSettings.model_validate({"history": history, "history_password": password})
    if isinstance(history, SchemaSettings):
        source = open_history(history)
        if source is None:
            raise ConfigError("no history is named", hint="give mysql://user@host:port/schema.table")
    else:
        source = history
    timeline = Timeline.of_history(source.jobs())
    infos = {
        version.name: version.table
        for version in timeline.tables_at(MAX_TSO)
        if not version.table.is_view and not version.table.is_sequence
    }
    return Tables(infos, timeline.schema_version)


def named_row(table: TableInfo, row: Mapping[str, Value]) -> dict[int, Value]:
    """A row by column name as the encoders take it: by column id. Members of ENUM and SET may be given as text.

    Every column has to be there but the generated ones that targets compute: a server's defaults are the server's, and
    what a row image lacks is NULL.

    Raises:
        CodecError: a column is missing, is not in the table, or is no member of its ENUM or SET.
    """
    columns = {column.name.lower(): column for column in table.public_columns}
    given = {name.lower(): value for name, value in row.items()}
    if unknown := [name for name in row if name.lower() not in columns]:
        raise CodecError(f"table {table.name} has no column {', '.join(unknown)}")
    needed = [c for c in columns.values() if not c.generated or c.id in carried(table)]
    if missing := [c.name for c in needed if c.name.lower() not in given]:
        raise CodecError(f"the row of table {table.name} lacks {', '.join(missing)}")
    return {columns[name].id: _loader_value(columns[name], value) for name, value in given.items()}


def _loader_value(column: ColumnInfo, value: Value) -> Value:
    kind = kind_of(column.type)
    if not isinstance(value, str) or kind not in (Kind.ENUM, Kind.SET):
        return value
    try:
        if kind is Kind.ENUM:
            return ordinal(column.type, value)
        return sum({1 << (ordinal(column.type, part) - 1) for part in value.split(",") if part})
    except ValueError as error:
        raise CodecError(f"column {column.name}: {error}") from error
