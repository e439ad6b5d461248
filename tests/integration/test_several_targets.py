"""Several targets of one archive on a real MariaDB: each has its checkpoint, its rules and its names (rows L7, P11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.archive import consumer
from pumphouse.cli import cli
from pumphouse.errors import ConfigError
from pumphouse.loader.apart import server_name
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.registry.file import FileCluster
from pumphouse.settings import Settings
from tests.integration.test_load_rules import put, without
from tests.support import mariadb
from tests.support.checkpoints import set_checkpoint
from tests.support.loading import read_checkpoint
from tests.support.madearchive import MadeSource, column, target_rows

ID = column(1, "id", flag=3)
TEXT = column(2, "a", MysqlType.VARCHAR)
RULES = [{"do": "route", "database": "d", "to": "theirs", "why": "beside ours"}]


class Site:
    """A settings file with [target] and [targets.copy] on one server, each with a schema of its own."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.file, self.settings = folder / "pumphouse.toml", settings
        self.write()

    def write(self, *rules: dict[str, Any]) -> None:
        server = self.settings.target
        of = f'host = "127.0.0.1"\nport = {server.port}\nuser = "root"\npassword = "{server.password.get_secret_value()}"\n'
        text = f'[cluster]\nurl = "{self.settings.cluster.url}"\n[archive]\nroot = "{self.settings.archive.root}"\n'
        text += f'[load]\nengine = "local"\n[airflow]\ngc_follows = "load"\n[target]\n{of}'
        text += f'[targets.copy]\n{of}schema_name = "second"\n'
        for rule in (*RULES, *rules):
            text += "[[targets.copy.rules]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in rule.items())
        self.file.write_text(text)

    def __call__(self, *args: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(self.file), *args])

    def done(self, *args: str) -> str:
        ran = self(*args)
        assert ran.exit_code == 0, (ran.output, ran.exception)
        return ran.output


@pytest.fixture
def site(tmp_path: Path, settings: Settings) -> Site:
    return Site(tmp_path, settings)


@pytest.mark.row("L7", "P11", "O3")
def test_two_targets_stand_where_they_stand_and_gc_follows_the_slower(
    source: MadeSource, settings: Settings, target: TargetConnection, site: Site, tmp_path: Path
) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    copy = settings.target.model_copy(update={"schema_name": "second"})

    def confirmed() -> Any:
        site("gc")
        return consumer.checkpoint(cluster, "main")

    for table in ("t", "u"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1)
    genesis = source.genesis()
    set_checkpoint(cluster, "main", genesis)
    put(source, "t", 2)
    first, then = source.cut(), source.snapshot()
    site.done("load")
    assert target_rows(target) == then
    assert read_checkpoint(settings.target, "main") == first
    assert ("theirs",) not in target.query("SHOW DATABASES")
    # Of a target that was never loaded nothing is known: nothing moves, and it is named with what to type.
    assert "copy (root@127.0.0.1" in str(site("gc").exception)
    assert consumer.checkpoint(cluster, "main") == genesis

    site.done("load", "--target", "copy")
    assert target_rows(target, "theirs") == then
    assert confirmed() == first

    # One goes on, one stays behind.
    put(source, "t", 3)
    put(source, "u", 2, text=b"long")
    second, now = source.cut(), source.snapshot()
    site.done("load")
    assert (target_rows(target), target_rows(target, "theirs")) == (now, then)
    assert (read_checkpoint(settings.target, "main"), read_checkpoint(copy, "main")) == (second, first)
    assert confirmed() == first
    stands = {each["section"]: each["at"] for each in json.loads(site("status", "--json").stdout)["targets"]}
    assert stands == {"target": str(second), "targets.copy": str(first)}

    # A table is refused on the one, and parked there; the other has never heard of it.
    target.execute("ALTER TABLE theirs.u MODIFY a VARCHAR(2)")
    refused = site("load", "--target", "copy")
    assert "d.u: theirs.u did not take its rows" in str(refused.exception)
    assert '[[targets.copy.rules]]\ndo = "park"\ntable = "d.u"' in str(refused.exception)
    assert "`pumphouse load --target copy --resync d.u`" in str(refused.exception)
    site.write({"do": "park", "table": "d.u", "why": "too narrow"})
    parked = site("load", "--target", "copy")
    assert parked.exit_code == 3
    assert "then `pumphouse load --target copy --resync d.u`" in parked.output
    assert target_rows(target, "theirs")["t"] == now["t"]
    assert confirmed() == second
    assert site("load").exit_code == 0
    assert target_rows(target) == now
    findings = json.loads(site("status", "--json").stdout)["findings"]
    (said,) = [each for each in findings if "parked" in each["what"]]
    assert said["who"].startswith("[targets.copy]")
    assert said["next"] == "pumphouse load --target copy --resync d.u, without its rule in targets.copy.rules"
    site.write()
    site.done("load", "--target", "copy", "--resync", "d.u")
    assert target_rows(target, "theirs") == now
    assert without(target_rows(target), "t") == without(now, "t")


