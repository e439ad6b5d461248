"""`pumphouse archive export --format kafka`: a range of an archive as messages of a topic of Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pumphouse import advice
from pumphouse.archive.archive import Archive
from pumphouse.archive.losses import Losses
from pumphouse.errors import TopicRefused, UsageError
from pumphouse.export.ddls import ExportedDdl
from pumphouse.export.encode import Piece
from pumphouse.export.extract import Before, Extract, view_upto
from pumphouse.export.kafkasender import Sender, Transactions
from pumphouse.export.kafkatopic import Brokers, Position, read_position
from pumphouse.export.pbfiles import Origin
from pumphouse.export.slavemessages import SlaveMessages
from pumphouse.loader.report import Progress, silent
from pumphouse.model.tso import Tso, physical_ms, show
from pumphouse.settings import KafkaSettings

# A topic that got nothing for so long is told how far it is: else its retention, or the archive's, would lose that.
_QUIET_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReport:
    """What a run sent.

    Args:
        topic: its name.
        cluster_id: of the archive.
        from_ts: what it sent begins behind this.
        to_ts: the topic has everything up to here.
        messages: of transactions and DDLs.
        changes: row changes in them.
        ddls: messages of DDLs.
        size: bytes of all of them.
        losses: what the archive lacks of that range.
    """

    topic: str
    cluster_id: int
    from_ts: Tso
    to_ts: Tso
    messages: int = 0
    changes: int = 0
    ddls: int = 0
    size: int = 0
    losses: Losses = field(default_factory=Losses)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        found = asdict(self)
        losses, _ = found.pop("losses"), found.pop("cluster_id")
        return {**found, **losses}


def topic_name(settings: KafkaSettings, archive: Archive) -> str:
    """The topic that the settings name, else the Drainer's."""
    return settings.topic or f"{archive.cluster_id}_obinlog"


def export_kafka(
    archive: Archive,
    settings: KafkaSettings,
    topic: str,
    *,
    since: Tso | None,
    upto: Tso | None,
    tables: Sequence[str] = (),
    skipped: frozenset[int] = frozenset(),
    anew: bool = False,
    tell: Progress = silent,
) -> KafkaReport:
    """Send what the topic does not have yet of an archive, each transaction and DDL exactly once, in commit order.

    Args:
        archive: which one.
        settings: of Kafka.
        topic: its name.
        since: where an empty topic begins, or began; None = where it stands.
        upto: None = the archive's end; no later moment counts.
        tables: ``database.table`` or patterns; () = all but the system's.
        skipped: ids of tables that no DDL names and whose rows are left out.
        anew: begin at ``since``, whatever the topic holds; one that was begun there goes on.
        tell: told of each segment.

    Raises:
        UsageError: the range is none of the archive, or ``since`` is not where the topic stands or begins.
        TopicRefused: there is no such topic, others write to it, or it does not take a message.
        TopicFenced: another run sends to it now.
        AccessDenied, BrokersUnavailable: what the brokers say.
        UnknownTable, UnknownDdl: as of files (`pumphouse.export.run.export_pb`).
    """
    if anew and since is None:
        raise UsageError("--anew begins at a moment that you name", hint="--from TIME --anew")
    origin = Origin(
        cluster_id=archive.cluster_id,
        archive_id=archive.archive_id,
        tables=tuple(sorted({each.lower() for each in tables})),
    )
    brokers = Brokers(settings, topic)
    sender = Sender(brokers)
    try:
        position = _stands(brokers, sender, origin, since if anew else None)
        begin = _begin(topic, origin, position, since)
        kept = archive.range()
        way_on = f"--from {max(begin, kept.start)}"
        if position is not None:
            way_on += " --anew: the topic then lacks what was committed between the two"
        view, end = view_upto(archive, begin, upto, kept, way_on)
        if position is None and begin > end:
            raise UsageError(
                f"the topic cannot begin at {show(begin)}: the range ends at {show(end)}",
                hint=f"--from {end} begins it there",
            )
        if begin > view.end:
            raise TopicRefused(
                f"the topic {topic} has everything up to {show(begin)}, and the archive ends at {show(view.end)}",
                hint=("is it the archive that was sent from? A copy that is behind gets there by ", advice.SNAPSHOT),
                topic=topic,
            )
        if position is not None and begin >= end:
            return KafkaReport(topic=topic, cluster_id=archive.cluster_id, from_ts=begin, to_ts=begin)
        before = Before(end=position.upto, table_ids=position.table_ids) if position else None
        extract = replace(Extract.of(archive, view, begin, end, origin.tables, before), skipped=skipped)
        start = position.begin if position else begin
        begun = Position(origin=origin, begin=start, upto=begin, table_ids=extract.table_ids)
        made = Transactions(sender, begun, settings.transaction_bytes)
        for part in extract.encoded(SlaveMessages(), begin, end, tell):
            if isinstance(part, ExportedDdl):
                made.ddl(part)
            elif isinstance(part, Piece):
                made.piece(part)
            else:
                made.frames(part)
        made.finish(end)
        if not made.messages and (position is None or physical_ms(end) - physical_ms(position.upto) >= _QUIET_MS):
            made.say(end)
    finally:
        sender.close()
    return KafkaReport(
        topic=topic, cluster_id=archive.cluster_id, from_ts=begin, to_ts=end, messages=made.messages,
        changes=made.changes, ddls=made.ddls, size=made.bytes, losses=extract.losses,
    )  # fmt: skip


def _stands(brokers: Brokers, sender: Sender, origin: Origin, anew: Tso | None) -> Position | None:
    """How far the topic is; None = it begins. ``anew``: where it is begun anew, unless a run before this one did."""
    try:
        position = read_position(brokers, sender.state)
    except TopicRefused:
        if anew is None:
            raise
        return None
    if anew is not None and position is not None and (position.origin, position.begin) != (origin, anew):
        return None
    return position


def _begin(topic: str, origin: Origin, position: Position | None, since: Tso | None) -> Tso:
    """Where the topic goes on."""
    if position is None:
        if since is None:
            raise UsageError(
                f"the topic {topic} is empty: where is it to begin?",
                hint="--from TIME: the moment of the dump or the restore that its readers begin with",
            )
        return since
    if position.origin != origin:
        of = position.origin
        raise TopicRefused(
            f"the topic {topic} has the messages of archive {of.archive_id} of cluster {of.cluster_id}, "
            f"{', '.join(of.tables) or 'all tables'}; wanted is archive {origin.archive_id} of cluster "
            f"{origin.cluster_id}, {', '.join(origin.tables) or 'all tables'}",
            hint="send to a topic of its own, or begin anew in this one: --from TIME --anew",
            topic=topic,
        )
    if since not in (None, position.begin, position.upto):
        raise UsageError(
            f"the topic {topic} has everything up to {show(position.upto)}",
            hint="leave --from out, and it goes on there. With --anew it begins at --from: what lies between is then "
            "missing from it, or is there twice",
        )
    return position.upto
