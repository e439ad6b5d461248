"""Single values: what is refused, and the corners that random tests seldom reach."""

from __future__ import annotations

import json
import struct

import pytest

from pumphouse.codec import number
from pumphouse.codec.bytes import append_comparable, read_compact, read_comparable
from pumphouse.codec.datum import Datum, encode_value, kind_of, read_datum
from pumphouse.codec.decimal import encode_decimal, read_decimal
from pumphouse.codec.defaults import missing_value
from pumphouse.codec.json import MAX_DEPTH, double_text, encode_json, json_text
from pumphouse.codec.key import encode_key_value, needs_restoring, sort_key
from pumphouse.codec.time import datetime_text, duration_text, pack_datetime, parse_duration, unpack_datetime
from pumphouse.errors import CodecError
from pumphouse.model.table import ColumnFlag, ColumnInfo, FieldType, MysqlType
from tests.support.rowgen import column, field
from tests.support.rowreference import loader_value, parse_record_key, record_key

pytestmark = pytest.mark.row("L1")


def typed(tp: int, **more: object) -> FieldType:
    return FieldType.from_dict(field(tp, **more))  # type: ignore[arg-type]


def column_of(tp: dict[str, object], **more: object) -> ColumnInfo:
    return ColumnInfo.from_dict(column(1, 0, tp, **more))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**63, 2**64 - 1])
def test_an_unsigned_varint_comes_back(value: int) -> None:
    out = bytearray()
    number.append_uvarint(out, value)
    assert number.read_uvarint(bytes(out), 0) == (value, len(out))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
def test_a_cut_or_too_long_varint_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        number.read_uvarint(data, 0)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_what_is_no_64_bit_number_is_not_encoded(value: int) -> None:
    with pytest.raises(CodecError):
        number.append_uvarint(bytearray(), value)
    with pytest.raises(CodecError):
        number.append_varint(bytearray(), 2**63)


def test_ordered_floats_sort_as_floats_and_lose_the_sign_of_zero() -> None:
    floats = [-1e300, -2.5, -5e-324, 0.0, 5e-324, 1.0, 1e300]
    assert sorted(map(number.float_to_ordered, floats)) == [number.float_to_ordered(f) for f in floats]
    assert [number.ordered_to_float(number.float_to_ordered(f)) for f in floats] == floats
    assert struct.pack(">d", number.ordered_to_float(number.float_to_ordered(-0.0))) == bytes(8)


