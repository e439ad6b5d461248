"""Binlog files of real histories, replayed onto a MariaDB: by a plain Reparo of the tests, and by the Go one where it is.

Where the Go Reparo would end, a restore takes the target past that DDL, and the replay goes on from there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pumphouse.export.run import ExportReport, export_pb
from pumphouse.loader.target import TargetConnection
from pumphouse.objectstore.file import FileStore
from pumphouse.objectstore.open import open_store
from pumphouse.parts import Parts
from pumphouse.settings import TargetSettings
from tests.bench.sysbench import archive as sysbench_archive
from tests.support import mariadb, plainreparo
from tests.support.loading import restored
from tests.support.madearchive import Churn, MadeSource
from tests.support.motoserver import s3_server
from tests.support.recorded import DIRECTORY, Recorded, replayed, take_windows
from tests.support.tidb import BUILT
from tests.tidb.chain import empty
from tests.tidb.contents import differences, target_contents

pytestmark = pytest.mark.row("A6")
REPARO = Path(os.environ.get("PUMPHOUSE_REPARO") or BUILT / "reparo")
# The others have statements that no MariaDB takes (indexes that are invisible), and a Reparo ends at them.
RECORDS = [
    DIRECTORY / "seed-10.tar.xz",
    pytest.param(DIRECTORY / "seed-7.tar.xz", marks=pytest.mark.slow),
]
Player = Callable[[TargetSettings, Path, int, int], object]


def go_reparo(target: TargetSettings, files: Path, after: int, upto: int) -> None:
    """The Go program; it ends with exit code 0 also where it failed.

    With one worker: several take keys for different that are equal on a server, ``a`` and ``a `` (docs/limits.md).
    """
    settings = files.parent / "reparo.toml"
    settings.write_text(
        f'data-dir = "{files}"\ndest-type = "mysql"\nsafe-mode = true\nstart-tso = {after + 1}\nstop-tso = {upto}\n'
        "worker-count = 1\n"
        f'[dest-db]\nhost = "{target.host}"\nport = {target.port}\nuser = "{target.user}"\n'
        f'password = "{target.password.get_secret_value()}"\n'
    )
    done = subprocess.run([REPARO, "-config", settings], capture_output=True, text=True, timeout=300, check=False)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-3000:]
    assert "processing failed" not in told, told[-3000:]


@pytest.fixture(scope="module")
def history() -> Iterator[TargetSettings]:
    """Has the DDL jobs."""
    with mariadb.in_memory() as settings:
        yield settings


@contextmanager
def not_strict(server: TargetSettings) -> Iterator[None]:
    """A strict server refuses what TiDB's ENUM and dates may hold."""
    with TargetConnection.open(server) as connection:
        ((was,),) = connection.query("SELECT @@GLOBAL.sql_mode")
        connection.execute("SET GLOBAL sql_mode = ''")
        yield
        connection.execute("SET GLOBAL sql_mode = %s", (was,))


@pytest.mark.mariadb("the recorded DDLs are those that a MariaDB takes as they are")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "player",
    [
        plainreparo.replay,
        pytest.param(
            go_reparo,
            marks=pytest.mark.skipif(not REPARO.exists(), reason="no Reparo in build/tidb (CONTRIBUTING.md)"),
        ),
    ],
    ids=["plain", "go"],
)
@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name.partition(".")[0])
def test_files_of_a_real_history_make_a_mariadb_equal_the_tidb_at_each_moment(
    record: Path, player: Player, history: TargetSettings, server: TargetSettings, tmp_path: Path
) -> None:
    empty(server)
    recorded, files, compared = Recorded.read(record), tmp_path / "files", 0
    with replayed(recorded, tmp_path, history=history, target=server) as settings, not_strict(server):
        take_windows(recorded, settings)
        with Parts(settings) as parts:
            report = export_pb(parts.archive, FileStore(files), since=recorded.genesis, upto=None, file_bytes=20_000)
        assert len(report.notes) > 1
        for after, upto, moment in _legs(report, recorded):
            player(server, files, after, upto)
            if moment:
                found = target_contents(server, recorded.moments[moment])
                assert differences(recorded.moments[moment], found) == [], moment
                compared += 1
            else:
                restored(settings, to=upto + 1, dry_run=False)
    assert compared == len(recorded.moments)


