"""Bytes of records, footers and of what the store reads of a payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump_service.store import frame
from pumphouse.codec import payload as codec
from pumphouse.errors import BadRecord
from pumphouse.proto.binlog_pb2 import Binlog

TS = st.integers(0, (1 << 63) - 1)


@pytest.mark.row("P1")
def test_a_record_is_magic_length_castagnoli_checksum_and_payload() -> None:
    assert frame.encode_record(b"hello binlog").hex() == "e8563a820c0000000000000092284eee68656c6c6f2062696e6c6f67"
    assert frame.encode_footer(400000000000000000).hex() == "00002876e1158d0522b93a12"
    assert frame.decode_footer(frame.encode_footer(7)) == 7
    assert frame.decode_footer(b"\0" * 12) is None
    assert frame.decode_footer(b"\0" * 11) is None


@given(tp=st.integers(0, 2), start=TS, commit=TS, key=st.none() | st.binary(max_size=40), value=st.binary(max_size=300))
def test_meta_is_what_protobuf_reads(tp: int, start: int, commit: int, key: bytes | None, value: bytes) -> None:
    message = Binlog(
        tp=tp, start_ts=start, commit_ts=commit, prewrite_key=key, prewrite_value=value, ddl_job_id=9,
        ddl_schema_state=0,
    )  # fmt: skip
    data = message.SerializeToString()
    assert frame.read_meta(data) == (tp, start, commit, key or b"")
    assert frame.ddl_job_id(data) == 9


@pytest.mark.parametrize("data", [b"\x08", b"\x10\x80", b"\x22\x05ab", b"\x10" + b"\xff" * 11])
def test_cut_payloads_are_refused(data: bytes) -> None:
    with pytest.raises(BadRecord):
        frame.read_meta(data)


@pytest.mark.row("P7", "W2")
@given(
    start=st.integers(1, 1 << 60),
    delta=st.integers(1, 1 << 40),
    key=st.binary(max_size=20),
    own=st.booleans(),
    value=st.none() | st.binary(max_size=200),
    ddl=st.none() | st.tuples(st.binary(min_size=1, max_size=50), st.integers(1, 1 << 40), st.integers(0, 5)),
)
def test_the_fast_merge_gives_the_bytes_of_the_reference(
    start: int, delta: int, key: bytes, own: bool, value: bytes | None, ddl: tuple[bytes, int, int] | None
) -> None:
    fields = {} if ddl is None else {"ddl_query": ddl[0], "ddl_job_id": ddl[1], "ddl_schema_state": ddl[2]}
    p = codec.make_prewrite(start, key, value, **fields)
    c = codec.make_commit(start, start + delta, None if own else key, **({} if own else fields))
    merged = frame.merge(p, c)
    assert merged == codec.merge(p, c)
    assert frame.ddl_job_id(merged) == (ddl[1] if ddl else 0)
