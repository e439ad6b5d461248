"""Connections: what Airflow stores of the archive, the cluster and a downstream, turned into our settings.

Secrets stay in the connection's login and password; everything else lies in its extra, named as the
setting is. The operators' token is in the extra too, which Airflow encrypts, and masks by that name. Settings that no
connection names come from the environment and pumphouse.toml, as for the command line. A connection by another name
than the first installation's says everything of its part: nothing of one archive or cluster is ever put together with
something of another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from binlog_airflow.advice import SOURCE, in_airflow, naming
from binlog_airflow.served import AirflowNotFoundException
from pumphouse.errors import BinlogError, ConfigError
from pumphouse.settings import DOWNSTREAM

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from pumphouse.settings import Settings

ARCHIVE = "pumphouse_archive"
CLUSTER = "pumphouse_cluster"
RESTORE_TARGET = "pumphouse_restore"
KAFKA = "pumphouse_kafka"


class _SettingsHook(BaseHook, ABC):  # type: ignore[misc]  # airflow has no types for strict mode
    """A hook whose connection overrides settings."""

    conn_type = ""
    fields: tuple[str, ...] = ()

    def __init__(self, conn_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id

    def overrides(self) -> dict[str, Any]:
        """``section.name`` -> value, from the connection."""
        connection = self.get_connection(self.conn_id)
        if connection.conn_type != self.conn_type:
            raise ConfigError(
                f"connection {self.conn_id!r} has type {connection.conn_type!r}, not {self.conn_type!r}",
                hint="choose the type in Admin > Connections",
            )
        extra = dict(connection.extra_dejson)
        unknown = sorted(set(extra) - set(self.fields))
        if unknown:
            raise ConfigError(
                f"connection {self.conn_id!r} has unknown extra fields {', '.join(unknown)}",
                hint=f"known are {', '.join(self.fields)}",
            )
        return self._map(connection, {k: v for k, v in extra.items() if v not in (None, "")})

    @abstractmethod
    def _map(self, connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
        """Settings of one connection."""

    def test_connection(self) -> tuple[bool, str]:
        """The Test button: reads the connection and opens what it names."""
        try:
            return True, self._probe()
        except BinlogError as error:
            return False, error.said(in_airflow)

    @abstractmethod
    def _probe(self) -> str:
        """Open what the connection names; a sentence about it, or a BinlogError."""


class ArchiveHook(_SettingsHook):
    """Connection type ``pumphouse_archive``: root, archive id, S3 endpoint; login and password = S3 keys.

    The connection of the same name with ``_copy`` behind it, if there is one, says the same of the archive's copy.
    """

    conn_name_attr = "archive_conn_id"
    default_conn_name = ARCHIVE
    conn_type = "pumphouse_archive"
    hook_name = "Pumphouse archive"
    fields = (
        "root",
        "copy_root",
        "archive_id",
        "s3_endpoint",
        "s3_region",
        "s3_encryption",
        "s3_kms_key",
        "s3_object_lock",
        "s3_base_class",
    )

    def __init__(self, archive_conn_id: str = ARCHIVE) -> None:
        super().__init__(archive_conn_id)

    def _map(self, connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
        found = {f"archive.{name}": value for name, value in extra.items()}
        if self.conn_id != ARCHIVE:
            found = _whole(self.conn_id, found, [f"archive.{name}" for name in (*self.fields, *_NO_FIELDS)], "root")
        if connection.login:
            found["archive.s3_access_key"] = connection.login
            found["archive.s3_secret_key"] = connection.password or ""
        return found

    def of_copy(self) -> dict[str, Any]:
        """As `overrides`, of the copy; nothing where no connection says it."""
        try:
            found = ArchiveHook(f"{self.conn_id}_copy").overrides()
        except AirflowNotFoundException:
            return {}
        said = {name.removeprefix("archive."): value for name, value in found.items()}
        return {f"archive.copy_{name}": value for name, value in said.items() if name == "root" or name[:3] == "s3_"}

    def _probe(self) -> str:
        from pumphouse.objectstore.open import open_store

        store = open_store(settings_from(archive=self.conn_id, cluster=None).archive)
        next(iter(store.folders()), None)
        return f"{store.url} answers"


class ClusterHook(_SettingsHook):
    """Connection type ``pumphouse_cluster``: cluster URL, DDL history, TLS files, token; password = the history's."""

    conn_name_attr = "cluster_conn_id"
    default_conn_name = CLUSTER
    conn_type = "pumphouse_cluster"
    hook_name = "Pumphouse cluster"
    fields = (
        "url",
        "user",
        "password",
        "history",
        "history_tls_ca",
        "history_tls_check_name",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "operator_token",
    )

    def __init__(self, cluster_conn_id: str = CLUSTER) -> None:
        super().__init__(cluster_conn_id)

    def _map(self, connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
        names = {
            "url": "cluster.url",
            "user": "cluster.user",
            "password": "cluster.password",
            "history": "schema.history",
            "history_tls_ca": "schema.history_tls_ca",
            "history_tls_check_name": "schema.history_tls_check_name",
            "tls_ca": "tls.ca",
            "tls_cert": "tls.cert",
            "tls_key": "tls.key",
            "operator_token": "cluster.operator_token",
        }
        found = {names[name]: value for name, value in extra.items()}
        if self.conn_id != CLUSTER:
            found = _whole(
                self.conn_id, found, [*names.values(), "schema.history_password", "tls.cert_allowed_cn"], "url"
            )
        if connection.password:
            found["schema.history_password"] = connection.password
        return found

    def _probe(self) -> str:
        from pumphouse.registry.open import open_cluster

        settings = settings_from(archive=None, cluster=self.conn_id)
        cluster = open_cluster(settings.cluster, settings.tls, create=False)
        try:
            return f"cluster {cluster.cluster_id()} answers"
        finally:
            cluster.close()


class DownstreamHook(_SettingsHook):
    """Connection type ``pumphouse_downstream``: a MySQL, MariaDB or TiDB that is loaded."""

    conn_name_attr = "downstream_conn_id"
    default_conn_name = DOWNSTREAM
    conn_type = "pumphouse_downstream"
    hook_name = "Pumphouse downstream"
    fields = ("task", "schema_name", "tls_ca", "tls_check_name")

    def __init__(self, downstream_conn_id: str = DOWNSTREAM, section: str = "target") -> None:
        super().__init__(downstream_conn_id)
        self.section = section

    def _map(self, connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
        found = {"load.task" if name == "task" else f"{self.section}.{name}": value for name, value in extra.items()}
        return found | {f"{self.section}.{name}": value for name, value in self._server(connection).items()}

    def _server(self, connection: Connection) -> dict[str, Any]:
        """The connection's server. The one of loads may be empty: then it is the server of [target]."""
        said = (connection.host, connection.login, connection.port, connection.password)
        if not any(said) and self.conn_id == DOWNSTREAM:
            return {}
        return _own_server(connection, self.conn_id)

    def _probe(self) -> str:
        from pumphouse.loader.target import TargetConnection, address

        target = settings_from(archive=None, cluster=None, downstream=self.conn_id).target
        with naming(self.conn_id), TargetConnection.open(target):
            return f"{address(target)} answers"


class SourceHook(_SettingsHook):
    """Connection type ``pumphouse_source``: the database that dumps read from."""

    conn_name_attr = "source_conn_id"
    default_conn_name = SOURCE
    conn_type = "pumphouse_source"
    hook_name = "Pumphouse source"
    fields = ("tls_ca", "tls_check_name")

    def __init__(self, source_conn_id: str = SOURCE) -> None:
        super().__init__(source_conn_id)

    def _map(self, connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
        found = {**_own_server(connection, self.conn_id), **extra}
        return {f"source.{name}": value for name, value in found.items()}

    def _probe(self) -> str:
        from pumphouse.dump.source import session, where

        source = settings_from(archive=None, cluster=None, source=self.conn_id).source
        with session(source):
            return f"{where(source)} answers"


class KafkaHook(_SettingsHook):
    """Connection type ``pumphouse_kafka``: brokers and topic of `binlog_kafka`; login and password = SASL's."""

    conn_name_attr = "kafka_conn_id"
    default_conn_name = KAFKA
    conn_type = "pumphouse_kafka"
    hook_name = "Pumphouse kafka"
    fields = (
        "bootstrap_servers",
        "topic",
        "tables",
        "security_protocol",
        "sasl_mechanism",
        "tls_ca",
        "tls_cert",
        "tls_key",
    )

    def __init__(self, kafka_conn_id: str = KAFKA) -> None:
        super().__init__(kafka_conn_id)

    def _map(self, connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
        # Whole by whatever name: no password of the settings goes to brokers that somebody else named.
        found = {f"kafka.{name}": value for name, value in extra.items()}
        names = [f"kafka.{name}" for name in (*self.fields, "sasl_username", "sasl_password")]
        found = _whole(self.conn_id, found, names, "bootstrap_servers")
        if connection.login:
            found["kafka.sasl_username"] = connection.login
            found["kafka.sasl_password"] = connection.password or ""
        return found

    def _probe(self) -> str:
        from pumphouse.export.kafkatopic import Brokers, look

        kafka = settings_from(archive=None, cluster=None, kafka=self.conn_id).kafka
        if not kafka.topic:
            raise ConfigError("the connection names no topic", hint="without one, it is <cluster id>_obinlog")
        look(Brokers(kafka, kafka.topic))
        return f"{kafka.bootstrap_servers} has the topic {kafka.topic}"


_NO_FIELDS = ("s3_access_key", "s3_secret_key", "s3_session_token", "cluster_id")


def _whole(conn_id: str, said: Mapping[str, Any], names: Iterable[str], needed: str) -> dict[str, Any]:
    """What a connection says, and the default of whatever else its type can say; ConfigError without what is needed."""
    from pumphouse.settings import Settings

    if not any(name.endswith(f".{needed}") for name in said):
        raise ConfigError(
            f"connection {conn_id!r} names no {needed}: that of another connection or of the settings is not taken",
            hint=f"fill in {needed} in Admin > Connections",
        )
    sections = {info.alias or name: info.default for name, info in Settings.model_fields.items()}
    defaults = {}
    for each in names:
        section, _, field = each.partition(".")
        defaults[each] = type(sections[section]).model_fields[field].default
    return defaults | dict(said)


def _own_server(connection: Connection, conn_id: str) -> dict[str, Any]:
    """Address, user and password, all of them the connection's own: half a connection never meets another server."""
    needed = {"host": connection.host, "login": connection.login}
    missing = " and ".join(name for name, value in needed.items() if not value)
    if missing:
        raise ConfigError(
            f"connection {conn_id!r} names no {missing}: a server is never put together from two places",
            hint="fill in host, port (else 3306), login and password in Admin > Connections",
        )
    return {
        "host": connection.host,
        "port": connection.port or 3306,
        "user": connection.login,
        "password": connection.password or "",
        "unix_socket": "",
    }


def settings_from(
    *,
    archive: str | None = ARCHIVE,
    cluster: str | None = CLUSTER,
    downstream: str | None = None,
    restore: str | None = None,
    source: str | None = None,
    kafka: str | None = None,
    loads: str = DOWNSTREAM,
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings of a task, from its connections; None leaves a part to the environment and pumphouse.toml.

    ``downstream``: connection of a target of loads, or NAME of a section [targets.NAME], whose rules it gets then.
    ``restore``: connection of the restore target. What loads keep up to date is then the connection ``loads``, where
    there is one: a restore is held against it. ``path``: a settings file in place of pumphouse.toml. ``overrides``:
    ``section.name`` -> value of what neither it nor the environment decides. ``kafka``: connection of the brokers; the
    first installation's need not be there.
    """
    from pumphouse.settings import Settings

    found: dict[str, Any] = dict(overrides or {})
    for hook in (
        ArchiveHook(archive) if archive else None,
        ClusterHook(cluster) if cluster else None,
        DownstreamHook(restore, "restore_target") if restore else None,
        SourceHook(source) if source else None,
    ):
        if hook is not None:
            found |= hook.overrides()
    if archive:
        found |= ArchiveHook(archive).of_copy()
    if restore:
        found |= _loaded(loads)
    if kafka:
        try:
            found |= KafkaHook(kafka).overrides()
        except AirflowNotFoundException:
            if kafka != KAFKA:
                raise
    if downstream is None:
        return Settings.read(path, environment=found)
    named = downstream in Settings.read(path, environment=found).targets
    hook = DownstreamHook(downstream, f"targets.{downstream}" if named else "target")
    try:
        found |= hook.overrides()
    except AirflowNotFoundException:
        if not named:
            raise
    return Settings.read(path, environment=found).aimed(downstream if named else "target")


def _loaded(conn_id: str) -> dict[str, Any]:
    """The server of [target] as the connection of loads names it; nothing where there is no such connection."""
    try:
        found = DownstreamHook(conn_id).overrides()
    except AirflowNotFoundException:
        return {}
    return {name: value for name, value in found.items() if name.startswith("target.")}