def _legs(report: ExportReport, recorded: Recorded) -> Iterator[tuple[int, int, int]]:
    """(after, upto, the moment to compare at): up to each moment, and to just before each DDL that Reparo refuses."""
    at = int(recorded.genesis)
    ends = [(int(each.commit_ts), False) for each in report.refused] + [(int(ts), True) for ts in recorded.moments]
    for ts, compare in sorted(ends):
        yield at, ts if compare else ts - 1, ts if compare else 0
        at = ts


def _command(source: MadeSource, *words: object) -> subprocess.Popen[str]:
    env = {"PUMPHOUSE_ARCHIVE__ROOT": source.settings.root, "PUMPHOUSE_ARCHIVE__CLUSTER_ID": str(source.cluster_id)}
    return subprocess.Popen(
        [sys.executable, "-m", "pumphouse", "archive", "export", "--format", "pb", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip


def _objects(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.timeout(300)
def test_a_command_that_is_killed_anywhere_goes_on_to_the_same_files(tmp_path: Path) -> None:
    source, rng = MadeSource(tmp_path / "archive"), random.Random(3)
    _, since = sysbench_archive(source, 2_000)
    export_pb(source.archive, FileStore(tmp_path / "whole"), since=since, upto=None, file_bytes=1 << 20)
    wanted = _objects(tmp_path / "whole")
    assert len(wanted) > 20
    killed = 0
    for number in range(2):
        out = tmp_path / f"out{number}"
        child = _command(source, "--from", since, "--file-mib", 1, out)
        first = rng.randint(0, 8)
        while child.poll() is None and len(list(out.glob("binlog-*"))) <= first:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        child.communicate()
        child = _command(source, "--from", since, "--file-mib", 1, out)
        told, failed = child.communicate()
        assert child.returncode == 0, failed
        assert "holds what was committed after" in told
        assert {name: data for name, data in _objects(out).items() if not name.endswith(".tmp")} == wanted
    assert killed


def test_the_command_tells_what_it_wrote_and_what_reparo_refuses(tmp_path: Path) -> None:
    source = MadeSource(tmp_path / "archive")
    churn = Churn(source, seed=2)
    since = source.genesis()
    churn.fill()
    churn.work(10)
    source.drop_table("u")
    source.ddl(26, 0, "ALTER DATABASE `d` COLLATE utf8mb4_bin", DBInfo={"id": 2, "db_name": {"O": "d", "L": "d"}})
    source.cut()
    child = _command(source, "--from", since, "--json", tmp_path / "json")
    told = json.loads(child.communicate()[0])
    assert child.returncode == 0
    assert [each["action"] for each in told["refused_by_reparo"]] == ["MODIFY_SCHEMA_CHARSET"]
    (file,) = told["files"]
    assert (file["ddls"], file["changes"] > 10, file["size"]) == (
        2,
        True,
        (tmp_path / "json" / file["name"]).stat().st_size,
    )
    child = _command(source, "--from", since, tmp_path / "text")
    out, _ = child.communicate()
    assert "! Reparo ends at" in out
    assert "--stop-tso" in out
    child = _command(source, tmp_path / "text")
    assert child.communicate()[0].startswith("nothing to write")
    child = _command(source, "--from", since, tmp_path / "archive" / "in it")
    assert "lies in the archive" in child.communicate()[1]
    assert child.returncode == 2


def test_files_go_to_an_object_store_too(tmp_path: Path) -> None:
    source = MadeSource(tmp_path / "archive")
    churn = Churn(source, seed=2)
    since = source.genesis()
    churn.fill()
    churn.work(30)
    source.cut()
    export_pb(source.archive, FileStore(tmp_path / "whole"), since=since, upto=None, file_bytes=3000)
    wanted = _objects(tmp_path / "whole")
    with s3_server() as s3:
        store = open_store(s3.archive_settings())
        for _ in range(2):
            export_pb(source.archive, store, since=since, upto=None, file_bytes=3000)
            assert {each.key: store.get(each.key) for each in store.list("")} == wanted
        store.delete(sorted(name for name in wanted if name.startswith("binlog-"))[1])
        export_pb(source.archive, store, since=None, upto=None)
        assert {each.key: store.get(each.key) for each in store.list("")} == wanted
