"""Pumps that hold a window: a silent one is named in the log of its pull; when another pull would get further."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog

from binlog_airflow.advice import in_airflow
from pumphouse.errors import BinlogError
from pumphouse.model.node import NodeKind

if TYPE_CHECKING:
    from pumphouse.model.tso import Tso
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


def may_go_on(parts: Parts, node_id: str, end: Tso) -> bool:
    """Whether a pull up to ``end`` of a Pump that held the window could get further now.

    Asks the registry, and our Pump where it is not silent. Anything else is for the pull to judge: a Pump that is gone
    or offline, and a Go Pump, which cannot be asked.
    """
    from pumphouse.archive.puller import open_puller
    from pumphouse.client.admin import is_silent
    from pumphouse.errors import PumpUnavailable
    from pumphouse.rpc.operator import proof

    status = parts.cluster.node(NodeKind.PUMP, node_id)
    if status is None or status.left:
        return True
    if is_silent(status):
        return False
    settings = parts.settings
    try:
        with closing(open_puller(status, parts.cluster.cluster_id(), settings.tls, proof(settings.cluster))) as puller:
            answer = puller.status()
    except PumpUnavailable:
        return False
    return answer is None or answer.watermark > end
