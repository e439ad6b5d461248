"""Messages for Kafka without a broker: what they hold, how they are gathered, and what a position says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.view import read_view
from pumphouse.errors import ConfigError, TopicRefused, UnknownTable
from pumphouse.export import encode
from pumphouse.export.extract import Before, Extract
from pumphouse.export.kafkasender import Transactions
from pumphouse.export.kafkatopic import Position, TopicState
from pumphouse.export.pbfiles import Origin
from pumphouse.export.slavemessages import SlaveMessages
from pumphouse.loader.report import silent
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.proto.slave_binlog_pb2 import Binlog
from pumphouse.settings import Settings
from tests.support import formats, slavemessages
from tests.support.madearchive import Churn, MadeSource, column, index

pytestmark = pytest.mark.row("A6")
ORIGIN = Origin(cluster_id=77, archive_id="main")


class Topic:
    """Stands for `Sender`: what was committed, transaction by transaction."""

    topic = "t"

    def __init__(self, largest: int = 1 << 20) -> None:
        self.state = TopicState(largest=largest, low=0, end=0, stable=0)
        self.committed: list[tuple[list[bytes], Position]] = []

    def commit(self, values: Sequence[bytes], position: Position) -> None:
        self.committed.append((list(values), position))

    @property
    def binlogs(self) -> list[Any]:
        return [Binlog.FromString(each) for values, _ in self.committed for each in values]


def sent(source: MadeSource, since: Tso, topic: Topic, most: int = 1 << 20) -> Transactions:
    view = read_view(source.archive, since=since)
    extract = Extract.of(source.archive, view, since, view.end, (), None)
    made = Transactions(topic, Position(origin=ORIGIN, begin=since, upto=since, table_ids=()), most)
    for part in extract.encoded(SlaveMessages(), since, view.end, silent):
        if isinstance(part, encode.Piece):
            made.piece(part)
        elif isinstance(part, encode.Frames):
            made.frames(part)
        else:
            made.ddl(part)
    made.finish(view.end)
    return made


@pytest.fixture
def source(tmp_path: Path) -> MadeSource:
    return MadeSource(tmp_path / "archive")


def test_messages_hold_every_change_with_its_old_row(source: MadeSource) -> None:
    churn, topic = Churn(source, seed=7), Topic()
    since = source.genesis()
    churn.fill()
    churn.work(40)
    source.cut()
    made = sent(source, since, topic)
    stamps = [each.commit_ts for each in topic.binlogs]
    assert stamps == sorted(set(stamps))
    assert slavemessages.replayed(topic.binlogs) == source.snapshot()
    assert made.messages == len(stamps)
    assert made.changes == sum(len(table.mutations) for each in topic.binlogs for table in each.dml_data.tables)


def test_a_table_says_its_columns_and_its_keys_that_are_in_force(source: MadeSource) -> None:
    hidden = column(4, "h", hidden=True, generated_expr_string="1", state=5)
    building = {**index(3, "later", ("b", 1), unique=True), "state": 4}
    keys = [
        index(1, "bb", ("b", 1), unique=True),
        index(2, "plain", ("c", 2)),
        building,
        index(4, "e", ("h", 3), unique=True),
    ]
    source.create_table(
        "t",
        [
            column(1, "id", flag=3),
            column(2, "b", MysqlType.VARCHAR),
            column(3, "c", MysqlType.LONG_BLOB, flen=4294967295),
            hidden,
        ],
        index_info=keys,
    )
    since, topic = source.genesis(), Topic()
    with source.txn() as t:
        t.insert("t", id=1, b=b"x", c=b"y")
        t.update("t", 1, b=b"z")
        t.insert("t", id=2, b=b"w", c=None)
    source.cut()
    sent(source, since, topic)
    ((table,),) = ([*each.dml_data.tables] for each in topic.binlogs)
    assert [(each.name, each.mysql_type, each.is_primary_key, each.flen) for each in table.column_info] == [
        ("id", "int", True, 11), ("b", "varchar", False, 64), ("c", "longtext", False, -1),
    ]  # fmt: skip
    assert [(each.name, list(each.column_names)) for each in table.unique_keys] == [("PRIMARY", ["id"]), ("bb", ["b"])]
    assert [each.type for each in table.mutations] == [0, 1, 0]


def test_a_large_transaction_is_one_message_whose_pieces_a_reader_joins(
    source: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.BLOB)])
    source.create_table("u", [column(1, "id", flag=3)])
    since, rng, whole, cut = source.genesis(), random.Random(2), Topic(), Topic()
    for txn in range(4):
        with source.txn() as t:
            for row in range(2 if txn % 2 else 150):
                t.insert("t", id=1000 * txn + row, v=rng.randbytes(rng.randint(0, 50)))
                t.insert("u", id=1000 * txn + row)
    source.cut()
    sent(source, since, whole)
    monkeypatch.setattr(encode, "WHOLE_BYTES", 1000)  # in place of transactions of many MiB
    sent(source, since, cut)
    assert len(cut.binlogs) == len(whole.binlogs) == 4
    assert max(len(each.dml_data.tables) for each in cut.binlogs) > 2
    assert slavemessages.replayed(cut.binlogs) == slavemessages.replayed(whole.binlogs) == source.snapshot()
    small = Topic(largest=2000)
    with pytest.raises(TopicRefused, match="is a message of more than"):
        sent(source, since, small)


def test_a_transaction_of_kafka_is_never_cut_between_two_of_one_commit_ts(source: MadeSource) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    since, topic = source.genesis(), Topic()
    stamps = []
    for pair in range(6):
        with source.txn() as t:
            t.insert("t", id=10 * pair)
        stamps.append(source.events[-1].commit_ts)
        with source.txn() as t:
            t.insert("t", id=10 * pair + 1)
        source.events[-1].commit_ts = stamps[-1]
        from pumphouse.codec import payload

        first = payload.parse(source.events[-1].payload)
        p = payload.make_prewrite(first.start_ts, b"k", first.prewrite_value)
        source.events[-1].payload = payload.merge(p, payload.make_commit(first.start_ts, stamps[-1], b"k"))
    end = source.cut()
    sent(source, since, topic, most=1)
    assert [len(values) for values, _ in topic.committed] == [2] * 6
    assert [position.upto for _, position in topic.committed] == [*stamps[:-1], end]
    assert {position.begin for _, position in topic.committed} == {since}


def test_a_chosen_table_stays_chosen_when_nothing_has_its_name_any_more(source: MadeSource) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    since = source.genesis()
    middle = source.cut()
    first = Extract.of(source.archive, read_view(source.archive, since=since), since, middle, ("d.t",), None)
    source.rename_table("t", "u")
    renamed = source.cut()
    end = source.cut()
    view = read_view(source.archive, since=renamed)
    with pytest.raises(UnknownTable):
        Extract.of(source.archive, view, renamed, end, ("d.t",), None)
    before = Before(end=renamed, table_ids=first.table_ids)
    assert Extract.of(source.archive, view, renamed, end, ("d.t",), before).table_ids == first.table_ids


def test_a_position_is_as_the_page_says_and_nothing_else_is_taken_for_one() -> None:
    import json

    origin = Origin(cluster_id=(1 << 64) - 1, archive_id="main", tables=("d.t",))
    position = Position(origin=origin, begin=Tso(2), upto=Tso(5), table_ids=(7,))
    formats.check("kafka-position", json.loads(position.to_json()))
    assert Position.from_json(position.to_json()) == position
    data = json.loads(position.to_json())
    for wrong in ({"format_version": 2}, {"upto": "5"}, {"begin": None}, {"tables": [1]}, {"cluster_id": -1}):
        with pytest.raises((LookupError, TypeError, ValueError)):
            Position.from_json(json.dumps({**data, **wrong}).encode())
    for text in (b"", b"{}", b"[]", b"\xff", b"null"):
        with pytest.raises((LookupError, TypeError, ValueError)):
            Position.from_json(text)


def test_a_user_or_a_ca_that_would_be_passed_over_is_refused() -> None:
    for wrong in ({"kafka.sasl_username": "me"}, {"kafka.tls_ca": "/ca.pem"}):
        with pytest.raises(ConfigError, match=r"kafka\.security_protocol must be"):
            Settings.read(overrides=wrong)
