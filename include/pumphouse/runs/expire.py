"""Let go of what the archive need not keep any more: what `archive expire` and the DAG `binlog_maintenance` do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from pumphouse.archive.copied import held_by_copy
from pumphouse.archive.expire import Ages, ExpireReport, Tick, delete_orphans, expire
from pumphouse.archive.retention import Hold, Policy
from pumphouse.errors import UsageError
from pumphouse.loader.needs import needs_of
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.runs.copy import copy_at
from pumphouse.settings import DOWNSTREAM, ServerSettings, Settings

_ASKED_AT_ONCE = 8
COPY = "archive.copy_root"
# What Airflow calls the servers of sections.
_SECTIONS, _SOURCE = {DOWNSTREAM: "target", "pumphouse_restore": "restore_target"}, "pumphouse_source"

_SHOWN = 1000  # orphans, by name


def run(
    settings: Settings,
    policy: Policy | None = None,
    *,
    without: Collection[str] = (),
    servers: Mapping[str, ServerSettings] | None = None,
    orphans: bool = True,
    dry_run: bool = False,
    shown: ExpireReport | None = None,
    tick: Tick = lambda _done, _total: None,
) -> ExpireReport:
    """Ask every server what it needs, and the copy what it has, then expire.

    Args:
        settings: all of them.
        policy: how much is kept; None = as the settings say.
        without: names of servers that hold nothing, beside those of ``retention.without``; `COPY`, so that what the
            copy lacks may go.
        servers: name -> server; None = the sections of the settings that name one. Then a target of the section
            [airflow] that has none holds everything.
        orphans: what killed tasks left goes, too.
        dry_run: only say what would go.
        shown: of the dry run that somebody has agreed to: no more goes.
        tick: called with (deleted, of so many).

    Raises:
        UsageError: a name of ``without`` is no server's.
        BadManifest, BadSegment: as `pumphouse.archive.expire.expire`.
    """
    if policy is None:
        policy = Policy(bases=settings.retention.keep_bases, days=settings.retention.keep_days)
    known = _servers(settings) if servers is None else servers
    unread = _of_airflow(settings, known) if servers is None else ()
    copies = [COPY] if settings.archive.copy_root else []
    if unknown := [name for name in without if name not in (*known, *unread, *copies)]:
        raise UsageError(
            f"no server of the settings is called {unknown[0]!r}",
            hint=f"they are: {', '.join((*known, *unread, *copies)) or 'none'}",
        )
    left_out = {*without, *settings.retention.without}
    with Parts(settings) as parts:
        archive = parts.archive
        archive.genesis()  # says what to do where there is none, before any server is asked
        holds = ask({name: each for name, each in known.items() if name not in left_out}, archive.cluster_id)
        holds += [_not_asked(name) for name in unread if name not in left_out]
        if copies and COPY not in left_out:
            holds += held_by_copy(archive, copy_at(settings, settings.archive.copy_root, archive), COPY)
        now = parts.cluster.tso()
        return expire(
            archive, _ages(settings), policy, holds, now=now, orphans=orphans, dry_run=dry_run, shown=shown, tick=tick
        )


def _ages(settings: Settings) -> Ages:
    return Ages(grace_s=settings.retention.grace_s, resume_s=settings.dump.resume_s)


def orphans(settings: Settings) -> dict[str, Any]:
    """Delete what killed tasks left, and nothing else: a JSON object that says what it was, some of it by name."""
    with Parts(settings) as parts:
        waste = delete_orphans(parts.archive, _ages(settings))
    names = [each.info.key for each in waste[:_SHOWN]]
    return {"objects": len(waste), "bytes": sum(each.info.size for each in waste), "orphans": names}


def told(report: ExpireReport) -> dict[str, Any]:
    """JSON object of a report (docs/formats.md, "Command output")."""
    found = asdict(report)
    for name in ("restorable_from", "restorable_to", "start"):
        found[f"{name}_ts"] = found.pop(name)
    for name in ("bases", "bases_gone"):
        found[name] = [{"ts": ts} for ts in found[name]]
    return found


def ask(servers: Mapping[str, ServerSettings], cluster_id: int) -> list[Hold]:
    """What servers need, all asked at once."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        asked = [pool.submit(needs_of, name, each, cluster_id) for name, each in servers.items()]
        return [hold for each in asked for hold in each.result()]


def _servers(settings: Settings) -> dict[str, ServerSettings]:
    """Every server that a load or a restore may write to, by the name that `--into` knows.

    Not those of drills alone: a drill that runs is known by its object in the archive.
    """
    found: dict[str, ServerSettings] = {"source": settings.source} if settings.source.host else {}
    for section, each in settings.target_sections.items():
        if not getattr(each, "scratch", False):
            found[section.removeprefix("targets.")] = each
    return found


def _of_airflow(settings: Settings, known: Collection[str]) -> tuple[str, ...]:
    """Targets that the section [airflow] names and no other section: connections that Airflow alone knows."""
    airflow, found = settings.airflow, dict[str, None]()
    replaced = airflow.restore_targets if "restore_targets" in airflow.model_fields_set else ()
    restored = tuple(name for name in replaced if name != _SOURCE)
    for names, own in ((airflow.load_targets, "target"), (airflow.gc_targets, "target"), (restored, "restore_target")):
        for name in names:
            # One alone is another name of the section, as for GC.
            alone = len(names) == 1 and name not in settings.targets
            if (own if alone else _SECTIONS.get(name, name)) not in {*known, *settings.targets}:
                found[name] = None
    return tuple(found)


def _not_asked(name: str) -> Hold:
    return Hold(
        who=name,
        ts=Tso(0),
        restorable=True,
        why="is a connection that Airflow alone knows: it has no section [targets.…]",
        hint=f"`airflow dags trigger binlog_maintenance` asks it; or let go of what it may need: --without {name}",
    )
