"""What tasks do: read the connections, open the parts, call the same functions as the command line.

Every function takes and returns small JSON, because that is what XCom carries; a window's plan and reports become
JSON here and nowhere below (`binlog_airflow.xcom`). What moved data also returns what says which: OpenLineage may ask
the operator for it. Each works ``here``, on one installation; the operators are the classes around them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import structlog

from binlog_airflow import lineage, said, xcom
from binlog_airflow.advice import naming, of_connection
from binlog_airflow.hooks import ARCHIVE, KAFKA
from binlog_airflow.installation import HERE, Installation, there_or
from binlog_airflow.lineage import Asked
from binlog_airflow.lines import Told
from binlog_airflow.silence import naming_silence
from binlog_airflow.streams import ordinary_stderr
from pumphouse import advice
from pumphouse.errors import (
    BinlogError,
    ConfigError,
    CorruptionError,
    GapError,
    ManifestConflict,
    RestoreError,
    TargetAhead,
    UsageError,
)
from pumphouse.model import tso

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pumphouse.archive.proofs import Proof
    from pumphouse.loader.confirmed import Published
    from pumphouse.loader.keys import Predicate
    from pumphouse.parts import Parts
    from pumphouse.restore.check import Place
    from pumphouse.restore.parts import Chosen
    from pumphouse.restore.report import RestoreReport, ShownPlan
    from pumphouse.schema.history import JobSource
    from pumphouse.settings import ServerSettings, Settings

log = structlog.get_logger()


def _say(sentence: str) -> None:
    log.info(sentence)


def _parts(settings: Settings) -> Parts:
    from pumphouse.parts import Parts

    return Parts(settings)


def _history(parts: Parts) -> JobSource:
    if parts.history is None:
        raise ConfigError("the cluster connection names no DDL history", hint="set `history` in its extra")
    return parts.history


def plan_window(until: datetime | None, here: Installation = HERE) -> dict[str, Any] | None:
    """The next window towards the interval's end, None = now; None when the archive is there already."""
    from pumphouse.archive.failed import noting
    from pumphouse.archive.snapshot import plan_window as plan

    settings = here.settings()
    with _parts(settings) as parts, noting(parts.archive, "snapshot"):
        # Now is the cluster's, as for `pumphouse snapshot`: the clock of this machine may run ahead of it.
        moment = parts.cluster.tso() if until is None else tso.from_datetime(until)
        found = plan(parts.archive, parts.cluster, moment, settings)
    if found is None:
        return None
    _say(said.planned(found))
    return xcom.dump(found)


def node_ids(plan: dict[str, Any]) -> list[str]:
    """The Pumps of a plan: one mapped task for each."""
    from pumphouse.archive.window import WindowPlan

    return list(xcom.read(WindowPlan, plan).node_ids)


def pull_node(
    plan: dict[str, Any], node_id: str, here: Installation = HERE, *, patience_s: float | None = None
) -> dict[str, Any]:
    """One Pump's part of a window, into segments that no manifest names yet. ``patience_s``: as of the library's."""
    from pumphouse.archive.failed import noting
    from pumphouse.archive.snapshot import pull_node as pull
    from pumphouse.archive.window import WindowPlan

    planned = xcom.read(WindowPlan, plan)
    settings = here.settings()
    with (
        naming_silence(lambda: _parts(settings), node_id),
        _parts(settings) as parts,
        noting(parts.archive, "snapshot", patience_s=patience_s),
    ):
        done = pull(parts.archive, parts.cluster, planned, node_id, settings, patience_s=patience_s)
    _say(said.pulled(done))
    return xcom.dump(done)


