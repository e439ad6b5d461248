"""`make test-compose`: the compose file from nothing to a loaded target, freed files and a restore, compared by SQL.

A Spark worker and the scheduler are killed while a load runs, a Pump and the capture while the shop sells; then loads go
by Spark Connect, whose server is killed too, and Prometheus looks at all of it. Any dockerd, by DOCKER_HOST; the ports of
the stack must be reachable from here. Everything is taken down at the end, with its volumes (KEEP=1 leaves it;
RUNNING=1 takes the one that was left, with the ports in its variables).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.session import position_now
from pumphouse.diff.compare import compare
from pumphouse.model.tso import compose
from pumphouse.mysql.dsn import Dsn
from tests.e2e import airflow_watch as watch
from tests.stack.airflow_api import AirflowApi
from tests.stack.ports import free_port
from tests.stack.supervisor import StackError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "pumphouse-test"
PORTS = ("AIRFLOW", "SOURCE", "TARGET", "RESTORE", "MINIO", "MINIO_CONSOLE", "PUMP_1", "PUMP_2", "SPARK",
         "PROMETHEUS", "GRAFANA")  # fmt: skip
# Short, so that windows flow and files are freed within minutes.
VALUES = {
    "PUMPHOUSE_SNAPSHOT_CRON": "* * * * *",
    "PUMPHOUSE_VALUE_LOG_FILE_BYTES": str(256 << 10),
    "PUMPHOUSE_RETENTION_S": "15",
    "SHOP_RATE": "10",
}
DUMP = "binlog_dump"
ONCE = {"secrets", "source-begin", "archive-begin", "airflow-begin"}
KILL_ALL = "import os; os.kill(-1, 9)"  # every process of the container but its first, and this one
WORKERS = ("spark-worker-1", "spark-worker-2")
EXECUTOR = "CoarseGrainedExecutorBackend"
# The second half of the run.
CONNECT = {"COMPOSE_PROFILES": "demo,connect,monitoring", "PUMPHOUSE_SPARK_MASTER": "sc://spark-connect:15002"}
GRAFANA = "grafana"
_LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Stack:
    """The containers of the file, and what is asked of them."""

    def __init__(self) -> None:
        self.ports = {name: int(os.environ.get(f"{name}_PORT", 0)) or free_port() for name in PORTS}
        chosen = {f"{name}_PORT": str(port) for name, port in self.ports.items()}
        self.environment = os.environ | VALUES | chosen | {"COMPOSE_PROJECT_NAME": PROJECT, "COMPOSE_PROFILES": "demo"}
        plugin = subprocess.run(["docker", "compose", "version"], check=False, capture_output=True).returncode == 0
        found = shutil.which("docker-compose")
        if not plugin and found is None:
            raise StackError("there is no docker compose", hint="apt-get install docker.io docker-compose")
        self._compose = ["docker", "compose"] if plugin else [str(found)]

    def compose(self, *arguments: str, seen: bool = False) -> str:
        """One call of docker compose; ``seen``: its output goes on."""
        done = subprocess.run(
            [*self._compose, *arguments],
            cwd=ROOT,
            env=self.environment,
            check=False,
            text=True,
            stdout=None if seen else subprocess.PIPE,
            stderr=None if seen else subprocess.PIPE,
        )
        if done.returncode:
            raise StackError(f"docker compose {' '.join(arguments)}: {(done.stderr or '')[-2000:]}")
        return done.stdout or ""

    def inspect(self) -> dict[str, dict[str, Any]]:
        """State of each service's container."""
        ids = self.compose("ps", "-q", "-a").split()
        body = subprocess.run(["docker", "inspect", *ids], check=True, capture_output=True, env=self.environment).stdout
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in json.loads(body)}

    def healthy(self) -> str:
        """What is not healthy yet, '' when all is; StackError when a part of it has failed for good."""
        waiting = []
        for name, each in self.inspect().items():
            state = each["State"]
            if name in ONCE:
                if state["Status"] != "exited" or state["ExitCode"]:
                    waiting.append(f"{name} {state['Status']}")
            elif "Health" not in state:
                raise StackError(f"service {name} has no health check")
            elif state["Health"]["Status"] != "healthy":
                waiting.append(f"{name} {state['Health']['Status']}")
        return ", ".join(waiting)

    def has_image(self, service: str) -> bool:
        """Whether the image of a service is here, or can be had."""
        image = yaml.safe_load(self.compose("config"))["services"][service]["image"]
        return any(
            subprocess.run(["docker", *words, image], check=False, capture_output=True, env=self.environment).returncode
            == 0
            for words in (("image", "inspect"), ("pull", "-q"))
        )

    def services(self) -> list[str]:
        """Those of the profiles; of an old docker-compose, `config` has the others too."""
        profiles = set(self.environment["COMPOSE_PROFILES"].split(","))
        found = yaml.safe_load(self.compose("config"))["services"]
        return [name for name, each in found.items() if not each.get("profiles") or profiles & {*each["profiles"]}]

    def memory(self) -> dict[str, float]:
        """MB of memory that each service's processes have, what they share divided; {} where they are of another machine."""
        spaces = {}
        for name, each in self.inspect().items():
            with suppress(OSError):
                spaces[os.readlink(f"/proc/{each['State']['Pid']}/ns/pid")] = name
        found: dict[str, float] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError, KeyError):
                name = spaces[os.readlink(f"/proc/{process.pid}/ns/pid")]
                found[name] = round(found.get(name, 0) + process.memory_full_info().pss / 1e6, 1)
        return found

    def execute(self, service: str, *command: str) -> str:
        return self.compose("exec", "-T", service, *command)

    def kill(self, service: str) -> None:
        """kill -9 of all that runs there, from inside: the restart policy has to see to it."""
        subprocess.run(
            [*self._compose, "exec", "-T", service, "python", "-c", KILL_ALL],
            cwd=ROOT,
            env=self.environment,
            check=False,
            capture_output=True,
        )

    def restarts(self, service: str) -> int:
        return int(self.inspect()[service]["RestartCount"])

    def dsn(self, name: str) -> Dsn:
        return Dsn(
            port=self.ports[name.upper()],
            password=self.execute("airflow-api", "cat", f"/run/pumphouse/{name}/password"),
        )


