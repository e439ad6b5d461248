"""A Pump that is silent while it is pulled is named in the task's log, long before the pull gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from binlog_airflow.advice import in_airflow
from pumphouse.errors import BinlogError
from pumphouse.model.node import NodeKind

if TYPE_CHECKING:
    from pumphouse.parts import Parts

log = structlog.get_logger()
# With the 10 s after which a heartbeat is overdue: named within 30 s.
LOOK_EVERY_S = 10.0
_SILENT = "Pump {} at {} is silent: no heartbeat for ten seconds or more. Look at its process; the pull goes on with it"


@contextmanager
def naming_silence(open_parts: Callable[[], Parts], node_id: str, *, every_s: float = LOOK_EVERY_S) -> Iterator[None]:
    """While this lasts, look at the Pump's heartbeat; ``open_parts`` is called in the thread that looks."""
    over = threading.Event()

    def look() -> None:
        from pumphouse.client.admin import is_silent

        with open_parts() as parts:
            while not over.wait(every_s):
                try:
                    found = parts.cluster.node(NodeKind.PUMP, node_id)
                except BinlogError as error:
                    log.warning("registry_not_read", error=error.said(in_airflow))
                    continue
                if found is not None and is_silent(found):
                    log.warning(_SILENT.format(node_id, found.host))

    thread = threading.Thread(target=look, name="naming-silence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(every_s)
