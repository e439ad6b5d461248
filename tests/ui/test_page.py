"""The page in Airflow's UI, in headless Chromium: what it says of a real archive, a restore begun on it, and who sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from selenium.webdriver.support.ui import Select

from pumphouse.archive.archive import Archive
from pumphouse.archive.proofs import read_proofs
from pumphouse.model import tso
from pumphouse.mysql import DUMP, connect
from pumphouse.settings import Settings
from tests.e2e import airflow_watch as watch
from tests.e2e.workload import Workload
from tests.stack.local import LocalStack
from tests.support.waiting import eventually
from tests.ui import axe
from tests.ui.pages import Pages
from tests.ui.test_walk import SETTINGS, SHOTS

pytestmark = [pytest.mark.timeout(1800), pytest.mark.row("O1", "O2")]
_PAGE = "/pumphouse/"
_SIZES = ((1280, 1000), (390, 844))


class Site:
    """A stack with an archive that ends now, and the page's answers to users."""

    def __init__(self, stack: LocalStack) -> None:
        self.stack = stack
        self.workload = Workload(stack, processes=1, threads=2, rate=6)
        stack.start_pumps()
        self.workload.open(customers=100)
        stack.begin_archive()
        self.archive = Archive.open(Settings.read(stack.config).archive, stack.cluster.cluster_id())
        stack.airflow.users |= {"reader": "viewer", "guest": ""}
        # No task runs but the restore's: the archive stands still where a test leaves it.
        stack.airflow.parts = ("api-server", "scheduler", "dag-processor", "triggerer")
        stack.start_airflow()
        self.api = stack.airflow.api()
        self.api.wait_for_dags({*watch.SCHEDULED, watch.RESTORE})
        self.snapshot()

    def snapshot(self) -> None:
        """Take one, and wait until the page has seen it: a look serves all who come within seconds of it."""
        subprocess.run([self.stack.directory / "bin" / "pumphouse", "snapshot"], check=True, capture_output=True)
        end = str(self.archive.end())
        eventually(
            lambda: json.loads(self.get("/pumphouse/status.json", "reader")[1])["archive"]["end"] == end, within_s=120
        )

    def get(self, path: str, user: str | None, accept: str = "*/*") -> tuple[int, str]:
        """Status and text of an answer to a user by token; None = to nobody."""
        request = urllib.request.Request(f"{self.stack.airflow.url}{path}", headers={"Accept": accept})
        if user is not None:
            request.add_header("Authorization", f"Bearer {self.token(user)}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def token(self, user: str) -> str:
        body = json.dumps({"username": user, "password": self.stack.airflow.password}).encode()
        request = urllib.request.Request(
            f"{self.stack.airflow.url}/auth/token", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["access_token"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    stack = LocalStack(tmp_path_factory.mktemp("page") / "stack", store="file", settings=SETTINGS)
    try:
        stack.start_stores()
        yield Site(stack)
    finally:
        stack.stop(timeout_s=0)


@pytest.fixture(scope="module")
def pages(site: Site) -> Iterator[Pages]:
    shutil.rmtree(SHOTS.with_name("ui-page"), ignore_errors=True)
    with Pages(site.stack.airflow.url, SHOTS.with_name("ui-page")) as pages:
        yield pages


@pytest.fixture
def admin(site: Site, pages: Pages) -> Pages:
    pages.log_in("admin", site.stack.airflow.password)
    return pages


def test_the_page_says_what_status_says(site: Site) -> None:
    site.snapshot()
    code, text = site.get("/pumphouse/status.json", "reader")
    found = json.loads(text)
    assert code == 200
    assert found["archive"]["end"] == str(site.archive.end())
    assert {each["section"] for each in found["targets"]} == {"target", "restore_target"}
    assert {each["node_id"] for each in found["pumps"]} == {"pump-1", "pump-2"}
    code, page = site.get(_PAGE, "reader")
    assert code == 200
    assert f"{tso.to_datetime(site.archive.end()):%Y-%m-%d %H:%M:%S}Z" in page
    assert 'id="form"' not in page  # a reader starts no restore
    for name in ("source", "target", "restore"):
        assert site.stack.dsn(name).password not in page + text


def test_nobody_sees_what_they_may_not_read(site: Site, pages: Pages) -> None:
    for path in (_PAGE, "/pumphouse/tile", "/pumphouse/status.json"):
        assert site.get(path, None)[0] == 401, path
        code, text = site.get(path, "guest")
        assert code == 403, path
        assert "pump-1" not in text
        assert str(site.archive.end()) not in text
    pages.open("/pumphouse/icon.svg")  # Airflow's own page leads who sees nothing back to the log-in
    pages.driver.delete_all_cookies()
    pages.driver.add_cookie({"name": "_token", "value": site.token("guest")})
    pages.open(_PAGE)
    pages.says("you may not read the DAGs")
    pages.driver.delete_all_cookies()
    pages.open(_PAGE)
    pages.find("//input[@name='username']")  # sent to log in
    pages.find("//input[@name='username']").send_keys("admin")
    pages.find("//input[@name='password']").send_keys(site.stack.airflow.password)
    pages.click("//button[@type='submit']")
    pages.says("What can be restored")  # and back


def test_it_is_fit_for_each_width_and_scheme(site: Site, admin: Pages) -> None:
    site.snapshot()
    source = axe.script()
    driver = admin.driver

    def show(width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    try:
        for (width, height), theme in product(_SIZES, ("light", "dark")):
            driver.execute_script(f"localStorage.setItem('theme', '{theme}')")
            show(width, height)
            admin.open(_PAGE)
            admin.says("safe until", "Pumps", "Targets", "Restore")
            dark = driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(16, 22, 29)"
            assert dark is (theme == "dark")
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
            show(width, driver.execute_script("return document.documentElement.scrollHeight"))
            admin.shoot(f"page-{width}-{theme}")
            if source is not None:
                assert axe.violations(driver, source) == [], (width, theme)
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_script("localStorage.removeItem('theme')")
    if source is None:
        pytest.skip("axe-core is not there: pip install axe-playwright-python --no-deps")


def test_it_is_an_item_of_the_ui_and_a_tile_on_the_dashboard(admin: Pages) -> None:
    admin.open("/")
    tile = admin.find("//iframe[@title='Pumphouse']")
    admin.driver.switch_to.frame(tile)
    admin.says("Pumphouse: ", "safe until")
    admin.driver.switch_to.default_content()
    eventually(lambda: 40 < tile.size["height"] < 120, what="a tile as high as what it says")
    admin.shoot("tile")
    admin.click("//a[contains(., 'Pumphouse')] | //button[contains(., 'Pumphouse')]")
    frame = admin.find("//iframe[@title='Pumphouse']")
    admin.driver.switch_to.frame(frame)
    admin.says("What can be restored")
    admin.driver.switch_to.default_content()
    admin.shoot("page-in-airflow")


def test_a_restore_to_a_moment_of_the_line_is_proved_by_the_form_of_the_page(site: Site, admin: Pages) -> None:
    site.snapshot()
    end = site.archive.end()
    admin.open("/plugin/pumphouse")
    admin.driver.switch_to.frame(admin.find("//iframe[@title='Pumphouse']"))
    admin.click("(//button[contains(., 'Restore to here')])[1]")
    assert admin.find("//input[@id='to']").get_attribute("value") == str(end)
    Select(admin.find("//select[@id='target']")).select_by_visible_text("pumphouse_restore")
    admin.find("//textarea[@id='tables']").send_keys("shop.customers")
    admin.click("//input[@id='verify']")
    admin.click("//input[@id='dry_run']")
    admin.shoot("restore-filled-in")
    admin.click("//button[@type='submit']")
    admin.driver.switch_to.default_content()
    (run,) = eventually(lambda: site.api.runs(watch.RESTORE), within_s=120)
    assert run["conf"] == {
        "to": str(end), "target": "pumphouse_restore", "tables": ["shop.customers"], "verify": True, "dry_run": False,
    }  # fmt: skip
    run_id = run["dag_run_id"]
    eventually(lambda: f"/dags/{watch.RESTORE}/runs/" in admin.driver.current_url, within_s=60)
    assert _states(site, run_id, "approve") == "awaiting_input"
    admin.open(f"/dags/{watch.RESTORE}/runs/{run_id}/tasks/approve/required_actions")
    admin.click("//button[@data-testid='hitl-option-Approve']")
    done = site.api.wait_for_run(watch.RESTORE, run_id, timeout_s=600)
    assert done["state"] == "success", watch.failure(site.api, watch.RESTORE, run_id)
    with connect(site.stack.dsn("restore").server, DUMP, "restore") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM shop.customers")
        assert cursor.fetchone() == (100,)
    (proof,) = read_proofs(site.archive)
    assert proof.equal
    eventually(lambda: ">proof<" in site.get(_PAGE, "reader")[1], within_s=120)


def _states(site: Site, run_id: str, task: str) -> str:
    def reached() -> Any:
        states = {each["task_id"]: each["state"] for each in site.api.tasks(watch.RESTORE, run_id)}
        return states[task] in ("awaiting_input", "failed", "upstream_failed") and states[task]

    return str(eventually(reached, within_s=300))


def test_a_pump_that_is_stopped_is_named_with_what_to_do(site: Site, admin: Pages) -> None:
    site.stack.pumps[1].kill()
    try:
        admin.open(_PAGE)
        admin.says("Pump pump-2", "pumphouse pump run")  # it looks again by itself
        assert "bad" in str(admin.find("//section[@aria-label='Headline']").get_attribute("class"))
        admin.shoot("a-pump-is-silent")
    finally:
        site.stack.pumps[1].start()
