"""What viewers are shown while a look is under way: one that is fresh, or that there is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from binlog_airflow.installation import Installation
from binlog_airflow.page import looks
from pumphouse.errors import StoreUnavailable
from pumphouse.model.tso import Tso
from pumphouse.settings import Settings
from pumphouse.status.past import Past
from pumphouse.status.report import ArchiveStatus, Status
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("O2")
HERE = Installation()
SAFE = looks.Seen(problem="safe")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the looks."""
    held = [1000.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: held[0])
    monkeypatch.setattr(looks, "_WITHIN_S", 0.1)
    return held


@contextmanager
def _hanging(kept: looks.Looks, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody's look that does not come back."""
    begun, on = threading.Event(), threading.Event()

    def hangs(*_: object) -> looks.Seen:
        begun.set()
        on.wait()
        return SAFE

    monkeypatch.setattr(looks, "_look", hangs)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(kept.at, HERE)
        eventually(begun.is_set)
        try:
            yield
        finally:
            on.set()


def test_what_was_safe_an_hour_ago_is_not_shown_while_somebody_looks(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = looks.Looks()
    monkeypatch.setattr(looks, "_look", lambda *_: SAFE)
    assert kept.at(HERE) is SAFE
    now[0] += 6
    with _hanging(kept, monkeypatch):
        assert kept.at(HERE) is SAFE
        now[0] += 3600
        assert "gets no answer" in kept.at(HERE).problem


def test_nobody_waits_for_the_look_of_another_without_end(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = looks.Looks()
    with _hanging(kept, monkeypatch):
        assert "gets no answer" in kept.at(HERE).problem
    assert kept.at(HERE) is SAFE


def test_a_connection_that_nobody_made_gives_its_section_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, said in {
        "PUMPHOUSE_ARCHIVE": {"extra": {"root": f"file://{tmp_path}/archive"}},
        "PUMPHOUSE_CLUSTER": {"extra": {"url": f"file://{tmp_path}/cluster"}},
        "SECOND": {"host": "db2", "login": "loader"},
    }.items():
        kind = "pumphouse_downstream" if name == "SECOND" else name.lower()
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": kind, **said}))
    here = Installation(restore_targets=("first", "second"))
    unread: dict[str, str] = {}
    found = looks._targets(here, here.settings(), unread)
    assert {name: server.host for name, server in found.items() if server.host} == {"restore_target.second": "db2"}
    assert "first" in unread["first"]
    assert len(unread) == 1


def test_the_source_is_no_target_that_a_restore_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUMPHOUSE_SOURCE", "PUMPHOUSE_RESTORE"):
        kind = "pumphouse_source" if name == "PUMPHOUSE_SOURCE" else "pumphouse_downstream"
        said = {"conn_type": kind, "host": name.lower(), "login": "root"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(said))
    for name, field in (("ARCHIVE", "root"), ("CLUSTER", "url")):
        said = {"conn_type": f"pumphouse_{name.lower()}", "extra": {field: f"file://{tmp_path}/{name}"}}
        monkeypatch.setenv(f"AIRFLOW_CONN_PUMPHOUSE_{name}", json.dumps(said))
    here = Installation(restore_targets=("pumphouse_restore", "pumphouse_source"))
    unread: dict[str, str] = {}
    found = looks._targets(here, here.settings(), unread)
    assert {name: server.host for name, server in found.items()} == {"restore_target": "pumphouse_restore"}
    assert unread == {}  # nor is it a connection of the wrong type
    assert here.of_server("pumphouse_source")[1] == "source"


def test_a_drill_of_an_installation_that_names_its_source_alone_goes_to_no_other_ones_server() -> None:
    here = Installation(source="eu_source", restore_targets=("eu_source",))
    assert here.drill_connection("restore_target") == "eu_source"  # which is refused
    here = Installation(source="eu_source", restore_targets=("eu_source", "eu_restore"))
    assert here.drill_connection("restore_target") == "eu_restore"
    assert Installation().drill_connection("restore_target") == "pumphouse_restore"


def test_dumps_and_proofs_that_could_not_be_read_are_asked_for_again_by_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = Status(cluster="", now=Tso(0), archive=ArchiveStatus(url=""), pumps=(), targets=(), consumers=())
    answers: list[Past | Exception] = [StoreUnavailable("a time-out"), Past()]

    def past(_: object) -> Past:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("pumphouse.status.look.look", lambda *_: status)
    monkeypatch.setattr(looks, "_targets", lambda *_: {})
    monkeypatch.setattr("pumphouse.status.past.past_of", past)
    kept, here = looks._Kept(), cast(Installation, SimpleNamespace(settings=Settings))
    assert looks._look(here, kept).past is None
    assert looks._look(here, kept).past == Past()
