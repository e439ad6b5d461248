"""``genesis.json``: where the chain begins (docs/formats.md, "Genesis")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pumphouse.archive.base import Base, BaseTable
from pumphouse.archive.document import dump, parse, sha256
from pumphouse.archive.manifest import DdlEntry, PumpEntry
from pumphouse.model.record import ASIDE, Record, Uint64
from pumphouse.model.tso import Tso

KIND = "genesis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis(Record):
    """The archive begins after ``ts``. ``ddl`` holds the jobs that make the schema at ``ts``; ``base`` the dump.

    ``base`` is None when there is no dump (a target then begins where its user declares it equal), and () when the
    cluster had no tables.
    """

    cluster_id: Uint64
    archive_id: str
    attempt: str
    ts: Tso
    schema_version: int
    pumps: tuple[PumpEntry, ...]
    ddl: DdlEntry
    base: tuple[BaseTable, ...] | None
    sha256: Annotated[str, ASIDE] = ""  # of the bytes as stored

    @property
    def as_base(self) -> Base | None:
        """The dump that was taken with it."""
        if self.base is None:
            return None
        return Base(begun=self.ts, ts=self.ts, low=self.ts, tables=self.base, columns=False, sha256=self.sha256)

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Genesis:
        """Read the stored object; BadManifest."""
        return parse(key, data, KIND, lambda value: cls.read(value, sha256=sha256(data)))
