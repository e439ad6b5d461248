"""Which kind of server the tests load into and dump from: ``pytest --server mysql``, a MariaDB where nothing is said."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

KINDS = ("mariadb", "mysql")
# A root file system with MySQL's programs (`tests.support.mysql` makes it).
MYSQL_ROOT = Path(__file__).resolve().parents[2] / "build" / "mysql" / "root"
MYSQL_PROGRAM = MYSQL_ROOT / "usr" / "sbin" / "mysqld"
MISSING_MYSQL = "" if MYSQL_PROGRAM.exists() else "no MySQL in build/mysql: `make mysql` makes it (root, debootstrap)"
_chosen = KINDS[0]


def choose(kind: str) -> None:
    """Say it, before the first test."""
    global _chosen
    _chosen = kind


def chosen() -> str:
    """One of `KINDS`."""
    return _chosen


def is_mysql() -> bool:
    """Whether it is MySQL."""
    return _chosen == "mysql"


class XaGate:
    """Keeps apart whoever kills a server and the XA statement amid which its binlog and its rows part (docs/limits.md).

    A MySQL that is killed amid XA COMMIT … ONE PHASE rolls back what its binlog has. A MariaDB that is killed amid
    XA PREPARE has prepared what its binlog lacks.
    """

    def __init__(self) -> None:
        self.killing = threading.Lock()

    def around(self, statement: str) -> AbstractContextManager[object]:
        """What a session holds meanwhile."""
        return self.killing if ("ONE PHASE" if is_mysql() else "XA PREPARE") in statement else nullcontext()
