"""How Airflow says what an error advises: the DAG and the fields of its form, the connection; else the command line."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from pumphouse.advice import (
    RESTORE_TARGET,
    TARGET,
    THIS,
    Command,
    Option,
    Part,
    Rule,
    Section,
    command_line,
    for_target,
)
from pumphouse.advice import SOURCE as SOURCE_SECTION
from pumphouse.errors import BinlogError, advising
from pumphouse.settings import DOWNSTREAM, Settings

# Connection of the source.
SOURCE = "pumphouse_source"
_CONNECTIONS = {TARGET: DOWNSTREAM, SOURCE_SECTION: SOURCE}
# Command -> DAG, and option -> title of its field; '' where the DAG does so by itself.
_DAGS: dict[str, tuple[str, dict[str, str]]] = {
    "snapshot": ("binlog_snapshot", {}),
    "schema rebuild": ("binlog_schema", {}),
    "archive dump": ("binlog_dump", {"--table": "Tables"}),
    "load": ("binlog_load", {"--target": ""}),
    "restore": ("binlog_restore", {"--to": "Moment", "--into": "Target", "--table": "Tables", "--dry-run": ""}),
}


# Option of `restore` -> title of its field in the form, and the argument of the operator.
_FIELDS = {"--as": ("Name there", "called"), "--into-database": ("Database there", "database")}
# Command -> DAG that does the same, among other things.
_AMONG = {
    **{words: name for words, (name, _) in _DAGS.items()},
    "drill": "binlog_drill",
    "gc": "pump_gc",
    **dict.fromkeys(("archive verify", "archive copy", "archive expire"), "binlog_maintenance"),
}


def dag_for(line: str) -> str:
    """The DAG of the first installation that does what a command line does; '' = none does."""
    words = line.removeprefix("pumphouse ")
    return next((name for begin, name in _AMONG.items() if words == begin or words.startswith(f"{begin} ")), "")


def in_airflow(part: Part) -> str:
    """A part of a hint, for a task's log."""
    if isinstance(part, Section):
        return _section(part.name)
    if isinstance(part, Option):
        title, argument = _FIELDS[part.name]
        return f'"{title}" (of the operator: `{argument}`)'
    return (_dag(part) if isinstance(part, Command) else "") or command_line(part)


def naming(conn_id: str) -> AbstractContextManager[None]:
    """What an error of the block advises for its target is for that connection."""
    return advising(partial(of_connection, conn_id))


def of_connection(conn_id: str, part: Part) -> Part:
    """A part of a hint, whose target is that connection: an own server, or the section of that name."""
    if conn_id in (DOWNSTREAM, SOURCE):
        return for_target(part, TARGET if conn_id == DOWNSTREAM else SOURCE_SECTION)
    found = for_target(part, conn_id)
    if conn_id in _settings().targets:
        return found
    # The settings of the run have its server as [target] or [restore_target], and the rules of [load].
    if isinstance(part, Section) and part.name in (THIS, TARGET, RESTORE_TARGET):
        return f"the connection {conn_id}"
    if found == part or isinstance(part, Rule):
        return part
    said = _dag(found) if isinstance(found, Command) else ""
    return said or f"{command_line(part)}, with the server of the connection {conn_id} as [target]"


def _dag(command: Command) -> str:
    """The DAG that does it and what goes into its form; '' where none does, or its form does not offer that."""
    name, titles = _DAGS.get(command.words, ("", {}))
    given: dict[str, list[str]] = {}
    for option, value in command.options:
        if option in ("--target", "--into"):
            offered = (THIS, *_settings().loaded) if option == "--target" else _settings().airflow.restore_targets
            value = _CONNECTIONS.get(str(value), value)  # noqa: PLW2901 - as Airflow calls it
            if value not in offered:
                return ""
        if option not in titles:
            return ""
        if titles[option]:
            given.setdefault(titles[option], []).append(value or "")
    fields = "; ".join(f"{title}: {' and '.join(values)}" for title, values in given.items())
    return name and f"the DAG {name}" + (f" ({fields})" if fields else "")


def _section(name: str) -> str:
    if name == THIS:
        return "the connection of the target"
    if name == RESTORE_TARGET:
        return "a connection of airflow.restore_targets"
    return f"[{name}] or the connection {_CONNECTIONS.get(name, name.removeprefix('targets.'))}"


def _settings() -> Settings:
    """Which targets there are; none where the settings cannot be read, which is said elsewhere."""
    try:
        return Settings.read_only("airflow", "targets")
    except BinlogError:
        return Settings()
