"""Row changes of binlog files as they are read: values that are no values of their columns are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.errors import ImportRefused
from pumphouse.export.pbfiles import file_name
from pumphouse.export.pbframes import framed
from pumphouse.file_import.files import Source
from pumphouse.file_import.rows import RowReader, zone_table
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.model.tso import compose
from pumphouse.objectstore.file import FileStore
from tests.support import pbmessages
from tests.support.madearchive import column, table_info

pytestmark = pytest.mark.row("A6")
START = compose(1_790_000_000_000)
UNSIGNED = 1 << 5


@pytest.mark.parametrize(
    ("tp", "more", "text"),
    [
        (MysqlType.LONG, {}, b"5.5"),
        (MysqlType.LONG, {}, b""),
        (MysqlType.LONG, {}, b" 5"),
        (MysqlType.LONG, {}, b"1_0"),
        (MysqlType.LONGLONG, {}, b"9223372036854775808"),
        (MysqlType.LONGLONG, {"flag": UNSIGNED}, b"18446744073709551616"),
        (MysqlType.LONGLONG, {"flag": UNSIGNED}, b"-5"),
        (MysqlType.DOUBLE, {}, b"1e999"),
        (MysqlType.DOUBLE, {}, b"nan"),
        (MysqlType.YEAR, {}, b"20"),
        (MysqlType.DATETIME, {}, b"2020-02-01 "),
        (MysqlType.ENUM, {"elems": ["5", "6"]}, b"6"),  # its ordinal stands there
        (MysqlType.BIT, {"flen": 8}, b"6"),
    ],
)
def test_text_that_is_no_value_of_its_column_is_refused(
    tmp_path: Path, tp: MysqlType, more: dict[str, object], text: bytes
) -> None:
    info = TableInfo.from_dict(table_info(1, "t", [column(1, "c", tp, **more)]))
    one = pbmessages.Column(name="c", tp=bytes([tp]), value=pbmessages.datum(info.columns[0], text))
    message = pbmessages.Binlog(tp=0, commit_ts=START)
    message.dml_data.events.append(
        pbmessages.Event(schema_name="d", table_name="t", tp=0, row=[one.SerializeToString()])
    )
    (tmp_path / file_name(0, START)).write_bytes(framed(message.SerializeToString()))
    (block,) = Source.of(FileStore(tmp_path)).blocks(1 << 20)
    reader = RowReader(zone_table(""))
    reader.renew({("d", "t"): info}, 1)
    with pytest.raises(ImportRefused, match=r"d\.t\.c is (a value of another type than|no date)"):
        reader.payloads(block, 0, 1)
