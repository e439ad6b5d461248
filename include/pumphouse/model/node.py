"""Registered nodes: Pumps, and consumers of Pumps (Drainers, the archive).

The first eight JSON fields are those of TiDB Binlog, in its order. Everything of ours lies in one further object,
``pumphouse``, which the Go tools ignore (and drop when they rewrite a status; the next heartbeat puts it back).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Self

from pumphouse.errors import CorruptionError
from pumphouse.model import strict
from pumphouse.model.record import Named, Record
from pumphouse.model.tso import Tso

REGISTRY_ROOT = "/tidb-binlog/v1"


class NodeKind(StrEnum):
    """Folder of the registry."""

    PUMP = "pumps"
    DRAINER = "drainers"


class NodeState(StrEnum):
    """State of a node."""

    ONLINE = "online"
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced(Record):
    """An incarnation that another one found under its node id when it registered: its last start and heartbeat.

    ``incarnation`` '' and ``start_count`` 0 where the value found was a Go Pump's.
    """

    incarnation: str
    start_count: Annotated[int, Named("startCount")]
    update_ts: Annotated[Tso, Named("updateTS")] = Tso(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpExtra:
    """What our Pumps add to their status. A Go Pump has none of it.

    ``replaced``: the incarnations that had this node id before, oldest first, the last few of them.
    """

    incarnation: str
    start_count: int
    synced_fid: int = 0
    synced_offset: int = 0
    http: str = ""
    batch: bool = True
    sync_log: bool = True
    replaced: tuple[Replaced, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "incarnation": self.incarnation,
            "startCount": self.start_count,
            "syncedEnd": {"fid": self.synced_fid, "offset": self.synced_offset},
            "http": self.http,
            "batch": self.batch,
            "syncLog": self.sync_log,
            "replaced": [each.to_dict() for each in self.replaced],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        end = data.get("syncedEnd") or {}
        return cls(
            incarnation=strict.text(data["incarnation"]),
            start_count=strict.integer(data["startCount"]),
            synced_fid=strict.integer(end.get("fid", 0)),
            synced_offset=strict.integer(end.get("offset", 0)),
            http=strict.text(data.get("http", "")),
            batch=bool(data.get("batch", True)),
            sync_log=bool(data.get("syncLog", True)),
            replaced=tuple(Replaced.from_dict(each) for each in data.get("replaced") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One registered node."""

    node_id: str
    host: str
    state: NodeState
    score: int = 0
    label: dict[str, str] | None = None
    max_commit_ts: Tso = Tso(0)
    update_ts: Tso = Tso(0)
    is_alive: bool = False
    extra: PumpExtra | None = None
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> bool:
        """Whether it has left the cluster: nothing waits for it, and it holds nothing, GC neither."""
        return self.state is NodeState.OFFLINE

    @property
    def seen_ts(self) -> Tso:
        """The latest moment that it has shown to have run at: the clock of its heartbeats may have stood still."""
        return max(self.update_ts, self.max_commit_ts)

    def with_(self, **changes: Any) -> NodeStatus:
        """Copy with changes."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """JSON object, fields in TiDB Binlog's order."""
        data: dict[str, Any] = {
            "nodeId": self.node_id,
            "host": self.host,
            "state": str(self.state),
            "isAlive": self.is_alive,
            "score": self.score,
            "label": None if self.label is None else {"labels": self.label},
            "maxCommitTS": int(self.max_commit_ts),
            "updateTS": int(self.update_ts),
        }
        if self.extra is not None:
            data["pumphouse"] = self.extra.to_dict()
        data.update(self.unknown)
        return data

    def to_json(self) -> bytes:
        """Compact JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read a registry value, also one written by the Go tools."""
        try:
            data = strict.loads(text)
            label = data.get("label")
            extra = data.get("pumphouse")
            return cls(
                node_id=strict.text(data["nodeId"]),
                host=strict.text(data.get("host", "")),
                state=NodeState(data["state"]),
                is_alive=bool(data.get("isAlive", False)),
                score=strict.integer(data.get("score", 0), -strict.MAX_INT64),
                label=None if label is None else dict(label.get("labels") or {}),
                max_commit_ts=Tso(strict.integer(data.get("maxCommitTS", 0))),
                update_ts=Tso(strict.integer(data.get("updateTS", 0))),
                extra=None if extra is None else PumpExtra.from_dict(extra),
                unknown={k: v for k, v in data.items() if k not in _KNOWN},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(
                f"a registry value is no node status ({error}): {text!r:.200}", reason=str(error)
            ) from error


_KNOWN = {
    "nodeId", "host", "state", "isAlive", "score", "label", "maxCommitTS", "updateTS", "pumphouse",
}  # fmt: skip


def is_node_id(node_id: str) -> bool:
    """Whether a node may be registered under it: it is one element of a key, of file names and of log lines."""
    return bool(node_id) and "/" not in node_id and node_id.isprintable()
