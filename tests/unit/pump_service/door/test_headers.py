"""Header blocks: every way of reading gives what the library gives, and the quick ways are taken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import hpack
import pytest
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from pump_service.door.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from pump_service.door.http2.headers import Fields, HeaderReader, timeout_s
from pump_service.door.http2.replies import HEADERS, TRAILERS, ReplyBlocks, fields, literal, percent_encoded
from pump_service.door.http2.table import MALFORMED, TIMEOUT, scratch
from pump_service.door.routes import Routes
from tests.support.plaincalls import timeout_ns

NAMES = st.sampled_from([b":path", b":method", b"grpc-timeout", b"user-agent", b"x-a", b"x-b", b"content-type"])
FIELD = st.tuples(NAMES, st.binary(max_size=40))
LISTS = st.lists(FIELD, max_size=8)
REQUEST = ((b":method", b"POST"), (b":path", b"/a/B"), (b"content-type", b"application/grpc"))


def reader(make: Callable[[Fields], Any] = lambda fields: fields, most: int = 1 << 16) -> HeaderReader[Any]:
    return HeaderReader(make, most, scratch(1 << 16, most))


@given(st.lists(st.tuples(LISTS, st.booleans(), st.sampled_from([None, 0, 40, 200, 4096])), max_size=12))
def test_blocks_of_an_encoder_are_read_as_they_were_meant(blocks: list[tuple[list, bool, int | None]]) -> None:
    encoder, ours = hpack.Encoder(), reader()
    for headers, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(headers, huffman=huffman)
        want = tuple(headers)
        timeouts = [timeout_s(timeout_ns(value)) for name, value in want if name == TIMEOUT]
        rest, timeout = ours.read(block)
        assert rest == tuple(field for field in want if field[0] != TIMEOUT)
        assert timeout == (None if not timeouts else timeouts[0] if len(timeouts) == 1 else MALFORMED)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=6))
def test_any_bytes_are_read_or_refused_as_the_library_does_it(blocks: list[bytes]) -> None:
    library, ours = hpack.Decoder(), reader()
    for block in blocks:
        try:
            want = tuple((bytes(n), bytes(v)) for n, v in library.decode(block, raw=True))
        except (HPACKError, IndexError):
            with pytest.raises(ConnectionFault) as refused:
                ours.fields(block)
            assert refused.value.code == COMPRESSION_ERROR
            return
        assert ours.fields(block) == tuple(field for field in want if field[0] != TIMEOUT)
        table = library.header_table.dynamic_entries
        again = copy.deepcopy(ours).fields(bytes(range(0xBE, 0xBE + len(table))))
        assert again == tuple(field for field in table if field[0] != TIMEOUT)


def test_equal_fields_mean_the_same_however_they_are_written_and_are_looked_at_once() -> None:
    made: list[Fields] = []
    ours = reader(lambda fields: made.append(fields) or fields)
    encoder = hpack.Encoder()
    for n in range(5):
        block = encoder.encode([*REQUEST, (TIMEOUT, b"%dm" % (14_000 + n))], huffman=bool(n % 2))
        assert ours.read(block) == (REQUEST, pytest.approx((14_000 + n) * 1e-3))
    assert made == [REQUEST]


def test_more_entries_than_the_table_has_room_for_push_out_the_oldest() -> None:
    encoder, library, ours = hpack.Encoder(), hpack.Decoder(), reader()
    for n in range(3000):
        block = encoder.encode([(b"x-%d" % (n % 7), b"v" * (n * 37 % 300)), (b"y", b"%d" % n)])
        assert ours.fields(block) == tuple((bytes(a), bytes(b)) for a, b in library.decode(block, raw=True))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"15S", 15), (b"14999m", 14.999), (b"7u", 7e-6), (b"99999999n", 0.099999999)],
)
def test_timeouts(text: bytes, seconds: float) -> None:
    (_, timeout) = reader().read(literal(TIMEOUT, text))
    assert timeout == pytest.approx(seconds)
    assert timeout == timeout_s(timeout_ns(text))


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"1s", b"-1S", b"1_0S", b" 1S", b"123456789S", b"\xb2S", b"1.5S"])
def test_timeouts_that_are_none(text: bytes) -> None:
    assert reader().read(literal(TIMEOUT, text)) == ((), MALFORMED)
    assert timeout_ns(text) == MALFORMED


def test_an_index_that_cannot_be_and_lengths_beyond_the_block_are_refused_before_they_cost_anything() -> None:
    for block in (b"\x80", b"\xff\xff\xff\xff\xff\x0f", b"\xbe", b"\x00\x7f\xff\xff\xff\x7f", b"\x40", b"\x82\x20"):
        with pytest.raises(ConnectionFault):
            reader().fields(block)


# ---- responses


@given(st.lists(st.sampled_from(["unary", "trailers", "plain", "only", "headers", 0, 60, 104, 200, 4096]), max_size=25))
def test_every_peer_reads_our_blocks_in_any_order_and_with_any_table(steps: list) -> None:
    blocks, decoder = ReplyBlocks(), hpack.Decoder()
    for step in steps:
        if isinstance(step, int):
            blocks.table_size(step)
            decoder.max_allowed_table_size = step
            continue
        if step == "unary":
            headers, trailers = blocks.unary()
            assert decoder.decode(headers) == [(":status", "200"), ("content-type", "application/grpc")]
            assert decoder.decode(trailers) == [("grpc-status", "0")]
        elif step == "trailers":
            assert decoder.decode(blocks.trailers(5, "no", (("x-bin", b"\0\1"),))) == [
                ("grpc-status", "5"), ("grpc-message", "no"), ("x-bin", "AAE"),
            ]  # fmt: skip
        elif step == "only":
            assert decoder.decode(blocks.only_trailers(2, "", ()))[-1] == ("grpc-status", "2")
        elif step == "headers":
            assert decoder.decode(blocks.headers((("a", "b"),)))[-1] == ("a", "b")
        else:
            assert decoder.decode(blocks.plain(415))[0] == (":status", "415")


def test_a_successful_answer_is_three_bytes_of_header_blocks_from_the_second_on() -> None:
    blocks = ReplyBlocks()
    first = blocks.unary()
    assert [len(b) for b in blocks.unary()] == [2, 1]
    decoder = hpack.Decoder()
    for block in (*first, *blocks.unary()):
        decoder.decode(block)
    assert blocks.settled
    assert hpack.Decoder().decode(HEADERS)[1] == ("content-type", "application/grpc")
    assert hpack.Decoder().decode(TRAILERS) == [("grpc-status", "0")]


@given(st.text(max_size=50))
def test_messages_are_percent_encoded(text: str) -> None:
    from urllib.parse import unquote

    raw = percent_encoded(text)
    assert all(0x20 <= byte <= 0x7E for byte in raw)
    assert unquote(raw.decode(), errors="surrogateescape") == text


@given(st.text("abc-", min_size=1, max_size=300), st.binary(max_size=400))
def test_long_metadata_is_read_by_the_library(key: str, value: bytes) -> None:
    (found,) = hpack.Decoder().decode(fields([("x" + key + "-bin", value)]), raw=True)
    import base64

    assert found[0] == ("x" + key + "-bin").encode()
    assert base64.b64decode(found[1] + b"=" * (-len(found[1]) % 4)) == value


def test_references_to_large_entries_are_not_followed_far_above_the_limit() -> None:
    routes = Routes(32 << 10)
    ours = reader(routes.head, 32 << 10)
    start = b"\x83\x86\x84\x40\x01a\x7f" + bytes([4000 - 127 & 0x7F | 0x80, 4000 - 127 >> 7]) + b"v" * 4000
    assert ours.read(start)[0].http_status != 431
    fields = ours.fields(b"\x83\x86\x84" + b"\xbe" * 12 + b"\x40\x01b\x01c")
    assert sum(len(name) + len(value) + 32 for name, value in fields) < (32 << 10) + 4033
    assert len(fields) < 20  # the table is kept up all the same
    assert ours.fields(b"\xbe\xbf") == ((b"b", b"c"), (b"a", b"v" * 4000))
    assert ours.read(b"\x83\x86\x84" + b"\xbf" * 12)[0].http_status == 431
    with pytest.raises(ConnectionFault, match="twice the limit") as refused:
        ours.read(b"\x83\x86\x84" + b"\xbf" * 32_000)
    assert refused.value.code == ENHANCE_YOUR_CALM
