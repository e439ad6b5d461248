"""The one table of settings: command line > ``PUMPHOUSE_<SECTION>__<NAME>`` > ``pumphouse.toml`` > default.

Entry points load it and hand each room its own section; libraries never read the environment. An unknown name is an
error that lists the known ones. Secrets are SecretStr and are never shown.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from include.errors import ConfigError

ENV_PREFIX = "PUMPHOUSE_"
MIB = 1 << 20
GIB = 1 << 30


class Section(BaseModel):
    """Base of all sections: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TlsSettings(Section):
    """One CA and one certificate for gRPC, HTTP, etcd and PD. TLS is on when `ca` is set."""

    ca: Path | None = Field(None, description="PEM file of the CA that peers must be signed by")
    cert: Path | None = Field(None, description="PEM file of our certificate")
    key: Path | None = Field(None, description="PEM file of our key")
    cert_allowed_cn: tuple[str, ...] = Field(
        (), description="client certificates are required and must carry one of these names"
    )

    @property
    def enabled(self) -> bool:
        """Whether connections are encrypted."""
        return self.ca is not None


class ClusterSettings(Section):
    """Which cluster."""

    url: str = Field("file://./build/cluster", description="pd://host:port[,…], etcd://host:port[,…] or file:///dir")


class PumpSettings(Section):
    """One Pump process."""

    node_id: str = Field("", description="node id; empty = content of <data_dir>/.node, else host:port")
    data_dir: Path = Field(Path("data.pump"), description="value log, index and identity")
    addr: str = Field("127.0.0.1:8250", description="host:port that gRPC listens on")
    http_addr: str = Field("", description="host:port of the HTTP API; empty = a free port on the same host")
    advertise_addr: str = Field("", description="host:port that others connect to; empty = addr")
    heartbeat_interval_s: float = Field(2.0, gt=0, description="seconds between heartbeats")
    gen_binlog_interval_s: float = Field(
        3.0, gt=0, description="seconds without progress after which a fake binlog is written"
    )
    max_txn_timeout_s: float = Field(
        600.0, gt=0, description="age of a prewrite after which its outcome is asked with the power to roll back"
    )
    resolve_interval_s: float = Field(1.0, gt=0, description="seconds between questions about one unresolved prewrite")
    retention_s: float = Field(7 * 86_400.0, gt=0, description="binlogs younger than this are kept in any case")
    gc_interval_s: float = Field(3600.0, gt=0, description="seconds between GC runs")
    value_log_file_bytes: int = Field(500 * MIB, ge=4096, description="a value-log file is closed when it is larger")
    sync_log: bool = Field(True, description="fdatasync before an answer")
    stop_write_at_available_bytes: int = Field(
        10 * GIB, ge=0, description="below this free space prewrites are refused"
    )
    reserve_bytes: int = Field(16 * MIB, ge=0, description="preallocated, for commits and fakes on a full disk")
    group_commit_bytes: int = Field(8 * MIB, ge=4096, description="most bytes in one write and fsync")
    queue_bytes: int = Field(256 * MIB, ge=MIB, description="bytes of waiting requests before callers are held back")
    slow_chaser_threshold_s: float = Field(
        1.0, gt=0, description="a hand-over to the index that blocks longer turns slow mode on"
    )
    index_queue_records: int = Field(1 << 20, ge=1, description="records between value log and index")
    pull_batch_bytes: int = Field(4 * MIB, ge=4096, description="most bytes in one frame of a batch pull")


class ArchiveSettings(Section):
    """The archive in object storage."""

    root: str = Field("file://./build/archive", description="s3://bucket/prefix or file:///dir")
    archive_id: str = Field(
        "main", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="name of this archive; it registers as pumphouse-<id>"
    )
    s3_endpoint: str = Field("", description="endpoint of an S3 server; empty = AWS")
    s3_region: str = Field("us-east-1", description="region")
    s3_access_key: str = Field("", description="access key; empty = the SDK's own chain")
    s3_secret_key: SecretStr = Field(SecretStr(""), description="secret key")
    task_budget_bytes: int = Field(
        256 * MIB, ge=1, description="payload bytes that one task pulls from one Pump for one window"
    )
    part_bytes: int = Field(64 * MIB, ge=1 << 10, description="a larger payload is cut into parts at row boundaries")
    pull_timeout_s: float = Field(900.0, gt=0, description="a window held longer fails its task")
    poll_interval_s: float = Field(0.5, gt=0, description="seconds between looks at a held window")
    consumer_stale_s: float = Field(
        7200.0, gt=0, description="a consumer that did not write its checkpoint for so long is shown as stale"
    )
    ddl_wait_s: float = Field(120.0, gt=0, description="how long a window waits for a DDL job to appear in the history")


