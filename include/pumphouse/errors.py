"""Every error that Pumphouse raises on purpose. Catch at the level that you need.

BinlogError
├─ ConfigError (└─ AccessDenied) · UsageError · ClusterUnavailable* (PD, etcd or TiKV does not answer)
├─ CorruptionError(path, offset, reason)
│  ├─ TornTail (only the last file of a log; recoverable) ├─ BadRecord ├─ BadSegment └─ BadManifest
├─ PumpError
│  ├─ ClusterMismatch ├─ BadBinlog ├─ PumpUnavailable* ├─ PumpReadOnly* ├─ PumpDraining*
│  ├─ PositionCollected (asked for ts below the GC point) ├─ PullTooSlow* ├─ OrphanCommit ├─ LateCommit
│  └─ WriterFailed (EIO or failed fsync; this process writes no more) · ResolverOverlap · PeerRefused
├─ GapError                     never skipped, never retried into silence
│  ├─ WindowHeld* (who holds the window, and since which start ts)
│  └─ SourcePurged · SourceErrant (a binlog that does not go on from where it was read to)
├─ CodecError └─ MissingColumn
├─ SchemaError ├─ UnknownTable ├─ UnknownDdl ├─ HistoryUnavailable* └─ ColumnMismatch
├─ StoreError ├─ ObjectNotFound ├─ ObjectExists ├─ UnsafeStore ├─ ManifestConflict* └─ StoreUnavailable*
├─ SourceFailed* (the database that a dump is taken of, or whose binlog is read) └─ SourceHeld* (a table is locked)
├─ CaptureRefused (its binlog has, or lacks, what makes a row inexact) · CaptureFenced (another process runs it)
├─ ImportRefused (binlog files say, or lack, what makes an archive of them inexact)
├─ LoadError ├─ TargetBusy* ├─ TargetAhead ├─ TargetIncomplete ├─ RowRejected ├─ DdlRefused ├─ DdlUncertain
│            ├─ DuplicateKey ├─ TargetUnavailable* ├─ SparkUnavailable* ├─ FenceLost ├─ ConversionUnknown
│            └─ PartitionUnsettled
├─ RestoreError └─ TargetUnreachable
├─ TopicRefused (a Kafka topic that holds, or takes, other messages) · TopicFenced (another run has it)
├─ BrokersUnavailable* (Kafka does not answer)
└─ FoldRefused (the archive alone does not say what a base would have)
                                                                  * = retryable

Each error carries its facts as public attributes (keyword arguments of the constructor; None where they were not
given), says in one sentence what, where and what to do next (`hint`), and survives pickling, because Spark and
Airflow pickle errors. A fact that somebody reads is declared in its class.

What to do next is text and `pumphouse.advice`: whoever shows the error words the advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Self

from pumphouse.advice import Hint, Part, command_line, for_target, hint_of, joined, worded


class BinlogError(Exception):
    """Base of the tree. ``BinlogError("what and where", hint=("take one: ", advice.dump()), fact=value)``."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: Part | Hint = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.advice = hint_of(hint)
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    @property
    def hint(self) -> str:
        """What to do next, as the command line says it."""
        return worded(self.advice)

    def add_hint(self, *hints: Part | Hint) -> None:
        """Advise more."""
        self.advice = joined(self.advice, *hints)

    def said(self, door: Callable[[Part], str] = command_line) -> str:
        """The sentence, as who shows it words its advice."""
        return f"{self.message} ({worded(self.advice, door)})" if self.advice else self.message

    def __str__(self) -> str:
        return self.said()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.advice, self.facts)

    @classmethod
    def rebuild(cls, message: str, hint: Part | Hint, facts: dict[str, Any]) -> Self:
        """Make the error again from its parts (unpickling, gRPC details)."""
        return cls(message, hint=hint, **facts)


def _rebuild(cls: type[BinlogError], message: str, hint: Hint, facts: dict[str, Any]) -> BinlogError:
    return cls.rebuild(message, hint, facts)


# Of a message that is kept, in characters.
_LONGEST = 8000


def said_of(error: Exception) -> tuple[str, str]:
    """Message and hint of an error, as they are kept; of one that nobody foresaw, its kind too."""
    if isinstance(error, BinlogError):
        message, hint = error.message, error.hint
    else:
        message, hint = f"{type(error).__name__}: {error}", ""
    # A Java stack is long, and a file's name may be no UTF-8.
    message, hint = (each[:_LONGEST].encode(errors="backslashreplace").decode() for each in (message, hint))
    return message, hint


