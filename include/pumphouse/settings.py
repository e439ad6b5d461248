"""The one table of settings: command line > ``PUMPHOUSE_<SECTION>__<NAME>`` > ``pumphouse.toml`` > default.

A secret may be in a file of its own, which ``PUMPHOUSE_<SECTION>__<NAME>_FILE`` names. Entry points load the settings
and hand each room its own section; libraries never read the environment. An unknown name is an error that lists the
known ones. Secrets are SecretStr and are never shown.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from pumphouse.errors import ConfigError, UsageError
from pumphouse.model.address import dialable, means_all
from pumphouse.model.moment import zone_of
from pumphouse.model.pattern import fits

ENV_PREFIX = "PUMPHOUSE_"
# The connection of [target].
DOWNSTREAM = "pumphouse_downstream"
MIB = 1 << 20
GIB = 1 << 30
_SHORTEST_TOKEN = 16


class Section(BaseModel):
    """Base of all sections: frozen, and strict about names."""

    # A value may be a secret: it is not shown by pydantic either, in a traceback, say.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _names(value: Any) -> Any:
    """``a,b`` or ``["a", "b"]`` where a list cannot be written: command line and environment."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        names = json.loads(text) if text.startswith("[") else text.split(",")
    except ValueError:
        names = [""]
    # Without a name nobody is asked for a certificate: a variable that is empty by mistake must not mean that.
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError('names are written as a,b or ["a", "b"], none as []')
    return tuple(name.strip() for name in names)


class TlsSettings(Section):
    """One CA and one certificate for gRPC, HTTP, etcd and PD. TLS is on when `ca` is set."""

    ca: Path | None = Field(None, description="PEM file of the CA that peers must be signed by")
    cert: Path | None = Field(None, description="PEM file of our certificate")
    key: Path | None = Field(None, description="PEM file of our key")
    cert_allowed_cn: tuple[str, ...] = Field(
        (), description="client certificates are required and must carry one of these names"
    )

    @field_validator("cert_allowed_cn", mode="before")
    @classmethod
    def _read_names(cls, value: Any) -> Any:
        return _names(value)

    @model_validator(mode="after")
    def _is_on(self) -> Self:
        """What only has a meaning with TLS must not be served in clear."""
        left = [name for name in ("cert", "key", "cert_allowed_cn") if getattr(self, name)]
        if left and self.ca is None:
            raise ValueError(f"tls.{left[0]} is set and tls.ca is not: without tls.ca nothing would be encrypted")
        return self

    @property
    def enabled(self) -> bool:
        """Whether connections are encrypted."""
        return self.ca is not None


class ClusterSettings(Section):
    """Which cluster."""

    url: str = Field(
        "file://./build/cluster", description="pd://host:port[,…], etcd://host:port[,…][/root] or file:///dir"
    )
    user: str = Field("", description="user of etcd, if etcd asks for one")
    password: SecretStr = Field(SecretStr(""), description="password of that user")
    operator_token: SecretStr = Field(
        SecretStr(""),
        description="what proves an operator to the cluster's Pumps: one token a line; a Pump takes each of them, "
        "a client sends the first; empty = none",
    )
    init_tries: int = Field(
        100,
        ge=1,
        description="how many times a starting Pump asks PD or etcd before it gives up, one second apart; each attempt "
        "takes some seconds if nothing answers",
    )

    @field_validator("operator_token")
    @classmethod
    def _is_hard_to_guess(cls, value: SecretStr) -> SecretStr:
        for token in value.get_secret_value().split():
            if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
                raise ValueError(f"a token has {_SHORTEST_TOKEN} characters of ASCII at least: `openssl rand -hex 24`")
        return value

    @property
    def operator_tokens(self) -> tuple[str, ...]:
        """The tokens, the one that clients send first."""
        return tuple(self.operator_token.get_secret_value().split())


class PumpSettings(Section):
    """One Pump process."""

    node_id: str = Field(
        "",
        description="node id for an empty data directory, which keeps it from then on (<data_dir>/.node); empty = "
        "host name:port",
    )
    data_dir: Path = Field(Path("data.pump"), description="value log, index and identity")
    addr: str = Field("127.0.0.1:8250", description="host:port that gRPC listens on")
    transport: Literal["builtin", "grpcio"] = Field(
        "builtin", description="gRPC server: builtin (gRPC and HTTP on one port), or the grpcio library (slower)"
    )
    http_addr: str = Field(
        "", description="host:port of the HTTP API; empty = addr itself, or a free port on the same host (grpcio)"
    )
    advertise_addr: str = Field("", description="host:port that others connect to; empty = addr")
    http_hosts: tuple[str, ...] = Field(
        (),
        description="further host names that the HTTP API answers to, beside addresses, localhost, this machine's name "
        "and those of `addr`, `http_addr` and `advertise_addr`; `*` = any (docs/security.md)",
    )
    open_operations: tuple[Literal["state", "gc", "rows", "settle", "accept"], ...] = Field(
        (),
        description="operators' calls that need no proof: state (pause, close), gc, rows (`/debug/binlog`), settle, "
        "accept; `state` is for binlogctl without a certificate",
    )
    trust_loopback: bool = Field(
        True,
        description="who connects over the loopback or the unix socket is an operator; false behind a proxy or a "
        "sidecar on this machine, whose callers come from elsewhere",
    )
    heartbeat_interval_s: float = Field(
        2.0, gt=0, description="seconds between heartbeats; a Pump whose last heartbeat is 10 s old counts as silent"
    )
    gen_binlog_interval_s: float = Field(
        3.0, gt=0, description="seconds without progress after which a fake binlog is written"
    )
    max_txn_timeout_s: float = Field(
        600.0,
        gt=0,
        description="age of a prewrite after which the Pump asks for its outcome with the power to roll back",
    )
    gc_hold_ttl_s: float = Field(
        6 * 3600.0,
        ge=3,
        description="pd://: seconds that TiDB's GC stays below an unresolved prewrite after this Pump's last renewal",
    )
    resolve_interval_s: float = Field(1.0, gt=0, description="seconds between questions about one unresolved prewrite")
    retention_s: float = Field(7 * 86_400.0, gt=0, description="binlogs younger than this are always kept")
    gc_interval_s: float = Field(3600.0, gt=0, description="seconds between GC runs")
    # A pointer has 40 bits for an offset (pump_service.store.order), and the last record lies across the limit.
    value_log_file_bytes: int = Field(
        500 * MIB, ge=4096, le=1 << 39, description="a value-log file is closed when it exceeds this size"
    )
    sync_log: bool = Field(True, description="fdatasync before an answer")
    stop_write_at_available_bytes: int = Field(
        10 * GIB, ge=0, description="prewrites are refused below this free space"
    )
    reserve_bytes: int = Field(16 * MIB, ge=0, description="preallocated space for commits and fakes on a full disk")
    group_commit_bytes: int = Field(8 * MIB, ge=4096, description="maximum bytes in one write and fsync")
    queue_bytes: int = Field(256 * MIB, ge=MIB, description="bytes of waiting requests before callers are held back")
    slow_chaser_threshold_s: float = Field(
        1.0, gt=0, description="slow mode starts when a hand-over to the index blocks longer than this"
    )
    index_queue_records: int = Field(1 << 20, ge=1, description="maximum records between value log and index")
    pull_batch_bytes: int = Field(4 * MIB, ge=4096, description="maximum bytes in one frame of a batch pull")
    pull_memory_bytes: int = Field(
        64 * MIB,
        ge=MIB,
        description="bytes that all pull streams together may hold for peers; above it frames get small",
    )
    max_message_bytes: int = Field(
        (1 << 31) - 1, ge=4096, le=(1 << 31) - 1, description="a larger request is refused as ResourceExhausted"
    )
    check_rows: bool = Field(
        True,
        description="refuse a prewrite whose rows nobody could read, as no archive and no Drainer gets past it; "
        "false = take it, as a Go Pump does",
    )
    incomplete_bytes: int = Field(
        256 * MIB,
        ge=16 * MIB,
        description="bytes of incomplete requests over all connections, without the oldest; above it all but the "
        "oldest wait, and above twice as many they are refused as Unavailable; a compressed request that is larger is "
        'refused as ResourceExhausted (`transport = "builtin"`)',
    )
    max_connections: int = Field(
        4096,
        ge=16,
        description="connections at once, at most half of the process's open files (RLIMIT_NOFILE, which the Pump "
        "raises to its hard limit); above it one that has been idle for 10 s makes room, else the new one is ended; "
        'HTTP/1 has 256 of them (`transport = "grpcio"` bounds HTTP alone)',
    )
    max_calls: int = Field(
        8192,
        ge=64,
        description="calls at once over all connections, beside writes that come whole; above it a new one is refused, "
        "and above half of it also one whose request has not moved for 10 s",
    )
    max_pull_streams: int = Field(
        128,
        ge=1,
        description="pull streams at once; above it a new one is refused. Who shows a certificate or an operator's "
        "token has as many of their own",
    )
    socket: str = Field("", description="unix socket that gRPC also listens on, as unix:///path; empty = none")
    labels: dict[str, str] = Field(
        {}, description="labels in heartbeats, as zone=a,rack=7; clients may choose Pumps by them"
    )
    metrics_push_addr: str = Field(
        "", description="host:port or URL of a Prometheus Pushgateway that gets the metrics; empty = none"
    )
    metrics_push_interval_s: float = Field(15.0, ge=0, description="seconds between pushes; 0 = none")
    log_file: str = Field("", description="file that `pump run` appends its log to; empty = stderr")
    index_cache_bytes: int = Field(8 * MIB, ge=0, description="LevelDB: cache of index blocks")
    index_block_bytes: int = Field(4096, ge=1024, description="LevelDB: size of an index block")
    index_block_restart_interval: int = Field(16, ge=1, description="LevelDB: keys between restart points of a block")
    index_table_bytes: int = Field(2 * MIB, ge=MIB, description="LevelDB: size of a table file")
    index_open_tables: int = Field(
        100,
        ge=74,
        description="LevelDB: table files kept open; each keeps its filter and index in memory (some 130 kB)",
    )
    index_write_buffer_bytes: int = Field(
        4 * MIB, ge=64 << 10, description="LevelDB: bytes kept in memory before a table is written"
    )

    @field_validator("advertise_addr")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if value and means_all(value):
            raise ValueError("invalid advertiseAddr host: it must be one that others can connect to")
        return dialable(value)

    @field_validator("http_hosts", "open_operations", mode="before")
    @classmethod
    def _read_names(cls, value: Any) -> Any:
        return _names(value)

    @field_validator("labels", mode="before")
    @classmethod
    def _read_labels(cls, value: Any) -> Any:
        """``zone=a,rack=7`` where a table cannot be written: command line and environment."""
        if not isinstance(value, str):
            return value
        pairs = [item.partition("=") for item in value.split(",") if item.strip()]
        if not all(sep and name.strip() for name, sep, _ in pairs):
            raise ValueError("labels are written as zone=a,rack=7")
        return {name.strip(): text.strip() for name, _, text in pairs}


Encryption = Literal["", "AES256", "aws:kms", "aws:kms:dsse"]
# Those that are read at once.
BaseClass = Literal["", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """How a store on S3 is reached and written: the settings ``s3_…`` of [archive]."""

    endpoint: str
    region: str
    access_key: str
    secret_key: SecretStr
    session_token: SecretStr
    encryption: Encryption
    kms_key: str
    object_lock: bool
    base_class: BaseClass


class ArchiveSettings(Section):
    """The archive in object storage."""

    root: str = Field("file://./build/archive", description="s3://bucket/prefix or file:///dir")
    copy_root: str = Field(
        "",
        description="where `pumphouse archive copy` and the DAG `binlog_maintenance` bring a copy of the archive to: "
        "s3://bucket/prefix or file:///dir; empty = no copy",
    )
    copy_late_s: float = Field(
        172_800.0,
        gt=0,
        description="seconds that the end of the copy may lie before the archive's; `pumphouse status` warns above it",
    )
    archive_id: str = Field(
        "main", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="name of this archive; it registers as pumphouse-<id>"
    )
    cluster_id: int = Field(
        0,
        ge=0,
        description="cluster whose archive is read, where `root` has several and no cluster is asked; 0 = that of "
        "`cluster.url`, or the only one there",
    )
    time_zone: str = Field("UTC", description="zone of a TIME on the command line that names none, as Europe/Berlin")
    s3_endpoint: str = Field("", description="endpoint of an S3 server, without keys; empty = AWS")
    s3_region: str = Field("us-east-1", description="region")
    s3_access_key: str = Field("", description="access key; empty = the SDK's default chain")
    s3_secret_key: SecretStr = Field(SecretStr(""), description="secret key")
    s3_session_token: SecretStr = Field(SecretStr(""), description="token of temporary keys")
    s3_encryption: Encryption = Field(
        "", description="encryption at rest of what is written; empty = as the bucket says"
    )
    s3_kms_key: str = Field("", description="key of KMS, for `aws:kms` and `aws:kms:dsse`; empty = the account's own")
    s3_object_lock: bool = Field(
        False, description="the bucket has Object Lock: each write says the checksum that S3 asks for there"
    )
    s3_base_class: BaseClass = Field(
        "", description="storage class of the rows of dumps and bases, which are seldom read; empty = STANDARD"
    )
    copy_s3_region: str = Field(
        "",
        description="region of the copy. If it is set, the settings `copy_s3_…` say how the copy is reached and "
        "written; empty = as the archive is",
    )
    copy_s3_endpoint: str = Field("", description="as `s3_endpoint`, of the copy")
    copy_s3_access_key: str = Field("", description="as `s3_access_key`, of the copy")
    copy_s3_secret_key: SecretStr = Field(SecretStr(""), description="secret key of the copy")
    copy_s3_session_token: SecretStr = Field(SecretStr(""), description="as `s3_session_token`, of the copy")
    copy_s3_encryption: Encryption = Field("", description="as `s3_encryption`, of the copy")
    copy_s3_kms_key: str = Field("", description="as `s3_kms_key`, of the copy")
    copy_s3_object_lock: bool = Field(False, description="as `s3_object_lock`, of the copy")
    copy_s3_base_class: BaseClass = Field("", description="as `s3_base_class`, of the copy")
    task_budget_bytes: int = Field(
        256 * MIB,
        ge=1,
        description="payload bytes that one task pulls from one Pump for one window; the commit needs room for those "
        "of all Pumps in `TMPDIR`",
    )
    part_bytes: int = Field(64 * MIB, ge=1 << 10, description="a larger payload is cut into parts at row boundaries")
    pull_timeout_s: float = Field(900.0, gt=0, description="a task fails if its window is held longer than this")
    poll_interval_s: float = Field(0.5, gt=0, description="seconds between checks of a held window")
    consumer_stale_s: float = Field(
        7200.0, gt=0, description="a consumer is shown as stale if it writes no checkpoint for this long"
    )
    ddl_wait_s: float = Field(120.0, gt=0, description="how long a window waits for a DDL job to appear in the history")
    go_pump_gc_s: float = Field(
        7 * 86_400.0,
        gt=0,
        description="the shortest `gc` of the Go Pumps, which free data by age, whatever the archive has",
    )
    go_pump_margin_s: float = Field(
        20 * 3600.0, ge=0, description="GC reports a Go Pump as an error if the archive is less than this ahead of it"
    )

    @field_validator("time_zone")
    @classmethod
    def _a_zone(cls, value: str) -> str:
        try:
            zone_of(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    @property
    def s3(self) -> S3Access:
        """How the store of `root` is reached and written: that of a copy by its own settings, where it has any."""
        prefix = "copy_s3_" if self.copy_s3_region and self.root == self.copy_root else "s3_"
        return S3Access(**{each.name: getattr(self, prefix + each.name) for each in fields(S3Access)})

    @field_validator("s3_endpoint", "copy_s3_endpoint")
    @classmethod
    def _endpoint_carries_no_secret(cls, value: str) -> str:
        """No part of S3 reads one there, and every message about the server would show it."""
        if "@" in value:
            raise ValueError(
                "carries a user or a password, which S3 does not read there: write scheme://host:port, and the keys as "
                "s3_access_key and s3_secret_key"
            )
        return value

    @model_validator(mode="after")
    def _access_to_the_copy_is_whole(self) -> Self:
        """Keys of one account never meet the endpoint of another."""
        said = [name for name in ArchiveSettings.model_fields if name.startswith("copy_s3_") and getattr(self, name)]
        if said and not self.copy_s3_region:
            raise ValueError(f"archive.{said[0]} is set: set archive.copy_s3_region too, and all that the copy needs")
        return self

    @model_validator(mode="after")
    def _margin_is_possible(self) -> Self:
        """No archive is ahead by more than all that is kept."""
        if self.go_pump_margin_s >= self.go_pump_gc_s:
            raise ValueError(
                f"archive.go_pump_margin_s ({self.go_pump_margin_s:g}) must be below archive.go_pump_gc_s "
                f"({self.go_pump_gc_s:g}): an archive that has everything is ahead by that much"
            )
        return self


class SchemaSettings(Section):
    """The source of the DDL job history."""

    history: str = Field(
        "",
        description="http(s)://tidb:10080 (TiDB's status API) or mysql://user@host:port/schema.table; or empty",
    )
    history_password: SecretStr = Field(SecretStr(""), description="password of a mysql:// history")
    history_tls_ca: Path | None = Field(None, description="PEM file of the CA of a mysql:// history; set = TLS")
    history_tls_check_name: bool = Field(True, description="the same as `source.tls_check_name`")


class ServerSettings(Section):
    """A database server."""

    host: str = Field("127.0.0.1", description="host")
    port: int = Field(3306, description="port")
    user: str = Field("root", description="user")
    password: SecretStr = Field(SecretStr(""), description="password")
    unix_socket: str = Field("", description="socket path instead of host and port")
    tls_ca: Path | None = Field(None, description="PEM file of the server's CA; set = TLS")
    tls_check_name: bool = Field(
        True,
        description="whether the certificate must name the host; false for the one that a MySQL makes for itself, with "
        "the `ca.pem` of its data directory as `tls_ca`",
    )


class SourceSettings(ServerSettings):
    """The source database: `archive dump` reads it; `restore --table` and `flashback` write to it, `--into source`."""

    host: str = Field("", description="host; empty = no source is configured")


class CaptureSettings(Section):
    """`pumphouse capture`: the row binlog of the server of [source], as transactions of the Pumps."""

    id: str = Field(
        "main",
        pattern=r"^[a-z0-9_-]{1,40}$",
        description="name of the capture in the cluster; each source has one, and each capture a directory of its own",
    )
    directory: Path = Field(
        Path("data.capture"),
        description="what was decided, the schema, and the shadow server; on a disk that survives a crash",
    )
    server_id: int = Field(
        1_900_000_001, ge=1, le=(1 << 32) - 1, description="server id that no other replica of the source has"
    )
    hosts: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (),
        description="host:port of the servers that may take the place of [source]'s, with the same user, password and "
        "CA; the capture follows the one that takes writes and is no replica",
    )
    listen: str = Field("127.0.0.1:0", description="host:port where Pumps ask for outcomes; they must reach it")
    without: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="tables that are left out, as `database.table`, also as a pattern (`audit.*`, `*.tmp_*`)"
    )
    group_bytes: int = Field(
        4 * MIB, ge=1 << 16, description="bytes of rows that are published at once; a larger transaction goes alone"
    )
    queue_bytes: int = Field(
        16 * MIB, ge=MIB, description="bytes that are read ahead of the Pumps; above it the source waits"
    )
    copies: int = Field(
        1,
        ge=1,
        le=5,
        description="how many Pumps, each on another host, take each transaction before it counts; the loss of one "
        "disk loses nothing with two",
    )
    semi_sync: bool = Field(
        False,
        description="acknowledge as a semi-sync replica does: a commit of the source returns once the Pumps have it; "
        "schema.history must be on another server",
    )
    shadow: str = Field(
        "",
        description="program of a server of the source's kind and version, which runs its DDL; empty = mariadbd or "
        "mysqld of this machine",
    )

    @field_validator("listen")
    @classmethod
    def _dialable(cls, value: str) -> str:
        return dialable(value)

    @field_validator("hosts")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            host, _, port = each.rpartition(":")
            if not (host and port.isdecimal()):
                raise ValueError(f"{each!r} is no host:port")
        return value

    @field_validator("without")
    @classmethod
    def _tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not 0 < name.find(".") < len(name) - 1:
                raise ValueError(f"{name!r} is no database.table")
        return value

    def leaves_out(self, db: str, table: str) -> bool:
        """Whether a table is left out."""
        return any(fits(f"{db}.{table}", pattern) for pattern in self.without)


class DumpRule(Section):
    """Tables that a dump leaves out; `dump.without` has one table for each rule."""

    table: str = Field(description="`database.table`, also as a pattern (`audit.*`, `*.tmp_*`)")
    why: str = Field(min_length=1, description="reason; recorded in the dump")

    @field_validator("table")
    @classmethod
    def _a_table(cls, value: str) -> str:
        if not 0 < value.find(".") < len(value) - 1:
            raise ValueError(f"{value!r} is no database.table")
        return value

    def covers(self, db: str, table: str) -> bool:
        """Whether a table is left out."""
        return fits(f"{db}.{table}", self.table)


def _read_rules(value: Any) -> Any:
    """JSON where a table cannot be written: command line and environment."""
    try:
        return json.loads(value or "[]") if isinstance(value, str) else value
    except ValueError:
        raise ValueError(
            'rules are written as [{"table": "shop.orders", "why": "…"}], of load.rules with "do"'
        ) from None


class DumpSettings(Section):
    """Dumps of the source (`archive dump`)."""

    connections: int = Field(2, ge=1, description="tables read at once")
    chunk_bytes: int = Field(
        32 * MIB, ge=1 << 10, description="bytes of one chunk; each connection holds four chunks in memory"
    )
    chunk_rows: int = Field(500_000, ge=1, description="maximum rows in one query")
    bytes_per_s: int = Field(
        0, ge=0, description="bytes per second read from the source over all connections; 0 = no limit"
    )
    lock_wait_s: float = Field(
        10.0, gt=0, description="maximum time that writers of a table without a key have to wait"
    )
    resume_s: float = Field(
        86_400.0, ge=0, description="an unfinished dump that was begun longer ago is not resumed: a new one begins"
    )
    without: Annotated[tuple[DumpRule, ...], BeforeValidator(_read_rules)] = Field(
        (), description="tables that a dump leaves out, so that it can go on with the rest"
    )


class TargetSettings(ServerSettings):
    """A downstream database."""

    schema_name: str = Field("pumphouse", description="schema of our own tables on the target")


class LoadRule(Section):
    """A deviation of a load from what the source says; `load.rules` has one table for each."""

    do: Literal["skip", "replace", "park", "route"] = Field(
        description="skip a DDL, a transaction or a table; replace a DDL; park a table: skip it, and report it "
        "until it is brought back; route a database or a table to another name on the target"
    )
    ddl: int = Field(0, ge=0, description="job id of the DDL, or commit ts of its binlog")
    txn: int = Field(0, ge=0, description="commit ts of a transaction whose rows are left out")
    table: str = Field(
        "",
        description="`database.table`, also as a pattern (`audit.*`, `*.tmp_*`; for route with one `*`, in the table's "
        "name), or the id of a table that no DDL names",
    )
    database: str = Field("", description="for route: a database, with all its tables that no other rule routes")
    to: str = Field(
        "", description="for route: the name on the target; a `*` stands for the text that the pattern's `*` matches"
    )
    but: tuple[str, ...] = Field((), description="for a pattern: exceptions, by name or pattern")
    sql: tuple[str, ...] = Field((), description="for replace: the statements for the target; they may run twice")
    why: str = Field(min_length=1, description="reason; recorded on the target")
    by: str = Field("", description="who requests it; empty = the user of the process that first uses it")

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if self.do == "route":
            return self._routed()
        if self.database or self.to:
            raise ValueError('database and to are of a route: do = "route"')
        if bool(self.ddl) + bool(self.table) + bool(self.txn) != 1:
            raise ValueError(
                'a rule names a DDL, a table or a transaction: ddl = JOB, table = "database.table" or txn = COMMIT_TS'
            )
        if self.txn and self.do != "skip":
            raise ValueError("a transaction can only be skipped")
        if self.but and not self.table:
            raise ValueError("but is for a table's pattern")
        if bool(self.table) and not (self.table.isdigit() or 0 < self.table.find(".") < len(self.table) - 1):
            raise ValueError(f"{self.table!r} is no database.table")
        if (self.do == "park" and self.ddl) or (self.do == "replace") != bool(self.sql) or (self.sql and self.table):
            raise ValueError("park is for a table, replace for a ddl, and sql for replace")
        return self

    def _routed(self) -> Self:
        if self.ddl or self.txn or self.but or self.sql or bool(self.table) == bool(self.database) or not self.to:
            raise ValueError(
                'a route is of a database or a table: database = "shop", to = "shop_2", or table = "shop.orders_*", '
                'to = "archive.orders_*"'
            )
        for name in (self.table, self.to) if self.table else ():
            db, _, table = name.partition(".")
            if not db or not table or "*" in db or table.count("*") != self.to.count("*") or table.count("*") > 1:
                raise ValueError(
                    f"{self.table!r} to {self.to!r} is no route of tables: both are database.table, and both or none "
                    "have one * in the table's name"
                )
        if len(self.table or self.database) + len(self.to) > 240:
            raise ValueError("a route's names are too long for the table `rule` of the target: 240 characters")
        if "*" in self.database or (self.database and "*" in self.to):
            raise ValueError('a route of a database has no *; tables have: table = "shop.*"')
        return self


def _no_two_of_one(rules: tuple[LoadRule, ...]) -> tuple[LoadRule, ...]:
    names = [
        str(rule.ddl or rule.txn or f"{'a route of ' * (rule.do == 'route')}{rule.table or rule.database}".lower())
        for rule in rules
    ]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"two rules for {', '.join(twice)}")
    return rules


