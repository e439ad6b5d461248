"""``HEAD``: names the newest manifest with its digest, so that an end that was cut off shows (docs/formats.md, "Head").

It is written after each manifest and may lag behind: the windows after the one that it names are found by following
the chain. It never names what is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumphouse import advice
from pumphouse.archive.document import LISTS_ALL, dump, parse
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.layout import GENESIS, HEAD, window_start
from pumphouse.archive.manifest import Manifest
from pumphouse.errors import BadManifest, CorruptionError
from pumphouse.model import strict

KIND = "head"
_WRITTEN_AGAIN = (advice.SNAPSHOT, " writes it again")
_PUT_BACK = f"put it back from a copy of the archive; {LISTS_ALL}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest object of the chain: a manifest, or ``genesis.json`` before the first."""

    manifest: str
    manifest_sha256: str

    @classmethod
    def of(cls, newest: Genesis | Manifest) -> Head:
        """HEAD of an archive that ends with this object."""
        key = GENESIS if isinstance(newest, Genesis) else newest.key
        return cls(manifest=key, manifest_sha256=newest.sha256)

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(KIND, {"manifest": self.manifest, "manifest_sha256": self.manifest_sha256})

    @classmethod
    def from_json(cls, data: bytes) -> Head:
        """Read the stored object; BadManifest."""

        def read(value: dict[str, Any]) -> Head:
            return cls(manifest=strict.text(value["manifest"]), manifest_sha256=strict.text(value["manifest_sha256"]))

        remedy = ("delete it, ", *_WRITTEN_AGAIN)
        head = parse(HEAD, data, KIND, read, remedy=remedy)
        try:
            if head.manifest != GENESIS:
                window_start(head.manifest)
        except CorruptionError as error:
            raise BadManifest(f"{HEAD}: {error.message}", hint=remedy, path=HEAD, offset=0, reason="name") from error
        return head

    def comes_after(self, other: Head) -> bool:
        """Whether it names a later object: names sort, genesis first."""
        return self.manifest > other.manifest

    def check(self, found: Genesis | Manifest | None) -> None:
        """Hold what lies under the name (None = nothing) against HEAD; BadManifest."""
        if found is None:
            raise BadManifest(
                f"{self.manifest} is named by HEAD and is not there: the archive's end was cut off",
                hint=_PUT_BACK, path=self.manifest, offset=0, reason="missing",
            )  # fmt: skip
        if self.manifest_sha256 != found.sha256:
            raise BadManifest(
                f"{self.manifest} has the digest {found.sha256}, HEAD says {self.manifest_sha256}",
                hint=_PUT_BACK, path=self.manifest, offset=0, reason="sha256",
            )  # fmt: skip


def missing_head(url: str) -> BadManifest:
    """There are windows and no HEAD: nobody can say that none is missing behind the last."""
    return BadManifest(
        f"{url}/{HEAD} is missing: windows may have been cut off behind the last",
        hint=_WRITTEN_AGAIN, path=HEAD, offset=0, reason="missing",
    )  # fmt: skip
