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
│  └─ WindowHeld* (who holds the window, and since which start ts)
├─ CodecError └─ MissingColumn
├─ SchemaError ├─ UnknownTable ├─ UnknownDdl ├─ HistoryUnavailable* └─ ColumnMismatch
├─ StoreError ├─ ObjectNotFound ├─ ObjectExists ├─ UnsafeStore ├─ ManifestConflict* └─ StoreUnavailable*
├─ SourceFailed* (the database that a dump is taken of)
├─ LoadError ├─ TargetBusy* ├─ TargetAhead ├─ TargetIncomplete ├─ RowRejected ├─ DdlRefused ├─ DdlUncertain
│            ├─ DuplicateKey ├─ TargetUnavailable* ├─ FenceLost ├─ ConversionUnknown └─ PartitionUnsettled
└─ RestoreError └─ TargetUnreachable
                                                                  * = retryable

Each error carries its facts as public attributes (keyword arguments of the constructor), says in one sentence what,
where and what to type next (`hint`), and survives pickling, because Spark and Airflow pickle errors.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class BinlogError(Exception):
    """Base of the tree. ``BinlogError("what and where", hint="next command", fact=value)``."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __getattr__(self, name: str) -> Any:
        # Only reached when a fact was not given: facts are optional for callers.
        if name.startswith("__") or name in {"facts", "message", "hint"}:
            raise AttributeError(name)
        return self.__dict__.get("facts", {}).get(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)

    @classmethod
    def rebuild(cls, message: str, hint: str, facts: dict[str, Any]) -> Self:
        """Make the error again from its parts (unpickling, gRPC details)."""
        return cls(message, hint=hint, **facts)


def _rebuild(cls: type[BinlogError], message: str, hint: str, facts: dict[str, Any]) -> BinlogError:
    return cls.rebuild(message, hint, facts)


class ConfigError(BinlogError):
    """A setting is missing, misspelled or impossible."""


class AccessDenied(ConfigError):
    """A server answers, and does not let the user in, or does not let it do something. Facts: server."""


class UsageError(BinlogError):
    """The command was called in a way that cannot work."""


class ClusterUnavailable(BinlogError):
    """No answer from PD, etcd or TiKV within the time given. Facts: url."""

    retryable = True


class CorruptionError(BinlogError):
    """Bytes are not what was written. Facts: path, offset, reason."""


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
    """The caller has another cluster id than this Pump. Facts: got, want."""


class BadBinlog(PumpError):
    """A payload does not parse as a Binlog or uses obsolete fields."""


class PumpUnavailable(PumpError):
    """No answer from the Pump. Facts: node_id."""

    retryable = True


class PumpReadOnly(PumpError):
    """The Pump refuses prewrites because disk space is low. Facts: available, limit."""

    retryable = True


class PumpDraining(PumpError):
    """The Pump is not online and takes no prewrites. Facts: state."""

    retryable = True


class PositionCollected(PumpError):
    """A pull asked for binlogs below the GC point. Facts: start_from, gc_point."""


class PullTooSlow(PumpError):
    """A pull that did not read held room that others waited for, and is ended. Facts: size, seconds."""

    retryable = True


class OrphanCommit(PumpError):
    """A commit whose prewrite is in no file. Facts: start_ts, commit_ts."""


class LateCommit(PumpError):
    """A commit at or below the published watermark. Facts: start_ts, commit_ts, watermark."""


class WriterFailed(PumpError):
    """A write or fsync failed: this process writes nothing more. Facts: path."""


class ResolverOverlap(PumpError):
    """A resolver's key prefixes overlap another live resolver's. Facts: resolver_id, other."""


class PeerRefused(PumpError):
    """The caller's certificate carries none of the allowed names, or the call is for operators. Facts: peer."""


class GapError(BinlogError):
    """A range of history is missing. Facts: node_id, from_ts, to_ts."""


class WindowHeld(GapError):
    """The window cannot be completed yet. Facts: holders (list of who and why)."""

    retryable = True


class CodecError(BinlogError):
    """Bytes of a row, datum or key do not decode."""


class MissingColumn(CodecError):
    """A row image lacks a column of the key. Facts: row, column."""


class SchemaError(BinlogError):
    """The schema history lacks a fact that is needed."""


class UnknownTable(SchemaError):
    """A row names a table id that the timeline does not know. Facts: table_id, schema_version."""


class UnknownDdl(SchemaError):
    """A DDL job has a type that is unknown or unsupported. Facts: job_id, type."""


class HistoryUnavailable(SchemaError):
    """The source of the DDL job history does not answer. Facts: url."""

    retryable = True


class ColumnMismatch(SchemaError):
    """A row image does not fit the columns."""


class StoreError(BinlogError):
    """Object storage failed."""


class ObjectNotFound(StoreError):
    """No such object. Facts: key."""


class ObjectExists(StoreError):
    """A conditional put found an existing object. Facts: key."""


class UnsafeStore(StoreError):
    """The store ignores conditional puts and cannot be trusted with manifests."""


class ManifestConflict(StoreError):
    """Another writer won this window; run again from the new end."""

    retryable = True


class StoreUnavailable(StoreError):
    """The store does not answer, or answers 5xx."""

    retryable = True


class SourceFailed(BinlogError):
    """The source of a dump does not answer, or its answer makes no sense. Facts: source."""

    retryable = True


class LoadError(BinlogError):
    """Loading a target failed."""


class TargetBusy(LoadError):
    """Another run holds the target. Facts: target, holder."""

    retryable = True


class TargetAhead(LoadError):
    """The target is beyond the archive's end, or beyond the moment asked for. Facts: checkpoint, archive_end or to."""


class TargetIncomplete(LoadError):
    """The target is in the middle of a restore or was abandoned; only a restore clears that."""


class RowRejected(LoadError):
    """The target cannot store the rows unchanged. Facts: table, rows."""


class DuplicateKey(LoadError):
    """Two rows of the source have the same key: the source did not enforce it. Facts: table, key, rows."""


class TargetUnavailable(LoadError):
    """The target does not answer, or closed the connection. Facts: target."""

    retryable = True


class FenceLost(LoadError):
    """Another owner raised the target's fence: this run must change nothing more. Facts: target, have, found."""


class DdlRefused(LoadError):
    """The target refused a DDL and ran nothing of it. Facts: code, statement; job_id, where it is of the log."""


class ConversionUnknown(LoadError):
    """A DDL changes a type, and it is not known how TiDB converts the rows' values. Facts: table, job_id."""


class PartitionUnsettled(LoadError):
    """Rows were written into a partition while it was dropped; some may have stayed. Facts: table, job_id, row."""


class DdlUncertain(LoadError):
    """A DDL may have run before a crash, and the target does not show whether it did. Facts: statement."""


class RestoreError(BinlogError):
    """A restore cannot be planned or done."""


class TargetUnreachable(RestoreError):
    """The requested moment is outside the restorable range. Facts: target, have_from, have_to."""
