"""``pumphouse pump``: run a Pump; show its status; settle a prewrite whose outcome nobody answers."""

from __future__ import annotations

import getpass
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import grpc

from pump_service.command.go_command import GoCommand, go_options, settings_of
from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context
from pumphouse.commands.moments import read_time
from pumphouse.commands.nodes import yes_option
from pumphouse.commands.pump_status import status_command
from pumphouse.errors import PumpUnavailable, UsageError
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.tso import show
from pumphouse.progress import bar
from pumphouse.proto.pumphouse_pb2 import SettleRequest, StatusRequest
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.base import Cluster, ResolverRecord
from pumphouse.registry.open import open_cluster
from pumphouse.registry.pd import PdCluster
from pumphouse.registry.resolvers import is_live
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.operator import proof
from pumphouse.rpc.status import from_rpc_error
from pumphouse.settings import TlsSettings

_TIMEOUT_S = 30.0


@click.group()
def pump() -> None:
    """Run a Pump, show its status, settle a prewrite."""


pump.add_command(status_command)


@pump.command(cls=GoCommand)
@go_options
@pass_context
def run(context: Context, /, config: Path | None, **options: str | None) -> None:
    """Run a Pump until SIGTERM; one JSON line on stdout says where it serves.

    Takes the Go Pump's flags, also with one dash, its pump.toml and its PUMP_… variables. Flags beat variables,
    variables beat files.
    """
    settings = settings_of(context.read, config, options)
    from pump_service.command.cli import serve

    sys.exit(serve(settings))


