"""What a damaged or strange binlog says is held against what is known, before a row is believed."""

from __future__ import annotations

import pytest

from pumphouse.capture.source import events
from pumphouse.errors import CaptureRefused

pytestmark = pytest.mark.row("Q1")


def _query(status: bytes, text: bytes = b"ALTER TABLE t ADD UNIQUE (b)") -> bytes:
    return b"\0" * 8 + b"\4" + b"\0\0" + len(status).to_bytes(2, "little") + status + b"shop\0" + text


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (b"\x82\x02", "ALTER in two phases"),
        (b"\x82\x08" + b"\x09" + b"\0" * 7, "ALTER in two phases"),
        (b"\x8c\x01", "unknown status variable 140"),
    ],
)
def test_a_statement_whose_context_is_not_known_whole_is_refused(status: bytes, what: str) -> None:
    before = b"\0" + b"\1\0\0\0"
    assert events.query(_query(before), 0, 0).flags == 1
    with pytest.raises(CaptureRefused, match=what) as refused:
        events.query(_query(before + status), 0, 0)
    assert refused.value.hint