def commit_window(
    plan: dict[str, Any],
    reports: list[dict[str, Any]],
    here: Installation = HERE,
    *,
    patience_s: float | None = None,
) -> tuple[dict[str, Any], Asked | None]:
    """Make the window visible, then go on in this task while the byte budget left something before the plan's end."""
    from pumphouse.archive.failed import noting
    from pumphouse.archive.snapshot import commit_window as commit
    from pumphouse.archive.snapshot import run_snapshot
    from pumphouse.archive.window import PublishedWindow, PullReport, WindowPlan

    planned, pulled = xcom.read(WindowPlan, plan), [xcom.read(PullReport, each) for each in reports]
    settings = here.settings()
    with _parts(settings) as parts, noting(parts.archive, "snapshot", patience_s=patience_s):
        archive, cluster, history = parts.archive, parts.cluster, _history(parts)
        try:
            done = commit(archive, cluster, planned, pulled, history, settings)
            more = done.more
        except ManifestConflict:
            # This window is there already: a try of this task was killed after its manifest, or another run won.
            newest, more = archive.last(), True
            if newest is None:
                raise
            done = PublishedWindow.of(newest, planned.until)
        windows = [done]
        if more:
            windows += run_snapshot(archive, cluster, planned.until, settings, history, patience_s=patience_s)
        asked = partial(lineage.of_windows, settings, archive.cluster_id, windows)
    _say(said.published(windows[-1]))
    return xcom.dump(windows[-1]), asked


def extend_archive(
    until: datetime | None, here: Installation = HERE, *, patience_s: float | None = None
) -> tuple[dict[str, Any] | None, Asked | None]:
    """Windows up to the interval's end, None = now, all Pumps in this task.

    The newest window, whoever published it; None where the archive has none.
    """
    from pumphouse.archive.snapshot import run_snapshot
    from pumphouse.archive.window import PublishedWindow

    settings = here.settings()
    with _parts(settings) as parts:
        moment = parts.cluster.tso() if until is None else tso.from_datetime(until)
        done = run_snapshot(parts.archive, parts.cluster, moment, settings, _history(parts), patience_s=patience_s)
        newest = parts.archive.last()
        asked = partial(lineage.of_windows, settings, parts.archive.cluster_id, done) if done else None
    if newest is None:
        return None, None
    last = done[-1] if done else PublishedWindow.of(newest, moment)
    _say(said.published(last) if done else said.archived_already(newest.end, moment))
    return xcom.dump(last), asked


def note_held(error: BinlogError, here: Installation = HERE) -> None:
    """Nobody waits for that window any longer: whoever looks at the archive is to know."""
    from pumphouse.archive.failed import note

    try:
        with _parts(here.settings()) as parts:
            note(parts.archive, "snapshot", error)
    except BinlogError as refused:  # who holds the window is what the run fails with
        log.warning("failure_not_noted", why=refused.message)


def archive_end(here: Installation = HERE) -> tso.Tso:
    """Everything with a commit ts up to this lies in the archive."""
    with _parts(here.settings()) as parts:
        return parts.readable_archive.end()


def target_stands(conn_id: str, here: Installation = HERE) -> tso.Tso | None:
    """Where a target stands; None where it has no checkpoint, or is not whole."""
    from pumphouse.loader import state
    from pumphouse.loader.target import TargetConnection, has_checkpoints

    settings = here.settings(downstream=conn_id)
    with TargetConnection.open(settings.target) as connection:
        found = state.read(connection, settings.load.task) if has_checkpoints(connection) else None
    return found.ts if found is not None and found.state is state.TargetState.READY else None


def moment(text: str, here: Installation = HERE) -> tso.Tso:
    """A TIME as for `pumphouse restore`; now is the cluster's."""
    with _parts(here.settings()) as parts:
        return parts.moment(text).ts


def dump_source(tables: Sequence[str] | None = None, here: Installation = HERE) -> tuple[dict[str, Any], Asked]:
    """Dump the source, or these tables of it, while it is written to; a retry goes on where a killed try stopped."""
    from pumphouse.capture.passed import waiter
    from pumphouse.dump.run import take_dump

    settings = here.settings(source=here.source)
    with _parts(settings) as parts:
        told = Told()
        done = take_dump(
            parts.archive,
            parts.cluster,
            _history(parts),
            settings,
            tables=named(tables) or None,
            progress=told,
            settle=waiter(parts.cluster, settings.source, settings.capture),
        )
    _say(done.text())
    return xcom.bounded(done.to_dict()), partial(lineage.of_dump, settings, done)


@ordinary_stderr()
def rebuild_schema(here: Installation = HERE) -> dict[str, Any]:
    """Fold the DDL jobs of new windows into the schema timeline; a Spark session only when there are any."""
    from pumphouse.runs import schema

    done = schema.run(here.settings())
    _say(said.folded(done))
    return xcom.bounded(asdict(done))