LoadRules = Annotated[tuple[LoadRule, ...], BeforeValidator(_read_rules), AfterValidator(_no_two_of_one)]


class NamedTarget(TargetSettings):
    """One more target of the same archive, with its own checkpoint and rules; it takes nothing from `[target]`.

    `pumphouse load --target NAME` loads it. Airflow uses the connection NAME if there is one, else this section.
    """

    host: str = Field("", description="host")
    user: str = Field("", description="user")
    rules: LoadRules = Field((), description="rules of this target, in place of `load.rules`")
    scratch: bool = Field(
        False, description="a server for drills: `binlog_load` does not load it, and GC does not wait for it"
    )


class LoadSettings(Section):
    """Loading a target."""

    task: str = Field(
        "main", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="name of the load; key of its checkpoint on the target"
    )
    mode: Literal["merge", "replay"] = Field(
        "merge", description="merge folds to the net change per key; replay applies change by change, in commit order"
    )
    engine: Literal["auto", "spark", "local"] = Field(
        "auto",
        description="where a load's stages run; local = in this process; auto = in this process up to `local_bytes`",
    )
    local_bytes: int = Field(
        2048 * MIB,
        ge=0,
        description="with engine = auto: a plan of up to this many payload bytes is loaded without Spark; the process "
        "needs about 1.4 times as much memory, and on one machine it is faster than Spark (docs/performance.md). A "
        "dump's tables that nobody wrote to meanwhile do not count",
    )
    safe_mode: bool = Field(True, description="INSERT as REPLACE, UPDATE as DELETE and REPLACE")
    buckets: int = Field(
        0, ge=0, description="buckets that a table's changes are divided into; 0 = chosen by their size"
    )
    unit_bytes: int = Field(64 * MIB, ge=1 << 16, description="target size of one load unit in bytes")
    connections: int = Field(2, ge=1, description="units applied at once")
    bytes_per_s: int = Field(
        0,
        ge=0,
        description="bytes of rows per second sent to the target over all connections, a unit at a time; 0 = no limit",
    )
    max_plan_bytes: int = Field(
        32 * GIB, ge=1, description="maximum archive bytes in one plan; a longer range is loaded in several plans"
    )
    triggers: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (),
        description="triggers on the target, as `database.trigger`, that the rows of a load fire; a table with another "
        "one is refused",
    )
    rules: LoadRules = Field(
        (), description='deviations of loads and restores from what the source says: operations, "Rules"'
    )


