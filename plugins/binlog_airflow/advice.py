"""How Airflow says what an error advises: the DAG and the field of its form, the connection; else the command line."""

from __future__ import annotations

from typing import assert_never

from pumphouse.advice import (
    ANY,
    TARGET,
    Accept,
    CompareTable,
    DeclareLost,
    Do,
    Dump,
    ImportSchema,
    Load,
    Part,
    Restore,
    Rule,
    Section,
    Settle,
    ShowPump,
    ShowSchema,
    Unregister,
    command_line,
)
from pumphouse.settings import DOWNSTREAM

# Connection of the source.
SOURCE = "pumphouse_source"
_DAGS = {
    Do.SNAPSHOT: "binlog_snapshot",
    Do.REBUILD_SCHEMA: "binlog_schema",
    Do.VERIFY: "binlog_maintenance",
    Do.VERIFY_NAMES: "binlog_maintenance",
    Do.SHOW_EXPIRY: "binlog_maintenance",
}
_CONNECTIONS = {TARGET: DOWNSTREAM, "source": SOURCE}


def in_airflow(part: Part) -> str:  # noqa: PLR0911 - a case for each kind
    """A part of a hint, for a task's log."""
    match part:
        case Do():
            return _dag(_DAGS[part]) if part in _DAGS else command_line(part)
        case Dump():
            return _dag("binlog_dump", Tables=", ".join(part.tables))
        case Load(table="", equal_at=""):
            return _dag("binlog_load")
        case Restore(objects=""):
            into = _CONNECTIONS.get(part.into, part.into)
            return _dag("binlog_restore", Moment=part.to, Target=into, Tables=part.table)
        case Section(name="restore_target"):
            return "the connection of the server that is restored"
        case Section():
            name = part.name.removeprefix("targets.")
            return f"the connection {_CONNECTIONS.get(name, name)}"
        case (
            str() | ImportSchema() | ShowSchema() | Load() | Restore() | CompareTable() | DeclareLost() | Accept()
            | Settle() | ShowPump() | Unregister() | Rule()
        ):  # fmt: skip
            return command_line(part)
        case _:
            assert_never(part)


def _dag(name: str, **fields: str) -> str:
    """A DAG, and what goes into the fields of its form."""
    given = "; ".join(f"{title}: {value}" for title, value in fields.items() if value not in ("", ANY))
    return f"the DAG {name}" + (f" ({given})" if given else "")
