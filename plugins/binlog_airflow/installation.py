"""An installation: which archive, cluster, source and targets a task works on, by the names of their connections.

The first one is that of the plain names and of pumphouse.toml. Another one has connections of its own; the settings
that no connection names come from a file of its own, else from pumphouse.toml, and the environment beats either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from binlog_airflow.advice import SOURCE, in_airflow
from binlog_airflow.hooks import ARCHIVE, CLUSTER, RESTORE_TARGET, settings_from
from binlog_airflow.served import AirflowNotFoundException
from pumphouse.errors import BinlogError, UsageError
from pumphouse.settings import DOWNSTREAM, Settings, TargetSettings

if TYPE_CHECKING:
    from pumphouse.restore.check import Into, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Names of connections.

    Args:
        archive: the archive.
        cluster: the cluster of its Pumps.
        source: the database that dumps read.
        targets: what loads keep up to date and GC waits for, of which the first is `target`; none = as the settings
            say, and `target` is ``pumphouse_downstream``.
        restore_targets: what restores may replace, of which the first is `restore_target`, and the source where it may
            get tables; none = as the settings say.
        settings_file: in place of pumphouse.toml; '' = that.
    """

    archive: str = ARCHIVE
    cluster: str = CLUSTER
    source: str = SOURCE
    targets: tuple[str, ...] = ()
    restore_targets: tuple[str, ...] = ()
    settings_file: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As the arguments of a trigger carry it: names alone."""
        return {name: list(each) if isinstance(each, tuple) else each for name, each in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """What `to_dict` made."""
        found: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in data.items()}
        return cls(**found)

    @property
    def target(self) -> str:
        """The connection of [target]."""
        return self.targets[0] if self.targets else DOWNSTREAM

    def settings(
        self,
        *,
        downstream: str | None = None,
        restore: str | None = None,
        source: str | None = None,
        kafka: str | None = None,
        server_alone: bool = False,
    ) -> Settings:
        """As `settings_from`. ``server_alone``: the connections of archive and cluster are not read."""
        return settings_from(
            archive=None if server_alone else self.archive,
            cluster=None if server_alone else self.cluster,
            downstream=downstream,
            restore=restore,
            source=source,
            kafka=kafka,
            loads=self.target,
            path=self._path,
            overrides=self._said,
        )

    def parsed(self, *sections: str) -> Settings:
        """What a DAG needs of these sections while Airflow parses it: no connection is read."""
        return Settings.read_only(*sections, path=self._path, overrides=self._said)

    def of_server(self, conn_id: str) -> tuple[Settings, Place]:
        """Settings with the server of a connection, and the section that names it then."""
        if conn_id == self.target or conn_id in self.settings().targets:
            return self.settings(downstream=conn_id), "target"
        if conn_id == self.source:
            return self.settings(source=conn_id), "source"
        return self.settings(restore=conn_id), "restore_target"

    def servers(
        self, settings: Settings, unread: dict[str, str] | None = None
    ) -> tuple[dict[str, TargetSettings], dict[str, TargetSettings]]:
        """By connection: what loads keep up to date or GC waits for, and what restores may replace.

        Args:
            settings: of this installation.
            unread: takes the connections that name no server, with the reason; None = each is an error.

        Raises:
            AirflowNotFoundException: the settings name a connection that nobody made.
            BinlogError: a connection says something wrong.
        """
        loaded: dict[str, TargetSettings] = {}
        restored: dict[str, TargetSettings] = {}
        named = {*settings.airflow.load_targets, *settings.airflow.gc_targets}
        sections = (name for name, each in settings.targets.items() if not each.scratch)
        for conn_id in dict.fromkeys([*settings.loaded, *settings.waited_for, *sections]):
            with _read_or(unread, conn_id), there_or(conn_id == DOWNSTREAM and conn_id not in named):
                loaded[conn_id] = self.settings(downstream=conn_id, server_alone=True).target
        for conn_id in self.replaced(settings):
            with _read_or(unread, conn_id), there_or("restore_targets" not in settings.airflow.model_fields_set):
                restored[conn_id] = self.settings(restore=conn_id, server_alone=True).restore_target
        return loaded, restored

    def replaced(self, settings: Settings) -> tuple[str, ...]:
        """Connections of what restores may replace: the source takes tables beside what it has, and is none of them."""
        return tuple(each for each in settings.airflow.restore_targets if each != self.source)

    def drill_connection(self, into: str) -> str:
        """The connection of a drill's server."""
        # Where an installation names its source alone, that is refused: nothing of it goes to another one's server.
        replaced = [each for each in self.restore_targets if each != self.source] or self.restore_targets
        return {"restore_target": replaced[0] if replaced else RESTORE_TARGET, "target": self.target}.get(into, into)

    def of_drill(self, into: str) -> tuple[Settings, Into]:
        """Settings of a drill, whose server is that of the section's connection."""
        if not into:
            raise UsageError("no server is named", hint="fill in the field, or set drill.into")
        settings, section = self.of_server(self.drill_connection(into))
        if section == "source":
            raise UsageError("no drill writes to the source")
        return settings, section

    @property
    def _path(self) -> Path | None:
        return Path(self.settings_file) if self.settings_file else None

    @property
    def _said(self) -> dict[str, Any]:
        """What the names decide, whatever the file and the environment say."""
        found: dict[str, Any] = {}
        if self.targets:
            found |= {"airflow.load_targets": self.targets, "airflow.gc_targets": ()}
        if self.restore_targets:
            found["airflow.restore_targets"] = self.restore_targets
        return found


@contextmanager
def there_or(may_be_missing: bool) -> Iterator[None]:
    """A connection that nobody has made names no server; one that the settings name has to be there."""
    try:
        yield
    except AirflowNotFoundException:
        if not may_be_missing:
            raise


@contextmanager
def _read_or(unread: dict[str, str] | None, conn_id: str) -> Iterator[None]:
    """The reason goes to ``unread``, where that is there."""
    try:
        yield
    except (AirflowNotFoundException, BinlogError) as error:
        if unread is None:
            raise
        unread[conn_id] = error.said(in_airflow) if isinstance(error, BinlogError) else str(error)


# The first one.
HERE = Installation()
