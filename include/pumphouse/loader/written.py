"""Which tables of a target a run is about, and how many rows it put into each: what lineage tells of it."""

from __future__ import annotations

from collections import Counter

from pumphouse.loader.rules import Rules
from pumphouse.loader.steps import Apply, Build, HandOver, Steps
from pumphouse.schema.actions import is_system
from pumphouse.schema.timeline import Timeline


class Written:
    """Rows put by this run, by the source's id of the table or of its partition; of the steps' tables also none."""

    def __init__(self, steps: Steps) -> None:
        self._places: dict[str, tuple[str, str]] | None = None
        self._upto = steps.to_ts
        self.rows: Counter[int] = Counter()
        for step in steps.all:
            match step:
                case Build(objects=objects):
                    ids = [each.table.id for each in objects]
                case Apply(work=work):
                    ids = [*work.tables, *(id_ for event in work.events for id_ in event.table_ids)]
                case HandOver(tables=tables):
                    self._places, ids = dict(tables), []
                case _:
                    ids = []
            self.rows.update(dict.fromkeys(ids, 0))

    def by_name(self, timeline: Timeline, rules: Rules) -> dict[str, int]:
        """By ``database.table`` as it is called there at the end of the steps; what is gone by then is left out."""
        found: Counter[str] = Counter()
        for table_id, rows in self.rows.items():
            versions = timeline.versions.get(timeline.partitions.get(table_id, table_id), ())
            version = next((each for each in reversed(versions) if each.commit_ts <= self._upto), None)
            if version is None or version.dropped or version.table.is_view or version.table.is_sequence:
                continue
            if is_system(version.db) or rules.leaves_out(version):
                continue
            place = rules.routes.table(*version.name)
            if self._places is None:
                found[".".join(place)] += rows
            elif place[1] in self._places:
                found[".".join(self._places[place[1]])] += rows
        return dict(found)
