"""`archive export --format kafka` on a real broker: each transaction once and in order, whatever is killed and when."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.archive.archive import Archive
from pumphouse.cli import cli
from pumphouse.errors import AccessDenied, BrokersUnavailable, ConfigError, TopicFenced, TopicRefused, UsageError
from pumphouse.export import encode, kafkasender
from pumphouse.export.kafkarun import KafkaReport, export_kafka
from pumphouse.export.kafkasender import Sender
from pumphouse.export.kafkatopic import Position
from pumphouse.export.run import export_pb
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore
from tests.bench.sysbench import archive as sysbench_archive
from tests.support import kafkabroker, pbmessages, slavemessages
from tests.support.agedarchive import aged
from tests.support.certs import Authority
from tests.support.kafkabroker import KafkaBroker
from tests.support.madearchive import Churn, MadeSource, column

pytestmark = [
    pytest.mark.row("A6"),
    # A Kafka is an optional tier: the reason says what is missing, and `make kafka` fetches it.
    pytest.mark.skipif(bool(kafkabroker.MISSING), reason=kafkabroker.MISSING),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topic(kafka: KafkaBroker, request: pytest.FixtureRequest) -> str:
    return kafka.create(f"{request.node.name[:80]}-{random.getrandbits(32):x}")


@pytest.fixture
def source(tmp_path: Path) -> MadeSource:
    return MadeSource(tmp_path / "archive")


def send(
    kafka: KafkaBroker, archive: Archive, topic: str, since: Tso | None = None, upto: Tso | None = None, **how: Any
) -> KafkaReport:
    settings = kafka.settings(transaction_bytes=how.pop("transaction_bytes", 2000))
    return export_kafka(archive, settings, topic, since=since, upto=upto, **how)


def churned(source: MadeSource, windows: int = 3) -> Tso:
    """A history of three tables and two Pumps; where it begins."""
    churn = Churn(source, seed=7)
    since = source.genesis()
    churn.fill()
    for _ in range(windows):
        churn.work(20)
        source.cut()
    return since


def command(kafka: KafkaBroker, source: MadeSource, *words: object, **settings: object) -> subprocess.Popen[str]:
    env = {
        "PUMPHOUSE_ARCHIVE__ROOT": source.settings.root,
        "PUMPHOUSE_ARCHIVE__CLUSTER_ID": str(source.cluster_id),
        "PUMPHOUSE_KAFKA__BOOTSTRAP_SERVERS": kafka.servers,
        "PUMPHOUSE_KAFKA__TIMEOUT_S": "20",
        **{f"PUMPHOUSE_KAFKA__{name.upper()}": str(value) for name, value in settings.items()},
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pumphouse", "archive", "export", "--format", "kafka", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip


def test_a_topic_gets_every_transaction_and_ddl_once_and_in_commit_order(
    kafka: KafkaBroker, source: MadeSource, topic: str, tmp_path: Path
) -> None:
    since = churned(source)
    source.add_column("t", column(10, "c", origin_default="7"))
    with source.txn() as t:
        t.insert("t", id=90_000, name=b"x", n=1, c=3)
    source.rename_table("k", "kk")
    source.cut()
    report = send(kafka, source.archive, topic, since)
    assert len(kafka.positions(topic)) > 3, "one transaction of Kafka tells nothing"
    export_pb(source.archive, FileStore(tmp_path / "pb"), since=since, upto=None)
    binlogs, files = kafka.binlogs(topic), pbmessages.binlogs(tmp_path / "pb")
    assert [(each.type, each.commit_ts) for each in binlogs] == [(each.tp, each.commit_ts) for each in files]
    changes = [sum(len(table.mutations) for table in each.dml_data.tables) for each in binlogs]
    assert changes == [len(each.dml_data.events) for each in files]
    rows = slavemessages.replayed(binlogs)
    rows["kk"] = rows.pop("k")
    moved = source.snapshot()
    moved["t"] = type(moved["t"])({row[:3]: count for row, count in moved["t"].items()})
    rows["t"] = type(rows["t"])({row[:3]: count for row, count in rows["t"].items()})
    assert rows == moved
    assert [(each.ddl_data.table_name, each.ddl_data.ddl_query) for each in binlogs if each.type] == [
        ("t", b"ALTER TABLE `t`"), ("kk", b"ALTER TABLE `k`"),
    ]  # fmt: skip
    assert (report.messages, report.ddls, report.changes) == (len(binlogs), 2, sum(changes))
    assert Position.from_json(kafka.positions(topic)[-1]).upto == report.to_ts == source.archive.end()


def test_a_later_run_goes_on_where_the_topic_stands(kafka: KafkaBroker, source: MadeSource, topic: str) -> None:
    since = churned(source, 2)
    with pytest.raises(UsageError, match="is empty: where is it to begin"):
        send(kafka, source.archive, topic)
    middle = Tso((since + source.archive.end()) // 2)
    assert send(kafka, source.archive, topic, since, middle).messages
    first = len(kafka.values(topic))
    assert send(kafka, source.archive, topic).from_ts == middle
    assert send(kafka, source.archive, topic).messages == 0
    assert first < len(kafka.values(topic))
    assert slavemessages.replayed(kafka.binlogs(topic)) == source.snapshot()
    with source.txn() as t:
        t.insert("t", id=90_000, name=b"later", n=1)
    source.cut()
    assert send(kafka, source.archive, topic).messages == 1
    assert slavemessages.replayed(kafka.binlogs(topic)) == source.snapshot()
    with pytest.raises(UsageError, match="has everything up to"):
        send(kafka, source.archive, topic, middle)
    # What began it may be said again: a try of a task that was killed is.
    assert send(kafka, source.archive, topic, since).messages == 0
    with pytest.raises(TopicRefused, match="and the archive ends at"):
        kafka_position = Position.from_json(kafka.positions(topic)[-1])
        ahead = replace(kafka_position, upto=Tso(kafka_position.upto + 5))
        Sender(kafkasender.Brokers(kafka.settings(), topic)).commit([b""], ahead)
        send(kafka, source.archive, topic)


def test_a_topic_without_changes_knows_where_it_began_and_is_told_each_hour(
    kafka: KafkaBroker, source: MadeSource, topic: str
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    since = source.genesis()
    first = source.cut()
    assert send(kafka, source.archive, topic, since).messages == 0
    source.cut()
    assert send(kafka, source.archive, topic).from_ts == first
    assert [(each.commit_ts, len(each.dml_data.tables)) for each in kafka.binlogs(topic)] == [(first, 0)]
    source.tick(3_600_000)
    later = source.cut()
    assert send(kafka, source.archive, topic).to_ts == later
    with source.txn() as t:
        t.insert("t", id=1)
    source.cut()
    assert send(kafka, source.archive, topic).messages == 1
    stamps = [each.commit_ts for each in kafka.binlogs(topic)]
    assert stamps == sorted(stamps)
    assert [len(each.dml_data.tables) for each in kafka.binlogs(topic)] == [0, 0, 1]


@pytest.mark.slow
def test_senders_that_are_killed_many_times_leave_each_transaction_once(
    kafka: KafkaBroker, tmp_path: Path, topic: str
) -> None:
    _kill_senders(kafka, tmp_path, topic, 30)


def test_senders_that_are_killed_anywhere_leave_each_transaction_once(
    kafka: KafkaBroker, tmp_path: Path, topic: str
) -> None:
    _kill_senders(kafka, tmp_path, topic, 5)


def _kill_senders(kafka: KafkaBroker, tmp_path: Path, topic: str, kills: int) -> None:
    source, rng = MadeSource(tmp_path / "archive"), random.Random(kills)
    _, since = sysbench_archive(source, 4_000)
    whole = kafka.create(f"{topic}-whole")
    export_kafka(source.archive, kafka.settings(transaction_bytes=20_000), whole, since=since, upto=None)
    wanted, killed = kafka.values(whole), 0
    assert len(wanted) == 4_000
    for _ in range(kills):
        before = kafka.end(topic)
        child = command(
            kafka, source, topic, *([] if kafka.positions(topic) else ["--from", since]), transaction_bytes=20_000
        )
        while child.poll() is None and kafka.end(topic) == before:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.2)
        child.send_signal(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        child.communicate()
        sent = kafka.values(topic)
        assert sent == wanted[: len(sent)]
    assert killed
    assert len(sent) < len(wanted), "no kill fell into the range"
    export_kafka(source.archive, kafka.settings(), topic, since=None, upto=None)
    assert kafka.values(topic) == wanted


def test_of_two_senders_at_once_the_later_one_goes_on_and_the_other_ends_by_name(
    kafka: KafkaBroker, tmp_path: Path, topic: str
) -> None:
    source = MadeSource(tmp_path / "archive")
    _, since = sysbench_archive(source, 3_000)
    children = [command(kafka, source, "--from", since, topic, transaction_bytes=1)]
    while children[0].poll() is None and kafka.end(topic) < 10:  # a record and an end each: some are committed
        time.sleep(0.002)
    children[0].send_signal(signal.SIGSTOP)  # a zombie, which wakes when the other one is done
    children.append(command(kafka, source, topic, transaction_bytes=20_000))
    _, failed = children[1].communicate()
    assert children[1].returncode == 0, failed
    children[0].send_signal(signal.SIGCONT)
    _, failed = children[0].communicate()
    assert children[0].returncode != 0
    # It is fenced, or the time for its transaction was up before it heard of that.
    assert "another export sends to" in failed or f"topic {topic}: " in failed, failed
    whole = kafka.create(f"{topic}-whole")
    export_kafka(source.archive, kafka.settings(), whole, since=since, upto=None)
    assert kafka.values(topic) == kafka.values(whole)
    # Both from the beginning: whoever comes second takes over.
    both = kafka.create(f"{topic}-both")
    children = [command(kafka, source, "--from", since, both, transaction_bytes=20_000) for _ in range(2)]
    said = [child.communicate()[1] for child in children]
    failed = [each for child, each in zip(children, said, strict=True) if child.returncode]
    assert all("topic" in each for each in failed), failed
    if failed:
        export_kafka(source.archive, kafka.settings(), both, since=None, upto=None)
    assert kafka.values(both) == kafka.values(whole)


def test_a_broker_that_is_killed_amid_a_run_leaves_whole_transactions(tmp_path: Path) -> None:
    source = MadeSource(tmp_path / "archive")
    _, since = sysbench_archive(source, 4_000)
    with KafkaBroker(tmp_path / "kafka") as kafka:
        whole, topic = kafka.create("whole"), kafka.create("topic")
        export_kafka(source.archive, kafka.settings(), whole, since=since, upto=None)
        wanted = kafka.values(whole)
        for number in range(2):
            words = [] if number else ["--from", since]
            child = command(kafka, source, topic, *words, transaction_bytes=1, timeout_s=3)
            before = kafka.end(topic)
            while child.poll() is None and kafka.end(topic) < before + 10:
                time.sleep(0.002)
            kafka.kill()
            _, failed = child.communicate()
            assert child.returncode != 0
            assert "Kafka (127.0.0.1" in failed
            kafka.start()
            sent = kafka.values(topic)
            assert sent == wanted[: len(sent)]
        assert 0 < len(sent) < len(wanted)
        export_kafka(source.archive, kafka.settings(), topic, since=None, upto=None)
        assert kafka.values(topic) == wanted


def test_a_sender_that_takes_over_ends_the_transaction_of_the_one_before(
    kafka: KafkaBroker, source: MadeSource, topic: str
) -> None:
    """What is open when the other begins is nobody's; and who was fenced commits nothing more."""
    since = churned(source, 1)
    first = Sender(kafkasender.Brokers(kafka.settings(), topic))
    first._producer.begin_transaction()
    first._producer.produce(topic, b"never", partition=0)
    first._producer.flush(20)
    second = Sender(kafkasender.Brokers(kafka.settings(), topic))
    send(kafka, source.archive, topic, since)
    wanted = kafka.values(topic)
    assert b"never" not in wanted
    with pytest.raises(TopicFenced, match="another export sends to the topic"):
        second.commit([b"late"], Position.from_json(kafka.positions(topic)[-1]))
    assert kafka.values(topic) == wanted
    assert send(kafka, source.archive, topic).messages == 0


