"""Sends messages to a topic, each exactly once and in order, whatever is killed and however many try.

The transactional id is the topic's: a sender that begins ends every other one's transaction, and from then on the
brokers refuse that one. Only then is it asked how far the topic is. What a transaction of Kafka holds is written at
once, when all of it is known: an open one would end after ``kafka.timeout_s``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pumphouse.errors import BrokersUnavailable, TopicFenced, TopicRefused
from pumphouse.export.ddls import ExportedDdl
from pumphouse.export.encode import Frames, Piece
from pumphouse.export.kafkatopic import (
    HEADER,
    ITS_OWN,
    LARGEST,
    OVERHEAD_BYTES,
    PARTITION,
    Brokers,
    Position,
    look,
)
from pumphouse.export.slavemessages import ddl_message, empty_message, large_head
from pumphouse.model.tso import Tso, show


class Sender:
    """The one that may send to a topic.

    Args:
        brokers: of the topic.

    Raises:
        TopicRefused: there is no such topic.
        AccessDenied, BrokersUnavailable: what the brokers say.
    """

    def __init__(self, brokers: Brokers) -> None:
        from confluent_kafka import Producer

        self._brokers, self.topic = brokers, brokers.topic
        largest = look(brokers).largest
        with brokers.naming("becoming its sender"):
            self._producer: Any = Producer(
                brokers.client(
                    **{
                        "transactional.id": f"pumphouse-{brokers.topic}",
                        "transaction.timeout.ms": int(brokers.timeout_s * 1000),
                        "message.max.bytes": max(largest, 1000),
                        "batch.size": min(largest, 1_000_000),
                        "batch.num.messages": 1_000_000,
                        "queue.buffering.max.messages": 0,
                        "queue.buffering.max.kbytes": (brokers.settings.transaction_bytes + 2 * largest) // 1024 + 1,
                        "compression.type": "lz4",
                    }
                )
            )
            try:
                self._producer.init_transactions(brokers.timeout_s)
            finally:
                self._producer.poll(0)  # `Brokers` hears what was said
        self.state = look(brokers)
        until = time.monotonic() + brokers.timeout_s
        # A broker that just came back may need a moment to end what was open.
        while self.state.stable < self.state.end and time.monotonic() < until:
            time.sleep(0.2)
            self.state = look(brokers)
        self._next = self.state.end

    def commit(self, values: Sequence[bytes], position: Position) -> None:
        """Send messages in one transaction; its last message says how far the topic is then.

        Raises:
            TopicRefused: somebody else writes to the topic, or it does not take a message; nothing was committed.
            TopicFenced: another run sends to it now; nothing was committed.
            BrokersUnavailable: maybe it was committed. The next run will see.
        """
        producer, brokers = self._producer, self._brokers
        began = time.monotonic()
        try:
            with brokers.naming("sending"):
                producer.begin_transaction()
                self._write(values, position)
            with brokers.naming("committing"):
                producer.commit_transaction(brokers.timeout_s)
        except BaseException as error:
            with suppress(Exception):
                producer.abort_transaction(1)
            if isinstance(error, TopicFenced) and time.monotonic() - began >= brokers.timeout_s:
                # The brokers say so too of whoever takes longer than a transaction may.
                raise BrokersUnavailable(
                    f"a transaction in the topic {brokers.topic} took longer than the {brokers.timeout_s:g} s that it "
                    "may take, or another export sends to it now",
                    hint="over a slow network, raise kafka.timeout_s, or lower kafka.transaction_bytes",
                    brokers=brokers.settings.bootstrap_servers,
                ) from error
            raise
        self._next += len(values) + 1  # the end of a transaction is a record too

    def _write(self, values: Sequence[bytes], position: Position) -> None:
        """Until the brokers have them all."""
        producer, brokers = self._producer, self._brokers
        told: list[tuple[Any, Any]] = []
        headers = [(HEADER, position.to_json())]
        for value in values[:-1]:
            producer.produce(brokers.topic, value, partition=PARTITION)
        producer.produce(
            brokers.topic, values[-1], partition=PARTITION, headers=headers, on_delivery=lambda *of: told.append(of)
        )
        left = producer.flush(brokers.timeout_s)
        if left:
            raise BrokersUnavailable(
                f"Kafka ({brokers.settings.bootstrap_servers}) did not take {left} messages of the topic "
                f"{brokers.topic} in {brokers.timeout_s:g} s{brokers.heard}",
                hint="are the brokers up? Large transactions over a slow network need a longer kafka.timeout_s",
                brokers=brokers.settings.bootstrap_servers,
            )
        ((error, last),) = told
        if error is not None:
            producer.commit_transaction(brokers.timeout_s)  # it fails, and says why
            raise brokers.told(error, "sending")
        if last.offset() != self._next + len(values) - 1:
            raise TopicRefused(
                f"somebody else writes to the topic {brokers.topic}, behind offset {self._next - 1}",
                hint=ITS_OWN,
                topic=brokers.topic,
            )

    def close(self) -> None:
        """Let go of the brokers, whether they answer or not: the library's own ``close`` waits for them without end."""
        with suppress(Exception):
            self._producer.purge(blocking=False)
            self._producer.flush(1)


