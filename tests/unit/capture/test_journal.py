"""The journal of a capture: what it answers, what a torn end and damage are, when files go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumphouse.capture import journal as journals
from pumphouse.capture.journal import NOTHING, Decisions, Journal, Mark, Place, open_journal
from pumphouse.errors import CaptureRefused, CorruptionError
from pumphouse.model.tso import Tso
from tests.support import formats

IDENTITY: dict[str, Any] = {"capture": "main", "cluster_id": 7}
START = Mark(gtid="0-1-1", moment=0.0, schema=1, transactions=0)


def mark(number: int) -> Mark:
    return Mark(gtid=f"0-1-{number}", moment=float(number), schema=1, transactions=number)


def decided(*starts: int, jobs: tuple[dict[str, Any], ...] = ()) -> Decisions:
    return Decisions(
        start_ts=np.array(starts, np.uint64),
        commit_ts=np.array(starts, np.uint64) + np.uint64(5),
        keys=tuple(f"0-1-{start}".encode() for start in starts),
        jobs=jobs,
    )


def opened(directory: Path) -> Journal:
    journal = open_journal(directory, IDENTITY)
    assert journal is not None
    return journal


@pytest.mark.row("Q2")
def test_what_is_decided_is_there_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    assert open_journal(tmp_path, IDENTITY) is None
    journal = Journal.begin(tmp_path, IDENTITY, START)
    journal.append(decided(10, 20), mark(2))
    journal.append(NOTHING, mark(3))
    journal.append(decided(30, jobs=({"id": 1},)), mark(4))
    for each in (journal, opened(tmp_path)):
        assert each.mark == mark(4)
        assert [each.outcome(Tso(ts)) for ts in (10, 15, 20, 30, 40)] == [15, None, 25, 35, None]
        assert each.jobs() == [{"id": 1}]


@pytest.mark.row("Q2")
def test_it_names_what_is_prepared_as_its_schema_says(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, IDENTITY, START)
    held = replace(mark(2), prepared={"X'78',X'',1": Place("0-1-2", 0, 7, 123)})
    journal.append(NOTHING, held)
    assert opened(tmp_path).mark == held
    data = (tmp_path / "journal" / f"{1:016d}.log").read_bytes()
    heads = [head for head, _ in journals._records(tmp_path, data, torn=False)]
    for head in heads:
        formats.check("capture-journal-head", head)
    assert heads[1]["prepared"] == {"X'78',X'',1": ["0-1-2", 0, 7, 123]}
    del heads[1]["prepared"]  # of an earlier version
    assert Mark.from_dict(heads[1]) == mark(2)


@pytest.mark.row("Q2")
def test_neighbours_among_timestamps_as_large_as_they_are_are_told_apart(tmp_path: Path) -> None:
    begin = 470_771_076_414_308_352
    journal = Journal.begin(tmp_path, IDENTITY, START)
    journal.append(decided(*range(begin, begin + 9, 2)), mark(2))
    assert [journal.outcome(Tso(begin + at)) for at in range(5)] == [begin + 5, None, begin + 7, None, begin + 9]


@pytest.mark.row("Q2")
def test_a_torn_end_is_cut_at_every_byte_and_the_rest_stays(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, IDENTITY, START)
    journal.append(decided(10), mark(2))
    (path,) = (tmp_path / "journal").glob("*.log")
    whole = path.stat().st_size
    journal.append(decided(20), mark(3))
    data = path.read_bytes()
    for size in range(whole, len(data)):
        for tail in (b"", bytes(len(data) - size)):
            path.write_bytes(data[:size] + tail)
            again = opened(tmp_path)
            assert (again.mark, again.outcome(Tso(20))) == (mark(2), None)
            assert path.stat().st_size == whole
            again.append(decided(30), mark(9))
            again.close()
            assert opened(tmp_path).mark == mark(9)


@pytest.mark.row("Q2")
def test_damage_before_the_end_is_no_torn_end(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, IDENTITY, START)
    (path,) = (tmp_path / "journal").glob("*.log")
    journal.append(decided(10), mark(2))
    journal.append(decided(20), mark(3))
    data = path.read_bytes()
    for at in range(len(data)):  # the length of a record too, and the last one, which was answered
        for bit in (0, 4, 7):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            with pytest.raises(CorruptionError, match="damaged"):
                open_journal(tmp_path, IDENTITY)


@pytest.mark.row("Q2")
def test_timestamps_that_went_back_are_refused_and_the_answers_stay(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, IDENTITY, START)
    journal.append(decided(50), mark(2))
    for starts in ((7,), (50,), (60, 55)):
        with pytest.raises(CaptureRefused, match="went back"):
            journal.append(decided(*starts), mark(3))
    for each in (journal, opened(tmp_path)):
        assert (each.mark, each.outcome(Tso(50)), each.outcome(Tso(7))) == (mark(2), 55, None)


@pytest.mark.row("Q2")
def test_after_a_failed_fsync_nothing_is_decided_until_a_person_has_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.begin(tmp_path, IDENTITY, START)
    journal.append(decided(10), mark(2))

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", fails)
        with pytest.raises(CaptureRefused, match="Input/output error"):
            journal.append(decided(20), mark(3))
    with pytest.raises(CaptureRefused, match="nothing more"):
        journal.append(decided(30), mark(4))
    with pytest.raises(CaptureRefused, match="on no disk"):
        open_journal(tmp_path, IDENTITY)
    (path,) = (tmp_path / "journal").glob("*.log")
    before = path.stat().st_ino
    (tmp_path / "journal" / "unsafe").unlink()
    assert opened(tmp_path).mark == mark(3)
    assert path.stat().st_ino != before  # what the kernel showed is written again


@pytest.mark.row("Q2")
def test_files_go_once_every_pump_has_passed_them_and_no_answer_is_made_up_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 200)
    journal = Journal.begin(tmp_path, IDENTITY, START)
    for number in range(1, 31):
        journal.append(decided(10 * number), mark(number))
    files = sorted((tmp_path / "journal").glob("*.log"))
    assert len(files) > 5
    assert journal.outcome(Tso(10)) == 15
    assert journal.drop_below(0) == 0
    assert journal.drop_below(150) > 0
    for each in (journal, opened(tmp_path)):
        assert [each.outcome(Tso(ts)) for ts in (150, 155, 300)] == [155, None, 305]
        with pytest.raises(CaptureRefused, match="begins behind"):
            each.outcome(Tso(10))
    files = sorted((tmp_path / "journal").glob("*.log"))
    assert journal.drop_below(1 << 60) == len(files) - 1
    assert opened(tmp_path).mark == mark(30)


def test_a_journal_of_another_capture_and_a_missing_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 200)
    journal = Journal.begin(tmp_path, IDENTITY, START)
    for number in range(1, 31):
        journal.append(decided(10 * number), mark(number))
    with pytest.raises(CaptureRefused, match="another capture"):
        open_journal(tmp_path, {"capture": "other", "cluster_id": 7})
    sorted((tmp_path / "journal").glob("*.log"))[2].unlink()
    with pytest.raises(CorruptionError, match="lacks the file"):
        open_journal(tmp_path, IDENTITY)
