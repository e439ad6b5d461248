"""``pumphouse pump status``: what a Pump says of itself; what holds its watermark, its GC, the archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import grpc

from pumphouse.cli import Context, pass_context
from pumphouse.client import admin
from pumphouse.commands.moments import clock_time
from pumphouse.commands.nodes import json_option, open_registry, print_json, print_table
from pumphouse.errors import PumpUnavailable, UsageError
from pumphouse.model.node import NodeStatus
from pumphouse.model.tso import show
from pumphouse.proto.pumphouse_pb2 import PendingCommit, StatusRequest, StatusResponse
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.status import from_rpc_error

_TIMEOUT_S = 30.0
_TIMES = ("watermark", "gc_point", "deletion_limit")


@click.command("status")
@click.argument("node_id")
@json_option
@pass_context
def status_command(context: Context, node_id: str, *, as_json: bool) -> None:
    """Show what Pump NODE_ID says of itself: watermark, unresolved prewrites, late and orphan commits, GC, disk."""
    cluster = open_registry(context.settings)
    node = admin.find_node(cluster, node_id)
    with open_channel(node.host, context.settings.tls) as channel:
        try:
            status = PumpBatchStub(channel).Status(StatusRequest(cluster_id=cluster.cluster_id()), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise UsageError(
                    f"{node_id} is a Go Pump, which has no such status",
                    hint=f"GET http://{node.host}/status and /metrics",
                    node_id=node_id,
                ) from error
            failed = from_rpc_error(error, peer=node_id)
            if isinstance(failed, PumpUnavailable) and not failed.hint:
                failed.add_hint(f"it is {_last_seen(node)}; {_next_step(node)}")
            raise failed from error
    if as_json:
        print_json(status_dict(status))
    else:
        _print(status)


def _last_seen(node: NodeStatus) -> str:
    return f"registered as {node.state.value} at {node.host}, its last heartbeat is {admin.age_s(node):,.0f} s old"


def _next_step(node: NodeStatus) -> str:
    if node.left:
        return (
            "it is out of the cluster; unless it was declared lost, `pumphouse pump run` on its data directory"
            " brings it back"
        )
    return "`pumphouse pump run` on its data directory starts it; `pumphouse pumps` shows the others"


def status_dict(status: StatusResponse) -> dict[str, Any]:
    """The status as ``--json`` shows it; formats.md, "Command output"."""
    plain = ("node_id", "incarnation", "start_count", "version", "state", "unresolved", "duplicate_commits",
             "value_log_bytes", "value_log_files", "available_bytes", "read_only", "writer_failed", "sync_log",
             "slow_mode")  # fmt: skip
    return (
        {name: getattr(status, name) for name in plain}
        | _times(**{name: getattr(status, name) for name in _TIMES})
        | {
            "gc_held_by": list(status.gc_held_by),
            "in_clear": list(status.in_clear),
            "oldest_unresolved": [
                _times(start=each.start_ts) | {"age_s": each.age_ms / 1000, "key": each.prewrite_key.hex()}
                for each in status.oldest_unresolved
            ],
            "late": [_pending(each) for each in status.late],
            "orphans": [_pending(each) for each in status.orphans],
        }
    )


def _times(**found: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, ts in found.items():
        out |= {f"{name}_ts": int(ts), f"{name}_time": clock_time(ts)}
    return out


def _pending(commit: PendingCommit) -> dict[str, Any]:
    return _times(start=commit.start_ts, commit=commit.commit_ts) | {"accepted": commit.accepted}


def _print(status: StatusResponse) -> None:
    modes = (("read-only", status.read_only), ("writes no more", status.writer_failed), ("slow mode", status.slow_mode))
    state = ", ".join([status.state, *(name for name, on in modes if on)])
    rows = [
        ("node", status.node_id),
        ("version", status.version or "-"),
        ("incarnation", f"{status.incarnation}, start {status.start_count}"),
        ("state", state),
        ("watermark", show(status.watermark)),
        ("GC point", show(status.gc_point)),
        ("deletion limit", show(status.deletion_limit)),
        ("GC held by", ", ".join(status.gc_held_by) or "-"),
        ("unresolved prewrites", f"{status.unresolved:,}"),
        ("late commits", _count(status.late)),
        ("orphan commits", _count(status.orphans)),
        ("duplicate commits", f"{status.duplicate_commits:,}"),
        ("value log", f"{status.value_log_bytes:,} B in {status.value_log_files:,} files"),
        ("disk", f"{status.available_bytes:,} B free"),
        ("fsync of each write", "yes" if status.sync_log else "no"),
        ("listens in clear", ", ".join(status.in_clear) or "-"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")
    if status.oldest_unresolved:
        click.echo("\nunresolved prewrites, oldest first:")
        print_table(
            ("START TS", "AGE", "KEY"),
            [(show(p.start_ts), f"{p.age_ms / 1000:,.1f} s", p.prewrite_key.hex()) for p in status.oldest_unresolved],
        )
    for name, commits in (("late", status.late), ("orphan", status.orphans)):
        if commits:
            click.echo(f"\n{name} commits:")
            print_table(
                ("START TS", "COMMIT TS", "ACCEPTED"),
                [(show(c.start_ts), show(c.commit_ts), "yes" if c.accepted else "no") for c in commits],
            )


def _count(commits: Sequence[PendingCommit]) -> str:
    waiting = sum(not each.accepted for each in commits)
    return f"{len(commits):,}, {waiting:,} of them not accepted" if commits else "0"
