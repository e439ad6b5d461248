"""What two looks at a DDL's objects say of the statement between them."""

from typing import Any

import pytest

from pumphouse.loader.looks import Verdict, settle
from pumphouse.schema.render import Statement

TABLE = ("d", "t")
ALTER = Statement("ALTER TABLE t", (TABLE,))
TRUNCATE = Statement("TRUNCATE TABLE t", (TABLE,), repeatable=True)
EXCHANGE = Statement("ALTER TABLE t EXCHANGE PARTITION", (TABLE,), engine_only=True)
CREATE = Statement("CREATE TABLE t", (TABLE,))


def look(show: str | None = "text", ids: int | None = 1, names: str | None = "names", server: str = "one") -> Any:
    return {"show": show, "engine": None if ids is None else [["d/t", ids]], "names": names, "server": server}


OLD = {"show": "text", "engine": [["d/t", 1]]}
NOT_THERE = look(None, None, None)


@pytest.mark.row("L6")
@pytest.mark.parametrize(
    ("statement", "before", "now", "verdict"),
    [
        (ALTER, look(), look(), Verdict.DID_NOT),
        (ALTER, look(), look(show="other"), Verdict.RAN),
        (TRUNCATE, look(), look(ids=2), Verdict.RAN),
        (EXCHANGE, look(), look(ids=2), Verdict.RAN),
        (EXCHANGE, look(ids=None), look(ids=None), Verdict.UNCERTAIN),
        (CREATE, NOT_THERE, NOT_THERE, Verdict.DID_NOT),
        # Another server, or another version of it: text and ids are others by themselves.
        (ALTER, look(), look(show="other", ids=2, server="two"), Verdict.AGAIN),
        (ALTER, look(), look(show="other", ids=2, names="other", server="two"), Verdict.RAN),
        (TRUNCATE, look(), look(show="other", ids=2, server="two"), Verdict.AGAIN),
        (TRUNCATE, look(), look(names="other", server="two"), Verdict.AGAIN),
        (EXCHANGE, look(), look(server="two"), Verdict.UNCERTAIN),
        (CREATE, NOT_THERE, look(server="two"), Verdict.RAN),
        (CREATE, NOT_THERE, look(None, None, None, "two"), Verdict.DID_NOT),
        # A row of an earlier release does not say where it looked.
        (ALTER, OLD, look(show="other"), Verdict.UNCERTAIN),
        (ALTER, OLD, look(), Verdict.UNCERTAIN),
        (TRUNCATE, OLD, look(ids=2), Verdict.AGAIN),
        (CREATE, {"show": None, "engine": []}, NOT_THERE, Verdict.DID_NOT),
    ],
)
def test_what_two_looks_say(statement: Statement, before: Any, now: Any, verdict: Verdict) -> None:
    assert settle(statement, [before], [now]) is verdict
