"""Messages for Kafka without a broker: what they hold, how they are gathered, and what a position says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.view import read_view
from pumphouse.errors import ConfigError, TopicRefused, UnknownTable, UsageError
from pumphouse.export import encode
from pumphouse.export.ddls import ExportedDdl
from pumphouse.export.extract import Before, Extract
from pumphouse.export.kafkasender import Transactions
from pumphouse.export.kafkatopic import Position, TopicState
from pumphouse.export.pbfiles import Origin
from pumphouse.export.slavemessages import SlaveMessages
from pumphouse.loader.report import silent
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.proto.slave_binlog_pb2 import Binlog
from pumphouse.schema.actions import Action
from pumphouse.settings import Settings
from tests.support import formats, slavemessages
from tests.support.madearchive import Churn, Held, MadeSource, column, index

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


def values_of(source: MadeSource, pattern: str, ends: Sequence[Tso], *, files: bool = False) -> list[bytes]:
    """What runs that end there bring; ``files``: each knows of the whole range, as an export to files does."""
    begin, before, found = ends[0], None, list[bytes]()
    for end in ends[1:]:
        since = ends[0] if files else begin
        extract = Extract.of(source.archive, read_view(source.archive, since=since), since, end, (pattern,), before)
        topic = Topic()
        made = Transactions(topic, Position(origin=ORIGIN, begin=begin, upto=begin, table_ids=()), 1 << 20)
        for part in extract.encoded(SlaveMessages(), begin, end, silent):
            if isinstance(part, ExportedDdl):
                made.ddl(part)
            else:
                made.piece(part) if isinstance(part, encode.Piece) else made.frames(part)
        made.finish(end)
        found += [each for values, _ in topic.committed for each in values]
        begin, before = end, Before(end=end, table_ids=extract.table_ids)
    return found


ONE = [column(1, "id", flag=3)]


def put(source: MadeSource, *names: str) -> Tso:
    """A row in each; where the archive ends then."""
    for name in names:
        with source.txn() as t:
            t.insert(name, id=source.ts)
    return source.cut()


@pytest.mark.parametrize("files", [False, True])
def test_runs_that_end_anywhere_bring_what_one_run_does_over_rename_and_truncate(
    source: MadeSource, files: bool
) -> None:
    source.create_table("log", ONE)
    ends = [source.genesis(), put(source, "log")]
    source.rename_table("log", "log_old")
    ends.append(put(source, "log_old"))
    source.create_table("log", ONE)
    ends.append(put(source, "log", "log_old"))
    for _ in range(2):
        source.truncate("log_old")
        ends.append(source.cut())
        ends.append(put(source, "log_old", "log"))
    source.drop_table("log")
    ends.append(source.cut())
    source.truncate("log_old")
    ends.append(put(source, "log_old"))
    whole = values_of(source, "d.log", [ends[0], ends[-1]])
    binlogs = [Binlog.FromString(each) for each in whole]
    assert [each.ddl_data.ddl_query.partition(b";")[0].split()[0] for each in binlogs if each.type == 1] == [
        b"ALTER", b"CREATE", b"TRUNCATE", b"TRUNCATE", b"DROP", b"TRUNCATE",
    ]  # fmt: skip
    assert sum(each.type == 0 for each in binlogs) == 9
    for end in ends[1:-1]:
        assert values_of(source, "d.log", [ends[0], end, ends[-1]], files=files) == whole, end
    assert values_of(source, "d.log", ends, files=files) == whole


@pytest.mark.parametrize("files", [False, True])
def test_what_a_release_before_did_not_follow_over_a_truncate_is_left_out_and_refuses_nothing(
    source: MadeSource, files: bool
) -> None:
    source.create_table("log", ONE)
    since = source.genesis()
    source.rename_table("log", "log_old")
    source.create_table("log", ONE)
    known = tuple(sorted(each.info.id for each in source.tables.values()))
    source.truncate("log_old")
    middle = put(source, "log_old")
    source.truncate("log_old")
    end = put(source, "log", "log_old")
    begin = since if files else middle
    view = read_view(source.archive, since=begin)
    extract = Extract.of(source.archive, view, begin, end, ("d.log",), Before(end=middle, table_ids=known))
    assert extract.table_ids == known


@pytest.mark.parametrize("files", [False, True])
def test_a_table_that_was_emptied_before_it_got_a_wanted_name_is_taken_from_there_on(
    source: MadeSource, files: bool
) -> None:
    source.create_table("report_1", ONE)
    since = source.genesis()
    source.create_table("stage", ONE)
    middle = put(source, "stage", "report_1")
    source.truncate("stage")
    put(source, "stage")
    source.rename_table("stage", "report_2")
    end = put(source, "report_2")
    one = values_of(source, "d.report_*", [since, end])
    two = values_of(source, "d.report_*", [since, middle, end], files=files)

    # One run has the statement that made it, too, and the row that is gone. In the other it begins where it is emptied.
    def said(values: list[bytes]) -> list[str]:
        binlogs = [Binlog.FromString(each) for each in values]
        return [each.ddl_data.ddl_query.decode().split(" (")[0] if each.type == 1 else "rows" for each in binlogs]

    rest = ["rows", "ALTER TABLE `stage`", "rows"]
    assert said(one) == ["CREATE TABLE `stage`", "rows", "rows", "TRUNCATE TABLE `stage`", *rest]
    assert said(two) == ["rows", "DROP TABLE IF EXISTS `d`.`stage`", "CREATE TABLE `d`.`stage`", *rest]


@pytest.mark.parametrize("files", [False, True])
def test_a_table_whose_rows_came_along_to_another_id_and_a_wanted_name_is_refused(
    source: MadeSource, files: bool
) -> None:
    source.create_table("report_1", ONE)
    source.create_table("stage", ONE)
    since = source.genesis()
    middle = put(source, "stage", "report_1")
    held = source.tables["stage"]
    source.table_id += 1
    raw = {**held.info.raw, "id": source.table_id}
    source.ddl(Action.PARTITION_BY, held.info.id, "ALTER TABLE `stage` PARTITION BY HASH (id)", TableInfo=raw)
    source.tables["stage"] = Held(TableInfo.from_dict(raw), held.rows)
    source.rename_table("stage", "report_2")
    end = put(source, "report_2")
    with pytest.raises(UsageError, match=r"called d\.stage before .* is now one of d\.report_\*"):
        values_of(source, "d.report_*", [since, middle, end], files=files)


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
