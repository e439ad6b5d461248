"""``genesis.json``: where the chain begins (docs/formats.md, "Genesis")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumphouse.archive.base import Base, BaseTable
from pumphouse.archive.document import dump, parse, sha256
from pumphouse.archive.manifest import DdlEntry, PumpEntry
from pumphouse.model import strict
from pumphouse.model.tso import Tso

KIND = "genesis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis:
    """The archive begins after ``ts``. ``ddl`` holds the jobs that make the schema at ``ts``; ``base`` the dump.

    ``base`` is None when there is no dump (a target then begins where its user declares it equal), and () when the
    cluster had no tables.
    """

    cluster_id: int
    archive_id: str
    attempt: str
    ts: Tso
    schema_version: int
    pumps: tuple[PumpEntry, ...]
    ddl: DdlEntry
    base: tuple[BaseTable, ...] | None
    sha256: str = ""  # of the bytes as stored

    @property
    def as_base(self) -> Base | None:
        """The dump that was taken with it."""
        if self.base is None:
            return None
        return Base(begun=self.ts, ts=self.ts, low=self.ts, tables=self.base, columns=False, sha256=self.sha256)

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(
            KIND,
            {
                "cluster_id": self.cluster_id,
                "archive_id": self.archive_id,
                "attempt": self.attempt,
                "ts": int(self.ts),
                "schema_version": self.schema_version,
                "pumps": [each.to_dict() for each in self.pumps],
                "ddl": self.ddl.to_dict(),
                "base": None if self.base is None else [each.to_dict() for each in self.base],
            },
        )

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Genesis:
        """Read the stored object; BadManifest."""

        def read(value: dict[str, Any]) -> Genesis:
            return cls(
                cluster_id=strict.integer(value["cluster_id"], high=strict.MAX_UINT64),
                archive_id=strict.text(value["archive_id"]),
                attempt=strict.text(value["attempt"]),
                ts=Tso(strict.integer(value["ts"])),
                schema_version=strict.integer(value["schema_version"]),
                pumps=tuple(PumpEntry.from_dict(each) for each in value["pumps"]),
                ddl=DdlEntry.from_dict(value["ddl"]),
                base=None if value["base"] is None else tuple(BaseTable.from_dict(each) for each in value["base"]),
                sha256=sha256(data),
            )

        return parse(key, data, KIND, read)
