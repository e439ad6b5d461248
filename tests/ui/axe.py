"""axe-core in the browser: what it finds wrong on a page. It is a file of the distribution axe-playwright-python."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from selenium.webdriver import Chrome

_RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then(
  (found) => done(found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html).join(" | ").slice(0, 400)}`)),
  (error) => done([String(error)]),
);
"""


def script() -> str | None:
    """Its source; None where it is not installed."""
    try:
        found = [each for each in files("axe-playwright-python") or () if each.name == "axe.min.js"]
    except PackageNotFoundError:
        return None
    return Path(str(found[0].locate())).read_text() if found else None


def violations(driver: Chrome, source: str) -> list[str]:
    """What is wrong on the page, or in the frame, that the driver is at."""
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    driver.execute_script(source)
    return list(driver.execute_async_script(_RUN))