@ordinary_stderr()
def load_target(run_id: str, conn_id: str, here: Installation = HERE) -> tuple[dict[str, Any], Asked]:
    """Bring a target up to the archive's end, in safe mode. A retry of the same run takes over from itself."""
    from pumphouse.runs import load

    settings = here.settings(downstream=conn_id)
    with naming(conn_id):
        done = load.run(settings, target=settings.target, task=settings.load.task, run_id=run_id, progress=Told())
    _say(said.loaded(done))
    return xcom.bounded(done.to_dict()), partial(lineage.of_load, settings, settings.target, done)


def send_to_kafka(
    since: str | None, here: Installation = HERE, *, conn_id: str = KAFKA, anew: bool = False
) -> tuple[dict[str, Any], Asked]:
    """Send what the topic does not have yet; a try that was killed left whole transactions, and the next goes on."""
    from pumphouse.runs import kafka

    settings, begin = here.settings(kafka=conn_id), None
    if since:
        with _parts(settings) as parts:
            begin = parts.moment(since).ts
    done = kafka.run(settings, since=begin, anew=anew, tell=Told())
    _say(said.sent(done))
    return xcom.bounded(done.to_dict()), partial(lineage.of_kafka, settings, done)


def collect_pumps(here: Installation = HERE) -> dict[str, Any]:
    """Trigger GC on every Pump; report what was asked for, what was freed and who holds the rest.

    Where GC follows the load, what the archive and every target have is published before. Fails, after GC, when a Pump
    does, when it is not known where a target stands, and when the archive is not far enough ahead of a Go Pump, whose
    GC nobody can hold.
    """
    from pumphouse.archive import consumer
    from pumphouse.client import admin
    from pumphouse.client.go_gc import GoLimits
    from pumphouse.rpc.operator import proof

    settings = here.settings()
    with _parts(settings) as parts:
        cluster = parts.cluster
        known = consumer.require(parts.archive, cluster)
        published = _publish_loaded(settings, parts, here) if settings.airflow.gc_follows == "load" else None
        limits = GoLimits(
            # Not registered here is as bad as empty: the DAG runs to keep an archive safe.
            archived=published.confirmed.archive_end
            if published is not None
            else (known and known.checkpoint) or tso.Tso(0),
            retention_s=settings.archive.go_pump_gc_s,
            margin_s=settings.archive.go_pump_margin_s,
        )
        reports = admin.trigger_gc(cluster, tls=settings.tls, proof=proof(settings.cluster), go_limits=limits)
    for each in reports:
        _say(said.collected(each))
    shown = [report.to_dict() for report in reports]
    error = admin.failures(reports) or (published and published.failure())
    if error:
        raise error
    found = {"pumps": shown} if published is None else {"pumps": shown, "published": published.to_dict()}
    return xcom.bounded(found)


def _publish_loaded(settings: Settings, parts: Parts, here: Installation) -> Published:
    """Let the Pumps know what the archive and every target that GC waits for have."""
    from pumphouse.loader.confirmed import ask, publish

    cluster_id = parts.cluster.cluster_id()
    stands = []
    for conn_id in settings.waited_for:
        of = here.settings(downstream=conn_id, server_alone=True)
        stands.append(ask(conn_id, of.target, of.load.task, cluster_id, of=partial(of_connection, conn_id)))
    done = publish(parts.archive, parts.cluster, stands)
    _say(done.text())
    return done


def verify_archive(here: Installation = HERE, *, full: bool) -> dict[str, Any]:
    """Hold the archive against itself, contents too where ``full``; CorruptionError where anything is wrong."""
    from pumphouse.archive import consumer
    from pumphouse.archive.verified import write_verified
    from pumphouse.archive.verify import verify

    with _parts(here.settings()) as parts:
        archive = parts.archive
        report = verify(archive, checkpoint=consumer.checkpoint(parts.cluster, archive.archive_id), deep=full)
        if report.sound and full:
            write_verified(archive, report.end)
    for each in report.problems:
        log.error("archive_problem", key=each.key, what=each.what)
    if not report.sound:
        first = report.problems[0]
        raise CorruptionError(
            f"{len(report.problems)} things are wrong with the archive, the first: {first.key}: {first.what}",
            hint="nothing expires before that is mended: `pumphouse archive verify` lists everything",
            path=first.key,
        )
    return xcom.bounded(report.to_dict())