def test_comparable_bytes_sort_as_bytes_and_bad_groups_are_refused() -> None:
    strings = [b"", b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefghi", b"b"]
    encoded = []
    for each in strings:
        out = bytearray()
        append_comparable(out, each)
        assert read_comparable(bytes(out), 0) == (each, len(out))
        encoded.append(bytes(out))
    assert sorted(encoded) == encoded
    for bad in (encoded[0][:-1], b"a" + bytes(7) + b"\xf0", b"aa" + bytes(6) + b"\xf8", b"abcdefgh\xff"):
        with pytest.raises(CodecError):
            read_comparable(bad, 0)


def test_a_compact_string_does_not_reach_behind_the_data() -> None:
    for bad in (b"\x0aabcd", b"\x01", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01a"):
        with pytest.raises(CodecError):
            read_compact(bad, 0)


@pytest.mark.parametrize(
    ("text", "precision", "scale", "result"),
    [
        ("1.005", 5, 2, "1.01"),
        ("-1.005", 5, 2, "-1.01"),
        ("1.004", 5, 2, "1.00"),
        ("-0.001", 5, 2, "0.00"),
        ("1e2", 5, 1, "100.0"),
        (".5", 3, 1, "0.5"),
        ("7.", 3, 0, "7"),
        ("+00012", 4, 1, "12.0"),
        ("9" * 35 + "." + "9" * 30, 65, 30, "9" * 35 + "." + "9" * 30),
        ("0.000000001", 9, 9, "0.000000001"),
    ],
)
def test_a_decimal_is_rounded_half_away_from_zero_to_its_scale(
    text: str, precision: int, scale: int, result: str
) -> None:
    data = encode_decimal(text, precision, scale)
    assert read_decimal(data, 0) == (result, len(data))


@pytest.mark.parametrize("text", ["", "abc", "1.2.3", "-", "1000", "999.5", "1e9"])
def test_what_is_no_decimal_of_the_column_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        encode_decimal(text, 3, 0)


@pytest.mark.parametrize(
    "data", [b"\x05", b"\x00\x00", b"\x42\x00" + bytes(40), b"\x05\x06" + bytes(9), b"\x1f\x1f" + bytes(20)]
)
def test_a_decimal_of_an_impossible_shape_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        read_decimal(data, 0)


def test_a_decimal_group_with_too_many_digits_is_refused() -> None:
    with pytest.raises(CodecError, match="group"):
        read_decimal(bytes((1, 0, 0x80 | 10)), 0)


def test_negative_zero_bytes_of_a_decimal_read_as_zero() -> None:
    assert read_decimal(bytes((3, 2)) + bytes((0x7F, 0xFF)), 0) == ("0.00", 4)


@pytest.mark.parametrize(
    "text", ["2023-13-01", "2023-1-32", "2023-01-01 24:00:00", "x", "2023-01-01 00:60:00", "23-01-01"]
)
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        pack_datetime(text)


@pytest.mark.parametrize(
    "packed",
    [10000 * 13 << 46, 24 << 36, 60 << 30, 60 << 24, 1_000_000, (1 << 64) - 1],
)
def test_packed_times_with_a_part_out_of_range_are_refused(packed: int) -> None:
    with pytest.raises(CodecError):
        unpack_datetime(packed)


def test_fractions_come_from_the_column_and_not_from_the_value() -> None:
    packed = pack_datetime("2023-03-15 12:34:56.789")
    assert datetime_text(packed, 0) == "2023-03-15 12:34:56"
    assert datetime_text(packed, 1) == "2023-03-15 12:34:56.7"
    assert datetime_text(packed, 6) == "2023-03-15 12:34:56.789000"
    assert duration_text(parse_duration("-838:59:59.5"), 1) == "-838:59:59.5"
    assert duration_text(parse_duration("00:00:00.25"), 1) == "00:00:00.2"
    for bad in ("1", "00:60:00", "00:00:60", "--1:00:00"):
        with pytest.raises(CodecError):
            parse_duration(bad)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (3.0, "3"),
        (1e-6, "0.000001"),
        (9.5e-7, "9.5e-7"),
        (1e-7, "1e-7"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e100, "1.5e+100"),
        (-123.456, "-123.456"),
        (0.1, "0.1"),
        (2**53 + 2.0, "9007199254740994"),
        (5e-324, "5e-324"),
        (0.30000000000000004, "0.30000000000000004"),
    ],
)
def test_doubles_of_json_have_their_shortest_text(value: float, text: str) -> None:
    assert double_text(value) == text
    assert json_text(b"\x0b" + struct.pack("<d", value)) == text
    assert float(text) == value


@pytest.mark.parametrize("value", [0.0, -0.0, 3.0, -1e6, 2**53 - 1.0, 2**53 + 2.0, 1e20, 1e21, 1.5, -2.5e-9])
def test_a_double_of_json_can_say_that_it_is_one(value: float) -> None:
    data = b"\x0b" + struct.pack("<d", value)
    text = json_text(data, doubles=True)
    assert encode_json(text) == data
    assert text.removesuffix("e+0") == json_text(data)


def test_doubles_that_are_no_json_numbers_are_refused() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(CodecError):
            json_text(b"\x0b" + struct.pack("<d", bad))
    for text in ("NaN", "Infinity", "1e999", "{", "", '{"a":1}}'):
        with pytest.raises(CodecError):
            encode_json(text)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'a"b\\c\n\r\t\x01\x1f/<', '"a\\"b\\\\c\\n\\r\\t\\u0001\\u001f/<"'),
        ("é\u2028\u2029😀".encode(), '"é\\u2028\\u2029😀"'),
        (b"\xff\xe4\xbd", '"\\ufffd\\ufffd\\ufffd"'),
        (b"\xed\xa0\x80", '"\\ufffd\\ufffd\\ufffd"'),
        (b"\xc0\x80\xf5", '"\\ufffd\\ufffd\\ufffd"'),
    ],
)
def test_json_strings_are_escaped_as_tidb_does(raw: bytes, text: str) -> None:
    assert json_text(b"\x0c" + bytes((len(raw),)) + raw) == text


def test_json_numbers_take_the_smallest_type_that_holds_them() -> None:
    codes = {
        "1": 9,
        "-9223372036854775808": 9,
        "9223372036854775808": 10,
        "18446744073709551615": 10,
        "100000000000000000000": 11,
        "0.10000000000000001": 11,
        "5e-324": 11,
        "1.0": 11,
        "1e2": 11,
    }
    assert {text: encode_json(text)[0] for text in codes} == codes


