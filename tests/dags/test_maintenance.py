"""`binlog_maintenance` by Airflow's own runner: what expires, who holds it, and an archive that is not sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import BaseBegun
from pumphouse.model.tso import MAX_TSO
from pumphouse.registry.open import open_cluster
from tests.dags.test_runs_by_hand import _RUN
from tests.support.agedarchive import Aged, grown, require_restorable
from tests.support.connections import connection_variables
from tests.support.dumpedsource import DumpedSource

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.row("O1", "A5")


class World:
    """An archive with four dumps, and a way to run the DAG on it."""

    def __init__(self, folder: Path, in_airflow: Callable[..., Any]) -> None:
        url = f"file://{folder}/cluster"
        cluster = open_cluster(url, create=True)
        source = DumpedSource(folder / "archive", cluster.cluster_id())
        cluster.close()
        self.made: Aged = grown(source)
        self._in_airflow = in_airflow
        self._connections = connection_variables(
            {
                "pumphouse_archive": {"conn_type": "pumphouse_archive", "extra": {"root": source.settings.root}},
                "pumphouse_cluster": {"conn_type": "pumphouse_cluster", "extra": {"url": url}},
            }
        )

    @property
    def archive(self) -> Archive:
        """As another process sees it."""
        return Archive.open(self.made.source.settings, self.made.source.cluster_id)

    def run(self, *, targets: dict[str, Any] | None = None, **settings: str) -> tuple[str, dict[str, str], list[Any]]:
        """State of the run, and of each task, and what the tasks logged."""
        state, tasks, said, _ = self._in_airflow(
            _RUN % (str(ROOT / "dags"), "binlog_maintenance", {}, 0),
            **self._connections,
            **connection_variables(targets or {}),
            **settings,
        )
        return state, tasks, said


@pytest.fixture
def world(tmp_path: Path, in_airflow: Callable[..., Any]) -> World:
    return World(tmp_path, in_airflow)


def test_what_retention_does_not_keep_goes_unless_a_target_does_not_say_what_it_needs(world: World) -> None:
    kept = {"PUMPHOUSE_RETENTION__KEEP_BASES": "1"}
    away = {"pumphouse_downstream": {"conn_type": "pumphouse_downstream", "host": "127.0.0.1", "port": 1, "login": "r"}}
    state, _, said = world.run(targets=away, **kept)
    assert state == "success"
    (held,) = [facts["by"] for event, facts in said if event == "archive_held"]
    assert held.startswith("pumphouse_downstream does not say what it needs")
    assert world.archive.range().number == 0, "it may need everything"
    without = {"PUMPHOUSE_RETENTION__WITHOUT": "pumphouse_downstream", "PUMPHOUSE_AIRFLOW__MAINTENANCE_COMPACT": "true"}
    state, tasks, _ = world.run(targets=away, **kept, **without)
    assert (state, tasks) == (
        "success",
        dict.fromkeys(("verify", "base", "copy", "expire", "compact", "orphans"), "success"),
    )
    moved = world.archive.range()
    assert moved.base is not None
    assert moved.base.ts == world.made.dumps[-1]
    require_restorable(world.archive, [at for at, _ in world.made.moments if at >= moved.base.ts])
    assert world.run(**kept)[0] == "success"
    assert world.archive.range() == moved


def test_every_server_that_a_setting_names_is_asked_and_one_without_a_connection_stops_it(world: World) -> None:
    asked = {
        "PUMPHOUSE_RETENTION__KEEP_BASES": "1",
        "PUMPHOUSE_AIRFLOW__LOAD_TARGETS": "first",
        "PUMPHOUSE_AIRFLOW__GC_TARGETS": "second",
        "PUMPHOUSE_AIRFLOW__RESTORE_TARGETS": "third",
    }
    away = {"conn_type": "pumphouse_downstream", "host": "127.0.0.1", "port": 1, "login": "r"}
    state, tasks, _ = world.run(targets={"first": away, "second": away}, **asked)
    assert (state, tasks["expire"]) == ("failed", "failed"), "nobody made the connection of the third"
    assert world.archive.range().number == 0
    state, _, said = world.run(targets={"first": away, "second": away, "third": away}, **asked)
    assert state == "success"
    held = [facts["by"].split()[0] for event, facts in said if event == "archive_held"]
    assert held == ["first", "second", "third"]
    assert world.archive.range().number == 0


def test_nothing_is_deleted_from_an_archive_that_is_not_sound(world: World) -> None:
    segment = next(each for each in world.archive.windows()[-1].segments if each.rows)
    world.archive.store.delete(segment.key)
    before = {each.key for each in world.archive.store.list("")}
    state, tasks, said = world.run(PUMPHOUSE_RETENTION__KEEP_BASES="1")
    assert state == "failed"
    assert [facts["key"] for event, facts in said if event == "archive_problem"] == [segment.key]
    later = ("base", "expire", "compact", "orphans")
    assert tasks == {"verify": "failed", "copy": "success", **dict.fromkeys(later, "upstream_failed")}
    assert {each.key for each in world.archive.store.list("")} == before


def test_a_base_is_folded_when_it_is_time_and_copied_before_anything_expires(world: World, tmp_path: Path) -> None:
    """Twice, the second time behind a fold that was killed; and where the copy fails nothing expires."""
    root = f"file://{tmp_path}/copy"
    some = {"PUMPHOUSE_ARCHIVE__COPY_ROOT": root, "PUMPHOUSE_RETENTION__KEEP_BASES": "1"}
    state, tasks, said = world.run(**some, PUMPHOUSE_AIRFLOW__BASE_DAYS="100000")
    assert (state, world.archive.range().number) == ("success", 1), tasks
    assert [event for event, _ in said if event.startswith("no base is folded: the newest base, of")]
    before = world.archive.bases(MAX_TSO)
    note = layout.fold_note(world.archive.end(), "0123456789abcdef")
    begun = BaseBegun(cluster_id=world.archive.cluster_id, low=world.archive.end(), tables=None, over=before[-1].begun)
    world.archive.store.put(note, begun.to_json())
    for _ in range(2):
        assert world.run(**some, PUMPHOUSE_AIRFLOW__BASE_DAYS="1")[0] == "success"
        made = [base for base in world.archive.bases(MAX_TSO) if base.folded is not None]
        assert [base.ts for base in made] == [world.archive.end()]
    there = Archive.open(world.made.source.settings.model_copy(update={"root": root}), world.made.source.cluster_id)
    # All dumps are still there, and the new base.
    assert [base.ts for base in there.bases(MAX_TSO)] == [*world.made.dumps[1:], made[0].ts]
    require_restorable(there, [at for at, _ in world.made.moments])
    moved = world.archive.range()
    there.store.put(layout.HEAD, b"damaged")
    with world.made.source.txn() as txn:
        txn.insert("new0", id=99)
    world.made.source.cut()
    state, tasks, _ = world.run(**some, PUMPHOUSE_AIRFLOW__BASE_DAYS="1")
    assert (state, tasks["copy"], tasks["expire"]) == ("failed", "failed", "upstream_failed")
    assert world.archive.range() == moved


def test_what_is_wrong_with_an_old_window_or_a_base_stops_no_copy(world: World, tmp_path: Path) -> None:
    """The copy is needed most then; and nothing expires."""
    root = f"file://{tmp_path}/copy"
    some = {"PUMPHOUSE_ARCHIVE__COPY_ROOT": root, "PUMPHOUSE_RETENTION__KEEP_BASES": "1"}
    assert world.run(PUMPHOUSE_ARCHIVE__COPY_ROOT=root)[0] == "success"
    segment = next(each for window in world.archive.windows() for each in window.segments if each.rows)
    data = world.archive.store.get(segment.key)
    world.archive.store.delete(segment.key)
    with world.made.source.txn() as txn:
        txn.insert("new0", id=99)
    end = world.made.source.cut()
    state, tasks, _ = world.run(**some)
    assert (state, tasks["verify"], tasks["copy"], tasks["expire"]) == (
        "failed",
        "failed",
        "success",
        "upstream_failed",
    )
    there = Archive.open(world.made.source.settings.model_copy(update={"root": root}), world.made.source.cluster_id)
    assert there.end() == end
    world.archive.store.put(segment.key, there.store.get(segment.key))
    assert world.archive.store.get(segment.key) == data, "the copy has it"
    assert world.run(**some)[0] == "success"
    assert world.archive.range().number
