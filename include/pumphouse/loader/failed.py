"""How the last load of a target failed, in a table of ours there: a run that ends well takes its row away."""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pumphouse.errors import BinlogError, UsageError, said_of
from pumphouse.loader.target import TargetConnection

_TIMEOUT_S = 5.0


@contextmanager
def noting(connection: TargetConnection, task: str) -> Iterator[None]:
    """An error of the block is written down, where the target takes it, over a connection of its own.

    It needs no fence: whoever comes later replaces it, and nothing depends on it.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        message, hint = said_of(error)
        # The failure itself is what is raised.
        with suppress(Exception), TargetConnection.open(connection.settings, timeout_s=_TIMEOUT_S) as other:
            other.execute(
                f"REPLACE INTO {other.table('failed')} (task, error, message, hint) VALUES (%s, %s, %s, %s)",
                (task, type(error).__name__, message, hint),
            )
        raise
    with suppress(BinlogError):
        connection.execute(f"DELETE FROM {connection.table('failed')} WHERE task = %s", (task,))


def read_failed(connection: TargetConnection, task: str) -> str:
    """``2026-11-21 03:00:00Z: message (hint)`` of a load that failed, where none has ended well since; '' = none."""
    if not connection.has_table("failed"):
        return ""
    rows = connection.query(
        "SELECT DATE_FORMAT(failed_at, '%%Y-%%m-%%d %%H:%%i:%%sZ'), message, hint"
        f" FROM {connection.table('failed')} WHERE task = %s",
        (task,),
    )
    return "".join(f"{at}: {message}{f' ({hint})' if hint else ''}" for at, message, hint in rows)
