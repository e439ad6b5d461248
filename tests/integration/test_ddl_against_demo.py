"""The demo's DDL, written by hand for one server and rendered from its jobs on another, makes the same schema."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from pumphouse.demo.catalog import Catalog
from pumphouse.demo.ddl import DdlEngine
from pumphouse.demo.scenario import IN_FIRST_LOAD, WHILE_RUNNING
from pumphouse.demo.store import SCHEMA, create_bookkeeping
from pumphouse.demo.world import BEFORE_GENESIS
from pumphouse.diff.compare import compare
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.model.tso import Tso
from pumphouse.registry.open import open_cluster
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import genesis_jobs
from pumphouse.settings import ServerSettings, TargetSettings
from tests.support import mariadb


@pytest.mark.row("S1", "S2", "L6")
def test_every_kind_of_ddl_of_the_demo_makes_the_same_schema_on_the_target(tmp_path: Path) -> None:
    cluster = open_cluster(f"file://{tmp_path}/cluster")
    with (
        mariadb.directory_in_memory() as directory,
        mariadb.server_in(directory / "source") as source,
        mariadb.server_in(directory / "target") as server,
    ):
        connection = source.connect(autocommit=True)
        create_bookkeeping(connection)
        connection.close()
        engine = DdlEngine(directory=tmp_path, source=source.dsn, cluster=cluster, client=None, history_delay_s=0)
        for step in (*BEFORE_GENESIS, *(named.step for named in (*WHILE_RUNNING, *IN_FIRST_LOAD))):
            engine.run(step)
        engine.close()
        dsn = source.dsn
        of = ServerSettings(host=dsn.host, port=dsn.port, user=dsn.user, password=SecretStr(dsn.password))
        history = MysqlTableSource(of, SCHEMA, "ddl_history")
        timeline = Timeline.empty().fold(genesis_jobs(history.jobs(), cluster.tso()))
        catalog = Catalog.load(tmp_path / "catalog.json")
        found = {v.name: v.table.raw | {"update_timestamp": 0} for v in timeline.tables_at(cluster.tso())}
        assert found == {key: raw | {"update_timestamp": 0} for key, raw in catalog.tables.items()}
        settings = TargetSettings(host="127.0.0.1", port=server.port, user="root", password=SecretStr(server.password))
        with mariadb.owned(settings) as (held, owner):
            executor = DdlExecutor(held, owner, "main")
            for event in timeline.ddls(Tso(0), cluster.tso()):
                executor.execute(event)
        report = compare(source.dsn, server.dsn, ignore={SCHEMA, "pumphouse"})
        assert report.differences == []
        sides = []
        for each in (source, server):
            connection = each.connect()
            with connection.cursor() as cursor:
                shown = {}
                for db, name in catalog.tables:
                    cursor.execute(f"SHOW CREATE TABLE `{db}`.`{name}`")
                    shown[db, name] = cursor.fetchone()[1]
            connection.close()
            sides.append(shown)
        assert sides[0] == sides[1]
    cluster.close()
