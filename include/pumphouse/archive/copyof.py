"""``copy.json``: says of an archive that it is the copy of another (docs/formats.md, "Copy").

Only `archive copy` writes to a copy. Whoever would extend it, delete from it or let the Pumps know it is refused here:
a snapshot into a copy would split the history in two, and its checkpoint would free what the archive does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumphouse.archive.document import dump, parse
from pumphouse.archive.layout import COPY
from pumphouse.errors import ConfigError, ObjectNotFound
from pumphouse.model import strict
from pumphouse.objectstore.base import ObjectStore

KIND = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOf:
    """Which archive it is a copy of.

    Args:
        cluster_id: of both.
        genesis_sha256: digest of the archive's ``genesis.json``.
        url: where the archive lay when the copy was begun, without secrets.
        range: the newest range document of the copy, to put it back; '' = the copy has everything from genesis on.
            None = the copy is not begun: it lacks what its first moment needs, and ``genesis.json``.
    """

    cluster_id: int
    genesis_sha256: str
    url: str
    range: str | None

    def to_json(self) -> bytes:
        """Bytes as stored."""
        fields = {"cluster_id": self.cluster_id, "genesis_sha256": self.genesis_sha256, "url": self.url}
        return dump(KIND, {**fields, "range": self.range})


def read_copy_of(store: ObjectStore) -> CopyOf | None:
    """What it is a copy of, None = it is an archive of its own; BadManifest. ``store``: the archive's."""

    def read(value: dict[str, Any]) -> CopyOf:
        return CopyOf(
            cluster_id=strict.integer(value["cluster_id"], high=strict.MAX_UINT64),
            genesis_sha256=strict.text(value["genesis_sha256"]),
            url=strict.text(value["url"]),
            range=None if value["range"] is None else strict.text(value["range"]),
        )

    try:
        data = store.get(COPY)
    except ObjectNotFound:
        return None
    return parse(COPY, data, KIND, read)


def require_no_copy(store: ObjectStore) -> None:
    """ConfigError where this is a copy, which names the archive. ``store``: the archive's."""
    found = read_copy_of(store)
    if found is not None:
        raise ConfigError(
            f"{store.url} is a copy of the archive at {found.url}: only `pumphouse archive copy` writes to it",
            hint="is archive.root right? If that archive is lost, make the copy the archive: pumphouse archive promote",
            copy_of=found.url,
        )
