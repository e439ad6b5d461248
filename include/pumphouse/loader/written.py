"""Which tables of a target a run is about, and how many rows it put into each: what lineage tells of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pumphouse.errors import UnknownTable
from pumphouse.loader.rules import Rules
from pumphouse.loader.steps import Apply, Build, HandOver, Steps
from pumphouse.model.tablerows import TableRows
from pumphouse.schema.actions import is_system
from pumphouse.schema.timeline import Timeline


def written(steps: Steps, rows: Mapping[int, int], timeline: Timeline, rules: Rules) -> TableRows:
    """All tables that steps are about, as they are called there at the end; what is gone by then is left out.

    ``rows``: put by the run, by the source's id of a table or of its partition.
    """
    ids, places = set(rows), None
    for step in steps.all:
        match step:
            case Build(objects=objects):
                ids.update(each.table.id for each in objects)
            case Apply(work=work):
                ids.update(work.tables, *(event.table_ids for event in work.events))
            case HandOver(tables=tables):
                places = dict(tables)
    found: Counter[str] = Counter()
    for id_ in ids:
        try:
            version = timeline.at_ts(id_, steps.to_ts)
        except UnknownTable:
            continue
        out = version.dropped or version.table.is_view or version.table.is_sequence or is_system(version.db)
        if not out and not rules.leaves_out(version):
            called = rules.routes.table(*version.name)
            if place := called if places is None else places.get(called[1]):
                found[".".join(place)] += rows.get(id_, 0)
    return TableRows.of(found)
