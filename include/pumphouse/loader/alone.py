"""Some tables without the others: plans that make them what they are at a moment, for resyncs and restores of parts.

Pure. Of the log only segments with their ids are read, and DDLs of other tables neither cut a plan nor stop it. A DDL
that moves rows between one of them and another table cannot be followed without that: `joined` says which these are.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from pumphouse.advice import Hint
from pumphouse.archive.base import Base
from pumphouse.archive.view import ArchiveView
from pumphouse.errors import LoadError, UnknownDdl
from pumphouse.loader.rules import Rules
from pumphouse.loader.work import Work, base_work, works_between
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Reach, Rows
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import LoadSettings


def works_alone(
    view: ArchiveView, base: Base, at: Tso, task: str, settings: LoadSettings, rules: Rules, *, what: str, hint: Hint
) -> tuple[Work, ...]:
    """The dump's plan and those behind it that make ``rules.only`` what they are at a moment.

    LoadError, ``what`` and then why, with ``hint``: the archive cannot tell their rows from those of others.
    """
    events = _kept_alone(view.timeline.events, rules.only)
    view = replace(view, timeline=replace(view.timeline, events=events))
    try:
        works = (
            base_work(view, base, task, settings, rules),
            *works_between(view, base.ts, at, task, settings, rules),
        )
    except UnknownDdl as error:
        raise LoadError(f"{what}: {error.message}", hint=hint) from error
    kept: set[int] = set()
    for event in (event for work in works for event in work.events):
        if event.facts.reach is not Reach.WHOLE_DATABASE and not event.returning <= kept:
            raise LoadError(
                f"{what}: DDL job {event.job.id} recovered it from a table of another name: {event.job.query}",
                hint=hint,
            )
        kept |= {c.before.table.id for c in event.changes if c.before} & event.kept
    return works


def _kept_alone(events: tuple[DdlEvent, ...], names: Container[str]) -> tuple[DdlEvent, ...]:
    """The DDLs, and of what they drop only that is kept which comes back as one of ``names``, in lower case.

    Else nobody would take this copy, and it would replace what a load may have kept of the table of that other name.
    """
    ours: set[int] = set()
    found = []
    for event in reversed(events):
        found.append(replace(event, kept=event.kept & ours) if event.kept else event)
        if event.facts.rows is Rows.RETURN:
            sides = [change.after for change in event.changes if change.after is not None]
            ours -= {side.table.id for side in sides}
            ours |= {side.table.id for side in sides if ".".join(side.name).lower() in names}
    return tuple(reversed(found))


def joined(timeline: Timeline, names: frozenset[str], after: Tso, upto: Tso) -> frozenset[str]:
    """Tables, ``database.table`` in lower case, and those that DDLs of (after, upto] take rows from for them."""
    groups = [group for event in timeline.ddls(after, upto) for group in _groups(timeline, event)]
    while True:
        found = names.union(*(group for group in groups if group & names))
        if found == names:
            return names
        names = found


def _groups(timeline: Timeline, event: DdlEvent) -> Iterator[frozenset[str]]:
    """Names of tables that belong together by an event: rows of the one become rows of the other."""
    if event.facts.rows is Rows.SWAP:
        yield frozenset(".".join(side.name).lower() for change in event.changes for side in change.sides)
        return
    for change in event.changes:
        sides = list(change.sides)
        if event.facts.rows is Rows.RETURN:
            known = timeline.versions.get(change.known.table.id, ())
            sides += [version for version in known if version.commit_ts <= event.commit_ts]
        yield frozenset(".".join(side.name).lower() for side in sides)
