"""What a target knows of a stream that is replayed into it: how far it came, and whether it ended by a close."""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.errors import LoadError
from pumphouse.loader import state
from pumphouse.loader.target import TargetConnection

TABLE = """CREATE TABLE IF NOT EXISTS {s}.`replay` (
  task VARCHAR(64) NOT NULL PRIMARY KEY,
  position BIGINT UNSIGNED NOT NULL COMMENT 'every transaction with commit ts <= this is in the target; 0 = not known',
  clean TINYINT NOT NULL COMMENT '1: the stream ended by a close, 0: it runs, or ended otherwise',
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"""


@dataclass(frozen=True, slots=True)
class Position:
    """A stream's row; ``clean``: the run before ended by a close, or there was none."""

    commit_ts: int
    clean: bool


class Positions:
    """The row of one stream, on the connection that owns the target."""

    def __init__(self, connection: TargetConnection, task: str) -> None:
        self._connection, self._task = connection, task

    def begin(self) -> Position:
        """Where the stream stands; from here on it runs. LoadError when the target belongs to a load."""
        connection = self._connection
        loads = [found.task for found in state.read_all(connection)]
        if loads:
            raise LoadError(
                f"target {connection.name} belongs to the load {loads[0]!r}: both would write its tables",
                hint="replay into another target, or load it with load.mode = 'replay'",
                target=connection.name,
            )
        connection.execute(TABLE.format(s=connection.schema))
        rows = connection.query(f"SELECT position, clean FROM {self._table} WHERE task = %s", (self._task,))
        found = Position(int(rows[0][0]), bool(rows[0][1])) if rows else Position(0, clean=True)
        connection.execute(f"REPLACE INTO {self._table} (task, position, clean) VALUES (%s, %s, 0)",
                           (self._task, found.commit_ts))  # fmt: skip
        return found

    def move(self, commit_ts: int) -> None:
        """Inside the transaction that ends a round: everything up to here is in the target."""
        self._connection.execute(
            f"UPDATE {self._table} SET position = %s WHERE task = %s AND position < %s",
            (commit_ts, self._task, commit_ts),
        )

    def end(self) -> None:
        """The stream was closed."""
        self._connection.execute(f"UPDATE {self._table} SET clean = 1 WHERE task = %s", (self._task,))

    @property
    def _table(self) -> str:
        return self._connection.table("replay")
