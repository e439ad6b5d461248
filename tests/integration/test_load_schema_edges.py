"""Loads on a real MariaDB where the schema is awkward: views in any order, DDL that is under way while rows change."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include.loader.target import TargetConnection
from include.registry.open import open_cluster
from include.settings import Settings, TargetSettings
from spark_tasks.jobs import load, restore
from tests.support import mariadb
from tests.support.madearchive import MadeSource, column, table_info


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with mariadb.running(tmp_path_factory.mktemp("db")) as settings:
        yield settings


@pytest.fixture
def target(server: TargetSettings) -> Iterator[TargetConnection]:
    with TargetConnection.open(server) as connection:
        for (name,) in connection.query("SHOW DATABASES"):
            if name not in {"mysql", "information_schema", "performance_schema", "sys"}:
                connection.execute(f"DROP DATABASE `{name}`")
        yield connection


@pytest.fixture
def source(tmp_path: Path) -> MadeSource:
    cluster = open_cluster(f"file://{tmp_path}/cluster", create=True)
    made = MadeSource(tmp_path / "archive", cluster.cluster_id())
    cluster.close()
    return made


@pytest.fixture
def settings(tmp_path: Path, source: MadeSource, server: TargetSettings) -> Settings:
    return Settings.model_validate(
        {
            "cluster": {"url": f"file://{tmp_path}/cluster"},
            "archive": source.settings,
            "target": server,
            "restore_target": server,
            "load": {"engine": "local"},
        }
    )


def altered(source: MadeSource, table: str) -> dict[str, Any]:
    """A copy of a table's info, to be changed."""
    return copy.deepcopy(source.tables[table].info.raw)


# -- views


def create_view(source: MadeSource, name: str, select: str) -> None:
    source._table_id += 1
    view = {
        "view_algorithm": 0,
        "view_security": 0,
        "view_select": select,
        "view_cols": [{"O": "id", "L": "id"}],
    }
    info = table_info(source._table_id, name, [column(1, "id")], pk_is_handle=False, view=view)
    source._ddl(21, source._table_id, f"CREATE OR REPLACE VIEW {name}", TableInfo=info)


@pytest.mark.row("L6")
def test_views_of_genesis_are_created_whatever_their_age_and_one_over_a_dropped_table_is_left_out_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.create_table("gone", [column(1, "id", flag=3)])
    create_view(source, "v1", "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t`")
    create_view(source, "v2", "SELECT `d`.`v1`.`id` AS `id` FROM `d`.`v1`")
    create_view(source, "v1", "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t` WHERE `d`.`t`.`id` > 1")
    create_view(source, "broken", "SELECT `d`.`gone`.`id` AS `id` FROM `d`.`gone`")
    create_view(source, "on_broken", "SELECT `d`.`broken`.`id` AS `id` FROM `d`.`broken`")
    source.drop_table("gone")
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
        t.insert("t", id=2)
    end = source.cut()

    report = load.run(settings)

    assert target.query("SELECT id FROM d.v2") == [(2,)]
    assert [note.split(" is left out: ")[0] for note in report.notes] == [
        "the view `d`.`broken`",
        "the view `d`.`on_broken`",
    ]
    restored = restore.run(settings, to=end, dry_run=False)
    assert restored.load is not None
    assert len(restored.load.notes) == 2
    assert target.query("SELECT id FROM d.v2") == [(2,)]
