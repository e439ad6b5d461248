"""Each DDL of the demo's scenario gives a job that the timeline folds, and a catalog that equals the timeline."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pumphouse.demo.catalog import Catalog
from pumphouse.demo.ddl import Change, DdlEngine
from pumphouse.demo.scenario import IN_FIRST_LOAD, WHILE_RUNNING
from pumphouse.demo.world import BEFORE_GENESIS
from pumphouse.model.table import Job, JobState
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Action
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob


def _carry_out(catalog: Catalog, change: Change, number: int) -> Job:
    """What the engine does, without servers."""
    if change.delete_only is not None:
        catalog.schema_version += 2
    catalog.schema_version += change.versions
    raw: dict[str, Any] = DdlEngine._job(None, catalog, change, catalog.take_id(), Tso(number << 18))  # type: ignore[arg-type]
    for key, info in change.tables.items():
        catalog.tables.pop(key, None)
        if info is not None:
            catalog.tables[key] = {**info, "update_timestamp": number << 18}
    for name, db in change.dbs.items():
        catalog.dbs.pop(name, None)
        if db is not None:
            catalog.dbs[name] = db
    catalog.jobs += 1
    raw["binlog"]["FinishedTS"] = (number << 18) + 5
    return Job.from_json(json.dumps(raw))


# Those of the first load come when it does.
@pytest.mark.parametrize("at", range(len(WHILE_RUNNING) + 1))
def test_the_timeline_of_the_jobs_equals_the_catalog_at_every_step(at: int) -> None:
    catalog, timeline = Catalog(), Timeline.empty()
    running = [*WHILE_RUNNING[:at], *IN_FIRST_LOAD, *WHILE_RUNNING[at:]]
    steps = [*BEFORE_GENESIS, *(named.step for named in running)]
    for number, step in enumerate(steps, start=1000):
        job = _carry_out(catalog, step(catalog), number)
        timeline = timeline.fold([TimedJob(Tso(number << 18), job)])
        found = {(t.db, t.table.name): t.table.raw for t in timeline.tables_at(Tso(number << 18))}
        assert found.keys() == catalog.tables.keys(), job.query
        for key, raw in catalog.tables.items():
            assert found[key]["id"] == raw["id"], job.query
            assert found[key]["cols"] == raw["cols"], job.query
            assert found[key]["index_info"] == raw["index_info"], job.query


def test_the_scenario_has_many_kinds_and_a_failed_job() -> None:
    catalog = Catalog()
    jobs = []
    for number, step in enumerate([*BEFORE_GENESIS, *(named.step for named in WHILE_RUNNING)], start=1):
        jobs.append(_carry_out(catalog, step(catalog), number))
    running = jobs[len(BEFORE_GENESIS) :]
    assert len(running) >= 12
    assert len({Action(job.type) for job in running}) >= 18
    assert [job for job in running if job.state == JobState.ROLLBACK_DONE]
