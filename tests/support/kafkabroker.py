"""A real Kafka for tests: ``python -m tests.support.kafkabroker`` fetches its jars into build/kafka by Maven.

One broker that is its own controller (KRaft), on loopback ports that it keeps over kills. It runs on the Java that Spark
runs on. Where Maven, Java 17 or the client library is missing, `MISSING` says so and tests are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pumphouse.durable import write_atomic
from pumphouse.errors import ConfigError
from pumphouse.export.kafkatopic import HEADER
from pumphouse.proto.slave_binlog_pb2 import Binlog
from pumphouse.settings import KafkaSettings
from spark_tasks.java import java_home
from tests.stack.ports import free_port
from tests.stack.supervisor import StackError, Supervisor

VERSION = "4.3.1"
LIBS = Path(__file__).resolve().parents[2] / "build" / "kafka" / VERSION
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{VERSION}</version></dependency></dependencies></project>
"""
_MARKED_S = 3.0
_CLUSTER = "cHVtcGhvdXNlLXRlc3RzLg"  # a UUID in base64


def _missing() -> str:
    if importlib.util.find_spec("confluent_kafka") is None:
        return "no confluent-kafka: pip install 'pumphouse[kafka]'"
    if not LIBS.is_dir():
        return "no Kafka in build/kafka: `make kafka` fetches it (Maven)"
    try:
        java_home()
    except ConfigError as error:
        return str(error)
    return ""


MISSING = _missing()


class KafkaBroker:
    """``with KafkaBroker(directory) as kafka:``; topics are small, and made by who needs them.

    Args:
        directory: for its data, its log and its record.
        settings: of the server, beside ours; of a listener ``CLIENT`` too.
        protocol: of that listener.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, protocol: str = "PLAINTEXT") -> None:
        self.directory, self._more, self._protocol = directory, dict(settings or {}), protocol
        self.port, self._controller, self._inner = free_port(), free_port(), free_port()
        self.supervisor = Supervisor(directory)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def settings(self, **more: Any) -> KafkaSettings:
        return KafkaSettings(bootstrap_servers=self.servers, **{"timeout_s": 20.0, **more})

    def __enter__(self) -> Self:
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"CLIENT://127.0.0.1:{self.port},INNER://127.0.0.1:{self._inner},"
            f"CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{self.port},INNER://127.0.0.1:{self._inner}",
            "listener.security.protocol.map": f"CLIENT:{self._protocol},INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INNER",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "socket.request.max.bytes": str(1 << 30),
            **self._more,
        }
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        write_atomic(self.directory / "server.properties", text.encode(), mode=0o600)
        done = subprocess.run(
            [*self._java("64m"), "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", self._file],
            capture_output=True, text=True, check=False, env=self._env(),
        )  # fmt: skip
        if done.returncode:
            raise StackError(f"Kafka's directory could not be made: {(done.stderr or done.stdout)[-2000:]}")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.stop("kafka", timeout_s=2)

    @property
    def _file(self) -> str:
        return str(self.directory / "server.properties")

    def _java(self, heap: str) -> list[str]:
        quick = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
        return [str(java_home() / "bin" / "java"), f"-Xmx{heap}", *quick, "-cp", f"{LIBS}/*"]

    def _env(self) -> dict[str, str]:
        return {**os.environ, "LOG_DIR": str(self.directory)}

    def start(self) -> None:
        """Start it, on the data that there is, and wait until it answers."""
        from confluent_kafka import KafkaException

        self.supervisor.start("kafka", [*self._java("384m"), "kafka.Kafka", self._file])

        def answers() -> bool:
            try:
                return bool(self.admin.list_topics(timeout=1).brokers)
            except KafkaException:
                return False

        self.supervisor.wait_until("kafka", answers, timeout_s=180)

    def kill(self) -> None:
        """``kill -9``."""
        self.supervisor.kill("kafka")

    def client(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self._inner}", "log_level": 0, **more}

    @cached_property
    def admin(self) -> Any:
        """Held: what was asked of one that is gone ends."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.client())

    def create(self, topic: str, **config: str) -> str:
        """A topic of one partition."""
        from confluent_kafka.admin import NewTopic

        names = {name.replace("_", "."): value for name, value in config.items()}
        self.admin.create_topics([NewTopic(topic, 1, 1, config=names)])[topic].result(60)
        return topic

    def expire(self, topic: str, before: int) -> None:
        """Delete what lies before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        (done,) = self.admin.delete_records([TopicPartition(topic, 0, before)]).values()
        done.result(60)

    def messages(self, topic: str) -> list[Any]:
        """Every committed message, in the order of the topic; the library's.

        A commit is answered before its marker lies in the topic, and readers stop at what has none yet: they wait a
        little for it.
        """
        from confluent_kafka import KafkaError

        found, until, ended = [], time.monotonic() + _MARKED_S, False
        with _consumer(self.client(), topic) as consumer:
            while not (ended and time.monotonic() > until):
                message = consumer.poll(0.5 if ended else 20)
                if message is None:
                    assert ended, "the broker sends nothing"
                elif message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    if message.offset() >= self.end(topic):
                        break
                    ended = True
        return found

    def end(self, topic: str) -> int:
        """Offset of the next record, of an open transaction too."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        where = TopicPartition(topic, 0)
        return int(self.admin.list_offsets({where: OffsetSpec.latest()})[where].result(60).offset)

    def values(self, topic: str) -> list[bytes]:
        return [each.value() for each in self.messages(topic)]

    def binlogs(self, topic: str) -> list[Any]:
        return [Binlog.FromString(each) for each in self.values(topic)]

    def positions(self, topic: str) -> list[bytes]:
        return [dict(each.headers())[HEADER] for each in self.messages(topic) if each.headers()]


@contextmanager
def _consumer(client: dict[str, Any], topic: str) -> Iterator[Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {**client, "group.id": "tests", "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        yield consumer
    finally:
        consumer.close()


def make() -> None:
    """The jars, where they are missing; StackError where this machine cannot."""
    if LIBS.is_dir():
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise StackError(
            "a Kafka for tests is fetched by Maven",
            hint="apt-get install maven; then again. Tests that need it are skipped",
        )
    print("fetching a Kafka into build/kafka: a minute, without a word", file=sys.stderr, flush=True)
    aside = LIBS.with_name(f"{VERSION}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    (aside / "pom.xml").write_text(_POM)
    done = subprocess.run(
        [maven, "-q", "-B", "-f", aside / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={aside}"],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise StackError(f"Maven failed: {' '.join((done.stdout or done.stderr).splitlines()[-5:])}")
    aside.rename(LIBS)


def main() -> int:
    """Entry point; ``--optional``: a machine that cannot is no error."""
    try:
        make()
    except StackError as error:
        print(error, file=sys.stderr)
        return 0 if "--optional" in sys.argv[1:] else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
