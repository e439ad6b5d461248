"""``pumphouse archive`` and ``pumphouse snapshot``: start, extend, list, verify and mend the archive."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base
from pumphouse.archive.copyof import read_copy_of
from pumphouse.archive.declare import accept as accept_commit
from pumphouse.archive.declare import declarations, declare_lost, known_pump
from pumphouse.archive.init import describe, init_archive
from pumphouse.archive.layout import GENESIS, window_key
from pumphouse.archive.manifest import Manifest
from pumphouse.archive.proofs import newest_proof
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.archive.verified import write_verified
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.archive.window import ProgressSink, PullProgress
from pumphouse.archive.windows import Totals, Windows
from pumphouse.ask import confirm
from pumphouse.capture.passed import waiter
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.client.admin import is_running
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.commands.base import base_command
from pumphouse.commands.compact import compact_command
from pumphouse.commands.copy import copy_command, promote_command
from pumphouse.commands.expire import expire_command, mark_command, marks_command, unmark_command
from pumphouse.commands.export import export_command
from pumphouse.commands.file_import import import_command
from pumphouse.commands.find import find_command
from pumphouse.commands.history import changes_command, versions_command
from pumphouse.commands.moments import read_time, with_times
from pumphouse.commands.proof import proofs_command, prove_command
from pumphouse.dump.run import DumpReport, take_dump
from pumphouse.errors import UsageError
from pumphouse.model.tso import MAX_TSO, Tso, show
from pumphouse.parts import Parts
from pumphouse.registry.base import Cluster
from pumphouse.rpc.operator import proof
from pumphouse.runs.copy import require_two_places
from pumphouse.settings import Settings

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
_NEWEST_SHOWN = 10


def _open(settings: Settings) -> tuple[Archive, Cluster]:
    parts = Parts(settings)
    return parts.archive, parts.cluster


def _print_json(value: Any) -> None:
    click.echo(json.dumps(with_times(value), indent=2))


@contextlib.contextmanager
def _bars() -> Iterator[Progress | None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=True) as shown:
        yield shown


def _pull_bars(shown: Progress | None) -> tuple[ProgressSink, Callable[[str], None]]:
    """A bar for each Pump, and a line for what the commit waits for."""
    if shown is None:
        return (lambda _: None), (lambda _: None)
    tasks: dict[str, Any] = {}

    def pulled(each: PullProgress) -> None:
        if each.node_id not in tasks:
            tasks[each.node_id] = shown.add_task(each.node_id, total=1.0, note="")
        note = each.waiting_for or f"{each.rows:,} binlogs, {decimal(each.payload_bytes)}"
        shown.update(tasks[each.node_id], completed=each.part, note=note)

    def waiting(why: str) -> None:
        if "commit" not in tasks:
            tasks["commit"] = shown.add_task("commit", total=None, note="")
        shown.update(tasks["commit"], note=why)

    return pulled, waiting


_SAY_AGAIN_S = 30.0
# A window is held for a moment by each transaction that is about to end.
_HELD_S = 10.0


def naming_holders(sink: ProgressSink, clock: Clock = SYSTEM_CLOCK) -> ProgressSink:
    """The sink, and a line on stderr for a Pump that holds the window, every 30 s while it does.

    One that does not answer is named at once, one that answers and waits for something after ten seconds.
    """
    said: dict[str, float] = {}
    since: dict[str, float] = {}

    def pulled(each: PullProgress) -> None:
        sink(each)
        now = clock.monotonic()
        began = since.setdefault(each.node_id, now)
        if not each.waiting_for or each.silent_at:
            since[each.node_id] = began = now
        if now - said.get(each.node_id, float("-inf")) < _SAY_AGAIN_S:
            return
        if now - began >= _HELD_S:
            said[each.node_id] = now
            click.echo(
                f"pumphouse: Pump {each.node_id} holds the window: {each.waiting_for}. `pumphouse pump status"
                f" {each.node_id}` lists what it waits for; see docs/operations.md, 'When a window is held'",
                err=True,
            )
        elif each.silent_at:
            said[each.node_id] = now
            click.echo(
                f"pumphouse: waiting for Pump {each.node_id} at {each.silent_at}: {each.waiting_for}. Start it, and the"
                " snapshot goes on; if it will never return: docs/operations.md, 'When a window is held'",
                err=True,
            )

    return pulled


@click.command()
@click.option("--until", default="now", show_default=True, metavar="TIME", help="Up to this TIME.")
@json_option
@pass_context
def snapshot(context: Context, *, until: str, as_json: bool) -> None:
    """Extend the archive from its end to a moment, in one window or several."""
    settings = context.settings
    archive, cluster = _open(settings)
    to = read_time(settings, until, cluster.tso)
    with _bars() as shown:
        pulled, waiting = _pull_bars(shown)
        history = Parts(settings).history
        done = run_snapshot(archive, cluster, to, settings, history, naming_holders(pulled), waiting=waiting)
    if as_json:
        _print_json({"end": int(archive.end()), "windows": [asdict(each) for each in done]})
        return
    if not done:
        click.echo(f"nothing to do: the archive reaches {show(archive.end())}")
    for window in done:
        click.echo(
            f"{window.manifest}: up to {show(window.end)}, {window.rows} transactions, "
            f"{window.changes} row changes, {window.ddls} DDLs, {decimal(window.payload_bytes)}"
        )
        for loss in window.declared:
            click.echo(f"  declared lost: {loss.node_id} up to {show(loss.to_ts)}: {loss.reason}")
        if window.binlog_skipped:
            click.echo("  TiDB skips binlogs (ignore-error): its writes are missing here; restart from a new genesis")
        if window.unsynced:
            click.echo(f"  without fsync: {', '.join(window.unsynced)}")


@click.group()
def archive() -> None:
    """Start, list, verify and repair the archive."""


archive.add_command(base_command)
archive.add_command(compact_command)
for command in (copy_command, promote_command, expire_command, mark_command, marks_command, unmark_command):
    archive.add_command(command)
archive.add_command(prove_command)
archive.add_command(proofs_command)


@archive.command("init")
@click.option(
    "--dump",
    "with_dump",
    is_flag=True,
    help="Also dump the source (`archive dump`), so that restores have a start.",
)
@json_option
@pass_context
def init_command(context: Context, *, with_dump: bool, as_json: bool) -> None:
    """Begin the archive: register it, and store the current schema. If run again, it resumes."""
    settings = context.settings
    opened, cluster = _open(settings)
    if not opened.begun():
        require_two_places(settings.archive, settings.archive.copy_root)
    history = Parts(settings).history
    with _bars() as shown:
        task = shown.add_task("init", total=None, note="") if shown is not None else None

        def progress(what: str, rows: int) -> None:
            if shown is not None and task is not None:
                shown.update(task, note=f"{what} {rows or ''}")

        genesis = init_archive(opened, cluster, history, settings=settings, progress=progress)
    report = _dump(settings) if with_dump else None
    if as_json:
        found = {"ts": int(genesis.ts), "jobs": genesis.ddl.jobs, "pumps": [p.node_id for p in genesis.pumps]}
        _print_json(found if report is None else found | {"dump": report.to_dict()})
        return
    click.echo(f"{opened.url}: {describe(genesis)}")
    if not genesis.pumps:
        click.echo("no Pump is registered with the cluster yet: pumphouse pump run", err=True)
    if report is not None:
        _print_dump(report)
    elif genesis.base is None and not opened.bases(MAX_TSO):
        click.echo("nothing can be restored before a dump is taken: pumphouse archive dump")


@archive.command("dump")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="DB.TABLE",
    help="Read only this table again (DB.* = a whole database); take the rest from the newest dump. Repeatable.",
)
@json_option
@pass_context
def dump_command(context: Context, *, tables: tuple[str, ...], as_json: bool) -> None:
    """Dump the source ([source]) while applications write to it: every later moment can be restored.

    You may run it at any time, even months after `archive init`. It extends the archive as far as the dump needs. If a
    dump is killed, the next run continues where it stopped.
    """
    report = _dump(context.settings, tables or None)
    if as_json:
        _print_json(report.to_dict())
    else:
        _print_dump(report)


def _dump(settings: Settings, tables: tuple[str, ...] | None = None) -> DumpReport:
    with Parts(settings) as parts, _bars() as shown:
        task = shown.add_task("dump", total=None, note="") if shown is not None else None

        def progress(what: str, rows: int, estimate: int) -> None:
            if shown is not None and task is not None:
                note = f"{rows:,} of about {estimate:,} rows, {what}"
                shown.update(task, completed=rows, total=max(estimate, 1), note=note)

        return take_dump(
            parts.archive,
            parts.cluster,
            parts.history,
            settings,
            tables=tables,
            progress=progress,
            settle=waiter(parts.cluster, settings.source, settings.capture),
        )


def _print_dump(report: DumpReport) -> None:
    click.echo(
        f"{report.text()} ({decimal(report.bytes)}, {report.seconds:,.0f} s)\nrestorable from {show(report.ts)} on"
    )


@archive.command("ls")
@click.option(
    "--windows", "every", is_flag=True, help="List every window. Without it, you see the newest ones and totals."
)
@archive_option
@json_option
@pass_context
def ls_command(context: Context, *, every: bool, as_json: bool) -> None:
    """Show what the archive covers: genesis, windows, declared losses, its checkpoint on the Pumps.

    It needs no cluster: without one, only the checkpoint is not known.
    """
    parts = Parts(context.settings)
    opened, cluster = parts.readable_archive, parts.cluster_if_there
    genesis, lost = opened.genesis(), declarations(opened)
    checkpoint = None if cluster is None else consumer.checkpoint(cluster, opened.archive_id)
    of, view, proof = read_copy_of(opened.store), read_view(opened), newest_proof(opened)
    copied_from, a_copy = ("", "") if of is None else (of.url, f", a copy of {of.url}")
    bases, kept, windows, end = view.bases, view.kept, view.windows, view.end
    totals = windows.totals()
    if as_json:
        _print_json(
            {
                "url": opened.url,
                "cluster_id": opened.cluster_id,
                "archive_id": opened.archive_id,
                "copy_of": copied_from,
                "genesis": int(genesis.ts),
                "end": int(end),
                "checkpoint": None if checkpoint is None else int(checkpoint),
                "restorable_from": None if not bases else int(bases[0].ts),
                "kept_from_ts": int(kept.start),
                "expired_by": kept.expired_by,
                "expired_ms": kept.expired_ms,
                "marks": [each.to_dict() for each in kept.marks],
                "bases": [_base_dict(each) for each in bases],
                "proof": None if proof is None else proof.summary(),
                "declared": [each.to_dict() for each in lost],
                "totals": {"windows": len(windows), **totals._asdict()},
                **({"windows": [_window_dict(each) for each in windows]} if every else {}),
            }
        )
        return
    if bases:
        click.echo(f"restorable from {show(bases[0].ts)} to {show(end)}")
    else:
        click.echo("nothing can be restored before a dump is taken: pumphouse archive dump")
    click.echo(f"{opened.url}{a_copy}: {describe(genesis)}; {len(windows):,} windows up to {show(end)}")
    click.echo(
        f"in them {totals.rows:,} transactions, {totals.changes:,} row changes, {totals.ddls:,} DDL jobs, "
        f"{totals.segments:,} segments of {decimal(totals.bytes)}"
    )
    if kept.base is not None:
        click.echo(kept.told())
    for mark in kept.marks:
        click.echo(f"marked: {show(mark.ts)}: {mark.reason} ({mark.who})")
    _print_bases(bases)
    if proof is not None:
        click.echo(f"newest proof: {proof.subject} at {show(proof.at)}: {proof.verdict}, {proof.rows:,} rows")
    if cluster is None:
        click.echo("no cluster is asked: its checkpoint on the Pumps is not known")
    elif checkpoint is None:
        click.echo("the archive is not registered as a consumer: the Pumps' GC does not wait for it")
    elif checkpoint < end:
        follows = context.settings.airflow.gc_follows == "load"
        moved = "GC moves it to what the target has" if follows else "the next snapshot moves it"
        click.echo(f"its checkpoint is {show(checkpoint)}; {moved}")
    _print_windows(windows, every=every)
    for each_lost in lost:
        click.echo(
            f"declared lost: {each_lost.node_id} ({each_lost.incarnation or 'Go'}) from {show(each_lost.from_ts)} "
            f"to {show(each_lost.to_ts)} by {each_lost.who}: {each_lost.reason}"
        )


def _print_windows(windows: Windows, *, every: bool) -> None:
    shown = windows if every else windows[-_NEWEST_SHOWN:]
    if len(shown) < len(windows):
        notes = "; ".join(_notes(windows.totals(), sum(1 for _ in windows.skipped()), sorted(windows.unsynced())))
        of_all = f"; of all: {notes}" if notes else ""
        click.echo(f"the newest {len(shown)} windows (--windows lists all){of_all}:")
    table = Table(box=None, pad_edge=False)
    for heading in ("WINDOW", "UP TO", "TRANSACTIONS", "CHANGES", "DDL", "SIZE", "PUMPS", "NOTES"):
        table.add_column(heading, overflow="fold")
    for each in shown:
        of = Windows.of([each]).totals()
        table.add_row(
            str(int(each.start)), show(each.end), str(of.rows), str(of.changes), str(of.ddls), decimal(of.bytes),
            str(len(each.pumps)), "; ".join(_notes(of, int(each.binlog_skipped or 0), each.unsynced)),
        )  # fmt: skip
    console = Console(markup=False) if sys.stdout.isatty() else Console(markup=False, width=240)
    console.print(table)


def _notes(totals: Totals, skipped: int, unsynced: Sequence[str]) -> Iterator[str]:
    """What is unusual about windows."""
    for count, what in (
        (totals.declared, "declared lost"),
        (totals.duplicates, "duplicates"),
        (totals.accepted, "accepted by name"),
    ):
        if count:
            yield f"{count} {what}"
    if skipped:
        yield "TiDB skipped binlogs"
    if unsynced:
        yield f"no fsync: {', '.join(unsynced)}"


def _print_bases(bases: Sequence[Base]) -> None:
    for base in bases:
        what = "dump" if base.folded is None else "folded base"
        if base.tables:
            of = "" if base.folded is None else f", folded from the base of {show(base.folded)}"
            click.echo(f"{what} {show(base.ts)}: {len(base.tables)} tables, {base.rows:,} rows{of}; {base.key}")
        for left_out in base.without:
            click.echo(f"{what} {show(base.ts)}: NOT in it, by dump.without: {left_out.name} ({left_out.why})")


def _base_dict(base: Base) -> dict[str, Any]:
    without = {each.name: each.why for each in base.without}
    of = {"ts": int(base.ts), "key": base.key, "low": int(base.low), "tables": len(base.tables), "rows": base.rows}
    return of | {"folded_ts": None if base.folded is None else int(base.folded), "without": without}


def _window_dict(manifest: Manifest) -> dict[str, Any]:
    return {
        "key": manifest.key,
        "sha256": manifest.sha256,
        "start": int(manifest.start),
        "end": int(manifest.end),
        "fence": int(manifest.fence),
        "segments": len(manifest.segments),
        "rows": sum(each.rows for each in manifest.segments),
        "changes": sum(each.changes for each in manifest.segments),
        "bytes": sum(each.bytes for each in manifest.segments),
        "payload_bytes": sum(each.payload_bytes for each in manifest.segments),
        "ddls": 0 if manifest.ddl is None else manifest.ddl.jobs,
        "duplicates": len(manifest.duplicates),
        "pumps": [each.to_dict() for each in manifest.pumps],
        "declared": [each.to_dict() for each in manifest.declared],
        "accepted": [each.to_dict() for each in manifest.accepted],
        "unsynced": list(manifest.unsynced),
        "binlog_skipped": manifest.binlog_skipped,
    }


@archive.command("show")
@click.argument("which", metavar="genesis|TIME")
@archive_option
@pass_context
def show_command(context: Context, *, which: str) -> None:
    """Show one object as stored: genesis, or the manifest of the window that holds a moment (or begins after it)."""
    parts = Parts(context.settings)
    opened = parts.readable_archive
    opened.genesis()  # says what to do where there is none
    if which == "genesis":
        click.echo(opened.store.get(GENESIS), nl=False)
        return
    ts = read_time(context.settings, which)
    found, end = opened.windows(ts), opened.end()
    if found and found.start <= ts <= end:
        click.echo(opened.store.get(window_key(found.start)), nl=False)
        return
    raise UsageError(
        f"no window holds {show(ts)}", hint=f"the archive covers {show(opened.range().start)} to {show(end)}"
    )


archive.add_command(find_command)
archive.add_command(export_command)
archive.add_command(import_command)
archive.add_command(changes_command)
archive.add_command(versions_command)


@archive.command("verify")
@click.option("--quick", is_flag=True, help="Check names, chain, coverage and sizes only; do not read contents.")
@archive_option
@json_option
@pass_context
def verify_command(context: Context, *, quick: bool, as_json: bool) -> None:
    """Prove coverage and content: every window, every object, every row. Exit 1 if anything is wrong.

    It needs no cluster. With one, the result is noted in the archive, for `status`.
    """
    parts = Parts(context.settings)
    opened, cluster = parts.readable_archive, parts.cluster_if_there
    checkpoint = None if cluster is None else consumer.checkpoint(cluster, opened.archive_id)
    with _bars() as shown:
        task = shown.add_task("verify", total=None, note="") if shown is not None else None

        def tick(what: str, done: int, total: int) -> None:
            if shown is not None and task is not None:
                shown.update(task, completed=done, total=total, note=f"{done} of {total} {what}")

        report = verify(opened, checkpoint=checkpoint, deep=not quick, tick=tick)
    if report.sound and report.deep and cluster is not None:
        write_verified(opened, report.end)
    if as_json:
        _print_json(report.to_dict())
    else:
        for problem in report.problems:
            click.echo(f"{problem.key}: {problem.what}")
        for loss in report.declared:
            click.echo(f"declared lost: {loss['node_id']} {loss['from_ts']} to {loss['to_ts']}: {loss['reason']}")
        for key in report.skipped:
            click.echo(f"{key}: TiDB said that it skipped binlogs")
        verdict = "sound" if report.sound else f"{len(report.problems)} problems"
        read = (
            f", {report.rows:,} transactions, {report.changes:,} row changes" if report.deep else ", contents not read"
        )
        read += f", {report.dumped:,} rows of dumps" if report.dumped else ""
        click.echo(
            f"{verdict}: {report.windows} windows from {show(report.start)} to {show(report.end)}, "
            f"{report.objects} objects{read}"
        )
    if not report.sound:
        sys.exit(1)


@archive.command("declare-lost")
@click.argument("node")
@click.option("--reason", required=True, help="Why; kept for ever.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@pass_context
def declare_lost_command(context: Context, *, node: str, reason: str, yes: bool, as_json: bool) -> None:
    """Give up a Pump's data beyond the archive's end, so that the window can go on without it.

    Transactions that only this Pump had are then in no archive, no target and no restore.
    """
    opened, cluster = _open(context.settings)
    found = known_pump(opened, cluster, node).registered  # refused before the question
    running = found is not None and is_running(found)
    alive = f" {node} is running, its last heartbeat is fresh!" if running else ""
    confirm(f"everything that only {node} has after {show(opened.end())} will be missing for ever.{alive}", yes=yes)
    made = declare_lost(opened, cluster, node, reason)
    kept = made.reason != reason.strip()
    if as_json:
        _print_json(made.to_dict() | {"declared_before": kept})
    elif kept:
        click.echo(f"declared lost already: {node} from {show(made.from_ts)} to {show(made.to_ts)}")
        click.echo(f"{made.who} said why: {made.reason}")
        click.echo("that stays as it is; the reason given now is not recorded")
    else:
        click.echo(f"declared lost: {node} from {show(made.from_ts)} to {show(made.to_ts)}")


@archive.command("accept")
@click.argument("node")
@click.argument("start_ts", type=int)
@click.argument("commit_ts", type=int)
@click.option("--reason", required=True, help="Why; kept for ever.")
@json_option
@pass_context
def accept_command(context: Context, *, node: str, start_ts: int, commit_ts: int, reason: str, as_json: bool) -> None:
    """Settle by name one transaction that holds the archive's window; it then holds no window and no GC.

    A late commit is taken; one below the archive's end stays out of the archive. An orphan's content is in no file:
    accepting it says that it may be missing. A transaction that cannot be read stays in the archive, and is left out of
    loads and restores. A DDL binlog goes without a job that the history does not have. Where Pumps have different
    contents of one transaction, that of NODE is read.
    """
    settings = context.settings
    opened, cluster = _open(settings)
    record, told = accept_commit(
        opened, cluster, node, Tso(start_ts), Tso(commit_ts), reason, tls=settings.tls, proof=proof(settings.cluster)
    )
    if as_json:
        _print_json(record.to_dict() | {"pump_told": told})
    else:
        later = "" if told else "; the next snapshot tells the Pump"
        click.echo(f"accepted: {record.kind} commit {show(record.commit_ts)} of {node}{later}")
