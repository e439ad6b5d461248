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


def amid_one_phase() -> AbstractContextManager[object]:
    """What a session holds around XA COMMIT … ONE PHASE, and whoever kills the server.

    A MySQL that is killed amid that statement rolls back what its binlog has (docs/limits.md), and equals it no more.
    """
    return threading.Lock() if is_mysql() else nullcontext()