def test_the_shortest_text_of_every_double_is_one() -> None:
    """Beside a power of two it may not be the double rounded to so many digits."""
    for power in range(-1074, 1024):
        text = repr(2.0**power)
        assert encode_json(text) == b"\x0b" + struct.pack("<d", 2.0**power), text


def test_json_keys_are_sorted_bytewise() -> None:
    assert json_text(encode_json('{"b": 1, "é": 2, "a": 3, "": 5}')) == '{"": 5, "a": 3, "b": 1, "é": 2}'


@pytest.mark.row("A3")
@pytest.mark.parametrize(
    "text",
    [
        "123456789012345678901234567890", "12345678901234567890.125", "18446744073709551616", "-9223372036854775809",
        "0.1000000000000000055511151231257827", "0.12345678901234568901", "1e400", "4e-324", "1e99999999999999999999",
        '{"a": 1, "a": 2}', '[{"b": {"a": 1, "x": 0, "a": 1}}]', '"\\ud800x"', '{"\\udc00": 1}',
    ],
)  # fmt: skip
def test_json_that_the_binary_form_would_change_is_refused(text: str) -> None:
    """A MariaDB keeps the text: its binlogs would have another value."""
    with pytest.raises(CodecError, match="a binlog cannot hold") as error:
        encode_json(text)
    assert "make the column a text" in error.value.hint


def test_json_is_nested_only_so_deep() -> None:
    deepest = MAX_DEPTH + 1
    assert json.loads(json_text(encode_json("[" * deepest + "]" * deepest)))
    with pytest.raises(CodecError, match="deep"):
        encode_json("[" * (deepest + 1) + "]" * (deepest + 1))
    with pytest.raises(CodecError):
        encode_json("[" * 100_000)
    with pytest.raises(CodecError, match="65535"):
        encode_json(json.dumps({"k" * 70_000: 1}))


def test_json_offsets_that_alias_do_not_blow_up() -> None:
    """Thirty levels of two entries that point to the same child would print a billion values."""
    body = b""
    leaf = b"\x03" + struct.pack("<II", 0, 8)
    size = 8 + 10
    data = bytearray()
    for level in range(30):
        rest = (29 - level) * size + len(leaf) - 1
        entry = b"\x03" + struct.pack("<I", size)
        data += struct.pack("<II", 2, size + rest) + entry * 2
    body = b"\x03" + bytes(data) + leaf[1:]
    with pytest.raises(CodecError):
        json_text(body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x04",
        b"\x04\x03",
        b"\x02\x00",
        b"\x09" + bytes(7),
        b"\x03\x01\0\0\0\x08\0\0\0",
        b"\x0c\x05abc",
        b"\x09" + bytes(9),
    ],
)
def test_damaged_json_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        json_text(data)


def test_an_unknown_flag_is_named() -> None:
    with pytest.raises(CodecError, match="invalid encoded key flag 250"):
        read_datum(b"\xfa", 0)
    with pytest.raises(CodecError, match="missing"):
        read_datum(b"", 0)


def test_both_forms_of_a_datum_are_read() -> None:
    assert read_datum(b"\x03" + bytes((0x7F,)) + b"\xff" * 7, 0) == (Datum(3, -1), 9)
    assert read_datum(b"\x04" + bytes(7) + b"\x07", 0) == (Datum(4, 7), 9)
    assert read_datum(b"\x01" + b"ab" + bytes(6) + b"\xf9", 0) == (Datum(1, b"ab"), 10)


def test_values_of_the_wrong_python_type_are_refused_by_name() -> None:
    for tp, value in (
        (MysqlType.LONG, "1"),
        (MysqlType.VARCHAR, 1),
        (MysqlType.DATE, 5),
        (MysqlType.DOUBLE, b"1"),
        (MysqlType.JSON, 1),
    ):
        with pytest.raises(CodecError, match="column"):
            encode_value(typed(tp), value)  # type: ignore[arg-type]


def test_a_type_that_rows_never_have_is_refused() -> None:
    with pytest.raises(CodecError, match="255"):
        kind_of(typed(MysqlType.GEOMETRY))


