from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WriteBinlogsRequest(_message.Message):
    __slots__ = ("cluster_id", "batch_id", "payloads")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    batch_id: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, cluster_id: _Optional[int] = ..., batch_id: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ItemStatus(_message.Message):
    __slots__ = ("code", "reason", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class WriteBinlogsResponse(_message.Message):
    __slots__ = ("batch_id", "statuses")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    statuses: _containers.RepeatedCompositeFieldContainer[ItemStatus]
    def __init__(self, batch_id: _Optional[int] = ..., statuses: _Optional[_Iterable[_Union[ItemStatus, _Mapping]]] = ...) -> None: ...

class PullBatchesRequest(_message.Message):
    __slots__ = ("cluster_id", "start_from", "until", "max_frame_bytes")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_FROM_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    start_from: int
    until: int
    max_frame_bytes: int
    def __init__(self, cluster_id: _Optional[int] = ..., start_from: _Optional[int] = ..., until: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ...) -> None: ...

class Blocker(_message.Message):
    __slots__ = ("start_ts", "age_ms", "prewrite_key")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PREWRITE_KEY_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    age_ms: int
    prewrite_key: bytes
    def __init__(self, start_ts: _Optional[int] = ..., age_ms: _Optional[int] = ..., prewrite_key: _Optional[bytes] = ...) -> None: ...

class PullBatchesResponse(_message.Message):
    __slots__ = ("frame", "watermark", "node_id", "incarnation", "start_count", "sync_log", "gc_point", "blocker")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    START_COUNT_FIELD_NUMBER: _ClassVar[int]
    SYNC_LOG_FIELD_NUMBER: _ClassVar[int]
    GC_POINT_FIELD_NUMBER: _ClassVar[int]
    BLOCKER_FIELD_NUMBER: _ClassVar[int]
    frame: bytes
    watermark: int
    node_id: str
    incarnation: str
    start_count: int
    sync_log: bool
    gc_point: int
    blocker: Blocker
    def __init__(self, frame: _Optional[bytes] = ..., watermark: _Optional[int] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., start_count: _Optional[int] = ..., sync_log: bool = ..., gc_point: _Optional[int] = ..., blocker: _Optional[_Union[Blocker, _Mapping]] = ...) -> None: ...

class TransactionsRequest(_message.Message):
    __slots__ = ("cluster_id", "key_prefix", "above")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    key_prefix: bytes
    above: int
    def __init__(self, cluster_id: _Optional[int] = ..., key_prefix: _Optional[bytes] = ..., above: _Optional[int] = ...) -> None: ...

class Prewrite(_message.Message):
    __slots__ = ("start_ts", "prewrite_key", "open")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    PREWRITE_KEY_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    prewrite_key: bytes
    open: bool
    def __init__(self, start_ts: _Optional[int] = ..., prewrite_key: _Optional[bytes] = ..., open: bool = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("start_ts", "commit_ts")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    commit_ts: int
    def __init__(self, start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class TransactionsResponse(_message.Message):
    __slots__ = ("prewrites", "commits", "last", "gc_point", "above", "kept_out")
    PREWRITES_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    GC_POINT_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    KEPT_OUT_FIELD_NUMBER: _ClassVar[int]
    prewrites: _containers.RepeatedCompositeFieldContainer[Prewrite]
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    last: bool
    gc_point: int
    above: int
    kept_out: _containers.RepeatedCompositeFieldContainer[Commit]
    def __init__(self, prewrites: _Optional[_Iterable[_Union[Prewrite, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., last: bool = ..., gc_point: _Optional[int] = ..., above: _Optional[int] = ..., kept_out: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    def __init__(self, cluster_id: _Optional[int] = ...) -> None: ...

class PendingCommit(_message.Message):
    __slots__ = ("start_ts", "commit_ts", "accepted")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    commit_ts: int
    accepted: bool
    def __init__(self, start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ..., accepted: bool = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("node_id", "incarnation", "start_count", "state", "watermark", "gc_point", "deletion_limit", "gc_held_by", "unresolved", "oldest_unresolved", "late", "orphans", "value_log_bytes", "value_log_files", "available_bytes", "read_only", "writer_failed", "sync_log", "slow_mode", "duplicate_commits", "version", "in_clear")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    START_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    GC_POINT_FIELD_NUMBER: _ClassVar[int]
    DELETION_LIMIT_FIELD_NUMBER: _ClassVar[int]
    GC_HELD_BY_FIELD_NUMBER: _ClassVar[int]
    UNRESOLVED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNRESOLVED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    ORPHANS_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOG_FILES_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    WRITER_FAILED_FIELD_NUMBER: _ClassVar[int]
    SYNC_LOG_FIELD_NUMBER: _ClassVar[int]
    SLOW_MODE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_COMMITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IN_CLEAR_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    start_count: int
    state: str
    watermark: int
    gc_point: int
    deletion_limit: int
    gc_held_by: _containers.RepeatedScalarFieldContainer[str]
    unresolved: int
    oldest_unresolved: _containers.RepeatedCompositeFieldContainer[Blocker]
    late: _containers.RepeatedCompositeFieldContainer[PendingCommit]
    orphans: _containers.RepeatedCompositeFieldContainer[PendingCommit]
    value_log_bytes: int
    value_log_files: int
    available_bytes: int
    read_only: bool
    writer_failed: bool
    sync_log: bool
    slow_mode: bool
    duplicate_commits: int
    version: str
    in_clear: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., start_count: _Optional[int] = ..., state: _Optional[str] = ..., watermark: _Optional[int] = ..., gc_point: _Optional[int] = ..., deletion_limit: _Optional[int] = ..., gc_held_by: _Optional[_Iterable[str]] = ..., unresolved: _Optional[int] = ..., oldest_unresolved: _Optional[_Iterable[_Union[Blocker, _Mapping]]] = ..., late: _Optional[_Iterable[_Union[PendingCommit, _Mapping]]] = ..., orphans: _Optional[_Iterable[_Union[PendingCommit, _Mapping]]] = ..., value_log_bytes: _Optional[int] = ..., value_log_files: _Optional[int] = ..., available_bytes: _Optional[int] = ..., read_only: bool = ..., writer_failed: bool = ..., sync_log: bool = ..., slow_mode: bool = ..., duplicate_commits: _Optional[int] = ..., version: _Optional[str] = ..., in_clear: _Optional[_Iterable[str]] = ...) -> None: ...

class AcceptRequest(_message.Message):
    __slots__ = ("cluster_id", "start_ts", "commit_ts", "reason")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    start_ts: int
    commit_ts: int
    reason: str
    def __init__(self, cluster_id: _Optional[int] = ..., start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AcceptResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("cluster_id", "start_ts", "commit_ts", "reason", "who")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    start_ts: int
    commit_ts: int
    reason: str
    who: str
    def __init__(self, cluster_id: _Optional[int] = ..., start_ts: _Optional[int] = ..., commit_ts: _Optional[int] = ..., reason: _Optional[str] = ..., who: _Optional[str] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TriggerGcRequest(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    def __init__(self, cluster_id: _Optional[int] = ...) -> None: ...

class TriggerGcResponse(_message.Message):
    __slots__ = ("started", "gc_point", "deletion_limit", "held_by", "freed_files", "freed_bytes", "kept_files", "requested_by_retention", "requested_by_checkpoints")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    GC_POINT_FIELD_NUMBER: _ClassVar[int]
    DELETION_LIMIT_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    FREED_FILES_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FILES_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_RETENTION_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    started: bool
    gc_point: int
    deletion_limit: int
    held_by: _containers.RepeatedScalarFieldContainer[str]
    freed_files: int
    freed_bytes: int
    kept_files: int
    requested_by_retention: int
    requested_by_checkpoints: int
    def __init__(self, started: bool = ..., gc_point: _Optional[int] = ..., deletion_limit: _Optional[int] = ..., held_by: _Optional[_Iterable[str]] = ..., freed_files: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., kept_files: _Optional[int] = ..., requested_by_retention: _Optional[int] = ..., requested_by_checkpoints: _Optional[int] = ...) -> None: ...

class TxnStatusRequest(_message.Message):
    __slots__ = ("cluster_id", "start_ts", "prewrite_key", "decide")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    PREWRITE_KEY_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    start_ts: int
    prewrite_key: bytes
    decide: bool
    def __init__(self, cluster_id: _Optional[int] = ..., start_ts: _Optional[int] = ..., prewrite_key: _Optional[bytes] = ..., decide: bool = ...) -> None: ...

class TxnStatusResponse(_message.Message):
    __slots__ = ("outcome", "commit_ts")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PENDING: _ClassVar[TxnStatusResponse.Outcome]
        COMMITTED: _ClassVar[TxnStatusResponse.Outcome]
        ROLLED_BACK: _ClassVar[TxnStatusResponse.Outcome]
    PENDING: TxnStatusResponse.Outcome
    COMMITTED: TxnStatusResponse.Outcome
    ROLLED_BACK: TxnStatusResponse.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    outcome: TxnStatusResponse.Outcome
    commit_ts: int
    def __init__(self, outcome: _Optional[_Union[TxnStatusResponse.Outcome, str]] = ..., commit_ts: _Optional[int] = ...) -> None: ...
