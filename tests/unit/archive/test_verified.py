"""What is noted of a verification: how far the archive was proved."""

import json
from pathlib import Path

import pytest

from pumphouse.archive.layout import VERIFIED
from pumphouse.archive.verified import read_verified, write_verified
from pumphouse.archive.verify import verify
from pumphouse.errors import BadManifest
from tests.support import formats
from tests.support.madearchive import MadeSource


@pytest.mark.row("A4")
def test_a_sound_archive_says_how_far_it_was_proved_until_the_note_is_damaged(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    assert source.genesis()
    archive = source.archive
    assert read_verified(archive) is None
    for _ in range(2):
        end = source.cut()
        report = verify(archive)
        assert report.sound
        write_verified(archive, report.end)
        found = read_verified(archive)
        assert found is not None
        assert (found.end, found.window_sha256) == (end, archive.last().sha256)  # type: ignore[union-attr]
    note = archive.store.get(VERIFIED)
    formats.check("verified", json.loads(note))
    assert verify(archive).sound
    archive.store.put(VERIFIED, note.replace(b"end", b"End"))
    with pytest.raises(BadManifest, match=r"verified\.json is damaged.*delete it"):
        read_verified(archive)
    (problem,) = verify(archive).problems
    assert problem.key == VERIFIED
