"""Events of binlog files are what protobuf's library makes of the reference's values, for any table and row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pumphouse.codec.columnar import UPDATE, decode_images
from pumphouse.codec.layout import RowLayout
from pumphouse.export.pbrows import Events, EventShape
from pumphouse.model.table import TableInfo
from tests.property.test_codec_columnar import PROFILE, cases
from tests.support import pbmessages


@PROFILE
@given(cases())
@pytest.mark.row("A6")
def test_columns_become_what_the_library_makes_of_the_references_values(
    case: tuple[TableInfo, TableInfo, int, list[bytes]],
) -> None:
    written, wanted, op, images = case
    data = np.frombuffer(b"\xff".join(images), np.uint8)
    lengths = np.array([len(each) for each in images], np.int64)
    starts = np.cumsum(lengths + 1) - lengths - 1
    layout = RowLayout.of(written, wanted)
    decoded = decode_images(data, starts, lengths, op, layout)
    events = Events(EventShape.of("d`b", wanted.name, op, layout), decoded if op == UPDATE else (decoded,))
    # With a gap between them, which nothing is written into.
    ends = np.cumsum(events.sizes + 1)
    out = np.full(int(ends[-1]), 0xEE, np.uint8)
    events.write(out, ends - events.sizes - 1)
    assert (out[ends - 1] == 0xEE).all()
    for end, size, image in zip(ends - 1, events.sizes, images, strict=True):
        field = out[end - size : end].tobytes()
        event = pbmessages.event("d`b", written, wanted, op, image).SerializeToString()
        head = bytearray(b"\x0a")
        pbmessages.append_uvarint(head, len(event))
        assert field == bytes(head) + event