def test_a_datum_of_another_kind_than_its_column_is_refused() -> None:
    with pytest.raises(CodecError, match="flag"):
        loader_value(typed(MysqlType.LONG), Datum(0x02, b"x"))
    with pytest.raises(CodecError, match="flag"):
        loader_value(typed(MysqlType.LONG, flag=ColumnFlag.UNSIGNED), Datum(0x08, 1))
    assert loader_value(typed(MysqlType.LONG, flag=ColumnFlag.UNSIGNED), Datum(0x08, -1), handle=True) == 2**64 - 1


def test_enum_and_set_values_beyond_their_elements() -> None:
    assert loader_value(typed(MysqlType.ENUM, elems=["a", "b"]), Datum(0x09, 3)) == 0
    with pytest.raises(CodecError, match="SET"):
        loader_value(typed(MysqlType.SET, elems=["a", "b"]), Datum(0x09, 4))
    many = [str(n) for n in range(64)]
    assert loader_value(typed(MysqlType.SET, elems=many), Datum(0x09, 2**64 - 1)) == 2**64 - 1


def test_a_float_that_is_too_large_for_its_column_is_refused() -> None:
    with pytest.raises(CodecError, match="FLOAT"):
        encode_value(typed(MysqlType.FLOAT), 1e300)


def test_binary_columns_are_padded_to_their_length() -> None:
    assert encode_value(typed(MysqlType.STRING, flen=4), b"a") == b"\x02\x08a\0\0\0"
    assert encode_value(typed(MysqlType.STRING, flen=4, charset="utf8mb4"), "a") == b"\x02\x02a"


def test_row_keys_of_both_kinds_come_back() -> None:
    assert parse_record_key(record_key(45, -5)) == (45, -5)
    part = encode_key_value(column_of(field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4")), b"k1")
    assert parse_record_key(record_key(45, part)) == (45, part)
    with pytest.raises(CodecError):
        parse_record_key(b"t123")


def test_sort_keys_lose_trailing_spaces_and_prefixes_are_counted_in_characters() -> None:
    text = FieldType.from_dict(field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4"))
    assert sort_key(text, b"a  ") == b"a"
    assert sort_key(typed(MysqlType.VARCHAR, flag=128), b"a  ") == b"a  "
    assert needs_restoring(text)
    assert not needs_restoring(FieldType.from_dict(field(MysqlType.STRING, 0, 20, -1, "utf8mb4")))
    assert not needs_restoring(typed(MysqlType.VARCHAR, flag=128))
    out = bytearray(b"\x01")
    append_comparable(out, "你好".encode())
    assert encode_key_value(column_of(field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4")), "你好吗".encode(), 2) == bytes(
        out
    )
    ci = FieldType.from_dict(field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4") | {"Collate": "utf8mb4_general_ci"})
    assert sort_key(ci, b"aB ") == b"\0A\0B"


@pytest.mark.parametrize(
    ("tp", "default", "value"),
    [
        (field(MysqlType.LONG), "1.6", 2),
        (field(MysqlType.LONG), "-3", -3),
        (field(MysqlType.YEAR), "2020", 2020),
        (field(MysqlType.SET, elems=["a", "b", "c"]), "a,C", 5),
        (field(MysqlType.SET, elems=["a"]), "", 0),
        (field(MysqlType.ENUM, elems=["a", "b"]), "B", 2),
        (field(MysqlType.ENUM, elems=["a", "b"]), "2", 2),
        (field(MysqlType.FLOAT), "0.1", 0.10000000149011612),
        (field(MysqlType.DOUBLE), "0.1", 0.1),
        (field(MysqlType.TIME), "10:00:00", "10:00:00"),
    ],
)
def test_origin_defaults_are_typed(tp: dict[str, object], default: str, value: object) -> None:
    assert missing_value(column_of(tp, origin_default=default)) == value


def test_origin_defaults_of_bits_and_what_cannot_be_read() -> None:
    assert (
        missing_value(column_of(field(MysqlType.BIT, 32, 10), origin_default="x", origin_default_bit="AwE=")) == 0x301
    )
    assert missing_value(column_of(field(MysqlType.STRING, 129, 3))) == b"\0\0\0"
    for tp, default in (
        (field(MysqlType.LONG), "abc"),
        (field(MysqlType.ENUM, elems=["a"]), "z"),
        (field(MysqlType.DOUBLE), "x"),
    ):
        with pytest.raises(CodecError):
            missing_value(column_of(tp, origin_default=default))
