"""Row changes of messages for Kafka are what protobuf's library makes of the reference's values, for any table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pumphouse.codec.columnar import UPDATE, decode_images
from pumphouse.codec.layout import RowLayout
from pumphouse.export.slaverows import MutationShape
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import Tso
from pumphouse.schema.versions import TableVersion
from tests.property.test_codec_columnar import PROFILE, cases
from tests.support import slavemessages


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
    version = TableVersion("d`b", wanted, 1, Tso(1), 1)
    shape = MutationShape.of(version, op, layout)
    made = shape.rows(decoded if op == UPDATE else (decoded,))
    # With a gap between them, which nothing is written into.
    ends = np.cumsum(made.sizes + 1)
    out = np.full(int(ends[-1]), 0xEE, np.uint8)
    made.write(out, ends - made.sizes - 1)
    assert (out[ends - 1] == 0xEE).all()
    for end, size, image in zip(ends - 1, made.sizes, images, strict=True):
        field = out[end - size : end].tobytes()
        wanted_field = slavemessages.mutation(written, wanted, op, image).SerializeToString()
        assert field == b"\x22" + slavemessages._length(len(wanted_field)) + wanted_field
