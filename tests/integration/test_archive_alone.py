"""Everything is gone but the archive's folder: what only reads needs nothing else."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.archive.archive import Archive
from pumphouse.cli import cli
from pumphouse.errors import ClusterUnavailable, ConfigError
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.settings import Settings, TargetSettings
from pumphouse.status.look import look
from tests.support.madearchive import MadeSource, column, target_rows

pytestmark = pytest.mark.row("R7")


@pytest.fixture
def root(source: MadeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The archive of a cluster that is gone, in a directory without settings."""
    fill(source)
    shutil.rmtree(tmp_path / "cluster")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return f"file://{tmp_path}/archive"


def fill(source: MadeSource) -> Tso:
    """A dump, and a window over it."""
    source.create_table("t", [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR)])
    with source.txn() as t:
        t.insert("t", id=1, name=b"one")
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=2, name=b"two")
        t.update("t", 1, name=b"uno")
    return source.cut()


def run(*args: str, sets: dict[str, Any] | None = None) -> Result:
    chosen = [word for name, value in (sets or {}).items() for word in ("--set", f"{name}={value}")]
    return CliRunner().invoke(cli, [*chosen, *args])


def said(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.exception or result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def server_of(server: TargetSettings) -> dict[str, Any]:
    told = {"host": server.host, "port": server.port, "user": server.user, "load.engine": "local"}
    password = server.password.get_secret_value()
    told |= {"password": password} if password else {}
    return {name if "." in name else f"restore_target.{name}": value for name, value in told.items()}


def test_the_archive_is_listed_shown_verified_and_restored(
    root: str, source: MadeSource, server: TargetSettings, target: TargetConnection
) -> None:
    listed = said(run("archive", "ls", "--archive", root, "--windows", "--json"))
    assert (listed["cluster_id"], listed["checkpoint"], len(listed["windows"])) == (source.cluster_id, None, 1)
    assert "no cluster is asked" in run("archive", "ls", "--archive", root).stdout
    assert json.loads(run("archive", "show", "genesis", "--archive", root).stdout)["cluster_id"] == source.cluster_id
    assert said(run("archive", "verify", "--archive", root, "--json"))["problems"] == []
    assert not [each for each in source.archive.store.list("") if each.key == "verified.json"]
    assert "d.t " in run("schema", "show", "--archive", root).stdout
    shown = said(run("restore", "--archive", root, "--to", "latest", "--dry-run", "--json", sets=server_of(server)))
    assert [note.partition(":")[0] for note in shown["check"]["notes"]] == ["the source", "the targets of loads"]
    said(run("restore", "--archive", root, "--to", "latest", "--json", sets=server_of(server)))
    assert target_rows(target)["t"] == source.snapshot()["t"] == Counter([(1, b"uno"), (2, b"two")])


def test_a_load_goes_on_without_the_cluster(
    settings: Settings, root: str, source: MadeSource, target: TargetConnection
) -> None:
    from pumphouse.runs import load

    load.run(settings)  # cluster.url still names the directory that is gone
    assert target_rows(target)["t"] == source.snapshot()["t"]


def test_of_several_clusters_under_one_root_one_is_chosen_by_its_id(
    root: str, source: MadeSource, tmp_path: Path, server: TargetSettings, target: TargetConnection
) -> None:
    other = MadeSource(tmp_path / "archive", source.cluster_id + 1)
    other.create_table("u", [column(1, "id", flag=3)])
    other.genesis()
    other.cut()
    for command in (("archive", "ls"), ("restore", "--to", "latest")):
        refused = run(*command, "--archive", root, sets=server_of(server)).exception
        assert isinstance(refused, ConfigError)
        assert "2 clusters have archives" in refused.message
        for each in (source, other):
            assert f"{each.cluster_id} ({each.archive.genesis().ts} (" in refused.message
    chosen = {"archive.cluster_id": source.cluster_id}
    assert said(run("archive", "ls", "--archive", root, "--json", sets=chosen))["cluster_id"] == source.cluster_id
    said(run("restore", "--archive", root, "--to", "latest", "--json", sets=chosen | server_of(server)))
    assert target_rows(target)["t"] == source.snapshot()["t"]
    refused = run("archive", "ls", "--archive", root, sets={"archive.cluster_id": 4711}).exception
    assert isinstance(refused, ConfigError)
    assert "there is no archive of cluster 4711" in refused.message


def test_the_folder_of_one_cluster_is_no_root_and_the_one_above_is_named(root: str, source: MadeSource) -> None:
    refused = run("archive", "ls", "--archive", f"{root}/{source.cluster_id}").exception
    assert isinstance(refused, ConfigError)
    assert f"give the folder above it, {root};" in refused.hint
    refused = run("archive", "ls", "--archive", f"{root}/none").exception
    assert isinstance(refused, ConfigError)
    assert "there is no archive at" in refused.message


def test_a_cluster_that_is_another_one_is_refused_with_those_that_there_are(
    settings: Settings, source: MadeSource, tmp_path: Path
) -> None:
    fill(source)
    (tmp_path / "archive" / str(source.cluster_id)).rename(tmp_path / "archive" / "4711")
    stray = tmp_path / "archive" / str(source.cluster_id) / "stray"  # no archive
    stray.parent.mkdir()
    stray.touch()
    with Parts(settings) as parts, pytest.raises(ConfigError, match="which has those of 4711") as refused:
        _ = parts.readable_archive
    assert "is cluster.url right?" in refused.value.hint
    assert "--set archive.cluster_id=4711" in refused.value.hint
    assert f"{source.cluster_id} (" not in refused.value.message.partition("which has")[2]
    stray.unlink()
    stray.parent.rmdir()
    (tmp_path / "archive" / "4711").rename(tmp_path / "archive" / str(source.cluster_id))
    archive = settings.archive.model_copy(update={"cluster_id": 4711})
    other = settings.model_copy(update={"archive": archive})
    with Parts(other) as parts, pytest.raises(ConfigError, match=r"archive\.cluster_id is 4711"):
        _ = parts.readable_archive


def test_what_writes_still_needs_the_cluster(root: str, source: MadeSource) -> None:
    before = {each.key: each.size for each in source.archive.store.list("")}
    for command in (("snapshot",), ("archive", "init"), ("archive", "dump"), ("schema", "rebuild", "--no-spark")):
        refused = run(*command, sets={"archive.root": root}).exception
        assert isinstance(refused, ConfigError), command
        assert "there is no cluster at" in refused.message
    assert {each.key: each.size for each in source.archive.store.list("")} == before


def test_now_is_this_machines_where_the_cluster_does_not_answer(root: str, source: MadeSource) -> None:
    gone = {"cluster": {"url": "pd://127.0.0.1:1", "init_tries": 1}, "archive": {"root": root}}
    with Parts(Settings.model_validate(gone)) as parts:
        assert parts.readable_archive.cluster_id == source.cluster_id
        assert parts.now() > source.archive.end()
        with pytest.raises(ClusterUnavailable):
            _ = parts.archive


def test_a_look_shows_what_the_archive_says_though_the_cluster_is_gone(
    root: str, source: MadeSource, settings: Settings
) -> None:
    found = look(settings, {}, within_s=5)
    assert (found.archive.end, found.archive.restorable_from) == (source.archive.end(), source.archive.genesis().ts)
    assert [each.who for each in found.findings] == ["cluster"]


def test_an_archive_that_cannot_be_read_is_named_among_the_others(root: str, source: MadeSource) -> None:
    settings = Archive.alone(source.settings)
    assert settings.cluster_id == source.cluster_id
    told = Archive.told(source.settings, [source.cluster_id, 4711])
    assert "4711 (there is no archive of cluster 4711" in told