def loading(api: AirflowApi) -> str:
    """The run of `binlog_load` that runs; '' = none."""
    return next((run["dag_run_id"] for run in api.runs(watch.LOAD) if run["state"] == "running"), "")


def open_plan(target: Dsn) -> bool:
    """Whether a load has begun and has not ended."""
    with closing(target.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pumphouse.plan WHERE state = 'open'")
        return cursor.fetchone() is not None


class Run:
    """The steps, each with the second it ended at."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.began = time.monotonic()
        self.figures: dict[str, Any] = {}

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {what}", flush=True)

    def until(self, what: str, holds: Callable[[], Any], seconds: float) -> Any:
        """Wait until something is there; StackError with the last word of ``holds``."""
        end = time.monotonic() + seconds
        while True:
            try:
                found = holds()
            except (OSError, StackError, subprocess.SubprocessError) as error:
                found, problem = None, str(error)
            else:
                problem = ""
            if found:
                self.figures[what] = round(time.monotonic() - self.began, 1)
                self.say(what)
                return found
            if time.monotonic() > end:
                raise StackError(f"not within {seconds:.0f} s: {what}; {problem}")
            time.sleep(1.0)

    def all(self) -> None:
        """Everything."""
        stack = self.stack
        if not os.environ.get("RUNNING"):
            stack.compose("down", "-v", "--remove-orphans")
            stack.compose("build", seen=True)
            self.figures["built"] = round(time.monotonic() - self.began, 1)
            stack.compose("up", "-d", seen=True)
        self.until("every health check holds", lambda: not stack.healthy(), 1200)
        for name, each in stack.inspect().items():
            # The one that makes the passwords gives a directory to the S3 server's user; nothing else runs as root.
            if name != "secrets" and each["Config"]["User"] in ("", "root", "0"):
                raise StackError(f"service {name} runs as root")
        api = AirflowApi(
            f"http://127.0.0.1:{stack.ports['AIRFLOW']}",
            "admin",
            stack.execute("airflow-api", "cat", "/run/pumphouse/admin/password"),
        )
        api.wait_for_dags({*watch.SCHEDULED, watch.RESTORE, watch.APPLY})
        source, target, restore = (stack.dsn(name) for name in ("source", "target", "restore"))
        self.until("a load has ended", lambda: watch.read_checkpoint(target), 900)
        self.memory("memory in MB, with Spark in the cluster")
        self.killed_worker(api)
        self.dumped(api)
        self.killed_scheduler(api, target)
        stack.kill("pump-2")
        self.until("the killed Pump is back", lambda: stack.restarts("pump-2") and not stack.healthy(), 600)
        self.until("value-log files are freed", self.freed, 900)
        stack.kill("capture")
        self.until("the killed capture is back", lambda: stack.restarts("capture") and not stack.healthy(), 600)
        self.changed(api, target)
        self.watched()
        stack.compose("stop", "writer")
        self.until("the capture has all that was written", lambda: self.captured(source), 600)
        stopped = compose(int(time.time() * 1000))
        self.until("the target has all that was written", lambda: watch.read_checkpoint(target) > stopped, 1200)
        self.equal("source and target are equal", source, target)
        self.restored(api, source, restore)
        failed = watch.failed_runs(api)
        if failed:
            raise StackError("runs have failed:\n" + "\n".join(failed))

    def killed_worker(self, api: AirflowApi) -> None:
        """A Spark worker, with its executor, while a load runs; the load ends well."""

        def executor() -> bool:
            return EXECUTOR in self.stack.execute(WORKERS[0], "ps", "-ef")

        self.until("an executor runs for a load", lambda: loading(api) and executor(), 900)
        run_id = loading(api)
        self.stack.kill(WORKERS[0])
        self.say("its worker is killed")
        if run_id:
            self.ends(api, watch.LOAD, run_id, "the load whose worker was killed has ended")
        self.until("the killed worker is back", lambda: self.stack.restarts(WORKERS[0]), 300)

    def dumped(self, api: AirflowApi) -> None:
        """By the DAG, while the shop sells."""
        self.ends(api, DUMP, api.trigger(DUMP), "binlog_dump has ended")

    def killed_scheduler(self, api: AirflowApi, target: Dsn) -> None:
        """With the task of a load in it: Airflow tries that again, and until then `status` tells nobody to load by hand."""
        stack = self.stack
        before = loading(api)
        self.until("a load is under way", lambda: open_plan(target) and loading(api) not in ("", before), 900)
        run_id = loading(api)
        stack.kill("airflow-scheduler")
        self.say("its scheduler is killed")
        said = json.loads(stack.execute("airflow-api", "sh", "-c", "pumphouse status --json; true"))
        advised = [each for each in said["findings"] if each["next"].startswith("pumphouse load")]
        if advised:
            raise StackError(f"status tells to load a second time: {advised}")
        self.until(
            "the killed scheduler is back", lambda: stack.restarts("airflow-scheduler") and not stack.healthy(), 600
        )
        self.ends(api, watch.LOAD, run_id, "the load whose scheduler was killed has ended")
        if {each["try_number"] for each in api.tasks(watch.LOAD, run_id)} == {1}:
            raise StackError(f"the load {run_id} went on although its scheduler was killed")

    def changed(self, api: AirflowApi, target: Dsn) -> None:
        """The profiles `connect` and `monitoring` beside the shop; then the Connect server is killed with a load in it."""
        stack = self.stack
        stack.environment |= CONNECT
        wanted = [each for each in stack.services() if each != GRAFANA or stack.has_image(GRAFANA)]
        if GRAFANA not in wanted:
            self.say("Grafana is left out: its image is not to be had")
        stack.compose("up", "-d", *wanted, seen=True)
        self.until("every health check holds, with Spark Connect and Prometheus", lambda: not stack.healthy(), 1200)
        loaded = watch.read_checkpoint(target)
        self.until("a load by Spark Connect has ended", lambda: watch.read_checkpoint(target) > loaded, 900)
        self.memory("memory in MB, with Spark Connect and Prometheus")
        # Executors that stand still keep the load in the server.
        for each in WORKERS:
            stack.execute(each, "pkill", "-STOP", "-f", EXECUTOR)
        run_id = self.until("a load by Spark Connect is under way", lambda: open_plan(target) and loading(api), 900)
        time.sleep(5)
        stack.kill("spark-connect")
        self.say("its server is killed")
        for each in WORKERS:
            stack.execute(each, "sh", "-c", f"pkill -CONT -f {EXECUTOR}; true")
        self.ends(api, watch.LOAD, run_id, "the load whose Connect server was killed has ended")
        (task,) = api.tasks(watch.LOAD, run_id)
        log = "".join(api.log(watch.LOAD, run_id, task["task_id"], number) for number in range(1, task["try_number"]))
        if "the Spark Connect server" not in log or "Traceback" in log:
            raise StackError(f"the load does not say that its server was lost: {log[-3000:]}")

    def watched(self) -> None:
        """Prometheus scrapes all that its file names, and has every rule of ours."""
        rules = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
        wanted = {rule["alert"] for group in rules for rule in group["rules"]}

        def asked(path: str) -> Any:
            with _LOCAL.open(f"http://127.0.0.1:{self.stack.ports['PROMETHEUS']}/api/v1/{path}", timeout=10) as answer:
                return json.loads(answer.read())["data"]

        def scraped() -> bool:
            health = [each["health"] for each in asked("targets?state=active")["activeTargets"]]
            return len(health) == 3 and set(health) == {"up"}

        def evaluated() -> bool:
            found = [rule for group in asked("rules")["groups"] for rule in group["rules"]]
            return wanted == {each["name"] for each in found} and {each["health"] for each in found} == {"ok"}

        def has(metric: str) -> bool:
            return bool(asked(f"query?query={metric}")["result"])

        self.until("Prometheus scrapes both Pumps and the exporter", scraped, 300)
        self.until(f"Prometheus evaluates {len(wanted)} rules", evaluated, 300)
        # A look that does not get its answer in time has no such value; the next one has.
        for metric in ("binlog_pump_storage_max_commit_ts", "pumphouse_archive_seconds"):
            self.until(f"Prometheus has {metric}", partial(has, metric), 300)

    def memory(self, what: str) -> None:
        """What each service has."""
        found = self.stack.memory()
        self.figures[what] = found | {"all": round(sum(found.values()))}
        self.say(f"{what}: {self.figures[what]['all']}")

    def ends(self, api: AirflowApi, dag_id: str, run_id: str, what: str) -> None:
        """Wait for a run that has to end well."""
        if api.wait_for_run(dag_id, run_id, timeout_s=1200)["state"] != "success":
            raise StackError(f"not so: {what}: {watch.failure(api, dag_id, run_id)}")
        self.figures[what] = round(time.monotonic() - self.began, 1)
        self.say(what)

    def captured(self, source: Dsn) -> bool:
        """Whether all that the source has is in the Pumps."""
        with closing(source.connect()) as connection:
            wanted = position_now(connection).gtids
        (said,) = json.loads(self.stack.execute("airflow-scheduler", "pumphouse", "capture", "status", "--json"))
        return bool(said["gtid"]) and GtidSet.parse(said["gtid"], wanted.flavor).covers(wanted)

    def freed(self) -> bool:
        """Whether the first value-log file of a Pump is gone."""
        names = self.stack.execute("pump-1", "sh", "-c", "ls /data/value").split()
        return bool(names) and "000000.vlog" not in names

    def restored(self, api: AirflowApi, source: Dsn, restore: Dsn) -> None:
        """By the form's DAG: to the archive's end, approved as a person would."""
        conf = {"to": "latest", "target": "pumphouse_restore", "dry_run": False}
        run_id = api.trigger(watch.RESTORE, conf)
        run = api.wait_for_run(watch.RESTORE, run_id, timeout_s=1200, asked=self.yes)
        if run["state"] != "success":
            raise StackError(watch.failure(api, watch.RESTORE, run_id))
        self.equal("source and restored target are equal", source, restore)

    def yes(self, _task_id: str, question: str) -> str:
        self.say(f"Airflow asks: {question} Answered by yes")
        return watch.YES

    def equal(self, what: str, one: Dsn, other: Dsn) -> None:
        report = compare(one, other, ignore={"history"})
        if not report.equal:
            raise StackError(f"not so: {what}: {report.differences[:5]}")
        self.figures[what] = {"tables": report.tables, "rows": report.rows}
        self.say(f"{what}: {report.tables} tables, {report.rows} rows")


def main() -> int:
    """Entry point."""
    stack = Stack()
    run = Run(stack)
    try:
        run.all()
    except StackError as error:
        print(f"make test-compose: {error}", file=sys.stderr)
        print(stack.compose("logs", "--tail", "15"), file=sys.stderr)
        return 1
    finally:
        if not os.environ.get("KEEP"):
            stack.compose("down", "-v", "--remove-orphans")
    print(json.dumps(run.figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