@contextmanager
def advising(change: Callable[[Part], Part]) -> Iterator[None]:
    """Each part of what an error of the block advises is changed so."""
    try:
        yield
    except BinlogError as error:
        error.advice = tuple(map(change, error.advice))
        raise


def naming(target: str) -> AbstractContextManager[None]:
    """What an error of the block advises is for this target, or section; the library knows of one, the run's."""
    return advising(lambda part: for_target(part, target))


class ConfigError(BinlogError):
    """A setting is missing, misspelled or impossible."""

    missing: bool | None = None


class AccessDenied(ConfigError):
    """A server answers, and does not let the user in, or does not let it do something."""

    server: str | None = None


class UsageError(BinlogError):
    """The command was called in a way that cannot work."""


class ClusterUnavailable(BinlogError):
    """No answer from PD, etcd or TiKV within the time given."""

    retryable = True
    url: str | None = None
    sent: bool | None = None  # the question may have arrived


class CorruptionError(BinlogError):
    """Bytes are not what was written. ``node_id``: whose value in the registry that is."""

    path: str | None = None
    offset: int | None = None
    reason: str | None = None
    node_id: str | None = None


class TornTail(CorruptionError):
    """The last file of a log ends in the middle of a record; the tail was never answered."""


class BadRecord(CorruptionError):
    """A value-log record has a wrong magic, length or checksum and is not the torn tail."""


class BadSegment(CorruptionError):
    """A segment object is not the one that the manifest names, or cannot be read."""


class BadManifest(CorruptionError):
    """A document of the archive is not the one that was written, has an unknown version, or does not chain."""


class PumpError(BinlogError):
    """A Pump refused or failed."""


class ClusterMismatch(PumpError):
    """The caller has another cluster id than this Pump."""

    got: int | None = None
    want: int | None = None


class BadBinlog(PumpError):
    """A payload does not parse as a Binlog or uses obsolete fields."""

    size: int | None = None
    limit: int | None = None


class PumpUnavailable(PumpError):
    """No answer from the Pump."""

    retryable = True
    node_id: str | None = None
    code: str | None = None  # the name of gRPC's


class PumpReadOnly(PumpError):
    """The Pump refuses prewrites because disk space is low."""

    retryable = True
    available: int | None = None
    limit: int | None = None


class PumpDraining(PumpError):
    """The Pump is not online and takes no prewrites."""

    retryable = True
    state: str | None = None


class PositionCollected(PumpError):
    """A pull asked for binlogs below the GC point."""

    start_from: int | None = None
    gc_point: int | None = None


class PullTooSlow(PumpError):
    """A pull that did not read held room that others waited for, and is ended."""

    retryable = True
    size: int | None = None
    seconds: float | None = None


class OrphanCommit(PumpError):
    """A commit whose prewrite is in no file."""

    start_ts: int | None = None
    commit_ts: int | None = None


class LateCommit(PumpError):
    """A commit at or below the published watermark."""

    start_ts: int | None = None
    commit_ts: int | None = None
    watermark: int | None = None


class WriterFailed(PumpError):
    """A write or fsync failed: this process writes nothing more."""

    path: str | None = None


class ResolverOverlap(PumpError):
    """A resolver's key prefixes overlap another live resolver's."""

    resolver_id: str | None = None
    other: str | None = None


class PeerRefused(PumpError):
    """The caller's certificate carries none of the allowed names, or the call is for operators."""

    peer: str | None = None


class GapError(BinlogError):
    """A range of history is missing."""

    node_id: str | None = None
    from_ts: int | None = None
    to_ts: int | None = None


class WindowHeld(GapError):
    """The window cannot be completed yet."""

    retryable = True
    holders: list[dict[str, Any]] | None = None


class SourcePurged(GapError):
    """The source has deleted binlogs that were not read yet."""

    position: str | None = None


class SourceErrant(GapError):
    """The position that was read to is not in the source's history: another server, or one that lost transactions."""

    position: str | None = None


class CodecError(BinlogError):
    """Bytes of a row, datum or key do not decode."""

    txn: int | None = None


class MissingColumn(CodecError):
    """A row image lacks a column of the key."""

    row: int | None = None
    column: str | None = None


class SchemaError(BinlogError):
    """The schema history lacks a fact that is needed."""


