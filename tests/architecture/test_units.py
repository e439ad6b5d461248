"""The systemd units against what they run: whatever is written to must be writable under ProtectSystem=strict."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "systemd").glob("*.service"))


def service(unit: Path) -> dict[str, list[str]]:
    """Name -> values, of [Service]."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.row("P3")
@pytest.mark.parametrize("unit", UNITS, ids=lambda each: each.name)
def test_what_a_unit_writes_lies_where_it_may_write(unit: Path) -> None:
    said = service(unit)
    assert said["ProtectSystem"] == ["strict"]
    assert said["ProtectHome"] == ["yes"]
    writable = {f"/var/lib/{each}" for line in said["StateDirectory"] for each in line.split()}
    writable |= {f"/var/cache/{each}" for line in said["CacheDirectory"] for each in line.split()}
    environment = dict(each.split("=", 1) for each in said["Environment"])
    words = shlex.split(said["ExecStart"][0])
    options = dict(itertools.pairwise(words))
    data = options.get("--data-dir") or environment["PUMPHOUSE_CAPTURE__DIRECTORY"]
    # The kernels of the code are compiled at its first import; docs/deploy.md names the directory of a file:// cluster.
    assert {data, environment["NUMBA_CACHE_DIR"], "/var/lib/pumphouse/cluster"} <= writable


def test_there_are_units_of_a_pump_and_of_a_capture() -> None:
    assert [each.name for each in UNITS] == ["pumphouse-capture.service", "pumphouse-pump@.service"]
    text = (UNITS[0].parents[2] / "docs" / "deploy.md").read_text()
    assert 'cluster.url = "file:///var/lib/pumphouse/cluster"' in text
    # No unit has run where a capture is checked first: its directories are not there yet.
    checked, made = (text.index(each) for each in ("pumphouse capture check", "-m 0700 /var/cache/pumphouse"))
    assert made < checked