def test_strangers_in_the_topic_are_named_and_nothing_is_sent_behind_them(
    kafka: KafkaBroker, source: MadeSource, topic: str
) -> None:
    from confluent_kafka import Producer

    since = churned(source, 1)
    send(kafka, source.archive, topic, since)
    stranger = Producer(kafka.client(**{"transactional.id": "stranger"}))
    stranger.init_transactions(20)
    stranger.begin_transaction()
    stranger.produce(topic, b"hello", partition=0)
    stranger.flush(20)
    with pytest.raises(TopicRefused, match="somebody else has an open transaction in the topic"):
        export_kafka(source.archive, kafka.settings(timeout_s=2.0), topic, since=None, upto=None)
    stranger.commit_transaction(20)
    with pytest.raises(TopicRefused, match=r"the last message of the topic .* is none that ends an export") as failed:
        send(kafka, source.archive, topic)
    assert "--from TIME --anew" in failed.value.hint
    # Between two transactions of one run.
    mine = Sender(kafkasender.Brokers(kafka.settings(), topic))
    plain = Producer(kafka.client())
    plain.produce(topic, b"between", partition=0)
    plain.flush(20)
    count = len(kafka.values(topic))
    with pytest.raises(TopicRefused, match="somebody else writes to the topic"):
        mine.commit([b"ours"], Position.from_json(kafka.positions(topic)[0]))
    assert len(kafka.values(topic)) == count
    begun = send(kafka, source.archive, topic, since, anew=True)
    assert len(kafka.values(topic)) == count + begun.messages
    assert send(kafka, source.archive, topic).messages == 0


