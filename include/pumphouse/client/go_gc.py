"""Go Pumps below an archive: their GC goes by age alone, so the archive has to be ahead of it (row P11).

A Go Pump asks no consumer: each hour it forgets what is older than its ``gc``. A pull from below that begins above
what is gone, without an error. So the distance is looked at before, and what is told of it names both ends.
"""

from __future__ import annotations

import http.client
import re
import time
from contextlib import closing
from dataclasses import dataclass

from pumphouse.errors import BinlogError
from pumphouse.model.node import NodeState, NodeStatus
from pumphouse.model.tso import Tso, compose, physical_ms, show
from pumphouse.rpc.tls import http_connection
from pumphouse.settings import TlsSettings

HTTP_TIMEOUT_S = 5.0
_METRICS_BYTES = 8 << 20
_PIECE = 64 << 10
_GC_TS = re.compile(rb"^binlog_pump_storage_gc_ts ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoLimits:
    """What Go Pumps are compared with. ``retention_s``: their ``gc``, which no registry record tells."""

    archived: Tso | None  # the archive's checkpoint; None = there is none to compare with
    retention_s: float
    margin_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far the archive is ahead of what a Go Pump may have forgotten."""

    node_id: str
    archived: Tso
    gone_upto: Tso
    left_s: float
    enough: bool
    nothing_more: bool  # it is paused, and the archive has all that it had ordered

    def text(self) -> str:
        """One sentence with both ends."""
        have = f"the archive has up to {show(self.archived)}" if self.archived else "the archive has nothing yet"
        gone = f"it may have freed what lies up to {show(self.gone_upto)}"
        if self.nothing_more:
            return f"it is paused, and {have}, which is all that it had ordered"
        left = f"{span(self.left_s)} left" if self.left_s >= 0 else f"{span(-self.left_s)} behind"
        return f"{have}, {gone}: {left}"


def span(seconds: float) -> str:
    """``6 d 4 h``, ``3 h 20 min``, ``5 min``."""
    minutes = int(seconds // 60)
    days, hours = divmod(minutes // 60, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def distance(pump: NodeStatus, limits: GoLimits, now: Tso, told: Tso | None) -> Distance | None:
    """Compare; None when there is no archive. ``told``: the GC point that the Pump itself names.

    That one counts where it is later than its age allows: its real ``gc`` is shorter than the setting then. An earlier
    one does not, the next run brings it up to the age; nor does one of the future, which is none.
    """
    if limits.archived is None:
        return None
    aged = compose(max(physical_ms(now) - int(limits.retention_s * 1000), 0))
    gone = Tso(max(aged, told if told is not None and told <= now else 0))
    left_s = (physical_ms(limits.archived) - physical_ms(gone)) / 1000
    # One that runs may have more than its last heartbeat says.
    nothing_more = pump.state is NodeState.PAUSED and 0 < pump.max_commit_ts <= limits.archived
    return Distance(
        node_id=pump.node_id,
        archived=limits.archived,
        gone_upto=gone,
        left_s=left_s,
        enough=nothing_more or left_s >= limits.margin_s,
        nothing_more=nothing_more,
    )


def told_gc_point(pump: NodeStatus, tls: TlsSettings) -> Tso | None:
    """The GC point in a running Go Pump's metrics; None where it does not say: its age decides alone then."""
    if not pump.host or pump.state in (NodeState.PAUSED, NodeState.OFFLINE):
        return None
    try:
        found = _GC_TS.search(_metrics(pump.host, tls))
        return compose(int(float(found[1]))) if found is not None else None
    except (BinlogError, OSError, ValueError, OverflowError, http.client.HTTPException):
        return None


def _metrics(host: str, tls: TlsSettings) -> bytes:
    """As much of them as comes in time: a peer that sends byte by byte holds nobody up."""
    until = time.monotonic() + HTTP_TIMEOUT_S
    with closing(http_connection(host, tls, HTTP_TIMEOUT_S)) as connection:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        read = b""
        while len(read) < _METRICS_BYTES and time.monotonic() < until and (piece := answer.read1(_PIECE)):
            read += piece
        return read
