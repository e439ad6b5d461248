"""Names of objects."""

from __future__ import annotations

import pytest

from pumphouse.archive import layout
from pumphouse.archive.base import BaseChunk
from pumphouse.model.tso import Tso

LONG = "客户信息与订单明细历史汇总表二零二六年度版新"


@pytest.mark.row("A3", "A4")
@pytest.mark.parametrize("schema", ["d" * 64, "销" * 64, "ж" * 64, "😀" * 64, "/" * 64, "." * 64])
def test_names_in_keys_are_bounded_whatever_the_script(schema: str) -> None:
    folder = layout.chunk_folder(Tso(1 << 62), schema, "售" * 64, 1 << 62, Tso(1 << 62))
    assert max(len(part.encode()) for part in folder.split("/")) <= 255
    assert len((folder + "00000000-0123456789abcdef.parquet").encode()) <= 400
    other = layout.chunk_folder(Tso(1 << 62), schema, "售" * 63 + "出", 1 << 62, Tso(1 << 62))
    assert folder != other
    assert len(layout.base_key(Tso(5), schema, "售" * 64, "a" * 16, 7)) <= 300


def test_short_names_are_as_they_were() -> None:
    assert layout.chunk_folder(Tso(5), "shop", "or.ders", 7, Tso(9)) == (
        "base/00000000000000000005/shop.or%2Eders-7/00000000000000000009/"
    )


@pytest.mark.row("O7")
@pytest.mark.parametrize("whole", [True, False])
def test_notes_of_a_dump_that_an_earlier_release_began_are_read(whole: bool) -> None:
    chunk = BaseChunk(db="shop", table=LONG, table_id=7, low=Tso(9), number=0, upto=None, last=True, segment=None)
    folder = layout.chunk_folder(Tso(5), "shop", LONG, 7, Tso(9), whole=whole)
    assert BaseChunk.from_json(layout.chunk_note(folder, 0), chunk.to_json()) == chunk