def fold_base_if_due(here: Installation = HERE) -> dict[str, Any]:
    """Fold a base where the newest one is older than ``airflow.base_days``; ``nothing`` says why none was."""
    from pumphouse.folding.run import fold_base
    from pumphouse.runs.base import why_not_due

    settings = here.settings()
    with _parts(settings) as parts:
        if why := why_not_due(parts.archive, parts.cluster.tso(), settings.airflow.base_days):
            _say(f"no base is folded: {why}")
            return {"nothing": why}
        return xcom.bounded(asdict(fold_base(parts.archive, settings.load, settings.archive, progress=Told())))


def copy_archive(here: Installation = HERE) -> dict[str, Any]:
    """Bring the copy up to date where ``archive.copy_root`` names one."""
    from pumphouse.runs import copy

    settings = here.settings()
    if not settings.archive.copy_root:
        return {"nothing": "archive.copy_root names no copy"}
    return xcom.bounded(copy.told(copy.run(settings, tick=Told())))


def compact_archive(here: Installation = HERE) -> dict[str, Any]:
    """Pack the small objects of old windows where ``airflow.maintenance_compact`` says so."""
    from pumphouse.archive.compact import compact

    settings = here.settings()
    if not settings.airflow.maintenance_compact:
        return {"nothing": "airflow.maintenance_compact is not set"}
    with _parts(settings) as parts:
        return xcom.bounded(asdict(compact(parts.archive, tick=Told())))


def delete_orphans(here: Installation = HERE) -> dict[str, Any]:
    """Delete what killed tasks left, and nothing else."""
    from pumphouse.runs import expire

    return xcom.bounded(expire.orphans(here.settings()))


def expire_archive(here: Installation = HERE) -> dict[str, Any]:
    """Let go of what retention does not keep."""
    from pumphouse.runs import expire

    settings = here.settings()
    report = expire.run(settings, servers=_retained_for(settings, here), orphans=False)
    for each in report.held:
        log.warning("archive_held", by=each)
    return xcom.bounded(expire.told(report))


def _retained_for(settings: Settings, here: Installation) -> dict[str, ServerSettings]:
    """Every server that may need something of the archive, by the connection that names it.

    ConfigError for another installation than the first, where nobody says which those are.
    """
    if here.archive != ARCHIVE and not here.settings_file and not (here.targets and here.restore_targets):
        raise ConfigError(
            f"nobody says which servers still need the archive of connection {here.archive!r}: nothing expires",
            hint="give the operator targets=[…] and restore_targets=[…], or settings_file=…",
        )
    loaded, restored = here.servers(settings)
    # Loaded ones first, and a connection that is both as it is loaded.
    found: dict[str, ServerSettings] = {**loaded, **restored, **loaded}
    with there_or(True):
        found[here.source] = here.settings(source=here.source, server_alone=True).source
    return found


def named(lines: Sequence[str] | None) -> tuple[str, ...]:
    """The names in a field with one a line."""
    return tuple(each.strip() for each in lines or () if each.strip())


def form_of(context: Context) -> dict[str, Any]:
    """The fields of a run's form; UsageError where Airflow passes over what its conf says."""
    params, conf = dict(context["params"]), dict(context["dag_run"].conf or {})
    if ignored := sorted(name for name, value in conf.items() if name not in params or params[name] != value):
        raise UsageError(
            f"Airflow passed over this run's conf: {', '.join(ignored)}",
            hint="set dag_run_conf_overrides_params = True in the section [core] of airflow.cfg",
        )
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreForm:
    """What somebody filled in: the fields of `binlog_restore`."""

    to: str
    target: str
    tables: tuple[str, ...]
    called: str
    database: str
    keys: tuple[str, ...]
    key_from: str | None
    key_to: str | None
    base: str
    verify: bool
    accept_losses: bool

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """From a run's params; UsageError where one is none of ours."""
        if unknown := sorted(set(params) - _FIELDS):
            raise UsageError(
                f"binlog_restore has no field {', '.join(unknown)}",
                hint=f"the moment is the field `to`; all fields: {', '.join(sorted(_FIELDS))}",
            )
        return cls(
            to=str(params["to"]).strip(),
            target=str(params["target"]),
            tables=named(params["tables"]),
            called=(params["as"] or "").strip(),
            database=(params["into_database"] or "").strip(),
            keys=tuple(each for each in params["keys"] or () if each.strip()),
            key_from=params["key_from"] or None,
            key_to=params["key_to"] or None,
            base=(params["base"] or "").strip(),
            verify=bool(params["verify"]),
            accept_losses=bool(params["accept_losses"]),
        )


