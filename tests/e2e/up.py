"""``make up`` and ``make down``: the same stack to stay, with a slow workload and the UI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e import airflow_watch as watch
from tests.e2e.say import Say
from tests.e2e.story import write_up
from tests.e2e.workload import Workload
from tests.stack.local import SMALL, LocalStack

# Transactions a second: enough to see something move.
RATE = 5.0
_ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    **SMALL,
    "pump": {**SMALL["pump"], "value_log_file_bytes": 16 << 20, "retention_s": 600.0, "max_txn_timeout_s": 15.0},
    "airflow": {**SMALL["airflow"], "snapshot_cron": "*/2 * * * *", "apply_cron": "*/10 * * * *"},
}


def up_stack(directory: Path) -> LocalStack:
    """The stack of ``make up``; its archive is a directory, so that it stays."""
    return LocalStack(directory, store="file", settings=SETTINGS, capture=True)


def runs(stack: LocalStack) -> bool:
    """Whether any process of it runs."""
    return any(record.process() is not None for record in stack.supervisor.records())


def running(stack: LocalStack, up_file: Path) -> dict[str, Any] | None:
    """What ``up.json`` says when every process of it still runs."""
    try:
        found: dict[str, Any] = json.loads(up_file.read_bytes())
    except (OSError, ValueError):
        return None
    if found.get("directory") != str(stack.directory):
        return None
    alive = all(stack.supervisor.pid(name) == pid for name, pid in found["processes"].items())
    return found if alive else None


def start(stack: LocalStack, say: Say, up_file: Path) -> dict[str, Any]:
    """Start what does not run; what runs goes on, and what an earlier ``up`` left in the directory is used again."""
    names = [record.name for record in stack.supervisor.records() if record.process() is not None]
    if names:
        say(f"{', '.join(names)} run and are left alone; what is missing starts")
    stack.start_stores()
    workload = Workload(stack, processes=1, threads=2, rate=RATE)
    stack.start_spark()
    say(f"databases are up, and a Spark Connect server: {stack.spark.url}")
    stack.start_pumps()
    workload.open()
    say("the shop is open; a capture of its server's binlog starts")
    stack.start_capture()
    workload.start_writers()
    words = ["-m", "deploy.shop", "mistake"]
    stack.write_command("shop-mistake", words, {**workload.environment, "PYTHONPATH": str(_ROOT)})
    say(
        f"Pumps are up: {', '.join(pump.addr for pump in stack.pumps)}; a writer makes {RATE:.0f} transactions a second"
    )
    report = stack.begin_archive()
    if report is not None:
        say(f"the archive has begun, with a dump of {report.rows:,} rows")
    say("Airflow starts: half a minute, on a busy machine two")
    stack.start_airflow()
    api = stack.airflow.api()
    api.wait_for_dags({*watch.SCHEDULED, watch.RESTORE, watch.APPLY})
    for dag_id in (*reversed(watch.SCHEDULED), watch.RESTORE):
        api.unpause(dag_id)
    write_up(stack, up_file, {"workload": {"rate": RATE, "processes": list(workload.writer_names)}})
    say(f"Airflow is up: {stack.airflow.url} (user admin, password in {up_file})")
    say(f"is the data safe? {stack.airflow.url}/pumphouse/, the item Pumphouse in its navigation")
    say(
        f"on the command line: export PATH={stack.directory / 'bin'}:$PATH, then `pumphouse status` or `airflow dags list`"
    )
    say("something to find and to take back: `shop-mistake` deletes a hundred orders (docs/disaster.md)")
    found: dict[str, Any] = json.loads(up_file.read_bytes())
    return found


def end(stack: LocalStack, up_file: Path) -> list[str]:
    """End everything of a stack, and its ``up.json``; returns the names of what ran."""
    names = stack.stop()
    try:
        if json.loads(up_file.read_bytes()).get("directory") == str(stack.directory):
            up_file.unlink()
    except (OSError, ValueError):
        pass
    return names
