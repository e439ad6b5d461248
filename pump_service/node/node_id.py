"""Who this Pump is: its node id and the cluster that it belongs to, kept with its data."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import structlog

from pump_service.store.store import Elsewhere
from pumphouse.archive.layout import safe_name
from pumphouse.durable import PRIVATE_DIR, make_dirs, write_atomic
from pumphouse.errors import ClusterMismatch, ConfigError, CorruptionError
from pumphouse.model import strict

log = structlog.get_logger()

NODE_FILE = ".node"
_NAME_BYTES = 255  # of a file's name in an archive
CLUSTER_FILE = Path("pumphouse") / "cluster.json"


def node_id_of(data_dir: Path, wanted: str, advertised: str) -> str:
    """Node id of a data directory; what is stored there wins, as in the Go Pump (docs/formats.md).

    Args:
        data_dir: made when it is missing.
        wanted: the setting ``node_id``, '' for none.
        advertised: ``host:port`` that others connect to; its port goes into an id made here.

    Raises:
        ConfigError: it cannot be one; of a stored id, no more than what the registry needs is asked.
    """
    path = data_dir / NODE_FILE
    stored = path.read_text().strip() if path.exists() else ""
    if stored:
        if wanted and wanted != stored:
            log.warning(
                "node_id_setting_ignored",
                setting=wanted,
                stored=stored,
                path=str(path),
                hint="a data directory is one node for ever; a new node takes an empty one",
            )
        return check_node_id(stored)
    node_id = check_node_id(wanted or f"{socket.gethostname()}:{advertised.rpartition(':')[2]}")
    if len(safe_name(node_id)) > _NAME_BYTES:
        raise ConfigError(
            f"{node_id!r} is too long a node id",
            hint=f"at most {_NAME_BYTES} characters, of which one that is not ASCII takes six or more: the archive's "
            "files are named by it",
            node_id=node_id,
        )
    make_dirs(data_dir, PRIVATE_DIR)
    # Stored even when it was a setting: a data directory is one node for ever, whatever the next start is told.
    write_atomic(path, node_id.encode(), mode=0o600)
    return node_id


def has_node_id(data_dir: Path) -> bool:
    """Whether the directory has a node id already."""
    return (data_dir / NODE_FILE).exists()


def refuse_second(data_dir: Path, elsewhere: Elsewhere | None, *, stored: bool) -> None:
    """ConfigError for a directory that none of our Pumps has served from yet, while a Pump answers under its node id.

    That one would end itself for this one (a Go Pump would not, and both would write the same key of the registry). A
    node id that this very start has ``stored`` is taken back, so that the next may be given another.
    """
    if elsewhere is None or not elsewhere.answers or (data_dir / CLUSTER_FILE).exists():
        return
    if stored:
        (data_dir / NODE_FILE).unlink(missing_ok=True)
    raise ConfigError(
        f"a Pump runs at {elsewhere.addr} under this node id, and {data_dir} is not its data directory",
        hint="leave that one running, and give this one a node id of its own: --node-id, or leave that out. "
        "Is that one dead: start this one again when its heartbeat is 10 s old",
        found=elsewhere.addr,
    )


def has_cluster(data_dir: Path) -> bool:
    """Whether the directory belongs to a cluster already."""
    return (data_dir / CLUSTER_FILE).exists()


def check_cluster(data_dir: Path, cluster_id: int) -> None:
    """ClusterMismatch when the data was written for another cluster: its binlogs must never be served as this one's."""
    path = data_dir / CLUSTER_FILE
    if not path.exists():
        return
    try:
        stored = strict.integer(strict.loads(path.read_bytes())["cluster_id"], 0, (1 << 64) - 1)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} names no cluster: {error}", path=str(path), reason=str(error)) from error
    if stored != cluster_id:
        raise ClusterMismatch(
            f"{data_dir} holds binlogs of cluster {stored}, the setting cluster.url leads to cluster {cluster_id}",
            hint="check cluster.url, or give this cluster's Pump a data directory of its own",
            got=cluster_id,
            want=stored,
        )


def keep_cluster(data_dir: Path, cluster_id: int) -> None:
    """Write down the cluster of an open data directory; blocks."""
    path = data_dir / CLUSTER_FILE
    if not path.exists():
        write_atomic(path, json.dumps({"format_version": 1, "cluster_id": cluster_id}).encode() + b"\n")


def check_node_id(node_id: str) -> str:
    """The id itself, or ConfigError: it is one element of a registry key and of names in the archive."""
    if not node_id or node_id != node_id.strip() or any(c in "/\\\0" or not c.isprintable() for c in node_id):
        raise ConfigError(f"{node_id!r} is no node id", hint="printable, no slash", node_id=node_id)
    if node_id in {".", ".."} or len(node_id.encode()) > 200:
        raise ConfigError(f"{node_id!r} is no node id", hint="at most 200 bytes", node_id=node_id)
    return node_id
