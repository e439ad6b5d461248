"""Airflow's pages in headless Chromium, as a user meets them: what is clicked is what is shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.stack import system

_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
    "--window-size=1500,1300",
)  # fmt: skip
_DIALOG = "//*[@role='dialog']"


class Pages:
    """One browser, logged in. ``shots``: directory of the screenshots, numbered in order."""

    def __init__(self, url: str, shots: Path, *, wait_s: float = 90.0) -> None:
        browser, driver = system.chromium()
        options = Options()
        options.binary_location = browser
        for argument in _ARGUMENTS:
            options.add_argument(argument)
        self.url = url
        self.shots = shots
        shots.mkdir(parents=True, exist_ok=True)
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.wait_s = wait_s
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.shoot("failed")
        self.driver.quit()

    def shoot(self, name: str) -> None:
        """Keep what is to be seen now."""
        time.sleep(1.0)  # what moves into its place has arrived
        self._count += 1
        self.driver.save_screenshot(str(self.shots / f"{self._count:02d}-{name}.png"))

    def find(self, xpath: str) -> WebElement:
        """The first one that is shown; waits for it."""
        return WebDriverWait(self.driver, self.wait_s).until(lambda _: self._shown(xpath), f"no {xpath}")

    def click(self, xpath: str) -> None:
        """Click on it, as soon as it takes a click."""

        def clicked(_: Any) -> bool:
            element = self._shown(xpath)
            if element is None or not element.is_enabled():
                return False
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True

        WebDriverWait(self.driver, self.wait_s, ignored_exceptions=(Exception,)).until(clicked, f"no click on {xpath}")

    def press(self, xpath: str, for_s: float) -> None:
        """Click on it as a slow hand does: what the page is told meanwhile may not take the click away."""
        element = self.find(xpath)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).click_and_hold(element).pause(for_s).release().perform()

    def text(self) -> str:
        """All text of the page, as the browser has it: the driver's own way costs the page a hundred times as much."""
        return str(self.driver.execute_script("return document.body.innerText"))

    def says(self, *texts: str) -> None:
        """Wait until the page shows all of them."""
        WebDriverWait(self.driver, self.wait_s).until(
            lambda _: all(text in self.text() for text in texts), f"not all of {texts} on {self.driver.current_url}"
        )

    def log_in(self, user: str, password: str) -> None:
        """Begin."""
        self.driver.delete_all_cookies()
        self.driver.get(self.url)
        self.find("//input[@name='username']").send_keys(user)
        self.find("//input[@name='password']").send_keys(password)
        self.click("//button[@type='submit']")
        self.find("//button[.='Admin']")

    def open(self, path: str) -> None:
        """A page."""
        self.driver.get(f"{self.url}{path}")

    def rest(self) -> None:
        """No page: one that is open asks Airflow every few seconds."""
        self.driver.get("about:blank")

    def unpause(self, dag_id: str) -> None:
        """The switch on a DAG's page."""
        self.open(f"/dags/{dag_id}")
        if self.find("//*[@data-testid='toggle-pause']").get_attribute("data-state") != "checked":
            self.click("//*[@data-testid='toggle-pause']")
        self.find("//*[@data-testid='toggle-pause'][@data-state='checked']")

    def form(self, dag_id: str) -> None:
        """Open the form of a DAG."""
        self.open(f"/dags/{dag_id}")
        self.click("//*[@data-testid='trigger-dag-button']")
        self.find(f"{_DIALOG}//button[contains(., 'Trigger')]")

    def fill(self, xpath: str, text: str) -> None:
        """Put a text in the place of another."""
        element = self.find(xpath)
        element.send_keys(Keys.CONTROL, "a")
        element.send_keys(text)

    def send(self, button: str) -> None:
        """Press the form's button; it closes."""
        self.click(f"{_DIALOG}//button[contains(., '{button}')][last()]")
        # It stays in the page, out of sight.
        WebDriverWait(self.driver, self.wait_s).until(lambda _: self._shown(_DIALOG) is None, "the form stays")

    def _shown(self, xpath: str) -> WebElement | None:
        try:
            return next((each for each in self.driver.find_elements(By.XPATH, xpath) if each.is_displayed()), None)
        except StaleElementReferenceException:
            return None  # drawn anew meanwhile: look again
