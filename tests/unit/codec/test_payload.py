"""Binlog bytes: merging as the Go Pump does, and what is refused."""

from __future__ import annotations

import pytest

from pumphouse.codec.payload import canonical, make_commit, make_prewrite, make_rollback, merge, parse
from pumphouse.errors import BadBinlog
from pumphouse.model.binlog import BinlogType
from pumphouse.proto import binlog_pb2 as pb
from tests.support.rowreference import make_fake, parse_prewrite_value, row_changes

pytestmark = pytest.mark.row("P4", "W1")


def test_a_merged_binlog_has_the_commits_key_and_the_prewrites_content() -> None:
    p = make_prewrite(5, b"pk", b"value", ddl_query=b"q", ddl_job_id=7, ddl_schema_state=5)
    merged = parse(merge(p, make_commit(5, 9, b"ck")))
    assert (merged.tp, merged.start_ts, merged.commit_ts) == (BinlogType.COMMIT, 5, 9)
    assert (merged.prewrite_key, merged.prewrite_value, merged.ddl_query) == (b"ck", b"value", b"q")
    assert (merged.ddl_job_id, merged.ddl_schema_state) == (7, 5)


def test_what_the_prewrite_does_not_have_is_taken_from_the_commit_too() -> None:
    c = make_commit(5, 9, None, ddl_query=b"q", ddl_job_id=7, ddl_schema_state=5)
    merged = parse(merge(make_prewrite(5, b"pk"), c))
    assert not merged.HasField("ddl_query")
    assert not merged.HasField("prewrite_key")
    assert not merged.HasField("prewrite_value")
    assert (merged.ddl_job_id, merged.ddl_schema_state) == (0, 0)


def test_an_empty_value_is_not_a_missing_one() -> None:
    assert merge(make_prewrite(5, b"", b""), make_commit(5, 6, b"")).hex() == "0801100518062200" + "2a00" + "38004000"


def test_scalars_that_a_writer_left_out_are_written() -> None:
    assert canonical(parse(b"")).hex() == "08001000180038004000"
    assert merge(b"\x10\x05", b"\x08\x01\x10\x05\x18\x06").hex() == "08011005180638004000"


def test_rollback_and_fake() -> None:
    assert make_rollback(5, b"k").hex() == "0802100518002201" + "6b" + "38004000"
    assert make_fake(404).hex() == "080210940318940338004000"


@pytest.mark.parametrize(
    "payload", [b"\xff", b"\x10", b"\x2a\x05a", b"\x08\x03", b"\x08\x04", b"\x08\x07", b"\x08\x63\x10\x01"]
)
def test_what_does_not_parse_or_is_obsolete_is_refused(payload: bytes) -> None:
    with pytest.raises(BadBinlog):
        parse(payload)


def test_only_a_prewrite_and_a_commit_of_one_transaction_are_merged() -> None:
    p, c = make_prewrite(5, b"k"), make_commit(5, 6, b"k")
    for first, second in ((c, c), (p, p), (p, make_commit(4, 6, b"k"))):
        with pytest.raises(BadBinlog, match="start ts"):
            merge(first, second)


@pytest.mark.row("W2")
def test_a_prewrite_value_with_obsolete_fields_is_refused() -> None:
    for mutation in (pb.TableMutation(table_id=3, deleted_ids=[1]), pb.TableMutation(table_id=3, deleted_pks=[b""])):
        with pytest.raises(BadBinlog, match="obsolete"):
            parse_prewrite_value(pb.PrewriteValue(mutations=[mutation]).SerializeToString())
    with pytest.raises(BadBinlog):
        parse_prewrite_value(b"\xff")


@pytest.mark.row("W2")
def test_a_sequence_without_rows_is_refused() -> None:
    for number in ("Insert", "DeleteID"):
        mutation = pb.TableMutation(table_id=3, sequence=[pb.MutationType.Value(number)])
        with pytest.raises(BadBinlog, match="sequence"):
            list(row_changes(pb.PrewriteValue(mutations=[mutation]).SerializeToString()))
