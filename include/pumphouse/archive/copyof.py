"""``copy.json``: says of an archive that it is the copy of another (docs/formats.md, "Copy").

Only `archive copy` writes to a copy. Whoever would extend it, delete from it or let the Pumps know it is refused here:
a snapshot into a copy would split the history in two, and its checkpoint would free what the archive does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.archive.document import dump, parse
from pumphouse.archive.layout import COPY
from pumphouse.errors import ConfigError, ObjectNotFound
from pumphouse.model.record import Record, Uint64
from pumphouse.objectstore.base import ObjectStore

KIND = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOf(Record):
    """Which archive it is a copy of.

    Args:
        cluster_id: of both.
        genesis_sha256: digest of the archive's ``genesis.json``.
        url: where the archive lay when the copy was begun, without secrets.
        range: the newest range document of the copy, to put it back; '' = the copy has everything from genesis on.
            None = the copy is not begun: it lacks what its first moment needs, and ``genesis.json``.
    """

    cluster_id: Uint64
    genesis_sha256: str
    url: str
    range: str | None

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(KIND, self.to_dict())


def read_copy_of(store: ObjectStore) -> CopyOf | None:
    """What it is a copy of, None = it is an archive of its own; BadManifest. ``store``: the archive's."""
    try:
        data = store.get(COPY)
    except ObjectNotFound:
        return None
    return parse(COPY, data, KIND, CopyOf.from_dict)


def require_no_copy(store: ObjectStore) -> None:
    """ConfigError where this is a copy, which names the archive. ``store``: the archive's."""
    found = read_copy_of(store)
    if found is not None:
        raise ConfigError(
            f"{store.url} is a copy of the archive at {found.url}: only `pumphouse archive copy` writes to it",
            hint="is archive.root right? If that archive is lost, make the copy the archive: pumphouse archive promote",
            copy_of=found.url,
        )
