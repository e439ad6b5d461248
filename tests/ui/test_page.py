"""The page in Airflow's UI, in headless Chromium: what it says of a real archive, a restore begun on it, and who sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
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
from pumphouse.status.headline import clock
from tests.e2e import airflow_watch as watch
from tests.e2e.workload import Workload
from tests.stack.local import LocalStack
from tests.support.waiting import eventually
from tests.ui import axe
from tests.ui.pages import Pages
from tests.ui.test_walk import READ_S, SETTINGS, SHOTS

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
        stack.start_capture()
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
        self.stack.captured()
        subprocess.run([self.stack.directory / "bin" / "pumphouse", "snapshot"], check=True, capture_output=True)
        end = str(self.archive.end())
        eventually(
            lambda: json.loads(self.get("/pumphouse/status.json", "reader")[1])["archive"]["end"] == end, within_s=120
        )

    def sql(self, *statements: str, name: str = "source") -> tuple[Any, ...]:
        """What the last one answers."""
        with connect(self.stack.dsn(name).server, DUMP, name) as connection, connection.cursor() as cursor:
            for each in statements:
                cursor.execute(each)
            connection.commit()
            return tuple(cursor.fetchall())

    def begun(self, before: int) -> dict[str, Any]:
        """The restore that was begun behind so many."""
        return dict(eventually(lambda: self.api.runs(watch.RESTORE)[before:], within_s=120)[0])

    def approve(self, pages: Pages, run_id: str) -> None:
        """Say yes, and wait until it has ended well."""
        assert _states(self, run_id, "approve") == "awaiting_input"
        pages.open(f"/dags/{watch.RESTORE}/runs/{run_id}/tasks/approve/required_actions")
        time.sleep(READ_S)
        pages.click("//button[@data-testid='hitl-option-Approve']")
        done = self.api.wait_for_run(watch.RESTORE, run_id, timeout_s=600)
        assert done["state"] == "success", watch.failure(self.api, watch.RESTORE, run_id)

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
    stack = LocalStack(tmp_path_factory.mktemp("page") / "stack", store="file", settings=SETTINGS, capture=True)
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
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", _metrics(width, height))

    try:
        for (width, height), theme in product(_SIZES, ("light", "dark")):
            driver.execute_script(f"localStorage.setItem('theme', '{theme}')")
            show(width, height)
            admin.open(_PAGE)
            admin.says("until 20", "Pumps", "Targets", "Restore")
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
    admin.says("Pumphouse: ", "until 20")
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
    end, before = site.archive.end(), len(site.api.runs(watch.RESTORE))
    admin.open("/plugin/pumphouse")
    admin.driver.switch_to.frame(admin.find("//iframe[@title='Pumphouse']"))
    admin.click("(//button[contains(., 'Restore to here')])[1]")
    assert admin.find("//input[@id='to']").get_attribute("value") == str(end)
    Select(admin.find("//select[@id='target']")).select_by_visible_text("pumphouse_restore: restore_target")
    admin.find("//textarea[@id='tables']").send_keys("shop.customers")
    admin.click("//input[@id='verify']")
    admin.click("//input[@id='dry_run']")
    admin.shoot("restore-filled-in")
    admin.click("//form[@id='form']//button[@type='submit']")
    admin.driver.switch_to.default_content()
    run = site.begun(before)
    assert run["conf"] == {
        "to": str(end), "target": "pumphouse_restore", "tables": ["shop.customers"], "verify": True, "dry_run": False,
        "accept_losses": False,
    }  # fmt: skip
    eventually(lambda: f"/dags/{watch.RESTORE}/runs/" in admin.driver.current_url, within_s=60)
    site.approve(admin, run["dag_run_id"])
    assert site.sql("SELECT COUNT(*) FROM shop.customers", name="restore") == ((100,),)
    assert read_proofs(site.archive)[-1].equal
    eventually(lambda: ">proof<" in site.get(_PAGE, "reader")[1], within_s=120)


@pytest.fixture(scope="module")
def mistake(site: Site) -> None:
    """Of a table with thirty rows, twenty go in one transaction; another table is dropped."""
    rows = ", ".join(f"({number}, 'n')" for number in range(30))
    site.sql(
        "CREATE TABLE shop.notes (id INT PRIMARY KEY, said TEXT)",
        "CREATE TABLE shop.gone (id INT PRIMARY KEY)",
        f"INSERT INTO shop.notes VALUES {rows}",
        "COMMIT",
        "DELETE FROM shop.notes WHERE id < 20",
        "COMMIT",
        "DROP TABLE shop.gone",
    )
    site.snapshot()


@pytest.mark.usefixtures("mistake")
def test_a_mistake_is_found_on_the_page_and_its_table_restored_beside_the_live_one(site: Site, admin: Pages) -> None:
    before = len(site.api.runs(watch.RESTORE))
    admin.open(_PAGE)
    admin.click("//form[@id='search']//button")
    admin.says("drop table: shop.gone", "shop.notes: 20 deleted")
    _fit(admin, "found")
    admin.click("//tr[contains(., 'drop table: shop.gone')]//button")
    assert admin.find("//textarea[@id='tables']").get_attribute("value") == "shop.gone"
    admin.fill("//input[@id='sought']", "shop.notes\n")  # Enter searches, too
    eventually(lambda: "drop table: shop.gone" not in admin.text())
    admin.click("//tr[contains(., 'shop.notes: 20 deleted')]//button")
    assert admin.find("//textarea[@id='tables']").get_attribute("value") == "shop.notes"
    admin.find("//input[@id='as']").send_keys("shop.notes_before")
    Select(admin.find("//select[@id='target']")).select_by_value("pumphouse_source")
    admin.click("//input[@id='verify']")
    admin.click("//input[@id='dry_run']")
    admin.click("//form[@id='form']//button[@type='submit']")
    run = site.begun(before)
    assert (run["conf"]["as"], run["conf"]["target"]) == ("shop.notes_before", "pumphouse_source")
    site.approve(admin, run["dag_run_id"])
    assert read_proofs(site.archive)[-1].equal
    assert site.sql("SELECT COUNT(*) FROM shop.notes_before") == ((30,),)
    assert site.sql("SELECT COUNT(*) FROM shop.notes") == ((10,),)


@pytest.mark.usefixtures("mistake")
def test_what_cannot_be_restored_is_refused_before_anything_runs(site: Site, admin: Pages) -> None:
    before = len(site.api.runs(watch.RESTORE))
    admin.open(_PAGE)
    admin.fill("//input[@id='to']", "1 second ago\t")
    admin.says("is not archived yet: type a moment from", "or latest")  # when the field is left
    admin.fill("//input[@id='to']", "2001-02-03T04:05:06Z")
    admin.press("//form[@id='form']//button[@type='submit']", for_s=2)  # the field is left, and answered below it
    answer = admin.find("//*[@id='answer'][contains(., 'before the first moment')]").text
    assert f"to {clock(site.archive.end())}" in answer
    admin.fill("//input[@id='to']", "latest\t")
    admin.says("the archive's end, ")
    Select(admin.find("//select[@id='target']")).select_by_value("pumphouse_source")
    admin.click("//form[@id='form']//button[@type='submit']")
    admin.find("//*[@id='answer'][contains(., 'the source is restored to by tables alone')]")
    _fit(admin, "refused")
    assert len(site.api.runs(watch.RESTORE)) == before


@pytest.mark.usefixtures("mistake")
def test_a_name_that_is_taken_there_is_refused_where_the_form_leads_with_the_way_out(site: Site, admin: Pages) -> None:
    before = len(site.api.runs(watch.RESTORE))
    admin.open(_PAGE)
    admin.find("//textarea[@id='tables']").send_keys("shop.notes")
    Select(admin.find("//select[@id='target']")).select_by_value("pumphouse_source")
    admin.click("//summary")
    admin.find("//textarea[@id='keys']").send_keys("21\n22\n")
    _fit(admin, "all-fields")
    admin.click("//form[@id='form']//button[@type='submit']")
    assert site.begun(before)["conf"]["keys"] == ["21", "22"]  # all fields of the DAG are the page's
    admin.says("has shop.notes already", "Name there")  # no click but the form's
    admin.shoot("a-name-that-is-taken")


def _fit(pages: Pages, name: str) -> None:
    """Nothing is wider than a phone, and axe finds nothing, where it is there."""
    driver, source = pages.driver, axe.script()
    for width, height in _SIZES:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", _metrics(width, height))
        try:
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
            whole = driver.execute_script("return document.documentElement.scrollHeight")
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", _metrics(width, whole))
            pages.shoot(f"{name}-{width}")
            assert source is None or axe.violations(driver, source) == [], width
        finally:
            driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def _metrics(width: int, height: int) -> dict[str, Any]:
    return {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}


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
