"""Moments as people say them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from pumphouse.errors import ConfigError, UsageError
from pumphouse.model.moment import Moment, parse_time, zone_of
from pumphouse.model.tso import Tso, from_datetime
from pumphouse.settings import Settings

pytestmark = pytest.mark.row("R1")
NOW = from_datetime(datetime(2026, 11, 27, 0, 30, tzinfo=UTC))


def found(kind: str, what: str) -> Tso:
    asked.append((kind, what))
    return Tso(len(asked))


asked: list[tuple[str, str]] = []


def read(text: str, zone: str = "UTC") -> Moment:
    return parse_time(text, lambda: NOW, zone=zone_of(zone), find=found)


def at(text: str) -> Tso:
    return from_datetime(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("text", "zone", "meant"),
    [
        ("2026-11-27T03:00:00Z", "Europe/Berlin", "2026-11-27T03:00:00Z"),
        ("2026-11-27 03:00 Z", "UTC", "2026-11-27T03:00:00Z"),
        ("2026-11-27 03:00", "UTC", "2026-11-27T03:00:00Z"),
        ("2026-11-27 03:00", "Europe/Berlin", "2026-11-27T02:00:00Z"),
        ("2026-11-27", "Europe/Berlin", "2026-11-26T23:00:00Z"),
        (" 2026-11-27  03:00   Europe/Berlin ", "UTC", "2026-11-27T02:00:00Z"),
        ("2026-07-27T03:00:00.250 America/New_York", "UTC", "2026-07-27T07:00:00.250Z"),
        ("2026-11-27 03:00 +05:30", "Europe/Berlin", "2026-11-26T21:30:00Z"),
        ("2026-11-27 03:00 UTC", "Europe/Berlin", "2026-11-27T03:00:00Z"),
        ("20261127T0300", "UTC", "2026-11-27T03:00:00Z"),
        ("2026-11-27T03", "UTC", "2026-11-27T03:00:00Z"),
        ("2026W475", "UTC", "2026-11-20T00:00:00Z"),
        ("2026-W47-5", "UTC", "2026-11-20T00:00:00Z"),
        ("yesterday 14:00", "UTC", "2026-11-26T14:00:00Z"),
        # In Berlin it is the 27th too; in New York it is still the 26th.
        ("today 00:15", "Europe/Berlin", "2026-11-26T23:15:00Z"),
        ("yesterday 14:00 America/New_York", "UTC", "2026-11-25T19:00:00Z"),
        ("Yesterday 14:00:30", "America/New_York", "2026-11-25T19:00:30Z"),
        ("10 minutes ago", "UTC", "2026-11-27T00:20:00Z"),
        ("10min ago", "UTC", "2026-11-27T00:20:00Z"),
        ("an hour and 30 seconds ago", "Europe/Berlin", "2026-11-26T23:29:30Z"),
        ("2 hours, 15 minutes ago", "UTC", "2026-11-26T22:15:00Z"),
        ("1.5 h ago", "UTC", "2026-11-26T23:00:00Z"),
        ("2 days ago", "UTC", "2026-11-25T00:30:00Z"),
        # The one side of a change of the clocks, by its offset.
        ("2026-10-25T02:30:00+01:00", "Europe/Berlin", "2026-10-25T01:30:00Z"),
        ("2026-10-25 03:00 Europe/Berlin", "UTC", "2026-10-25T02:00:00Z"),
    ],
)
def test_a_moment_is_what_somebody_means(text: str, zone: str, meant: str) -> None:
    assert read(text, zone).ts == at(meant)


def test_a_tso_is_itself_and_now_is_the_clusters() -> None:
    assert read(str(NOW)) == Moment(str(NOW), NOW)
    assert read("now").ts == NOW


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("before DDL 137", "before ddl", "137"),
        ("Before  txn 470592258683437056", "before txn", "470592258683437056"),
        ("GTID 0-1-1234", "gtid", "0-1-1234"),
        (
            "before GTID 3E11FA47-71CA-11E1-9E33-C80AA9429562:23",
            "before gtid",
            "3E11FA47-71CA-11E1-9E33-C80AA9429562:23",
        ),
        ("source time 2026-11-27 03:00:00.000250", "source time", "2026-11-27T03:00:00.000250+00:00"),
        ("source time yesterday 14:00 Europe/Berlin", "source time", "2026-11-26T14:00:00+01:00"),
    ],
)
def test_what_happened_is_looked_for_in_the_archive(text: str, kind: str, what: str) -> None:
    assert read(text) == Moment(" ".join(text.split()), Tso(len(asked)))
    assert asked[-1] == (kind, what)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "2026-10-25 02:30 Europe/Berlin",
            r"there twice in Europe/Berlin.*from \+02:00 to \+01:00.*02:30:00\+02:00 or",
        ),
        ("2026-03-29 02:30 Europe/Berlin", r"never there in Europe/Berlin.*from \+01:00 to \+02:00"),
        ("2026-03-29T02:30:00+01:00 Europe/Berlin", "names two zones"),
        ("2026-11-27 03:00 Europe/Berlinn", r"no time zone 'Europe/Berlinn'.*Europe/Berlin"),
        ("2026-11-27 03:00 Berlin", r"no time zone 'Berlin'.*Europe/Berlin"),
        ("yesterday", r"whole day.*'yesterday 14:00'"),
        ("14:00", "is no time"),
        ("10 minutes", "is no time"),
        ("ten minutes ago", "no time"),
        ("10 fortnights ago", "no time"),
        ("10 ago", "no time"),
        ("900000 days ago", "before all clocks"),
        ("before DDL", "is no time"),
        ("before DDL 0-1-5", "is no time"),
        ("gtid", "is no time"),
        ("source time 10 minutes ago", "'10 minutes ago' is no time"),
        ("12345", "is not a TSO"),
        ("9" * 5000, "is not a TSO"),
        ("", "is no time"),
    ],
)
def test_what_is_no_moment_or_may_be_two_is_refused_with_a_way_out(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert re.search(says, str(refused.value)), str(refused.value)


def test_a_moment_is_told_back_with_offset_zone_and_tso() -> None:
    ts = at("2026-11-27T02:00:00Z")
    said = str(read("2026-11-27 03:00 Europe/Berlin"))
    assert said == f"'2026-11-27 03:00 Europe/Berlin' is 2026-11-27 03:00:00.000+01:00 (Europe/Berlin), TSO {ts}"
    assert str(read("today 02:00")).endswith(f"is 2026-11-27 02:00:00.000+00:00, TSO {ts}")
    assert "2026-11-27 01:20:00.000+01:00 (Europe/Berlin)" in str(read("10 minutes ago", "Europe/Berlin"))


@pytest.mark.parametrize("text", ["before DDL 1", "gtid 0-1-1", "source time 2026-11-27 03:00"])
def test_without_an_archive_nothing_is_before_a_ddl(text: str) -> None:
    with pytest.raises(UsageError, match="no meaning here"):
        parse_time(text, lambda: NOW)


def test_the_zone_of_times_without_one_is_a_setting() -> None:
    found = Settings.model_validate({"archive": {"time_zone": "Asia/Kolkata"}})
    assert found.archive.time_zone == "Asia/Kolkata"
    with pytest.raises(ConfigError, match=r"archive\.time_zone.*no time zone 'Mars/Base'"):
        Settings.read(overrides={"archive.time_zone": "Mars/Base"})
