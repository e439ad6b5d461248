"""`make test-compose`: the compose file from nothing to a loaded target, freed files and a restore, compared by SQL.

A Spark worker is killed while a load runs, a Pump and the capture while the shop sells. Any dockerd, by DOCKER_HOST; the ports of
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
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

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
PORTS = ("AIRFLOW", "SOURCE", "TARGET", "RESTORE", "MINIO", "MINIO_CONSOLE", "PUMP_1", "PUMP_2", "SPARK")
# Short, so that windows flow and files are freed within minutes.
VALUES = {
    "PUMPHOUSE_SNAPSHOT_CRON": "* * * * *",
    "PUMPHOUSE_VALUE_LOG_FILE_BYTES": str(256 << 10),
    "PUMPHOUSE_RETENTION_S": "15",
    "SHOP_RATE": "10",
}
ONCE = {"secrets", "source-begin", "archive-begin", "airflow-begin"}
KILL_ALL = "import os; os.kill(-1, 9)"  # every process of the container but its first, and this one


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
        self.killed_worker(api)
        stack.kill("pump-2")
        self.until("the killed Pump is back", lambda: stack.restarts("pump-2") and not stack.healthy(), 600)
        self.until("value-log files are freed", self.freed, 900)
        stack.kill("capture")
        self.until("the killed capture is back", lambda: stack.restarts("capture") and not stack.healthy(), 600)
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

        def running() -> str:
            return next((run["dag_run_id"] for run in api.runs(watch.LOAD) if run["state"] == "running"), "")

        def executor() -> bool:
            return "CoarseGrainedExecutorBackend" in self.stack.execute("spark-worker-1", "ps", "-ef")

        self.until("an executor runs for a load", lambda: running() and executor(), 900)
        run_id = running()
        self.stack.kill("spark-worker-1")
        self.say("its worker is killed")
        if run_id:
            state = api.wait_for_run(watch.LOAD, run_id, timeout_s=900)["state"]
            if state != "success":
                raise StackError(f"the load whose worker was killed: {watch.failure(api, watch.LOAD, run_id)}")
        self.until("the killed worker is back", lambda: self.stack.restarts("spark-worker-1"), 300)

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