class DrillSettings(Section):
    """Drills: restores that are tried, proved and thrown away (docs/drill.md)."""

    into: str = Field(
        "",
        description="server of drills, for `pumphouse drill` without `--into` and for `binlog_drill`: restore_target, "
        "target, or NAME of [targets.NAME]; empty = no drills are configured",
    )
    tables: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        ("%.%",), min_length=1, description="what a drill restores: tables, or patterns as for `restore --table`"
    )
    whole: bool = Field(
        False,
        description="`binlog_drill` drills the restore of everything, as `pumphouse drill --whole` does; `into` is a "
        "NAME with `scratch = true` then, whose server has nothing else",
    )
    max_age_s: float = Field(
        8 * 86_400.0, gt=0, description="with `into`: `status` reports if no drill has ended for this long"
    )
    keep: int = Field(200, ge=1, description="drills that the archive keeps; older ones go, with their proofs")


class RetentionSettings(Section):
    """How much of the archive is kept (`archive expire`); without `keep_bases` and `keep_days` nothing expires."""

    keep_bases: int | None = Field(
        None,
        ge=1,
        description="bases that are kept, dumps and folded ones alike, with every moment behind the oldest of them; "
        "empty = no say",
    )
    keep_days: float | None = Field(
        None,
        ge=0,
        description="days whose moments can be restored; with `keep_bases`, whatever one of them wants is kept; empty "
        "= no say",
    )
    without: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (),
        description="servers that hold nothing: source, target, restore_target, NAME of [targets.NAME], and in Airflow "
        "connections; a server that does not answer holds everything",
    )
    grace_s: float = Field(
        2 * 86_400.0,
        gt=0,
        description="objects that no document names are deleted when they are older; a snapshot, a dump, a rebuild of "
        "the schema, a drill and a proof must each take less",
    )

    @field_validator("keep_bases", "keep_days", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return None if value == "" else value


class KafkaSettings(Section):
    """`pumphouse archive export --format kafka` and the DAG `binlog_kafka`."""

    bootstrap_servers: str = Field("", description="host:port[,…] of the brokers; empty = no Kafka is configured")
    topic: str = Field(
        "", description="topic of the messages; empty = <cluster id>_obinlog, which is the name that a Drainer chooses"
    )
    tables: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="tables that are sent, as `database.table`, also as a pattern (`shop.*`); none = all"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how the brokers are talked to; SSL is TLS"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how the user proves itself"
    )
    sasl_username: str = Field("", description="user, if the brokers ask for one")
    sasl_password: SecretStr = Field(SecretStr(""), description="password of that user")
    tls_ca: Path | None = Field(None, description="PEM file of the brokers' CA; empty = the CAs of this machine")
    tls_cert: Path | None = Field(None, description="PEM file of our certificate, if the brokers ask for one")
    tls_key: Path | None = Field(None, description="PEM file of its key")
    transaction_bytes: int = Field(
        32 * MIB,
        ge=1,
        description="a transaction of Kafka ends with the message that makes it so large; twice as much memory is used",
    )
    timeout_s: float = Field(
        60.0,
        ge=1,
        description="a run fails if the brokers take longer for an answer or a transaction; they must allow a "
        "transaction as long (`transaction.max.timeout.ms`)",
    )

    @model_validator(mode="after")
    def _user_is_asked_for(self) -> Self:
        """A password must not be left out in silence, nor a user."""
        if self.sasl_username and not self.security_protocol.startswith("SASL"):
            raise ValueError(
                'kafka.sasl_username is set: kafka.security_protocol must be "SASL_SSL" or "SASL_PLAINTEXT"'
            )
        if (self.tls_ca or self.tls_cert) and not self.security_protocol.endswith("SSL"):
            raise ValueError('kafka.tls_ca or tls_cert is set: kafka.security_protocol must be "SSL" or "SASL_SSL"')
        return self