# By their names in a run's conf. Whether it is a dry run says the task `approve`.
_FIELDS = frozenset(
    {
        "to", "target", "tables", "as", "into_database", "keys", "key_from", "key_to", "base", "verify",
        "accept_losses", "dry_run",
    }
)  # fmt: skip


def _where(form: RestoreForm) -> Predicate:
    from pumphouse.loader.keys import Predicate

    return Predicate(keys=form.keys, low=form.key_from, below=form.key_to)


def _chosen(form: RestoreForm) -> Chosen:
    from pumphouse.restore.parts import Chosen

    return Chosen(tables=form.tables, called=form.called, database=form.database, where=_where(form))


def _restore_job(form: RestoreForm, here: Installation) -> tuple[Settings, Place, Callable[..., RestoreReport]]:
    """Settings with the form's connection, its section, and the run: of the whole, or of tables."""
    from pumphouse.runs import restore, restore_parts

    if form.tables:
        settings, into = here.of_server(form.target)
        return settings, into, partial(restore_parts.run, settings, chosen=_chosen(form), into=into)
    of_tables = {
        "Name there": form.called,
        "Database there": form.database,
        "Keys": form.keys,
        "Key from": form.key_from,
        "Key to": form.key_to,
    }
    if given := " and ".join(f'"{title}"' for title, value in of_tables.items() if value):
        raise UsageError(f"for tables alone: {given}", hint=f'fill in "Tables", or leave {given} empty')
    settings, into = here.of_server(form.target)
    if into == "source":
        raise UsageError("the source is restored to by tables alone", hint="name the tables")
    return settings, into, partial(restore.run, settings, into=into)


def moment_of(text: str, settings: Settings) -> tso.Tso | None:
    """The moment that somebody typed into a form, None = the archive's end; UsageError."""
    from pumphouse.restore.plan import LATEST, parse_moment

    with _parts(settings) as parts:
        return parse_moment(text, lambda said: parts.moment(said, word=LATEST).ts)


def check_form(form: RestoreForm, moment: tso.Tso | None, here: Installation = HERE) -> None:
    """UsageError for what is wrong with a form whatever the server holds; ``moment`` None: the archive's end.

    An archive that cannot be read is no fault of the form: the run says what it is.
    """
    from pumphouse.archive.view import read_view

    with naming(form.target):
        settings, _, _ = _restore_job(form, here)
        if not form.tables:
            return
        with _parts(settings) as parts:
            try:
                view = read_view(parts.readable_archive, since=parts.readable_archive.end())
            except BinlogError:
                return
        _chosen(form).of(view.timeline, view.end if moment is None else moment)


def plan_restore(form: RestoreForm, here: Installation = HERE) -> dict[str, Any]:
    """What a restore would read and do, bounded, and what its approval needs.

    ``shown``: the plan as Markdown. ``question``: what is approved. ``server``: the name to type where ``loses``, what
    would be dropped, says anything.
    """
    from pumphouse.restore.told import as_markdown, as_text, plan_told, question

    with naming(form.target):
        settings, into, run = _restore_job(form, here)
        moment = moment_of(form.to, settings)
        with _parts(settings) as parts:
            base = parts.moment(form.base).ts if form.base else None
        report = run(to=moment, base=base, dry_run=True)
        if form.verify:
            from pumphouse.runs.proof import plan_proof

            report = replace(report, proving=plan_proof(settings, report, into=into))
    check, facts = report.check, list(plan_told(report, latest=moment is None))
    for line in as_text(facts):
        _say(line)
    found = report.to_dict()
    # What is shown names kinds of DDL; their texts stay in the archive.
    found["plan"]["ddls"] = len(found["plan"]["ddls"])
    return {
        **xcom.bounded(found),
        "question": question(report, form.target),
        "shown": as_markdown(facts),
        "server": "" if check is None else check.server,
        "loses": "" if check is None else check.lost(),
    }


