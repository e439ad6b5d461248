"""A topic that gets an archive's messages: what it takes, how far it is (docs/formats.md, "Messages for Kafka").

The topic itself says how far it is: the last message of each transaction of ours has the position as a header. So
there is no second place that could say otherwise. It is read when no other sender can commit any more
(`pumphouse.export.kafkasender`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pumphouse.errors import AccessDenied, BinlogError, BrokersUnavailable, ConfigError, TopicFenced, TopicRefused
from pumphouse.export.pbfiles import Origin
from pumphouse.model import strict
from pumphouse.model.tso import Tso
from pumphouse.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_SILENT = logging.getLogger("pumphouse.export.kafka.library")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
HEADER = "pumphouse"
_FORMAT_VERSION = 1
PARTITION = 0
# Of a record and its batch beside value and header, and no fewer.
OVERHEAD_BYTES = 512
LARGEST = 1_000_000_000  # that the client library takes
ITS_OWN = "send to a topic of its own, or begin anew in this one: --from TIME --anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a topic is: everything of ``origin`` in (begin, upto] is in it.

    Args:
        origin: of the messages.
        begin: where they begin, or were begun anew.
        upto: inclusive.
        table_ids: the tables that ``tables`` of the origin meant; () where it names none.
    """

    origin: Origin
    begin: Tso
    upto: Tso
    table_ids: tuple[int, ...]

    def to_json(self) -> bytes:
        """The header's value."""
        return json.dumps(
            {
                "format_version": _FORMAT_VERSION,
                "cluster_id": self.origin.cluster_id,
                "archive_id": self.origin.archive_id,
                "tables": self.origin.tables,
                "table_ids": self.table_ids,
                "begin": int(self.begin),
                "upto": int(self.upto),
            }
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Position:
        """Read it; ValueError, LookupError or TypeError where it is none."""
        data = strict.loads(text)
        if data["format_version"] != _FORMAT_VERSION:
            raise ValueError(f"format version {data['format_version']!r:.20}")
        return cls(
            origin=Origin(
                cluster_id=strict.integer(data["cluster_id"], high=strict.MAX_UINT64),
                archive_id=strict.text(data["archive_id"]),
                tables=tuple(map(strict.text, data["tables"])),
            ),
            begin=Tso(strict.integer(data["begin"])),
            upto=Tso(strict.integer(data["upto"])),
            table_ids=tuple(map(strict.integer, data["table_ids"])),
        )


class Brokers:
    """How the brokers are reached, and what they said last.

    Args:
        settings: of Kafka.
        topic: its name.
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        if not settings.bootstrap_servers:
            raise ConfigError("no Kafka is configured", hint="set kafka.bootstrap_servers = HOST:PORT[,…]")
        self.settings, self.topic = settings, topic
        self.timeout_s = settings.timeout_s
        self._said = ""
        self._denied = False

    def client(self, **more: Any) -> dict[str, Any]:
        """Settings of a client of the library."""
        said = self.settings
        config: dict[str, Any] = {
            "bootstrap.servers": said.bootstrap_servers,
            "client.id": "pumphouse",
            "security.protocol": said.security_protocol,
            "error_cb": self._heard,
            "logger": _SILENT,  # what it would log is heard by `_heard`
            "receive.message.max.bytes": (1 << 31) - 1,
        }
        if said.security_protocol.startswith("SASL"):
            config |= {
                "sasl.mechanism": said.sasl_mechanism,
                "sasl.username": said.sasl_username,
                "sasl.password": said.sasl_password.get_secret_value(),
            }
        files = {"ssl.ca.location": said.tls_ca, "ssl.certificate.location": said.tls_cert}
        files["ssl.key.location"] = said.tls_key
        if said.security_protocol.endswith("SSL"):
            config |= {name: str(path) for name, path in files.items() if path}
        return config | more

    def _heard(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        if not self._denied:  # that all brokers are down is heard too, and says less
            self._said = error.str()
            self._denied = error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001 - it has no other name

    @property
    def heard(self) -> str:
        """What a broker, or the network, said last, for messages."""
        return f"; last heard: {self._said}" if self._said else ""

    @contextmanager
    def naming(self, doing: str) -> Iterator[None]:
        """Errors of the library as ours; ``doing``: what failed."""
        from confluent_kafka import KafkaException

        try:
            yield
        except (KafkaException, SystemError) as error:
            # A fatal error that the library hears amid a delivery report comes as the cause of a SystemError.
            said = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(said, KafkaException):
                raise
            raise self.told(said.args[0], doing) from error

    def told(self, error: KafkaError, doing: str) -> BinlogError:
        """An error of the library as one of ours."""
        from confluent_kafka import KafkaError as Code

        code, topic, servers = error.code(), self.topic, self.settings.bootstrap_servers
        what = f"Kafka ({servers}), topic {topic}: {doing} failed: {error.str()}"
        if code in (Code._FENCED, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH):  # noqa: SLF001
            return TopicFenced(
                f"another export sends to the topic {topic} now, and this one ends",
                hint="nothing is in the topic twice; run it again when the other one has ended",
                topic=topic,
            )
        if code in (Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION):  # noqa: SLF001
            return TopicRefused(
                f"Kafka ({servers}) has no topic {topic}",
                hint=f"make it: kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 1",
                topic=topic,
            )
        if code in (Code.MSG_SIZE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE):
            return TopicRefused(what, hint=f"raise max.message.bytes of the topic {topic}", topic=topic)
        wrong = {
            Code._INVALID_ARG: "the section kafka of the settings says how the brokers are reached",  # noqa: SLF001
            Code.INVALID_TRANSACTION_TIMEOUT: "lower kafka.timeout_s, or raise the brokers' transaction.max.timeout.ms",
        }
        if code in wrong:
            return ConfigError(what, hint=wrong[code])
        denied = {
            Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED, Code.SASL_AUTHENTICATION_FAILED,
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED, Code._AUTHENTICATION,  # noqa: SLF001
        }  # fmt: skip
        what += self.heard
        if code in denied or self._denied:
            return AccessDenied(
                what, hint='docs/operations.md, "Kafka", lists the rights that the user needs', server=servers
            )
        return BrokersUnavailable(what, hint="are the brokers up and in reach?", brokers=servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """What a topic is before a run sends to it.

    Args:
        largest: bytes of the largest message that it takes, with what stands around its value.
        low: offset of the first message that it still has.
        end: offset of the next message.
        stable: up to here nothing of an open transaction lies.
    """

    largest: int
    low: int
    end: int
    stable: int


def look(brokers: Brokers) -> TopicState:
    """Ask for it.

    Raises:
        TopicRefused: there is no such topic, or it keeps the newest message of each key alone.
        AccessDenied, BrokersUnavailable: what the brokers say.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

    with brokers.naming("reading the settings of its client"):
        admin = AdminClient(brokers.client())
    where = TopicPartition(brokers.topic, PARTITION)
    limit = {"request_timeout": brokers.timeout_s}
    with brokers.naming("reading its settings (right DescribeConfigs)"):
        resource = ConfigResource(ConfigResource.Type.TOPIC, brokers.topic)
        try:
            config = admin.describe_configs([resource], **limit)[resource].result()
        finally:
            admin.poll(0)  # `Brokers` hears what was said
    if "compact" in config["cleanup.policy"].value:
        raise TopicRefused(
            f"topic {brokers.topic} is compacted, and would keep none of these messages: they have no keys",
            hint="set its cleanup.policy to delete, or send to another topic",
            topic=brokers.topic,
        )

    def offset(spec: Any, level: Any) -> int:
        return int(admin.list_offsets({where: spec}, isolation_level=level, **limit)[where].result().offset)

    with brokers.naming("asking for its offsets"):
        return TopicState(
            largest=min(int(config["max.message.bytes"].value), LARGEST),
            low=offset(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
            stable=offset(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
            end=offset(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        )


def read_position(brokers: Brokers, state: TopicState) -> Position | None:
    """How far the topic is, from its last committed message; None = it never had one.

    Raises:
        TopicRefused: others write to it, or its last message has expired.
    """
    topic = brokers.topic
    if state.stable < state.end:
        raise TopicRefused(
            f"somebody else has an open transaction in the topic {topic}, at offset {state.stable}",
            hint=f"end that producer, or what killed brokers left (kafka-transactions.sh find-hanging); {ITS_OWN}",
            topic=topic,
        )
    last = _last(brokers, state)
    if last is None:
        if state.low == 0:
            return None
        raise TopicRefused(
            f"the retention of the topic {topic} has deleted every message that it had, and with them how far it was",
            hint="begin anew: --from TIME --anew, with the moment up to which its readers have everything",
            topic=topic,
        )
    value = dict(last.headers() or ()).get(HEADER)
    try:
        return Position.from_json(value or b"")
    except (LookupError, TypeError, ValueError) as error:
        raise TopicRefused(
            f"the last message of the topic {topic}, at offset {last.offset()}, is none that ends an export of ours"
            f"{f': its header {HEADER} says {value!r:.100}' if value else ''}",
            hint=ITS_OWN,
            topic=topic,
        ) from error


def _last(brokers: Brokers, state: TopicState) -> Message | None:
    """The last committed message; what was aborted may lie behind it."""
    from confluent_kafka import Consumer

    config = brokers.client(
        **{
            "group.id": "pumphouse",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 16 << 10,
            "fetch.message.max.bytes": 8 << 20,
        }
    )
    with brokers.naming("reading its end"):
        consumer = Consumer(config)
    try:
        span, upto = 2, state.end
        while upto > state.low:
            begin = max(state.end - span, state.low)
            found = _last_from(brokers, consumer, begin)
            if found is not None:
                return found
            span, upto = span * 8, begin
        return None
    finally:
        consumer.close()


def _last_from(brokers: Brokers, consumer: Any, begin: int) -> Message | None:
    """The last committed message at or behind an offset."""
    from confluent_kafka import KafkaError, TopicPartition

    with brokers.naming("reading its end"):
        consumer.assign([TopicPartition(brokers.topic, PARTITION, begin)])
    found = None
    while True:
        message = consumer.poll(brokers.timeout_s)
        if message is None:
            raise BrokersUnavailable(
                f"Kafka ({brokers.settings.bootstrap_servers}) sends nothing of the topic {brokers.topic} for "
                f"{brokers.timeout_s:g} s",
                brokers=brokers.settings.bootstrap_servers,
            )
        error = message.error()
        if error is None:
            found = message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return found
        else:
            raise brokers.told(error, "reading its end")