_MASTERS = "local[N], spark://host:port, sc://host:port, yarn, or k8s://host:port"


class SparkSettings(Section):
    """The Spark session. Options given to spark-submit override this section."""

    master: str = Field("local[2]", description=_MASTERS)
    secret: SecretStr = Field(
        SecretStr(""),
        description="for spark://: what the master and the workers have as `spark.authenticate.secret`",
    )
    driver_memory: str = Field("2g", description="heap of the driver")
    shuffle_partitions: int = Field(4, ge=1, description="partitions after a shuffle")
    package: Path | None = Field(
        None,
        description="file written by `pumphouse spark package`, for workers without our code; empty = they have it",
    )
    conf: dict[str, str] = Field(
        {}, description='any other Spark settings, as a table `[spark.conf]` or as {"spark.executor.memory": "4g"}'
    )

    @field_validator("master")
    @classmethod
    def _known(cls, value: str) -> str:
        if not re.match(r"local$|local\[|local-cluster\[|(spark|sc|k8s)://.|yarn$", value):
            raise ValueError(f"this is no Spark master; there are: {_MASTERS}")  # what it is may hold a token
        return value

    @field_validator("conf", mode="before")
    @classmethod
    def _read_conf(cls, value: Any) -> Any:
        """JSON where a table cannot be written; dotted names without quotes are tables in TOML."""
        try:
            table = json.loads(value or "{}") if isinstance(value, str) else value
            found = dict(_flat("", table))
        except (ValueError, AttributeError):
            raise ValueError('settings of Spark are written as {"spark.executor.memory": "4g"}') from None
        if wrong := [name for name in found if not name.startswith("spark.")]:
            raise ValueError(f"settings of Spark begin with spark., {', '.join(wrong)} does not")
        return found


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield prefix + name, str(value).lower() if isinstance(value, bool) else str(value)