def digest_of(plan: Mapping[str, Any]) -> str:
    """SHA-256 of what `plan_restore` left; UsageError where that was another release."""
    if missing := sorted({"plan", "target", "question", "shown", "server", "loses"}.difference(plan)):
        raise UsageError(
            f"what the task plan left is of another release: it has no {', '.join(missing)}",
            hint="clear the whole run, not this task alone",
        )
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def require_approved(plan: Mapping[str, Any], digest: str | None) -> None:
    """RestoreError where this is not the plan of that digest, which somebody saw."""
    if digest_of(plan) != digest:
        raise RestoreError(
            "the plan changed since it was shown for approval: nothing was changed by this task",
            hint="trigger the restore again, or clear the whole run",
        )


def require_answered(plan: Mapping[str, Any], yes: Mapping[str, str] | None) -> None:
    """RestoreError where nobody said yes to the plan."""
    if yes is None:
        raise RestoreError(
            f"nobody approved the plan: this task changes nothing on {plan['target']}",
            hint="a task approve that was marked a success, or that an earlier release ran, has left no answer: clear "
            "it, and answer under Required Actions",
        )


def _shown(plan: dict[str, Any]) -> ShownPlan:
    """The plan that `plan_restore` left."""
    from pumphouse.restore.report import ShownPlan

    to, end, base = (tso.Tso(int(plan["plan"][name])) for name in ("to", "end", "base"))
    return ShownPlan(to=to, end=end, base=base, digest=str(plan["plan"]["digest"]))


@ordinary_stderr()
def restore_target(
    plan: dict[str, Any],
    form: RestoreForm,
    run_id: str,
    approved: str | None,
    here: Installation = HERE,
    *,
    once: str = "",
    replace: str | None = None,
) -> tuple[dict[str, Any], Asked]:
    """Carry out the plan that was shown, and no other. ``approved``: its `digest_of`; ``once``: the answer's name.

    Who approved the plan approved the server in it: the connection must still name that one, and it must hold nothing
    where it held nothing, but for what a run of this plan that has not ended put there. Approved once, it is carried
    out once. ``replace``: the server's name in place of an approval.
    """
    from pumphouse.loader.apart import server_name
    from pumphouse.restore.check import named_target

    require_approved(plan, approved)
    with naming(form.target):
        settings, into, run = _restore_job(form, here)
        server = str(plan["server"])
        target = named_target(settings, into)
        if server_name(target) != server:
            raise RestoreError(f"connection {form.target} names another server by now than {server}", hint="plan again")
        typed = {}
        if not form.tables:
            typed = {"replace": (server if plan["loses"] else "") if replace is None else replace}
            typed["once"] = hashlib.sha256(f"{run_id} {once}".encode()).hexdigest() if once else ""
        done = run(
            shown=_shown(plan), dry_run=False, run_id=run_id, accept_losses=form.accept_losses, progress=Told(), **typed
        )
    if not form.tables and done.before:
        _say("an earlier try of this run has restored it, and a yes counts once: nothing was changed now")
    _say(said.restored(done))
    found = done.to_dict()
    found["plan"]["ddls"] = len(found["plan"]["ddls"])
    return xcom.bounded(found), partial(lineage.of_load, settings, target, done.load)


def restore_at_once(
    form: RestoreForm, run_id: str, here: Installation = HERE, *, replace: str = ""
) -> tuple[dict[str, Any], Asked]:
    """Plan, restore, verify where the form says so: what `binlog_restore` asks somebody for, ``replace`` says.

    RestoreError where the server holds data that would be dropped and ``replace`` is not its name.
    """
    plan = plan_restore(form, here)
    try:
        done, asked = restore_target(plan, form, run_id, digest_of(plan), here, replace=replace)
    except RestoreError as error:
        if "server" in error.facts:  # it holds what would be dropped, and not of an earlier try
            raise RestoreError(
                error.message, hint=f"if it may go, give the server's name: replace={error.facts['server']!r}"
            ) from error
        raise
    if form.verify:
        proof = verify_restore(plan, form, here)
        require_equal(proof)
        done["proven"] = proof
    return done, asked


