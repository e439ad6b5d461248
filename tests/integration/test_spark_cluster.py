"""Loads on a real standalone cluster whose workers are other hosts: network namespaces of this machine.

The workers' hosts have Python with the locked packages; our code reaches them by `pumphouse spark package` alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from pumphouse.cli import cli
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import Settings, TargetSettings
from spark_tasks.jobs import schema as schema_job
from tests.stack.mariadb import MariaDbServer
from tests.support.madearchive import Churn, MadeSource, column, target_rows
from tests.support.mariadb import directory_in_memory
from tests.support.sparkcluster import SparkCluster, two_hosts, why_not

ROOT = Path(__file__).resolve().parents[2]
LOAD = {"buckets": 4, "engine": "spark"}
pytestmark = pytest.mark.timeout(900)  # a cluster, and a kernel or a JVM a step, on a machine with others on it
# What the workers of a session have, then a load in it of which every epoch goes through the executors, however small it is.
_DRIVER = """
import json, sys
from pathlib import Path
from pumphouse.runs import load, schema
from pumphouse.settings import Settings
from spark_tasks import engine
from spark_tasks.session import session_for
engine._SMALL_STEP_BYTES = 0
settings = Settings.model_validate(json.loads(Path(sys.argv[1]).read_text()))

def look(batches):
    import pyarrow as pa
    import pumphouse
    from pumphouse.codec import jit
    from pumphouse.codec.warm import warm
    for _ in batches:
        warm()
        compiled = sum(sum(k.stats.cache_misses.values()) for k in jit._KERNELS)
        loaded = sum(sum(k.stats.cache_hits.values()) for k in jit._KERNELS)
        yield pa.RecordBatch.from_pylist([{"code": pumphouse.__file__, "compiled": compiled, "loaded": loaded}])

with session_for("look", settings.spark) as session:
    rows = session.range(0, 8, 1, 8).mapInArrow(look, "code string, compiled long, loaded long").collect()
    conf = {name: session.conf.get(name, None) for name in ("spark.executor.cores", "spark.driver.host", "spark.app.name")}
    schema.run(settings)
    report = load.run(settings, run_id="one").to_dict()
