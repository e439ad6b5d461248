"""How long each tier took, at the end of a run; and what `make campaign` ran, one record a campaign in docs/reliability.json.

A test that runs many rounds says so by ``record_property("rounds", n)``; losses are failed tests.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from tests.stack import jvm
from tests.support import keeper, kind
from tests.support.order import place, tier_of

# A machine that stands still for a moment says nothing about the code.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

RECORD = Path(__file__).resolve().parents[1] / "docs" / "reliability.json"
_results: list[dict[str, object]] = []
# By tier, which is a folder of tests: seconds of all its tests, with what they set up; and how many there were.
_seconds: Counter[str] = Counter()
_tests: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--server", choices=kind.KINDS, default=kind.KINDS[0], help="kind of server that tests load into")


def pytest_configure(config: pytest.Config) -> None:
    keeper.keep()
    kind.choose(config.getoption("--server"))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """An entry point that a test called in this process sets a level and a stream; the next test has neither."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def quick_jvms() -> Iterator[str]:
    """Each driver of Spark that is started from here on has the options, which are for executors too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", found := jvm.options())
        yield found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files come first, then those of slow tiers: workers that are dealt out files in this order end together."""
    items.sort(key=lambda item: place(item.nodeid))
    if kind.is_mysql():
        _only_on_mysql(config, items)


def _only_on_mysql(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that start no server say nothing new; those of what MariaDB alone can do are skipped with their reason."""
    kept = [item for item in items if _has_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _has_server(item)])
    items[:] = kept
    for item in items:
        of_mariadb = item.get_closest_marker("mariadb")
        reason = kind.MISSING_MYSQL or (of_mariadb.args[0] if of_mariadb else "")
        if reason:
            # There is no MySQL here, or the test is of what a MariaDB alone can do: the reason says which.
            item.add_marker(pytest.mark.skip(reason=reason))


def _has_server(item: pytest.Item) -> bool:
    """Whether it starts servers of the kind that was chosen; what goes into a TiDB does so whatever that is."""
    chosen = getattr(item, "callspec", None)
    if item.path.name.startswith("test_tidb_") or (chosen is not None and chosen.params.get("into_tidb")):
        return False
    return "server" in getattr(item, "fixturenames", ()) or hasattr(getattr(item, "module", None), "mariadb")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # With pytest-xdist this is told of every test in the process that began it too.
    tier = tier_of(report.nodeid)
    _seconds[tier] += report.duration
    _tests[tier] += report.when == "setup"
    if report.when == "call":
        said = dict(report.user_properties)  # seeds, rounds and figures, by `record_property`
        _results.append({"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 1)} | said)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if len(_seconds) < 2:
        return
    terminalreporter.section("tiers")
    for tier, seconds in _seconds.most_common():
        terminalreporter.write_line(f"{tier:14}{_tests[tier]:6} tests {seconds:8.0f} s")


def pytest_sessionfinish() -> None:
    # A worker of pytest-xdist has a part of what the process that began it reports.
    if not os.environ.get("PUMPHOUSE_CAMPAIGN") or not _results or "PYTEST_XDIST_WORKER" in os.environ:
        return
    old = json.loads(RECORD.read_text()) if RECORD.exists() else []
    new = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "rounds": sum(int(str(r.get("rounds", 1))) for r in _results),
        "losses": sum(r["outcome"] == "failed" for r in _results),
        "tests": _results,
    }
    RECORD.write_text(json.dumps([*old, new], indent=1) + "\n")