class SchemaSettings(Section):
    """Where DDL job history comes from."""

    history: str = Field(
        "",
        description="http(s)://tidb:10080 (status API), mysql://user@host:port/schema.table (demo source); or empty",
    )
    history_password: SecretStr = Field(SecretStr(""), description="password of a mysql:// history")


class TargetSettings(Section):
    """A downstream database."""

    host: str = Field("127.0.0.1", description="host")
    port: int = Field(3306, description="port")
    user: str = Field("root", description="user")
    password: SecretStr = Field(SecretStr(""), description="password")
    unix_socket: str = Field("", description="socket path instead of host and port")
    tls_ca: Path | None = Field(None, description="PEM file of the server's CA; set = TLS")
    schema_name: str = Field("pumphouse", description="schema of our own tables on the target")


class LoadSettings(Section):
    """Loading a target."""

    task: str = Field(
        "main", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="name of the load; key of its checkpoint on the target"
    )
    mode: Literal["merge", "replay"] = Field(
        "merge", description="merge folds to the net change per key; replay keeps transactions"
    )
    engine: Literal["spark", "local"] = Field(
        "spark", description="where a load's stages run; local = in this process, for small windows"
    )
    safe_mode: bool = Field(True, description="INSERT as REPLACE, UPDATE as DELETE and REPLACE")
    buckets: int = Field(0, ge=0, description="buckets a table's changes are spread over; 0 = from their size")
    unit_bytes: int = Field(64 * MIB, ge=1 << 16, description="bytes that one load unit aims at")
    connections: int = Field(2, ge=1, description="units applied at once")
    max_plan_bytes: int = Field(
        32 * GIB, ge=1, description="archive bytes in one plan; a longer range is loaded in several"
    )


class SparkSettings(Section):
    """The Spark session."""

    master: str = Field("local[2]", description="local[N], spark://host:port, or sc://host:port")
    driver_memory: str = Field("2g", description="heap of the driver")
    shuffle_partitions: int = Field(4, ge=1, description="partitions after a shuffle")


class AirflowSettings(Section):
    """How the DAGs are scheduled; read when Airflow parses them."""

    snapshot_cron: str = Field("*/5 * * * *", description="when the archive is extended")
    apply_cron: str = Field("0 * * * *", description="intervals of the apply DAG, for backfills onto a restore target")
    gc_follows: Literal["snapshot", "load"] = Field(
        "snapshot", description="Pumps may free what the archive has, or only what every target has too"
    )


class Settings(Section):
    """All sections."""

    cluster: ClusterSettings = ClusterSettings()
    tls: TlsSettings = TlsSettings()
    pump: PumpSettings = PumpSettings()
    archive: ArchiveSettings = ArchiveSettings()
    history: SchemaSettings = Field(SchemaSettings(), alias="schema")
    target: TargetSettings = TargetSettings()
    restore_target: TargetSettings = TargetSettings()
    load: LoadSettings = LoadSettings()
    spark: SparkSettings = SparkSettings()
    airflow: AirflowSettings = AirflowSettings()
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @classmethod
    def read(cls, path: Path | None = None, overrides: dict[str, Any] | None = None) -> Self:
        """Load settings. ``path`` None = ./pumphouse.toml, if any; overrides are ``section.name`` -> value."""
        data: dict[str, Any] = {}
        source = path or Path(os.environ.get(ENV_PREFIX + "CONFIG", "pumphouse.toml"))
        if source.exists():
            try:
                data = tomllib.loads(source.read_text())
            except tomllib.TOMLDecodeError as error:
                raise ConfigError(f"{source} is no TOML: {error}", path=str(source)) from error
        elif path is not None:
            raise ConfigError(f"there is no settings file {path}", path=str(path))
        for name, value in os.environ.items():
            if name.startswith(ENV_PREFIX) and "__" in name:
                section, _, field = name[len(ENV_PREFIX) :].lower().partition("__")
                _set(data, section, field, value)
        for name, value in (overrides or {}).items():
            section, _, field = name.partition(".")
            _set(data, section, field, value)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(_explain(error), path=str(source)) from error


def _set(data: dict[str, Any], section: str, field: str, value: Any) -> None:
    part = data.setdefault(section, {})
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
    for part in path:
        for name, info in model.model_fields.items():
            if part in (name, info.alias) and isinstance(info.annotation, type):
                model = info.annotation
    return [info.alias or name for name, info in model.model_fields.items()]