print(json.dumps({"rows": [row.asDict() for row in rows], "conf": conf, "report": report}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, quick_jvms: str) -> Iterator[SparkCluster]:
    if reason := why_not():
        pytest.skip(reason)  # two hosts are two network namespaces, which take root
    with two_hosts(tmp_path_factory.mktemp("spark"), quick_jvms) as made:
        yield made


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("package") / "pumphouse-spark.zip"
    done = CliRunner().invoke(cli, ["spark", "package", "--output", str(path), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.fixture(scope="module")
def server(cluster: SparkCluster) -> Iterator[TargetSettings]:
    here = cluster.hosts.here
    with (
        directory_in_memory() as directory,
        MariaDbServer(directory, arguments=(f"--bind-address=127.0.0.1,{here}",)) as made,
    ):
        with made.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER root@'10.%%' IDENTIFIED BY %s", (made.password,))
            cursor.execute("GRANT ALL ON *.* TO root@'10.%' WITH GRANT OPTION")
        yield TargetSettings(host=here, port=made.port, user="root", password=SecretStr(made.password))


def fill(source: MadeSource, rows: int = 0) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(8)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(8)
    if rows:
        with source.txn() as t:
            for i in range(100_000, 100_000 + rows):
                t.insert("t", id=i, name=b"%d" % i, n=i)
    source.cut()


def written(settings: Settings, cluster: SparkCluster, path: Path, master: str = "", **spark: Any) -> Path:
    raw = settings.model_dump(mode="json", by_alias=True)
    raw["target"]["password"] = settings.target.password.get_secret_value()
    raw["spark"] |= {"master": master or cluster.master, "shuffle_partitions": 4, "secret": cluster.secret, **spark}
    raw["spark"]["conf"] = cluster.conf | raw["spark"]["conf"]
    raw.pop("restore_target")
    path.write_text(json.dumps(raw))
    return path


_drivers: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _no_driver_is_left() -> Iterator[None]:
    yield
    for process in _drivers:
        with process:  # which closes its pipes and collects it
            process.kill()
    _drivers.clear()


def drive(code: str, config: Path, **environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(config)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/include:{os.environ.get('PYTHONPATH', '')}"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _drivers.append(process)
    return process


def result(process: subprocess.Popen[str], seconds: float = 400) -> Any:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.row("O4", "L2", "L6")
def test_code_and_kernels_reach_the_workers_and_an_executor_that_is_killed_costs_a_retry_and_no_row(
    cluster: SparkCluster,
    package: dict[str, Any],
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    tmp_path: Path,
) -> None:
    fill(source, rows=20_000)
    conf = {"spark.executor.cores": "1", "spark.cores.max": "2"}
    config = written(settings, cluster, tmp_path / "s.json", package=package["path"], conf=conf)
    # An address that means every one: what containers are often told, and what nobody can call.
    process = drive(_DRIVER, config, SPARK_LOCAL_IP="0.0.0.0")
    end = time.monotonic() + 150
    while time.monotonic() < end and process.poll() is None and not _applied(target):
        time.sleep(0.02)
    running = cluster.executors()
    if running:
        running[0].kill()
    assert process.poll() is None
    found = result(process)
    assert len(running) == 2, "the load's executors, one a host"
    assert target_rows(target) == source.snapshot()
    assert found["report"]["ddls"] == 1
    assert target.value("SELECT COUNT(*) FROM pumphouse.plan WHERE state = 'open'") == 0
    for row in found["rows"]:
        assert row["compiled"] == 0
        assert row["loaded"] > 10
    hosts = {name for name in cluster.names for row in found["rows"] if str(cluster.work_of(name)) in row["code"]}
    assert hosts == set(cluster.names), found["rows"]
    assert found["conf"] == {
        "spark.executor.cores": "1",
        "spark.driver.host": cluster.hosts.here,
        "spark.app.name": "look",
    }


def _applied(target: TargetConnection) -> bool:
    found = target.query(
        "SELECT 1 FROM information_schema.tables WHERE table_schema = 'pumphouse' AND table_name = 'applied'"
    )
    return bool(found) and bool(target.value("SELECT COUNT(*) FROM pumphouse.applied WHERE plan > 1"))


@pytest.mark.row("O4", "L2")
def test_the_master_that_spark_submit_names_is_kept_and_a_run_id_takes_over(
    cluster: SparkCluster,
    package: dict[str, Any],
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    tmp_path: Path,
) -> None:
    fill(source)
    config = tmp_path / "pumphouse.toml"
    config.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n'
        f'[target]\nhost = "{settings.target.host}"\nport = {settings.target.port}\n[load]\nengine = "spark"\n[spark]\nmaster = "local[1]"\n'
    )
    from tests.support.sparkcluster import SPARK_HOME

    conf = [f"--conf={name}={value}" for name, value in (cluster.conf | package["conf"]).items()]
    log = cluster.directory / "master.log"
    before = log.read_text().count("Registered app ")
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/include",
        "PUMPHOUSE_CONFIG": str(config),
        "PUMPHOUSE_TARGET__PASSWORD": settings.target.password.get_secret_value(),
        "PUMPHOUSE_SPARK__SECRET": cluster.secret,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
    }

    def submit(*arguments: str) -> str:
        done = subprocess.run(
            [
                str(SPARK_HOME / "bin" / "spark-submit"),
                "--master",
                cluster.master,
                *conf,
                str(Path(package["job"]).with_name("load.py")),
                *arguments,
            ],
            env=environment,
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()[-1]

    # The other job reads its settings and reports as this one does; it is run here.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUMPHOUSE_CONFIG", str(config))
        patch.setenv("PUMPHOUSE_LOAD__ENGINE", "local")
        assert schema_job.main() == 0
    from pumphouse.loader import fence

    # The first attempt, by its run id, still holds the target.
    with TargetConnection.open(settings.target) as first:
        first.create_tables()
        fence.acquire(first, run="same", take_over=False)
        report = json.loads(submit("--run-id", "same"))
    assert report["inserted"] > 0
    with TargetConnection.open(settings.target) as look:  # the fixture's may have been idle for too long
        assert target_rows(look) == source.snapshot()
    assert log.read_text().count("Registered app ") == before + 1


@pytest.mark.row("O4")
def test_spark_connect_loads_what_the_source_has(
    cluster: SparkCluster,
    package: dict[str, Any],
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    tmp_path: Path,
) -> None:
    fill(source)
    with cluster.connect_server(package["conf"]) as url:
        config = written(settings, cluster, tmp_path / "s.json", master=url)
        found = result(drive(_DRIVER, config))
    assert found["report"]["ddls"] == 1
    assert target_rows(target) == source.snapshot()
    assert {row["compiled"] for row in found["rows"]} == {0}
