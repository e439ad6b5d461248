"""Loads on a real Spark session: the same result as in one process, also when the job is killed and run again."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from pumphouse.archive.schema_store import rebuild
from pumphouse.errors import RowRejected
from pumphouse.loader import state
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.runs import load, restore, schema
from pumphouse.settings import Settings, SparkSettings
from spark_tasks.engine import SparkEngine
from spark_tasks.session import build_session
from spark_tasks.travel import Travel
from tests.integration.test_restore_follow import history
from tests.integration.test_steps import killing, small_plans
from tests.support.loading import restored
from tests.support.madearchive import Churn, MadeSource, column, target_rows

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(900)

LOAD = {"buckets": 3, "engine": "spark"}


@pytest.fixture(scope="module")
def session(quick_jvms: str) -> Iterator[SparkSession]:
    del quick_jvms
    made = build_session("test", SparkSettings())
    yield made
    made.stop()


def fill(source: MadeSource) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(8)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(8)
    source.cut()
    source.truncate("k")
    churn.work(5)
    source.cut()


@pytest.mark.row("S1", "S3", "L4", "O4")
@pytest.mark.parametrize("small_step_bytes", [0, 8 << 20], ids=["applied by executors", "small steps by the driver"])
def test_spark_rebuilds_the_schema_and_loads_what_the_source_has(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    small_step_bytes: int,
) -> None:
    del session
    monkeypatch.setattr("spark_tasks.engine._SMALL_STEP_BYTES", small_step_bytes)
    fill(source)
    rebuilt = schema.run(settings)
    assert rebuilt.spark is True
    assert rebuilt.jobs == 2
    assert schema.run(settings).spark is False
    report = load.run(settings)
    assert target_rows(target) == source.snapshot()
    assert report.ddls == 2
    assert target.value("SELECT COUNT(*) FROM pumphouse.plan WHERE state = 'open'") == 0


@pytest.mark.row("R1", "L6")
def test_a_restored_server_goes_on_as_a_replica_also_when_it_is_killed_in_its_load(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del session
    monkeypatch.setattr("spark_tasks.engine._SMALL_STEP_BYTES", 0)
    at, settings = history(source), small_plans(settings)
    with killing(state, "close_plan", at=4):  # the dump, two windows of the restore; the first of the load
        restored(settings, to=at, follow=True, dry_run=False)
    assert target.query("SELECT kind, state FROM pumphouse.step") == [("follow", "planned")]
    done = restore.run(settings, into="target", to=at, follow=True, dry_run=False)
    assert done.before
    assert done.followed is not None
    assert done.followed.engine.startswith("on Spark")
    assert done.followed.to_ts == source.archive.end()
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L4", "O4")
@pytest.mark.parametrize(("here", "least", "most"), [(True, 0, 0.01), (False, 0.8, 1.3)], ids=["by files", "by Spark"])
def test_rows_are_shuffled_at_most_once(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    here: bool,
    least: float,
    most: float,
) -> None:
    """Workers of this machine hand each other files, which are gone after the load; others get rows through Spark."""
    if not here:
        monkeypatch.setattr("spark_tasks.travel.Travel.of", lambda _: Travel(None))
    monkeypatch.setattr("spark_tasks.engine._SMALL_STEP_BYTES", 0)
    source.create_table("t", [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR, flen=4000)])
    source.genesis()
    rng, size = random.Random(5), 0
    with source.txn() as t:
        for i in range(2000):
            name = rng.randbytes(1500).hex().encode()
            size += len(name)
            t.insert("t", id=i, name=name)
    source.cut()
    schema.run(settings)
    before = shuffled(session)
    load.run(settings)
    assert least < (shuffled(session) - before) / size < most
    assert target_rows(target) == source.snapshot()
    assert list(Path(SparkFiles.getRootDirectory()).glob("blobs-*")) == []


def shuffled(session: SparkSession) -> int:
    """Bytes that this session's tasks wrote for others."""
    executors = session.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(at).totalShuffleWrite() for at in range(executors.size()))


@pytest.mark.row("L4")
def test_rows_rejected_in_an_executor_arrive_named(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del session
    monkeypatch.setattr("spark_tasks.engine._SMALL_STEP_BYTES", 0)
    fill(source)
    load.run(settings)
    target.execute("ALTER TABLE d.t MODIFY name VARCHAR(20)")
    with source.txn() as t:
        t.insert("t", id=5000, name=b"x" * 30, n=1000)
    source.cut()
    with pytest.raises(RowRejected) as rejected:
        load.run(settings)
    assert rejected.value.table == "d.t"
    assert rejected.value.rows == [{"id": "5000"}]


def test_nothing_to_do_starts_no_session(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    del target
    source.genesis()
    rebuild(source.archive)
    monkeypatch.setattr(SparkEngine, "session", property(lambda _: pytest.fail("a session was made")))
    load.run(settings)
    source.cut()
    load.run(settings)
    assert schema.run(settings).spark is False


@pytest.mark.row("L6", "S1")
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_spark_job_killed_at_random_moments_and_run_again_ends_equal(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path, kills: int
) -> None:
    fill(source)
    config = tmp_path / "settings.json"
    raw = settings.model_dump(mode="json", by_alias=True)
    raw["target"]["password"] = settings.target.password.get_secret_value()
    config.write_text(json.dumps(raw))
    code = (
        "import json,sys; from pathlib import Path; from pumphouse.settings import Settings; from pumphouse.runs import load;"
        f"print(load.run(Settings.model_validate(json.loads(Path({str(config)!r}).read_text())), run_id='same').to_dict())"
    )

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    rng = random.Random(3)
    for _ in range(kills):
        process = start()
        # Wait for the first plan, then for a random moment of the work; the driver dies, its JVM and workers on their own.
        try:
            end = time.monotonic() + 120
            while time.monotonic() < end and process.poll() is None and not _begun(target):
                time.sleep(0.1)
            time.sleep(rng.uniform(0, 12))
        finally:
            process.kill()
            process.wait()
    process = start()
    try:
        assert process.wait(240) == 0
    finally:
        process.kill()
        process.wait()
    assert target_rows(target) == source.snapshot()
    assert target.value("SELECT COUNT(*) FROM pumphouse.plan WHERE state = 'open'") == 0


def _begun(target: TargetConnection) -> bool:
    found = target.query(
        "SELECT 1 FROM information_schema.tables WHERE table_schema = 'pumphouse' AND table_name = 'plan'"
    )
    return bool(found) and bool(target.value("SELECT COUNT(*) FROM pumphouse.plan"))


@pytest.mark.row("O4")
def test_the_archive_is_a_table_for_spark(
    source: MadeSource, settings: Settings, session: SparkSession, tmp_path: Path
) -> None:
    from spark_tasks.source import BinlogSource

    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    middle = source.tick()
    with source.txn() as t:
        t.insert("t", id=2)
    source.cut()
    config = tmp_path / "p.toml"
    config.write_text(f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n')
    session.dataSource.register(BinlogSource)
    read = session.read.format("binlog").option("config", str(config))
    assert read.load().count() == 2
    rows = read.option("after", str(middle)).load().collect()
    assert [bytes(row.payload)[:2] for row in rows] == [b"\x08\x01"]