@pump.command()
@click.argument("start_ts", type=int)
@click.option("--committed", metavar="TIME", help="It was committed at this TSO.")
@click.option("--rolled-back", is_flag=True, help="It was rolled back, and no commit can follow.")
@click.option("--reason", required=True, help="Why this is known; recorded by the Pump.")
@click.option("--node", help="The Pump that holds it; default: ask every Pump.")
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_context
def settle(
    context: Context,
    start_ts: int,
    committed: str | None,
    rolled_back: bool,
    reason: str,
    node: str | None,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Record the outcome of the transaction with START_TS, if no resolver answers.

    This is the last way out: a wrong answer loses a transaction, or invents one. If a registered resolver may answer
    for its key, the command asks for confirmation.
    """
    if (committed is None) == (not rolled_back):
        raise click.UsageError("give one of --committed TIME and --rolled-back")
    settings = context.settings
    cluster = open_cluster(settings.cluster, settings.tls, create=False)
    commit_ts = 0 if committed is None else int(read_time(settings, committed, cluster.tso))
    holders, silent, key = _holders(cluster, settings.tls, start_ts, node)
    may_know = [r for r in cluster.resolvers() if key is None or any(map(key.startswith, r.prefixes))]
    if may_know:
        confirm(_who_knows(may_know, key), yes=yes)
    elif isinstance(cluster, PdCluster):
        confirm(
            "TiKV answers for its key, and the Pump goes on asking it. Settle this only if the Pump says that TiKV "
            "cannot know any more (`gc_passed_prewrite` in its log). If what you say now is wrong, the archive is "
            "wrong for good.",
            yes=yes,
        )
    request = SettleRequest(
        cluster_id=cluster.cluster_id(), start_ts=start_ts, commit_ts=commit_ts, reason=reason, who=getpass.getuser()
    )
    for holder in holders:
        with open_channel(holder.host, settings.tls) as channel:
            try:
                PumpBatchStub(channel).Settle(request, timeout=_TIMEOUT_S, metadata=proof(settings.cluster))
            except grpc.RpcError as error:
                raise from_rpc_error(error, peer=holder.node_id) from error
    outcome = f"committed at {show(commit_ts)}" if commit_ts else "rolled back"
    if as_json:
        told = {"start_ts": start_ts, "commit_ts": commit_ts, "pumps": [h.node_id for h in holders], "silent": silent}
        click.echo(json.dumps(told))
    else:
        click.echo(f"{show(start_ts)}: {outcome}, on {', '.join(h.node_id for h in holders)}")
    if silent:
        click.echo(
            f"warning: no answer from {', '.join(silent)}: a prewrite that was sent twice waits there too. When it "
            "runs again, settle it there in the same way, and in no other",
            err=True,
        )


def _who_knows(found: Sequence[ResolverRecord], key: bytes | None) -> str:
    now = time.time()
    who = ", ".join(f"{r.resolver_id} ({'live' if is_live(r, now) else 'down'})" for r in found)
    what = (
        "answers for its key"
        if key is not None
        else "may answer for it (its key is not among those that the Pump shows)"
    )
    return (
        f"{who}: a resolver that {what} is registered. It tells the Pump what became of this transaction, when it runs "
        "again at the latest. If what you say now is wrong, the archive is wrong for good."
    )


def _holders(
    cluster: Cluster, tls: TlsSettings, start_ts: int, node: str | None
) -> tuple[list[NodeStatus], list[str], bytes | None]:
    """The Pumps on which the prewrite is unresolved, those that do not answer, and its key where one shows it.

    A retried one may be on several. A Pump shows its oldest ones only: with ``node`` that one is taken at its word.
    """
    pumps = [n for n in cluster.nodes(NodeKind.PUMP) if not n.left and node in (None, n.node_id)]
    if not pumps:
        what = "no Pump is registered" if node is None else f"no Pump {node!r} is registered, or it is offline"
        raise UsageError(what, hint="`pumphouse pumps` lists them")
    holders, silent, key = [], [], None
    for each in pumps:
        with open_channel(each.host, tls) as channel:
            try:
                status = PumpBatchStub(channel).Status(
                    StatusRequest(cluster_id=cluster.cluster_id()), timeout=_TIMEOUT_S
                )
            except grpc.RpcError as error:
                if node is not None:
                    raise PumpUnavailable(
                        f"Pump {node} does not answer at {each.host}: {from_rpc_error(error).message}",
                        hint="start it: `pumphouse pump run` on its data directory",
                        node_id=node,
                    ) from error
                silent.append(each.node_id)
                continue
        if node is not None:
            holders.append(each)
        for shown in status.oldest_unresolved:
            if shown.start_ts == start_ts:
                key = shown.prewrite_key
                if node is None:
                    holders.append(each)
    if not holders:
        also = f"; no answer from {', '.join(silent)}" if silent else ""
        hint = "`pumphouse pump status NODE_ID` shows the oldest ones of each; of a younger one say where it is: --node"
        if silent:
            hint = f"if it is on one that does not answer, start that: `pumphouse pump run`. {hint}"
        raise UsageError(f"no Pump shows an unresolved prewrite with start ts {show(start_ts)}{also}", hint=hint)
    return holders, silent, key


@pump.command("verify")
@click.argument("data_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify_command(data_dir: Path, *, as_json: bool) -> None:
    """Read and check every record of the value log in DATA_DIR; changes nothing. Exit 1 if anything is wrong.

    A Pump may run on the directory; its newest file is then left out.
    """
    from pump_service.store.damage import verify

    with bar(enabled=not as_json) as shown:
        report = verify(data_dir, tick=lambda done, total: shown("files", done, total))
    if as_json:
        click.echo(json.dumps(report.to_dict()))
    else:
        for problem in report.problems:
            click.echo(problem)
        for damage in report.damages:
            click.echo(f"{damage.name}: {damage.reason}{', accepted' if damage.accepted else ''}")
        for note in report.notes:
            click.echo(f"({note})")
        accepted = sum(damage.accepted for damage in report.damages)
        verdict = f"everything else reads, {accepted} stretches are given up" if accepted else "everything reads"
        if not report.sound:
            verdict = (
                "damaged. Put the files back from a copy if there is one; else `pumphouse pump accept-damage "
                f"{shlex.quote(str(data_dir))} FILE:FROM-TO --reason …` gives stretches up"
            )
        click.echo(f"{report.files} files, {report.records} records, {report.bytes / 1e6:.1f} MB: {verdict}")
    sys.exit(0 if report.sound else 1)


@pump.command("accept-damage")
@click.argument("data_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("stretches", nargs=-1, required=True, metavar="FILE:FROM-TO...")
@click.option("--reason", required=True, help="Why the bytes are given up; recorded.")
def accept_damage(data_dir: Path, stretches: tuple[str, ...], reason: str) -> None:
    """Give up damaged bytes of a stopped Pump's value log, as `pump verify` names them.

    The bytes stay where they are, and the Pump reads past them. They may have held answered binlogs, so the Pump takes
    a new incarnation, which makes the archive ask for the gap to be declared, and rebuilds its index.
    """
    from pump_service.store.damage import accept

    for damage in accept(data_dir, stretches, reason=reason, who=getpass.getuser(), at=time.time()):
        click.echo(f"{damage.name}: accepted")