class Transactions:
    """Messages in commit order, gathered to transactions of Kafka.

    Args:
        sender: of the topic.
        begun: the topic has everything up to there.
        most: one ends with the message that makes it so large.
    """

    def __init__(self, sender: Sender, begun: Position, most: int) -> None:
        self._sender, self._begun, self._most = sender, begun, most
        self._values = list[bytes]()
        self._size = self._last = 0
        self._open: tuple[int, int] | None = None
        self._pieces = list[bytes]()
        self.messages = self.changes = self.ddls = self.bytes = 0

    def frames(self, part: Frames) -> None:
        """Whole messages."""
        self._end_large()
        begin = 0
        for commit_ts, end in zip(part.commit_ts.tolist(), part.ends.tolist(), strict=True):
            self._add(commit_ts, part.data[begin:end].tobytes())
            begin = end
        self.changes += int(part.changes.sum())

    def ddl(self, ddl: ExportedDdl) -> None:
        """A DDL: a message for each of its statements."""
        self._end_large()
        for text in ddl.texts:
            self._add(ddl.commit_ts, ddl_message(ddl.commit_ts, text.db, text.table, text.query))
            self.ddls += 1

    def piece(self, part: Piece) -> None:
        """A piece of a large transaction, which is one message."""
        if self._open != (part.commit_ts, part.start_ts):
            self._end_large()
            self._open, self._pieces = (part.commit_ts, part.start_ts), [large_head(part.commit_ts)]
        self._pieces.append(part.data.tobytes())
        self._require_fits(part.commit_ts, sum(map(len, self._pieces)), "more than ")
        self.changes += part.changes

    def finish(self, upto: Tso) -> None:
        """Everything up to ``upto`` was given."""
        self._end_large()
        if self._values:
            self._commit(upto)

    def say(self, upto: Tso) -> None:
        """That there was nothing up to ``upto``, by a message without row changes."""
        self._sender.commit([empty_message(upto)], self._position(upto))

    def _end_large(self) -> None:
        if self._open is not None:
            commit_ts, pieces = self._open[0], self._pieces
            self._open, self._pieces = None, []
            self._add(commit_ts, b"".join(pieces))

    def _add(self, commit_ts: int, value: bytes) -> None:
        self._require_fits(commit_ts, len(value))
        # Nothing is cut between two that have one commit ts: a later run begins behind it.
        if self._size >= self._most and commit_ts != self._last:
            self._commit(Tso(self._last))
        self._values.append(value)
        self._size += len(value)
        self._last = commit_ts

    def _commit(self, upto: Tso) -> None:
        self._sender.commit(self._values, self._position(upto))
        self.messages += len(self._values)
        self.bytes += self._size
        self._values, self._size = [], 0

    def _position(self, upto: Tso) -> Position:
        return replace(self._begun, upto=upto)

    def _require_fits(self, commit_ts: int, size: int, about: str = "") -> None:
        state, topic = self._sender.state, self._sender.topic
        if size + OVERHEAD_BYTES > state.largest:
            raise TopicRefused(
                f"the transaction at {show(Tso(commit_ts))} is a message of {about}{size:,} bytes, and the topic "
                f"{topic} takes {state.largest:,} at most",
                hint="raise max.message.bytes of the topic, and what its readers take: kafka-configs.sh --alter "
                f"--entity-type topics --entity-name {topic} --add-config max.message.bytes=N ({LARGEST:,} at most)",
                topic=topic,
                size=size,
                limit=state.largest,
            )