def test_a_topic_that_is_begun_anew_goes_on_when_that_run_is_tried_again(
    kafka: KafkaBroker, source: MadeSource, topic: str
) -> None:
    since = churned(source, 2)
    send(kafka, source.archive, topic, since)
    wanted = kafka.values(topic)
    middle = Tso((since + source.archive.end()) // 2)
    first = send(kafka, source.archive, topic, middle, Tso((middle + source.archive.end()) // 2), anew=True)
    assert first.messages
    again = send(kafka, source.archive, topic, middle, anew=True)
    assert again.from_ts == first.to_ts
    sent = kafka.values(topic)
    assert sent[: len(wanted)] == wanted
    assert sent[len(wanted) :] == wanted[-first.messages - again.messages :]
    assert send(kafka, source.archive, topic, middle, anew=True).messages == 0
    assert send(kafka, source.archive, topic, since, anew=True).messages == len(wanted)


def test_a_topic_begins_at_the_archives_end_and_no_later(kafka: KafkaBroker, source: MadeSource, topic: str) -> None:
    churned(source, 1)
    end = source.archive.end()
    with pytest.raises(UsageError, match="cannot begin at"):
        send(kafka, source.archive, topic, Tso(end + 1))
    assert send(kafka, source.archive, topic, end).messages == 0
    with source.txn() as t:
        t.insert("t", id=90_000, name=b"x", n=1)
    source.cut()
    assert send(kafka, source.archive, topic).messages == 1
    assert [len(each.dml_data.tables) for each in kafka.binlogs(topic)] == [0, 1]


def test_a_transaction_that_took_longer_than_it_may_is_not_called_another_export(
    kafka: KafkaBroker, source: MadeSource, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    since, write = churned(source, 1), Sender._write

    def slow(self: Sender, *of: Any) -> None:
        write(self, *of)
        time.sleep(14)  # the brokers look each 10 s

    with monkeypatch.context() as patched:
        patched.setattr(Sender, "_write", slow)
        with pytest.raises(BrokersUnavailable, match="took longer than the 2 s") as failed:
            export_kafka(source.archive, kafka.settings(timeout_s=2.0), topic, since=since, upto=None)
    assert failed.value.retryable
    assert kafka.values(topic) == []
    assert send(kafka, source.archive, topic, since).messages == len(kafka.values(topic))


def test_another_archive_and_other_tables_are_refused(
    kafka: KafkaBroker, source: MadeSource, topic: str, tmp_path: Path
) -> None:
    since = churned(source, 1)
    send(kafka, source.archive, topic, since, tables=["d.t"])
    assert {table.table_name for each in kafka.binlogs(topic) for table in each.dml_data.tables} == {"t"}
    with pytest.raises(TopicRefused, match=r"cluster 77, d\.t; wanted is archive .* of cluster 77, all tables"):
        send(kafka, source.archive, topic)
    other = MadeSource(tmp_path / "other", cluster_id=78)
    churned(other, 1)
    with pytest.raises(TopicRefused, match=r"wanted is archive .* of cluster 78"):
        send(kafka, other.archive, topic, tables=["d.t"])
    source.rename_table("t", "tt")
    with source.txn() as t:
        t.insert("tt", id=80_000, name=b"x", n=1)
    source.cut()
    assert send(kafka, source.archive, topic, tables=["d.t"]).changes == 1, "a table stays chosen behind its rename"
    # Of a range in which nothing has the name any more, too.
    source.tick(1000)
    source.cut()
    assert send(kafka, source.archive, topic, tables=["d.t"]).messages == 0
    with source.txn() as t:
        t.insert("tt", id=80_001, name=b"x", n=1)
    source.cut()
    assert send(kafka, source.archive, topic, tables=["d.t"]).changes == 1


def test_a_topic_that_lost_its_messages_is_not_taken_for_an_empty_one(
    kafka: KafkaBroker, source: MadeSource, topic: str
) -> None:
    since = churned(source, 1)
    end = send(kafka, source.archive, topic, since).to_ts
    offset = kafka.end(topic)
    # All but the last transaction: that is how topics live.
    kafka.expire(topic, offset - 2)
    assert send(kafka, source.archive, topic).from_ts == end
    kafka.expire(topic, offset)
    for since_too in (None, since):
        with pytest.raises(TopicRefused, match="retention of the topic") as failed:
            send(kafka, source.archive, topic, since_too)
    assert "--anew" in failed.value.hint
    with source.txn() as t:
        t.insert("t", id=80_000, name=b"x", n=1)
    source.cut()
    assert send(kafka, source.archive, topic, end, anew=True).messages == 1


def test_what_was_aborted_behind_the_last_message_does_not_hide_it(
    kafka: KafkaBroker, source: MadeSource, topic: str
) -> None:
    since = churned(source, 1)
    end = send(kafka, source.archive, topic, since).to_ts
    for _ in range(3):
        sender = Sender(kafkasender.Brokers(kafka.settings(), topic))
        sender._producer.begin_transaction()
        for _ in range(200):
            sender._producer.produce(topic, b"aborted", partition=0)
        sender._producer.flush(20)
        sender._producer.abort_transaction(20)
    assert send(kafka, source.archive, topic).from_ts == end


def test_a_transaction_that_the_topic_does_not_take_is_named_and_the_setting_helps(
    kafka: KafkaBroker, source: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    small = kafka.create("small", max_message_bytes="20000")
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.BLOB)])
    since = source.genesis()
    rng = random.Random(3)
    with source.txn() as t:
        t.insert("t", id=0, v=b"first")
    with source.txn() as t:
        for number in range(1, 60):
            t.insert("t", id=number, v=rng.randbytes(1000))
    source.cut()
    with pytest.raises(TopicRefused, match=r"is a message of [\d,]+ bytes, and the topic small takes 20,000 at most"):
        send(kafka, source.archive, small, since)
    monkeypatch.setattr(encode, "WHOLE_BYTES", 5000)  # in place of many MiB: it comes in pieces
    with pytest.raises(TopicRefused, match=r"more than [\d,]+ bytes, and the topic small") as failed:
        send(kafka, source.archive, small, since)
    assert "--add-config max.message.bytes=N" in failed.value.hint
    assert failed.value.size < 30_000, "all of it was held"
    assert kafka.values(small) == []
    entry = ConfigEntry("max.message.bytes", "200000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, small, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([resource])[resource].result(60)
    assert send(kafka, source.archive, small, since).messages == 2
    assert slavemessages.replayed(kafka.binlogs(small)) == source.snapshot()


def test_a_topic_that_is_missing_is_not_made_and_a_compacted_one_is_refused(
    kafka: KafkaBroker, source: MadeSource
) -> None:
    since = churned(source, 1)
    with pytest.raises(TopicRefused, match="has no topic missing") as failed:
        send(kafka, source.archive, "missing", since)
    assert "--create --topic missing --partitions 1" in failed.value.hint
    assert "missing" not in kafka.admin.list_topics(timeout=20).topics
    compacted = kafka.create("compacted", cleanup_policy="compact")
    with pytest.raises(TopicRefused, match="is compacted"):
        send(kafka, source.archive, compacted, since)


def test_an_archive_that_no_longer_has_what_the_topic_lacks_is_refused(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    from pumphouse.archive.expire import Ages, expire
    from pumphouse.archive.retention import Policy

    made = aged(tmp_path / "archive")
    source = made.source
    kept_from = source.archive.genesis().ts
    send(kafka, source.archive, topic, kept_from, Tso(kept_from + (20 << 18)))
    first = len(kafka.values(topic))
    expire(source.archive, Ages(), Policy(bases=1), (), now=source.archive.end(), who="me@here")
    with pytest.raises(UsageError, match="the archive is kept from") as failed:
        send(kafka, source.archive, topic)
    start = source.archive.range().start
    assert failed.value.hint.startswith(f"--from {start} --anew")
    assert send(kafka, source.archive, topic, start, anew=True).messages
    assert len(kafka.values(topic)) > first


def test_brokers_that_are_away_and_settings_without_any_are_said(source: MadeSource, kafka: KafkaBroker) -> None:
    since = churned(source, 1)
    away = kafka.settings(timeout_s=1.0).model_copy(update={"bootstrap_servers": "127.0.0.1:1"})
    with pytest.raises(BrokersUnavailable, match=r"Kafka \(127\.0\.0\.1:1\), topic t: .* failed"):
        export_kafka(source.archive, away, "t", since=since, upto=None)
    for wrong in ({"security_protocol": "SSL", "tls_ca": "/nowhere/ca.pem"}, {"security_protocol": "SASL_SSL"}):
        settings = kafka.settings(**wrong)
        with pytest.raises(ConfigError, match=r"reading the settings of its client failed"):
            export_kafka(source.archive, settings, "t", since=since, upto=None)
    with pytest.raises(ConfigError, match="no Kafka is configured"):
        export_kafka(source.archive, away.model_copy(update={"bootstrap_servers": ""}), "t", since=since, upto=None)


def test_a_user_by_tls_gets_in_and_a_wrong_password_is_said_and_never_shown(source: MadeSource, tmp_path: Path) -> None:
    since = churned(source, 1)
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.leaf("kafka")
    store = tmp_path / "store.pem"
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_shop="right-secret";'
    properties = {
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": plain,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    with KafkaBroker(tmp_path / "kafka", properties, "SASL_SSL") as kafka:
        topic = kafka.create("topic")
        said = {
            "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "shop",
            "tls_ca": authority.ca, "timeout_s": 10,
        }  # fmt: skip
        child = command(kafka, source, "--from", since, topic, **said, sasl_password="wrong-secret")
        told, failed = child.communicate()
        assert child.returncode != 0
        assert "uthentication" in failed
        assert "secret" not in told + failed
        with pytest.raises(AccessDenied):
            settings = kafka.settings(**{**said, "sasl_password": "wrong-secret"})
            export_kafka(source.archive, settings, topic, since=since, upto=None)
        child = command(kafka, source, "--from", since, topic, **said, sasl_password="right-secret")
        told, failed = child.communicate()
        assert child.returncode == 0, failed
        assert f"topic {topic} has everything up to" in told
        assert slavemessages.replayed(kafka.binlogs(topic)) == source.snapshot()


def test_the_command_says_what_it_sent_and_what_it_does_not_know(
    kafka: KafkaBroker, source: MadeSource, topic: str, tmp_path: Path
) -> None:
    import json

    since = churned(source, 1)
    child = command(kafka, source, "--json", "--from", since, topic)
    told, failed = child.communicate()
    assert child.returncode == 0, failed
    report = json.loads(told)
    assert report["messages"] == len(kafka.values(topic))
    assert report["to_ts"] == source.archive.end()
    told, _ = command(kafka, source, topic).communicate()
    assert told.startswith("nothing to send")
    name = f"{source.cluster_id}_obinlog"
    _, failed = command(kafka, source, "--from", since).communicate()
    assert f"has no topic {name}" in failed
    result = CliRunner().invoke(cli, ["archive", "export", "--format", "pb", "--from", "1", "--anew", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
