"""Which sections of the settings a room of the library reads: it takes these, and never all of them.

Whoever has `Settings` passes them; who uses the library alone may pass anything that has these.
"""

# The names are those of the sections.
# ruff: noqa: D102

from __future__ import annotations

from typing import Protocol

from pumphouse.settings import (
    AirflowSettings,
    ArchiveSettings,
    ClusterSettings,
    DumpSettings,
    NamedTarget,
    RetentionSettings,
    SchemaSettings,
    SourceSettings,
    TargetSettings,
    TlsSettings,
)


class ExpirySections(Protocol):
    """What an expiry reads of the settings."""

    @property
    def retention(self) -> RetentionSettings: ...
    @property
    def dump(self) -> DumpSettings: ...


class SnapshotSections(Protocol):
    """What whoever extends the archive reads of the settings."""

    @property
    def cluster(self) -> ClusterSettings: ...
    @property
    def tls(self) -> TlsSettings: ...
    @property
    def archive(self) -> ArchiveSettings: ...
    @property
    def history(self) -> SchemaSettings: ...
    @property
    def airflow(self) -> AirflowSettings: ...


class ServerSections(Protocol):
    """Where the settings name a database server: what is written to must not be the source, nor another's target."""

    @property
    def cluster(self) -> ClusterSettings: ...
    @property
    def history(self) -> SchemaSettings: ...
    @property
    def source(self) -> SourceSettings: ...
    @property
    def target(self) -> TargetSettings: ...
    @property
    def restore_target(self) -> TargetSettings: ...
    @property
    def targets(self) -> dict[str, NamedTarget]: ...
    @property
    def target_sections(self) -> dict[str, TargetSettings]: ...
    @property
    def with_rules(self) -> NamedTarget: ...


class DumpSections(SnapshotSections, ServerSections, Protocol):
    """What a dump reads of the settings: it extends the archive, and knows the source from the targets."""

    @property
    def dump(self) -> DumpSettings: ...
    def waiting(self, seconds: float) -> SnapshotSections: ...