@ordinary_stderr()
def verify_restore(plan: dict[str, Any], form: RestoreForm, here: Installation = HERE) -> dict[str, Any]:
    """Hold what was restored against the archive. Of rows that differ, the proof in the archive has more."""
    from pumphouse.runs.proof import prove_restored

    with naming(form.target):
        settings, into, run = _restore_job(form, here)
        done = run(shown=_shown(plan), dry_run=True, plan_only=True)
        return proof_told(prove_restored(settings, done, into=into, progress=Told()))


def proof_told(proof: Proof) -> dict[str, Any]:
    """A proof without any row; its sentence is in the log."""
    _say(said.proved(proof))
    found = proof.summary()
    return xcom.bounded({**found, "different": [each["table"] for each in found["different"]]})


def require_equal(proof: dict[str, Any]) -> None:
    """RestoreError unless a proof is green."""
    if proof["verdict"] != "equal":
        different = ", ".join([*proof["different"], *proof["unexpected"]][:5])
        raise RestoreError(
            f"{proof['target']} is not as the archive says at {tso.show(tso.Tso(int(proof['at'])))}: "
            f"{proof['verdict']}{': ' * bool(different)}{different}",
            hint=f"`pumphouse archive proofs --tables` has the tables and rows; it is {proof['key']}",
        )


def drill_seed(seed: int | None) -> int:
    """What the moment of a drill is drawn by, also of its retries."""
    from pumphouse.runs.drill import new_seed

    return new_seed() if seed is None else int(seed)


def clean_drill(into: str, run_id: str, here: Installation = HERE) -> bool:
    """Drop what a drill that was killed has left."""
    from pumphouse.runs import drill

    settings, section = here.of_drill(into)
    with naming(here.drill_connection(into)):
        return drill.clean(settings, section, run_id=run_id)


@ordinary_stderr()
def drill_server(
    into: str, at: str | None, seed: int, run_id: str, here: Installation = HERE, *, whole: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Restore, prove, drop: how it ended, and the proof. A retry of the same run takes over from itself."""
    from pumphouse.runs import drill

    if whole:
        drill.require_scratch(here.settings(server_alone=True), into)
    settings, section = here.of_drill(into)
    moment = None
    if at:
        with _parts(settings) as parts:
            moment = parts.moment(at).ts
    with naming(here.drill_connection(into)):
        done = drill.run(
            settings, into=section, named=into, at=moment, seed=seed, whole=whole, run_id=run_id, progress=Told()
        )
    _say(said.drilled(done.drill))
    return xcom.bounded(done.drill.to_dict()), proof_told(done.proof)


@ordinary_stderr()
def apply_interval(
    end: datetime, target: str, until: str | None, run_id: str, here: Installation = HERE
) -> tuple[dict[str, Any], Asked | None]:
    """Load (checkpoint, min(end, until)] onto a restored target; nothing to do where the checkpoint is there already.

    Intervals may come in any order: what lies between the checkpoint and this one's start is loaded too, as an
    interval before it that has not run yet would have been. So nothing is left out, and none waits for another.
    """
    from pumphouse.loader import state
    from pumphouse.loader.target import TargetConnection
    from pumphouse.runs import load

    with naming(target):
        settings = here.settings(downstream=target)
        with _parts(settings) as parts:
            stop = parts.moment(until).ts if until else tso.MAX_TSO
        upto = tso.Tso(min(tso.from_datetime(end), stop))
        with TargetConnection.open(settings.target) as connection:
            found = state.read(connection, settings.load.task)
        if found is None:
            raise GapError(
                f"target {target!r} has no checkpoint to go on from",
                hint=("restore it first: ", advice.RESTORE_THIS),
            )
        checkpoint = found.ts
        if checkpoint > stop:
            raise TargetAhead(
                f"the target stands at {tso.show(checkpoint)}, beyond the stop {tso.show(stop)}",
                hint=("restore it to a moment before the stop: ", advice.RESTORE_THIS),
                checkpoint=checkpoint,
                archive_end=stop,
            )
        if checkpoint >= upto and found.state is state.TargetState.READY:
            _say(f"nothing to do: the target is at {tso.show(checkpoint)} already")
            return xcom.bounded({"from": checkpoint, "to": checkpoint, "rows": 0, "skipped": True}), None
        done = load.run(
            settings, target=settings.target, task=settings.load.task, to=upto, run_id=run_id, progress=Told()
        )
    _say(said.loaded(done))
    return xcom.bounded(done.to_dict()), partial(lineage.of_load, settings, settings.target, done)