@pytest.mark.row("L7", "R1")
def test_a_named_target_is_restored_by_its_own_rules_and_never_onto_another(
    source: MadeSource, settings: Settings, target: TargetConnection, site: Site, tmp_path: Path
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    source.cut()
    site.done("load")
    # Both lie on one server, where each has databases of its own: what is built is of the one alone.
    rows = source.snapshot()
    site.done("restore", "--into", "copy", "--to", "latest")
    assert target_rows(target) == target_rows(target, "theirs") == rows
    target.execute("DELETE FROM theirs.t")
    site.done("restore", "--into", "copy", "--to", "latest", "--replace", server_name(settings.target))
    assert target_rows(target) == target_rows(target, "theirs") == rows
    # Without that, a restore and a first load judge alike, and neither sends to the other.
    target.execute("DROP DATABASE theirs")
    target.execute("DROP DATABASE second")
    text = site.file.read_text()
    for lines in ((text.partition("[[targets.copy.rules]]")[0]), text.replace('"second"', '"pumphouse"')):
        site.file.write_text(lines)
        restore = site("restore", "--into", "copy", "--to", "latest", "--dry-run")
        assert "is another target of loads, [target]" in str(restore.exception)
        assert "correct [targets.copy]" in str(restore.exception)
    site.file.write_text(text.partition("[[targets.copy.rules]]")[0])
    loaded = site("load", "--target", "copy")
    assert "is another target of loads, [target]" in str(loaded.exception)
    assert "[[targets.copy.rules]]" in str(loaded.exception)
    assert target_rows(target) == rows
    site.file.write_text(text)
    with mariadb.in_memory() as other:
        text = site.file.read_text()
        before, _, after = text.partition("[targets.copy]")
        port, password = settings.target, settings.target.password.get_secret_value()
        after = after.replace(f"port = {port.port}", f"port = {other.port}")
        after = after.replace(password, other.password.get_secret_value()) if password else after
        site.file.write_text(f"{before}[targets.copy]{after}")
        site.done("restore", "--into", "copy", "--to", "latest")
        with TargetConnection.open(other) as there:
            assert target_rows(there, "theirs") == source.snapshot()
            put(source, "t", 2)
            source.cut()
            site.done("load", "--target", "copy")
            assert target_rows(there, "theirs") == source.snapshot()
    unknown = site("load", "--target", "cpy")
    assert isinstance(unknown.exception, ConfigError)
    assert "targets that there are: target, copy" in str(unknown.exception)


def test_settings_of_a_named_target_come_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("of the file\n")
    (tmp_path / "p.toml").write_text('[target]\nhost = "one"\n[targets.copy]\nhost = "two"\nuser = "me"\n')
    monkeypatch.setenv("PUMPHOUSE_TARGETS__COPY__PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("PUMPHOUSE_TARGETS__THIRD__HOST", "three")
    monkeypatch.setenv("PUMPHOUSE_TARGETS__COPY__RULES", json.dumps(RULES))
    read = Settings.read(tmp_path / "p.toml", {"targets.copy.port": 4000})
    assert read.loaded == read.waited_for == ("pumphouse_downstream", "copy", "third")
    found = read.aimed("copy")
    assert (found.target.host, found.target.port) == ("two", 4000)
    assert found.target.password.get_secret_value() == "of the file"
    assert [rule.to for rule in found.load.rules] == ["theirs"]
    assert read.load.rules == ()
    for wrong, why in (
        ("[targets.Copy]\n", "no name of a target: Copy"),
        ("[targets.source]\n", "no name of a target: source"),
        ('[targets.copy]\nhots = "x"\n', "unknown setting 'targets.copy.hots'; did you mean 'host'"),
    ):
        (tmp_path / "wrong.toml").write_text(wrong)
        with pytest.raises(ConfigError, match=why):
            Settings.read(tmp_path / "wrong.toml")
