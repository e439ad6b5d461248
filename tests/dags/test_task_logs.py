"""What tasks leave for people: bounded reports, lines that a browser shows, errors as one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_BOUNDED = """
import json
from binlog_airflow import xcom
print(json.dumps(xcom.bounded({
    "to": 470659592355840000, "rows": 12, "ready": True, "seconds": 1.5, "none": None,
    "long": list(range(1000)), "text": "x" * 10_000, "tables": {str(n): "left out" for n in range(1000)},
})))
"""
_LINES = """
import json, structlog
from binlog_airflow import lines, retry
kept = []
def keep(_, __, event):
    kept.append(dict(event))
    raise structlog.DropEvent
structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(20))
@retry.one_sentence
def task():
    structlog.get_logger("a library").warning("done", to_ts=470659592355840000, held=True, open=False, none=None, rows=7,
        deep=[{"end": 470659592355840000}])
    told = lines.Told(every_s=60)
    for done in range(100):
        told("apply", done, 100)
for _ in range(2):
    task()
print(json.dumps(kept))
"""
_SENTENCE = """
import json, sys
from binlog_airflow import retry
from pumphouse.errors import GapError, WindowHeld
said = []
retry.log.error = lambda event, **facts: said.append([event, facts])
retry.log.debug = lambda *_, **__: None
def task(error):
    @retry.one_sentence
    def run():
        raise error
    try:
        run()
    except SystemExit as ended:
        return retry.BinlogRetryPolicy().evaluate(ended, 1, 3).action.value, ended.__context__ is None or ended.__suppress_context__
    except ValueError:
        return "stack"
print(json.dumps([task(GapError("a gap", hint="type this")), task(WindowHeld("held")), task(ValueError("x")), said]))
"""


@pytest.mark.row("O1")
def test_reports_are_bounded_and_hold_no_number_that_a_browser_rounds(in_airflow: Callable[..., Any]) -> None:
    found = in_airflow(_BOUNDED)
    assert (found["to"], found["to_time"]) == ("470659592355840000", "2026-11-23 08:51:00.000Z")
    assert (found["rows"], found["ready"], found["seconds"], found["none"]) == (12, True, 1.5, None)
    assert len(found["long"]) == 51
    assert found["long"][-1] == "and 950 more"
    assert len(found["text"]) == 501
    assert len(found["tables"]) == 51


@pytest.mark.row("O1")
def test_every_line_of_a_task_is_one_that_a_browser_shows_as_it_is(in_airflow: Callable[..., Any]) -> None:
    at = "470659592355840000 (2026-11-23 08:51:00.000Z)"
    said = {"event": "done", "to_ts": at, "held": "yes", "open": "no", "rows": 7, "deep": [{"end": at}]}
    assert in_airflow(_LINES) == [said, {"event": "apply: 0 of 100"}] * 2


@pytest.mark.row("O1")
def test_an_error_of_ours_is_one_sentence_and_still_decides_whether_to_retry(in_airflow: Callable[..., Any]) -> None:
    gap, held, foreign, said = in_airflow(_SENTENCE)
    assert gap == ["fail", True]
    assert held == ["retry", True]
    assert foreign == "stack"
    assert [facts["kind"] for _, facts in said] == ["GapError", "WindowHeld"]
    assert "type this" in said[0][0]