class AirflowSettings(Section):
    """The schedules of the DAGs; read when Airflow parses them."""

    snapshot_cron: str = Field("*/5 * * * *", description="when the archive is extended")
    apply_cron: str = Field(
        "0 * * * *", description="intervals of `binlog_apply`, for backfills onto a restored target"
    )
    drill_cron: str = Field("", description="when `binlog_drill` runs; empty = by hand alone")
    maintenance_cron: str = Field("", description="when `binlog_maintenance` runs; empty = by hand alone")
    kafka: bool = Field(
        False, description="`binlog_kafka` sends each new window to Kafka; false = it is started by hand alone"
    )
    base_days: float | None = Field(
        None,
        gt=0,
        description="`binlog_maintenance` folds a base when the newest dump or base is older; empty = it folds none",
    )
    maintenance_full: bool = Field(
        False, description="`binlog_maintenance` reads every content when it verifies, not names and sizes alone"
    )
    maintenance_compact: bool = Field(
        False,
        description="`binlog_maintenance` puts small objects of old windows into packs, which releases from before "
        "packs do not read",
    )
    gc_follows: Literal["snapshot", "load"] = Field(
        "snapshot",
        description="Pumps may free what the archive has, or only what every target also has; give the same value to "
        "everything that takes snapshots or runs GC, including `pumphouse snapshot` and `pumphouse gc`",
    )
    load_targets: tuple[str, ...] = Field(
        (),
        description="connections of the targets that `binlog_load` loads; none = [target] and each [targets.NAME] "
        "that is not scratch",
    )
    gc_targets: tuple[str, ...] = Field(
        (),
        description='with `gc_follows = "load"`: connections of the targets whose checkpoints `pump_gc` and `pumphouse '
        "gc` wait for; none = those that are loaded",
    )
    restore_targets: tuple[str, ...] = Field(
        ("pumphouse_restore",), min_length=1, description="connections offered by the form of `binlog_restore`"
    )

    @field_validator("base_days", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("load_targets", "gc_targets", "restore_targets", mode="before")
    @classmethod
    def _read_names(cls, value: Any) -> Any:
        return _names(value)


class Settings(Section):
    """All sections."""

    cluster: ClusterSettings = ClusterSettings()
    tls: TlsSettings = TlsSettings()
    pump: PumpSettings = PumpSettings()
    archive: ArchiveSettings = ArchiveSettings()
    history: SchemaSettings = Field(SchemaSettings(), alias="schema")
    source: SourceSettings = SourceSettings()
    capture: CaptureSettings = CaptureSettings()
    dump: DumpSettings = DumpSettings()
    target: TargetSettings = TargetSettings()
    restore_target: TargetSettings = TargetSettings()
    targets: dict[str, NamedTarget] = {}
    load: LoadSettings = LoadSettings()
    drill: DrillSettings = DrillSettings()
    retention: RetentionSettings = RetentionSettings()
    kafka: KafkaSettings = KafkaSettings()
    spark: SparkSettings = SparkSettings()
    airflow: AirflowSettings = AirflowSettings()
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True)

    @field_validator("targets")
    @classmethod
    def _other_names(cls, targets: dict[str, NamedTarget]) -> dict[str, NamedTarget]:
        taken = {"source", "target", "restore_target", DOWNSTREAM}
        wrong = [name for name in targets if name in taken or not re.fullmatch(r"[a-z0-9_-]{1,64}", name)]
        if wrong:
            raise ValueError(f"no name of a target: {', '.join(wrong)}; of a-z, 0-9, _ and -, and no section's")
        return targets

    def aimed(self, name: str) -> Self:
        """These for one target of loads: ``target``, or a NAME whose [targets.NAME] is [target] then, with its rules.

        ConfigError where there is none, or where it names no server or no user.
        """
        if name in ("target", DOWNSTREAM):
            return self
        found = self.targets.get(name)
        if found is None or not (found.host or found.unix_socket) or not found.user:
            what = "does not exist" if found is None else "names no host or no user"
            raise ConfigError(
                f"[targets.{name}] {what} in the settings",
                hint=f'write [targets.{name}] host = "…", port = 3306, user = "…", password = "…" into pumphouse.toml; '
                f"targets that there are: {', '.join(('target', *self.targets))}",
            )
        said = found.model_dump(exclude={"rules", "scratch"}, exclude_unset=True)
        load = self.load.model_copy(update={"rules": found.rules})
        others = {each: target for each, target in self.targets.items() if each != name}
        if "host" in self.target.model_fields_set or self.target.unix_socket:
            others["target"] = self.with_rules
        return self.model_copy(update={"target": TargetSettings.model_validate(said), "targets": others, "load": load})

    @property
    def written_to(self) -> tuple[TargetSettings, ...]:
        """The sections of servers that loads and restores write to, whether they name one or not."""
        return self.target, self.restore_target, *self.targets.values()

    @property
    def target_sections(self) -> dict[str, TargetSettings]:
        """Section -> server, of those that name one: whatever loads and restores write to."""
        found: dict[str, TargetSettings] = {"target": self.target, "restore_target": self.restore_target}
        found |= {f"targets.{name}": each for name, each in self.targets.items()}
        return {name: each for name, each in found.items() if {"host", "unix_socket"} & each.model_fields_set}

    @property
    def with_rules(self) -> NamedTarget:
        """[target], with the rules of its loads."""
        return NamedTarget.model_validate({**self.target.model_dump(exclude_unset=True), "rules": self.load.rules})

    @property
    def loaded(self) -> tuple[str, ...]:
        """The targets that are loaded, by the names that `aimed` and connections know."""
        named = (name for name, each in self.targets.items() if not each.scratch)
        return self.airflow.load_targets or (DOWNSTREAM, *named)

    @property
    def waited_for(self) -> tuple[str, ...]:
        """The targets that GC waits for where it follows the load."""
        return self.airflow.gc_targets or self.loaded

    @classmethod
    def read(
        cls,
        path: Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        file_values: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
    ) -> Self:
        """Load settings; overrides are ``section.name`` -> value.

        ``path`` None = the file that ``PUMPHOUSE_CONFIG`` names, else ./pumphouse.toml, if any.

        Args:
            path: the file.
            overrides: from the command line.
            file_values: of another file than ours; they beat it.
            environment: of other variables than ours, or of connections; they beat them.
        """
        source = settings_file(path)
        data, ours = _file_values(path), _environment()
        for layer in (file_values, ours, environment, overrides):
            _take(data, layer)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(_explain(error), path=str(source)) from error

    @classmethod
    def read_only(cls, *sections: str, path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Settings of these sections, the rest at its defaults: for what a DAG file needs while Airflow parses it.

        A wrong value of another section then stops the tasks alone, which read all settings.
        """
        data = {name: value for name, value in _file_values(path).items() if name in sections}
        _take(data, _environment(sections) | dict(overrides or {}))
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(_explain(error), path=str(settings_file(path))) from error


def settings_file(path: Path | None = None) -> Path:
    """The file that is read: the one given, else that of ``PUMPHOUSE_CONFIG``, else ./pumphouse.toml."""
    return path or Path(os.environ.get(ENV_PREFIX + "CONFIG") or "pumphouse.toml")


def _file_values(path: Path | None) -> dict[str, Any]:
    source = settings_file(path)
    named = os.environ.get(ENV_PREFIX + "CONFIG")
    try:
        if source.exists():
            # TOML is UTF-8 whatever the locale is; an editor may have put a mark before it.
            return tomllib.loads(source.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", path=str(source)) from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise ConfigError(f"{source} is no TOML: {error}", path=str(source)) from error
    if path is not None or named:
        hint = "" if path is not None else f"the variable {ENV_PREFIX}CONFIG names it"
        raise ConfigError(f"there is no settings file {source}", hint=hint, path=str(source))
    return {}


def _environment(sections: Collection[str] | None = None) -> dict[str, str]:
    """``section.name`` -> value, of the variables of these sections; None = of all."""
    found: dict[str, str] = {}
    for name, value in os.environ.items():
        if not name.startswith(ENV_PREFIX):
            continue
        if "__" not in name:
            if sections is None:
                _refuse_one_underscore(name)
            continue
        section, _, field = name[len(ENV_PREFIX) :].lower().partition("__")
        if sections is not None and section not in sections:
            continue
        if field.endswith("_file") and _is_secret(section, secret := field.removesuffix("_file")):
            found[f"{section}.{secret}"] = _secret_in(value, name)
        else:
            found[f"{section}.{field}"] = value
    return found


def _is_secret(section: str, field: str) -> bool:
    """Whether a setting is a secret, which may be in a file that ``PUMPHOUSE_…_FILE`` names."""
    if section == "targets":
        return field.endswith("__password")
    for name, info in Settings.model_fields.items():
        if section in (name, info.alias) and isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            found = info.annotation.model_fields.get(field)
            return found is not None and found.annotation is SecretStr
    return False


def _secret_in(path: str, name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} names {path}, which cannot be read: {error}", name=name, path=path) from error


def _refuse_one_underscore(name: str) -> None:
    """``PUMPHOUSE_ARCHIVE_ROOT`` would be ignored without a word: say how it is written."""
    text = name[len(ENV_PREFIX) :].lower()
    for section in _known(()):
        field = text.removeprefix(section + "_")
        known = _known((section,))
        if field != text and (near := difflib.get_close_matches(field, known, n=1, cutoff=0.8)):
            raise ConfigError(
                f"{name} is no setting",
                hint=f"two underscores between section and name: {ENV_PREFIX}{section.upper()}__{near[0].upper()}",
                name=name,
            )


def _take(data: dict[str, Any], layer: Mapping[str, Any] | None) -> None:
    """Set ``section.name`` -> value."""
    for name, value in (layer or {}).items():
        section, _, field = name.partition(".")
        _set(data, section, field, value)


def _set(data: dict[str, Any], section: str, field: str, value: Any) -> None:
    part = data.setdefault(section, {})
    if section == "targets" and isinstance(part, dict):
        # Of one target: targets.NAME.field, PUMPHOUSE_TARGETS__NAME__FIELD.
        name, _, field = field.replace("__", ".").partition(".")
        part = part.setdefault(name, {})
    if not isinstance(part, dict):
        raise ConfigError(f"[{section}] of the settings must be a table")
    part[field] = value


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = _known(item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
            lines.append(f"unknown setting {where!r}{guess}")
        else:
            # The value is left out on purpose: it may be a secret.
            lines.append(f"setting {where!r}: {item['msg']}")
    return "; ".join(lines)


def _known(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    if path[:1] == ("targets",) and len(path) > 1:
        model, path = NamedTarget, path[2:]
    for part in path:
        for name, info in model.model_fields.items():
            if part in (name, info.alias) and isinstance(info.annotation, type):
                model = info.annotation
    return [info.alias or name for name, info in model.model_fields.items()]
