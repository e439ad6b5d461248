"""Where GC follows the load, Pumps keep what not every target has: real Pumps, a real MariaDB (rows P11, O1)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pumphouse.advice import TARGET, for_target
from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.cli import cli
from pumphouse.client import admin
from pumphouse.codec import payload
from pumphouse.errors import BadManifest, BinlogError, LoadError, TargetUnavailable
from pumphouse.loader.confirmed import Stand, ask, decide, publish
from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.table import Job, MysqlType
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.open import open_store
from pumphouse.registry.file import FileCluster
from pumphouse.runs import load
from pumphouse.settings import Settings, TargetSettings
from tests.support.checkpoints import set_checkpoint
from tests.support.loading import read_checkpoint
from tests.support.madearchive import MadeSource, Txn, column, target_rows
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

_OF = partial(for_target, name=TARGET)

pytestmark = pytest.mark.row("P11", "O1")


class Chain:
    """Two Pumps with small files, an archive, and a target that is equal to it at genesis."""

    def __init__(self, folder: Path, server: TargetSettings, target: TargetConnection) -> None:
        self.cluster = FileCluster(folder / "cluster")
        self.pumps = [
            PumpServer(folder, self.cluster, node_id=f"pump-{n}", value_log_file_bytes=8192, retention_s=0.001)
            for n in (1, 2)
        ]
        # Of the made source only the schema, its jobs and the rows as they should be.
        self.source = MadeSource(folder / "made")
        self.source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR, flen=4000)])
        self.target = target
        self.settings = Settings.model_validate(
            {
                "cluster": {"url": self.cluster.url},
                "archive": {"root": f"file://{folder}/archive", "poll_interval_s": 0.05, "pull_timeout_s": 15.0},
                "target": server,
                "load": {"engine": "local"},
                "airflow": {"gc_follows": "load"},
            }
        )
        self.archive = Archive(open_store(self.settings.archive), self.cluster.cluster_id())

    def begin(self) -> None:
        for pump in self.pumps:
            pump.start()
        init_archive(self.archive, self.cluster, self, settings=self.settings)
        self.target.execute("CREATE DATABASE d")
        self.target.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(4000) COLLATE utf8mb4_bin)")
        load.run(self.settings, equal_at=self.archive.genesis().ts)

    # The history.

    def job(self, job_id: int) -> Job | None:
        return next((each.job for each in self.source.jobs if each.job.id == job_id), None)

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        return (each.job for each in self.source.jobs if each.job.id > after_id)

    def fill(self) -> None:
        """Several files on each Pump."""
        rows = self.source.tables["t"].rows
        for pump in self.pumps:
            for _ in range(30):
                txn = Txn(self.source, payload.PrewriteValueBuilder(self.source.schema_version))
                txn.insert("t", id=len(rows), v=b"x" * 2000)
                pump.transaction(txn.builder.build())

    def snapshot(self) -> Tso:
        run_snapshot(self.archive, self.cluster, self.cluster.tso(), self.settings, self)
        return self.archive.end()

    def checkpoint(self) -> Tso | None:
        return consumer.checkpoint(self.cluster, "main")

    def gc(self, *more: str) -> Result:
        """`pumphouse gc` as a user types it."""
        sets = {
            "cluster.url": self.cluster.url,
            "archive.root": self.settings.archive.root,
            "target.port": self.settings.target.port,
            "target.password": self.settings.target.password.get_secret_value(),
            "airflow.gc_follows": "load",
        }
        options = [part for name, value in sets.items() for part in ("--set", f"{name}={value}")]
        return CliRunner().invoke(cli, [*options, *more, "gc", "--json"])

    def files(self) -> list[set[str]]:
        return [{path.name for path in (pump.data_dir / "value").glob("*.vlog")} for pump in self.pumps]


@pytest.fixture
def chain(tmp_path: Path, server: TargetSettings, target: TargetConnection) -> Iterator[Chain]:
    made = Chain(tmp_path, server, target)
    try:
        made.begin()
        yield made
    finally:
        for pump in made.pumps:
            pump.__exit__()


def test_every_pump_keeps_what_a_target_that_stands_still_has_not_and_frees_it_when_that_moves(chain: Chain) -> None:
    genesis = chain.archive.genesis().ts
    chain.fill()
    full = chain.files()
    assert all(len(files) > 5 for files in full)
    end = chain.snapshot()
    before = chain.cluster.node(NodeKind.DRAINER, "pumphouse-main")
    assert before is not None
    assert before.update_ts > end, "it is not stale"
    # What may go goes within a second or two: the positions that hold files are persisted once a second.
    until = time.monotonic() + 4
    while time.monotonic() < until:
        held = chain.gc()
        assert held.exit_code == 0, held.output
        assert chain.checkpoint() == genesis
        assert [each["freed_files"] for each in json.loads(held.stdout)] == [0, 0]
        assert all(kept >= had for kept, had in zip(chain.files(), full, strict=True))
        time.sleep(0.5)
    assert f"held by root@127.0.0.1:{chain.settings.target.port}" in held.stderr
    assert show(genesis) in held.stderr

    assert load.run(chain.settings).to_ts == end
    assert target_rows(chain.target) == chain.source.snapshot()
    assert chain.checkpoint() == genesis, "GC publishes it, nothing else does"

    def freed() -> bool:
        assert chain.gc().exit_code == 0
        return all(min(had) not in kept for kept, had in zip(chain.files(), full, strict=True))

    eventually(freed)
    assert chain.checkpoint() == end
    chain.fill()
    later = chain.snapshot()
    assert later > end
    assert chain.checkpoint() == end
    load.run(chain.settings)
    assert target_rows(chain.target) == chain.source.snapshot()


def test_a_closing_pump_waits_for_the_target_and_goes_when_gc_has_told_it(chain: Chain) -> None:
    chain.fill()
    admin.ask_state(chain.cluster, "pump-1", "close")
    eventually(lambda: chain.pumps[0].registered().state is NodeState.CLOSING)
    chain.snapshot()
    chain.gc()
    time.sleep(1)
    assert chain.pumps[0].registered().state is NodeState.CLOSING

    def offline() -> bool:
        chain.snapshot()
        load.run(chain.settings)
        assert chain.gc().exit_code == 0
        return chain.pumps[0].registered().state is NodeState.OFFLINE

    eventually(offline, within_s=30)
    last = chain.archive.last()
    assert last is not None
    chain.snapshot()
    assert target_rows(chain.target) == chain.source.snapshot()


def test_the_command_moves_nothing_where_airflow_alone_knows_the_targets(chain: Chain) -> None:
    genesis = chain.archive.genesis().ts
    chain.fill()
    chain.snapshot()
    load.run(chain.settings)
    several = chain.gc("--set", "airflow.gc_targets=pumphouse_downstream,other")
    assert isinstance(several.exception, LoadError)
    assert "other: it has no section [targets.…]" in str(several.exception)
    assert "airflow dags trigger pump_gc" in str(several.exception)
    assert chain.checkpoint() == genesis
    assert [each["started"] for each in json.loads(several.stdout)] == [True, True], "GC ran all the same"
    gone = chain.gc("--set", "target.port=1")
    assert isinstance(gone.exception, TargetUnavailable)
    assert chain.checkpoint() == genesis
    assert chain.gc().exit_code == 0
    assert chain.checkpoint() == chain.archive.end()


# -- what is decided, and what a target says


def test_what_is_published_is_the_smallest_and_nothing_where_one_is_unknown() -> None:
    a, b = Stand(name="a", ts=Tso(50)), Stand(name="b", ts=Tso(70))
    found = decide(Tso(60), [a, b])
    assert (found.upto, found.held_by) == (50, ("a",))
    found = decide(Tso(40), [a, b])
    assert (found.upto, found.held_by) == (40, ())
    found = decide(Tso(60), [a, b, Stand(name="c", unknown="away"), Stand(name="e", unknown="lost")])
    assert (found.upto, found.held_by, [each.name for each in found.unknown]) == (None, (), ["c", "e"])
    assert decide(Tso(60), []).upto is None


@pytest.mark.parametrize(
    ("change", "said", "hint"),
    [
        ("DROP DATABASE pumphouse", "no checkpoint of the task 'main'", "pumphouse load"),
        ("UPDATE pumphouse.checkpoint SET task = 'other'", "no checkpoint of the task 'main'", "pumphouse load"),
        (
            "UPDATE pumphouse.checkpoint SET state = 'incomplete', reason = 'a restore to x has not ended'",
            "incomplete: a restore to x has not ended",
            "run again what has not ended",
        ),
        (
            "UPDATE pumphouse.checkpoint SET state = 'inconsistent', reason = 'abandoned'",
            "inconsistent: abandoned",
            "pumphouse restore",
        ),
        ("UPDATE pumphouse.checkpoint SET cluster_id = 1234", "loaded from cluster 1234", "host and port of [target]"),
        (None, "does not answer", "is it running"),
    ],
)
def test_nothing_moves_where_a_target_is_not_known_to_have_anything(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    tmp_path: Path,
    change: str | None,
    said: str,
    hint: str,
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    genesis = source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    end = source.cut()
    cluster = FileCluster(tmp_path / "cluster")
    set_checkpoint(cluster, "main", genesis)
    load.run(settings)
    dead = settings.target.model_copy(update={"port": 1})

    def collect() -> BinlogError | None:
        of = settings.target if change is not None else dead
        stands = [
            ask("good", settings.target, "main", source.cluster_id, of=_OF)
            if change is None
            else Stand(name="x", ts=end)
        ]
        done = publish(source.archive, cluster, [*stands, ask("bad", of, "main", source.cluster_id, of=_OF)])
        assert done.checkpoint == consumer.checkpoint(cluster, "main")
        return done.failure()

    if change is not None:
        target.execute(change)
    failed = collect()
    assert failed is not None
    assert said in str(failed)
    assert hint in failed.hint
    assert "bad" in str(failed)
    assert failed.retryable is (change is None)
    assert consumer.checkpoint(cluster, "main") == genesis


def test_the_checkpoint_never_goes_back_and_an_archive_that_lacks_its_end_is_found_here_too(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    del target
    source.create_table("t", [column(1, "id", flag=3)])
    genesis = source.genesis()
    first, second = source.cut(), source.cut()
    cluster = FileCluster(tmp_path / "cluster")
    load.run(settings, to=first)

    def collect() -> Tso:
        stand = ask("t", settings.target, "main", source.cluster_id, of=_OF)
        return publish(source.archive, cluster, [stand]).checkpoint

    assert collect() == first == read_checkpoint(settings.target, "main")
    set_checkpoint(cluster, "main", second)  # before the setting was made
    assert collect() == second
    (newest,) = [each.key for each in source.archive.store.list("windows/") if str(int(first)) in each.key]
    source.archive.store.delete(newest)
    with pytest.raises(BadManifest, match="the archive's end was cut off"):
        publish(Archive(open_store(source.settings), source.cluster_id), cluster, [Stand(name="t", ts=genesis)])