class UnknownTable(SchemaError):
    """A row names a table id that the timeline does not know."""

    table_id: int | None = None
    schema_version: int | None = None


class UnknownDdl(SchemaError):
    """A DDL job has a type that is unknown or unsupported."""

    job_id: int | None = None
    type: int | None = None


class HistoryUnavailable(SchemaError):
    """The source of the DDL job history does not answer."""

    retryable = True
    url: str | None = None


class ColumnMismatch(SchemaError):
    """A row image does not fit the columns."""


class StoreError(BinlogError):
    """Object storage failed."""


class ObjectNotFound(StoreError):
    """No such object."""

    key: str | None = None


class ObjectExists(StoreError):
    """A conditional put found an existing object."""

    key: str | None = None


class UnsafeStore(StoreError):
    """The store ignores conditional puts and cannot be trusted with manifests."""


class ManifestConflict(StoreError):
    """Another writer won this window; run again from the new end."""

    retryable = True


class StoreUnavailable(StoreError):
    """The store does not answer, or answers 5xx."""

    retryable = True


class SourceFailed(BinlogError):
    """The source of a dump does not answer, or its answer makes no sense."""

    retryable = True
    source: str | None = None


class SourceHeld(SourceFailed):
    """A table of the source stays locked, by a DDL or an XA transaction that is prepared, say."""

    retryable = True


class CaptureFenced(BinlogError):
    """Another process runs this capture: this one decides nothing any more."""

    capture_id: str | None = None
    owner: str | None = None


class CaptureRefused(BinlogError):
    """A source's binlog has something, or lacks something, so that a row or a statement could not be told exactly."""

    place: str | None = None  # of the event: GTID, or file and offset
    table: str | None = None
    column: str | None = None


class ImportRefused(BinlogError):
    """Binlog files say something, or lack something, so that no archive could be made of them exactly."""

    place: str | None = None  # file and byte


class LoadError(BinlogError):
    """Loading a target failed."""

    target: str | None = None
    table: str | None = None
    job_id: int | None = None


class TargetBusy(LoadError):
    """Another run holds the target."""

    retryable = True
    holder: str | None = None


class TargetAhead(LoadError):
    """The target is beyond the archive's end, or beyond the moment asked for."""

    checkpoint: int | None = None
    archive_end: int | None = None
    to: int | None = None


class TargetIncomplete(LoadError):
    """The target is in the middle of a restore or was abandoned; only a restore clears that."""


class RowRejected(LoadError):
    """The target cannot store the rows unchanged."""

    rows: int | None = None


class DuplicateKey(LoadError):
    """Two rows of the source have the same key: the source did not enforce it."""

    key: str | None = None
    rows: int | None = None


class TargetUnavailable(LoadError):
    """The target does not answer, or closed the connection."""

    retryable = True


class SparkUnavailable(LoadError):
    """Spark's master or Connect server does not answer or begins no session, or one that was killed has ended it."""

    retryable = True


class FenceLost(LoadError):
    """Another owner raised the target's fence: this run must change nothing more."""

    have: int | None = None
    found: int | None = None


class DdlRefused(LoadError):
    """The target refused a DDL and ran nothing of it."""

    code: int | None = None
    statement: str | None = None


class ConversionUnknown(LoadError):
    """A DDL changes a type, and it is not known how TiDB converts the rows' values."""


class PartitionUnsettled(LoadError):
    """Rows were written into a partition while it was dropped; some may have stayed."""

    row: str | None = None


class DdlUncertain(LoadError):
    """A DDL may have run before a crash, and the target does not show whether it did."""

    statement: str | None = None


class FoldRefused(BinlogError):
    """The archive alone does not say which rows a folded base would have at a moment."""

    tables: list[str] | None = None


class TopicRefused(BinlogError):
    """A Kafka topic is not there, holds other messages than the archive's, or does not take one of these."""

    topic: str | None = None
    size: int | None = None
    limit: int | None = None


class TopicFenced(BinlogError):
    """Another export sends to the Kafka topic now: what this one had not committed is not in it."""

    topic: str | None = None


class BrokersUnavailable(BinlogError):
    """Kafka's brokers do not answer, or lack replicas that a message needs."""

    retryable = True
    brokers: str | None = None


class RestoreError(BinlogError):
    """A restore cannot be planned or done."""


class TargetUnreachable(RestoreError):
    """The requested moment is outside the restorable range."""

    target: int | None = None
    have_from: int | None = None
    have_to: int | None = None
