"""`pumphouse schema` on an archive."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pumphouse.cli import Context
from pumphouse.commands.schema import schema
from pumphouse.errors import UnknownTable
from pumphouse.registry.open import open_cluster
from tests.support.madearchive import MadeSource
from tests.support.schemajobs import int_col


@pytest.fixture
def made(tmp_path: Path) -> MadeSource:
    cluster = open_cluster(f"file://{tmp_path}/cluster")
    source = MadeSource(tmp_path / "archive", cluster_id=cluster.cluster_id())
    cluster.close()
    source.create_table("t", [int_col("id", flag=4099, id=1)])
    source.genesis()
    source.add_column("t", int_col("a", id=2))
    source.cut()
    return source


def _run(tmp_path: Path, *args: str) -> Result:
    context = Context(None, {"cluster.url": f"file://{tmp_path}/cluster", "archive.root": f"file://{tmp_path}/archive"})
    return CliRunner().invoke(schema, args, obj=context, catch_exceptions=False)


@pytest.mark.row("O3", "S1")
def test_rebuild_folds_new_jobs_once(made: MadeSource, tmp_path: Path) -> None:
    first = json.loads(_run(tmp_path, "rebuild", "--no-spark", "--json").stdout)
    assert first["jobs"] == 1
    assert first["key"].startswith("schema/")
    assert (first["upto"], first["schema_version"]) == (made.archive.end(), made.schema_version)
    assert "0 new DDL jobs" in _run(tmp_path, "rebuild", "--no-spark").stdout


@pytest.mark.row("O3", "S1")
def test_show_tells_tables_statements_and_history(made: MadeSource, tmp_path: Path) -> None:
    assert "d.t " in _run(tmp_path, "show").stdout
    assert "`a` int(11) NULL DEFAULT NULL" in _run(tmp_path, "show", "d.t", "--sql").stdout
    versions = json.loads(_run(tmp_path, "show", "D.T", "--history", "--json").stdout)
    assert [v["columns"] for v in versions] == [["id"], ["id", "a"]]
    at = str(versions[1]["commit_ts"] - 1)
    assert json.loads(_run(tmp_path, "show", "--at", at, "--json").stdout)[0]["columns"] == ["id"]
    events = json.loads(_run(tmp_path, "show", "--history", "--json").stdout)
    assert [e["action"] for e in events] == ["CREATE_SCHEMA", "CREATE_TABLE", "ADD_COLUMN"]
    assert events[2]["statements"] == ["ALTER TABLE `d`.`t` ADD COLUMN `a` int(11) NULL DEFAULT NULL"]
    assert "ADD_COLUMN: ALTER TABLE" in _run(tmp_path, "show", "--history").stdout
    with pytest.raises(UnknownTable, match=r"no table d\.x"):
        _run(tmp_path, "show", "d.x")
