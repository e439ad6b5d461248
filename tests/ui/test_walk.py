"""What a new user does in Airflow's pages, in headless Chromium; what comes of it is compared by SQL.

Unpause, see windows flow, a dry run by the form, an approved restore, the documented backfill twice, a restore that is
refused: each step is a fixture of the module, with the tests of what is seen behind it. The screenshots stay in build/ui.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.diff.compare import DiffReport, compare, user_schemas
from pumphouse.model import tso
from pumphouse.model.tso import Tso
from pumphouse.mysql import DUMP, connect
from pumphouse.settings import Settings
from tests.e2e import airflow_watch as watch
from tests.e2e.marks import Mark, take_mark
from tests.e2e.workload import Workload
from tests.stack.local import SMALL, LocalStack
from tests.ui.pages import Pages

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "build" / "ui"
SETTINGS = {
    **SMALL,
    "pump": {**SMALL["pump"], "value_log_file_bytes": 1 << 18, "max_txn_timeout_s": 3.0},
    "load": {"engine": "local", "connections": 2},
}
PARTS = ("api-server", "scheduler", "dag-processor")
pytestmark = [pytest.mark.timeout(1800), pytest.mark.row("A1", "L1", "O1", "R1", "R2")]
_MINUTE_MS = 60_000
READ_S = 10.0
_DRY_RUN = "//*[@role='dialog']//label[@id='switch:element_dry_run']"
_MOMENT = "//*[@role='dialog']//input[@name='element_to']"


class User:
    """The stack, its pages, and what is looked at by SQL."""

    def __init__(self, stack: LocalStack) -> None:
        self.stack = stack
        self.refused: list[str] = []  # runs of restores that were answered with a no
        self.workload = Workload(stack, processes=1, threads=2, rate=6)
        stack.start_pumps()
        self.workload.open(customers=300)
        self.workload.start_resolver()
        self.workload.start_writers()
        settings = Settings.read(stack.config)
        self.archive = Archive.open(settings.archive, stack.cluster.cluster_id())
        stack.begin_archive()
        stack.airflow.parts = PARTS
        stack.start_airflow()
        self.api = stack.airflow.api()
        self.api.wait_for_dags({*watch.SCHEDULED, watch.RESTORE, watch.APPLY})

    def wait(self, ready: Callable[[], Any], what: str, timeout_s: float = 400.0) -> None:
        limit, look = time.monotonic() + timeout_s, 0.0
        while not ready():
            if time.monotonic() > look:
                failed = [
                    said for said in watch.failed_runs(self.api) if not any(each in said for each in self.refused)
                ]
                assert not failed, failed[0]
                look = time.monotonic() + 3.0
            assert time.monotonic() < limit, f"waited too long for {what}"
            time.sleep(0.3)

    def ended(self, run_id: str) -> str:
        return str(self.api.wait_for_run(watch.RESTORE, run_id, timeout_s=400)["state"])

    def states(self, run_id: str) -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in self.api.tasks(watch.RESTORE, run_id)}

    def newest(self, *, after: int) -> str:
        """The run that comes after that many."""
        self.wait(lambda: len(self.api.runs(watch.RESTORE)) > after, "the run")
        return str(self.api.runs(watch.RESTORE)[-1]["dag_run_id"])

    def schemas(self, name: str) -> set[str]:
        with connect(self.stack.dsn(name).server, DUMP, name) as connection:
            return set(user_schemas(connection))

    def type(self, words: list[str]) -> None:
        """A line of `airflow`; once more while Airflow has not noticed that the backfill before has ended."""
        limit = time.monotonic() + 120
        while True:
            done = subprocess.run(
                [self.stack.directory / "bin" / words[0], *words[1:]],
                capture_output=True,
                text=True,
                check=False,
            )
            if "AlreadyRunningBackfill" not in done.stderr or time.monotonic() > limit:
                break
        assert done.returncode == 0, done.stdout + done.stderr

    def backfill(self, first: int, last: int, stop: int) -> list[dict[str, Any]]:
        """The documented lines, word for word but for the times."""
        text = (ROOT / "docs" / "operations.md").read_text()
        block = next(part for part in text.split("```sh\n") if part.startswith("airflow dags unpause binlog_apply"))
        lines = [shlex.split(line) for line in block.split("```")[0].replace("\\\n", " ").splitlines()]
        values = {
            "--from-date": tso.to_datetime(first).isoformat(),
            "--to-date": tso.to_datetime(last).isoformat(),
            "--dag-run-conf": json.dumps({"target": "pumphouse_restore", "stop": str(stop)}),
        }
        before = {run["dag_run_id"]: run["end_date"] for run in self.api.runs(watch.APPLY)}
        for line in lines:
            self.type([values.get(before_it, each) for before_it, each in pairwise(["", *line])])

        def new() -> list[dict[str, Any]]:
            return [run for run in self.api.runs(watch.APPLY) if run["end_date"] != before.get(run["dag_run_id"], "")]

        self.wait(
            lambda: new() and all(run["state"] in ("success", "failed") for run in self.api.runs(watch.APPLY)),
            "the backfill",
        )
        return new()


def _differences(report: DiffReport) -> str:
    return "\n".join(f"{d.table}: {d.kind} {d.side} {d.detail}" for d in report.differences)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    shutil.rmtree(SHOTS, ignore_errors=True)
    stack = LocalStack(tmp_path_factory.mktemp("walk") / "stack", store="file", settings=SETTINGS)
    try:
        stack.start_stores()
        yield User(stack)
    finally:
        stack.stop(timeout_s=0)


@pytest.fixture(scope="module")
def pages(user: User) -> Iterator[Pages]:
    with Pages(user.stack.airflow.url, SHOTS) as pages:
        pages.log_in("admin", user.stack.airflow.password)
        yield pages


@pytest.fixture(autouse=True)
def _what_it_looked_like(request: pytest.FixtureRequest, pages: Pages) -> Iterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        pages.shoot("failed")


# What a user does, one step behind the other, whichever test asks for it first.


@pytest.fixture(scope="module")
def mark(user: User, pages: Pages) -> Mark:
    """A moment in a window of the schedule, which is switched on."""
    for dag_id in (*reversed(watch.SCHEDULED), watch.RESTORE):
        pages.unpause(dag_id)
    pages.shoot("unpaused")
    pages.rest()
    user.wait(lambda: user.workload.counts()["transactions"] > 50, "transactions")
    mark = take_mark(user.stack.dsn("source"), user.stack.cluster)
    user.wait(lambda: watch.scheduled_windows(user.api) and user.archive.end() > mark.ts, "a window over the mark")
    return mark


@pytest.fixture(scope="module")
def planned(user: User, pages: Pages, mark: Mark) -> str:
    """The run of the form as it opens, which is a dry one."""
    pages.form(watch.RESTORE)
    pages.shoot("form-as-it-opens")
    pages.fill(_MOMENT, "latest")
    pages.send("Trigger")
    run_id = user.newest(after=0)
    pages.rest()
    assert user.ended(run_id) == "success"
    assert user.schemas("restore") == set()
    return run_id


@pytest.fixture(scope="module")
def restored(user: User, pages: Pages, mark: Mark, planned: str) -> DiffReport:
    """A restore to the mark, approved by a click, beside what the source was then."""
    pages.form(watch.RESTORE)
    pages.fill(_MOMENT, str(int(mark.ts)))
    pages.click(_DRY_RUN)
    pages.shoot("form-of-a-restore")
    pages.send("Trigger")
    run_id = user.newest(after=1)
    pages.rest()
    user.wait(lambda: user.states(run_id)["approve"] == "awaiting_input", "the question")
    assert user.schemas("restore") == set()
    pages.open("/required_actions")
    pages.click("//a[contains(., '-> pumphouse_restore')]")
    pages.says(tso.show(mark.ts), "it holds nothing that is dropped", "Approve", "Reject")
    pages.shoot("approval")
    # Airflow asks again where the answer comes before the process that asked has ended: nobody reads that fast.
    time.sleep(READ_S)
    pages.click("//button[@data-testid='hitl-option-Approve']")
    assert user.ended(run_id) == "success", watch.failure(user.api, watch.RESTORE, run_id)
    pages.shoot("approved")
    pages.rest()
    return compare(user.stack.dsn("source"), user.stack.dsn("restore"), schemas=mark.schemas, views=False)


@pytest.fixture(scope="module")
def end(user: User, restored: DiffReport) -> Tso:
    """When the last writer has stopped, which is after the restore."""
    user.workload.stop_writers()
    return user.stack.cluster.tso()


def test_connections_are_there_and_keep_their_passwords(user: User, pages: Pages) -> None:
    pages.open("/connections")
    pages.says("pumphouse_archive", "pumphouse_cluster", "pumphouse_downstream", "pumphouse_restore")
    assert user.stack.dsn("restore").password not in pages.text()
    pages.shoot("connections")


@pytest.mark.usefixtures("mark")
def test_windows_flow_and_each_pull_is_named_by_its_pump(user: User, pages: Pages) -> None:
    # The first run is skipped where the archive began after its interval.
    made = (run["dag_run_id"] for run in user.api.runs(watch.SNAPSHOT))
    window = next(run_id for run_id in made if user.api.result(watch.SNAPSHOT, run_id, "commit") is not None)
    pages.open(f"/dags/{watch.SNAPSHOT}/runs/{window}/tasks/pull/mapped")
    pages.says("pump-1", "pump-2")
    pages.shoot("a-pull-is-named-by-its-pump")


def test_the_archive_is_an_asset_and_what_it_moves_a_graph(pages: Pages) -> None:
    pages.open("/assets")
    pages.click("//a[.='pumphouse_archive']")
    for name in ("binlog_snapshot", "binlog_schema", "pump_gc"):
        pages.find(f"//*[contains(@class, 'react-flow__node')][contains(., '{name}')]")
    pages.shoot("asset-graph")


def test_the_form_as_it_opens_plans_and_changes_nothing(user: User, pages: Pages, planned: str) -> None:
    states = user.states(planned)
    assert states == dict.fromkeys(("approve", "restore", "verify"), "skipped") | {"plan": "success"}
    pages.open(f"/dags/{watch.RESTORE}/runs/{planned}/tasks/plan")
    pages.says("it holds nothing that is dropped")
    pages.shoot("plan-of-the-dry-run")


def test_a_restore_that_is_approved_by_a_click_has_what_the_source_had(restored: DiffReport) -> None:
    assert restored.equal, _differences(restored)
    assert restored.rows > 300


def test_over_data_the_servers_name_is_asked_for_and_a_no_is_a_failed_run(user: User, pages: Pages, end: Tso) -> None:
    before = watch.read_checkpoint(user.stack.dsn("restore"))
    pages.form(watch.RESTORE)
    pages.fill(_MOMENT, "latest")
    pages.click(_DRY_RUN)
    pages.send("Trigger")
    run_id = user.newest(after=2)
    pages.rest()
    user.wait(lambda: user.states(run_id)["approve"] == "awaiting_input", "the question")
    pages.open(f"/dags/{watch.RESTORE}/runs/{run_id}/tasks/approve/required_actions")
    pages.says("it holds shop (", f"Type 127.0.0.1:{user.stack.dsn('restore').port}")
    pages.shoot("approval-over-data")
    time.sleep(READ_S)
    user.refused.append(run_id)
    pages.click("//button[@data-testid='hitl-option-Reject']")
    assert user.ended(run_id) == "failed"
    assert before > 0
    assert watch.read_checkpoint(user.stack.dsn("restore")) == before


@pytest.mark.slow  # tests/dags/test_backfill.py types the same lines
def test_the_documented_backfill_leads_on_from_there_and_once_more_changes_nothing(
    user: User, pages: Pages, mark: Mark, end: Tso
) -> None:
    stack = user.stack
    last = tso.compose(tso.physical_ms(end) // _MINUTE_MS * _MINUTE_MS)
    after = Tso(last + tso.compose(_MINUTE_MS))
    user.wait(lambda: user.archive.end() >= after and watch.read_checkpoint(stack.dsn("target")) >= end, "the end")
    first = tso.compose(tso.physical_ms(mark.ts) // _MINUTE_MS * _MINUTE_MS)
    for _ in range(2):
        runs = user.backfill(first, last, end)
        assert {run["state"] for run in runs} == {"success"}
        assert len(runs) == (last - first) // tso.compose(_MINUTE_MS) + 1
        assert watch.read_checkpoint(stack.dsn("restore")) == end
        for name in ("restore", "target"):
            report = compare(stack.dsn("source"), stack.dsn(name), ignore={*mark.schemas, "history"})
            assert report.equal, _differences(report)
    pages.open(f"/dags/{watch.APPLY}")
    pages.says("backfill (* * * * *)")
    pages.shoot("backfilled-twice")
