"""Finding damage without opening, accepting it by name, and directories as the Go Pump leaves them (rows P1, P5)."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import plyvel
import pytest
from click.testing import CliRunner

from pump_service.store import damage, frame
from pump_service.store.index import IndexFailed
from pumphouse.cli import cli
from pumphouse.errors import BadRecord, ConfigError, UsageError
from tests.support.storekit import (
    commit,
    fake,
    find,
    index_meets,
    no_room_to_open_index,
    open_store,
    prewrite,
    pull_all,
    rollback,
    settle,
    store_all,
    stream,
    value_files,
    write,
)

pytestmark = pytest.mark.row("P5", "P1")
SMALL = {"value_log_file_bytes": 4096}


def filled(data_dir: Path, count: int = 12) -> list[tuple[int, int]]:
    store = open_store(data_dir, **SMALL)
    for n in range(count):
        store_all(store, prewrite(100 + 10 * n, b"v" * 900), commit(100 + 10 * n, 105 + 10 * n))
    found = stream(store)
    store.close()
    return found


def damage_at(path: Path, at: int, data: bytes = b"\xff\xfe\xfd") -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    return result.exit_code, result.output + (str(result.exception) if result.exception else "")


def test_a_sound_directory_is_said_to_be_sound_and_nothing_is_changed(tmp_path: Path) -> None:
    filled(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, said = run("pump", "verify", tmp_path, "--json")
    assert code == 0
    report = json.loads(said)
    assert report["sound"]
    assert report["records"] == 24
    assert report["files"] == len(value_files(tmp_path)) > 2
    assert report["bytes"] == sum(path.stat().st_size for path in value_files(tmp_path))
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_damage_in_a_sealed_file_is_found_named_accepted_and_declared_by_a_new_incarnation(tmp_path: Path) -> None:
    expected = filled(tmp_path)
    victim = value_files(tmp_path)[1]
    damage_at(victim, 500)
    code, said = run("pump", "verify", tmp_path)
    assert code == 1
    (stretch,) = [line.partition(": ")[0] for line in said.splitlines() if line.startswith(victim.name)]
    start, stop = map(int, stretch.partition(":")[2].split("-"))
    assert start <= 500 < stop
    incarnation = json.loads((tmp_path / "pumphouse" / "incarnation.json").read_bytes())["incarnation"]

    for wrong in (f"{victim.name}:{start}-{stop + 1}", f"{victim.name}:0-{start}"):
        with pytest.raises(UsageError, match="no such damaged stretch"):
            damage.accept(tmp_path, [wrong], reason="test", who="test", at=0.0)
    with pytest.raises(UsageError, match="reason"):
        damage.accept(tmp_path, [stretch], reason=" ", who="test", at=0.0)
    code, said = run("pump", "accept-damage", tmp_path, stretch, "--reason", "the disk lost a sector")
    assert code == 0, said
    assert run("pump", "verify", tmp_path)[0] == 0
    assert victim.read_bytes()[500:503] == b"\xff\xfe\xfd", "the bytes stay"

    store = open_store(tmp_path, **SMALL)
    assert store.incarnation != incarnation
    found = stream(store)
    orphans = {(c.start_ts, c.commit_ts) for c in store.orphans()}
    waiting = {each.start_ts for each in store.prewrites.oldest(10)}
    lost = [each for each in expected if each not in found]
    assert len(lost) <= 2
    # Nothing of it is silent: the other half of a lost record shows, as orphan or as unresolved.
    for start_ts, commit_ts in lost:
        assert (start_ts, commit_ts) in orphans or start_ts in waiting
    for start_ts in waiting:
        store_all(store, rollback(start_ts))
    store_all(store, prewrite(5000, b"more"), commit(5000, 5001))
    assert find(store, 5001) is not None
    store.close()
    again = open_store(tmp_path, **SMALL)
    assert find(again, 5001) is not None
    again.close()


def test_a_running_pump_is_looked_at_but_for_its_newest_file_and_cannot_be_changed(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    for n in range(12):
        store_all(store, prewrite(100 + 10 * n, b"v" * 900), commit(100 + 10 * n, 105 + 10 * n))
    report = damage.verify(tmp_path)
    assert report.running
    assert report.sound
    assert report.files == len(value_files(tmp_path)) - 1
    damage_at(value_files(tmp_path)[0], 500)
    report = damage.verify(tmp_path)
    assert [each.file for each in report.damages] == ["000000.vlog"]
    with pytest.raises(ConfigError, match="a Pump has"):
        damage.accept(tmp_path, [report.damages[0].name], reason="test", who="test", at=0.0)


def test_an_accepted_stretch_is_shown_as_such_whatever_lies_behind_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), commit(10, 20), prewrite(40, b"v" * 100))
    end = store.synced_end.offset
    store.close()
    (path,) = value_files(tmp_path)
    damage_at(path, end - 50)
    (found,) = damage.verify(tmp_path).damages
    damage.accept(tmp_path, [found.name], reason="test", who="test", at=0.0)
    for behind in (0, 300, 200_000):
        path.write_bytes(path.read_bytes()[:end] + bytes(behind))
        report = damage.verify(tmp_path)
        assert [(each.name, each.accepted) for each in report.damages] == [(found.name, True)]
        assert report.sound
    store = open_store(tmp_path)
    assert store.synced_end.offset == end
    assert store.status().backlog_bytes == 0


def test_missing_files_wrong_footers_and_torn_tails_are_told_apart(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    value_files(tmp_path / "a")[1].unlink()
    assert "missing" in damage.verify(tmp_path / "a").problems[0]
    filled(tmp_path / "b")
    first = value_files(tmp_path / "b")[0]
    first.write_bytes(first.read_bytes()[:-12] + frame.encode_footer(7))
    assert "footer says 7" in damage.verify(tmp_path / "b").problems[0]
    filled(tmp_path / "c")
    last = value_files(tmp_path / "c")[-1]
    last.write_bytes(last.read_bytes() + frame.encode_record(prewrite(9000, b"z" * 3000).payload)[:900])
    report = damage.verify(tmp_path / "c")
    assert report.sound
    assert "torn tail of 900 bytes" in report.notes[0]


@pytest.mark.row("P11")
@pytest.mark.parametrize("summaries", [True, False])
def test_gc_does_not_believe_a_footer_that_lost_a_bit(summaries: bool, tmp_path: Path) -> None:
    filled(tmp_path)
    victim = value_files(tmp_path)[1]
    data = victim.read_bytes()
    victim.write_bytes(data[:-12] + frame.encode_footer(1))
    if not summaries:
        (tmp_path / "pumphouse" / "files" / "000001.summary").unlink()
    store = open_store(tmp_path, **SMALL)
    expected = stream(store, 115)
    report = store.gc.collect({"archive": 115}, 1 << 60)
    assert report.gc_point == 115
    assert victim.exists(), "it holds what no consumer has confirmed"
    assert stream(store, 115) == expected


@pytest.mark.row("P15")
def test_an_index_that_a_full_disk_keeps_from_opening_is_not_taken_for_broken(tmp_path: Path) -> None:
    expected = filled(tmp_path)
    with index_meets(opening=no_room_to_open_index), pytest.raises(IndexFailed, match="No space left"):
        open_store(tmp_path, **SMALL)
    assert not list(tmp_path.glob("kv.broken*"))
    store = open_store(tmp_path, **SMALL)
    assert stream(store) == expected


# -- directories of a Go Pump, byte by byte ------------------------------------------------------------------------------


class GoDirectory:
    """What a Go Pump writes: value log and LevelDB, nothing of ours (docs/formats.md, "Value log")."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "value").mkdir(parents=True)
        (path / ".node").write_text("go:8250\n")
        self.records: list[tuple[int, int, int]] = []  # storage ts, fid, offset

    def file(self, fid: int, parts: Sequence[object], *, footer: bool) -> None:
        """Items become records, bytes go as they are."""
        data, highest = b"", 0
        for part in parts:
            if isinstance(part, bytes):
                data += part
                continue
            ts = part.start_ts if part.tp == 0 else part.commit_ts
            self.records.append((ts, fid, len(data)))
            highest = max(highest, ts)
            data += frame.encode_record(part.payload)
        (self.path / "value" / f"{fid:06d}.vlog").write_bytes(data + (frame.encode_footer(highest) if footer else b""))

    def index(self, *, max_commit_ts: int, gc_ts: int = 0) -> None:
        """As after a clean stop."""
        db = plyvel.DB(str(self.path / "kv"), create_if_missing=True)
        for ts, fid, offset in self.records:
            db.put(b"ts:" + struct.pack(">Q", ts), struct.pack("<Iq", fid, offset))
        last = struct.pack("<Iq", *self.records[-1][1:])
        db.put(b"!binlog!headPointer", last)
        db.put(b"!binlog!handlePointer", last)
        db.put(b"!binlog!maxCommitTS", struct.pack("<q", max_commit_ts))
        db.put(b"!binlog!gcts", struct.pack("<q", gc_ts))
        db.close()


TORN = frame.encode_record(prewrite(7777, b"never answered" * 20).payload)


@pytest.mark.parametrize("with_index", [True, False])
def test_a_go_pumps_directory_opens_serves_and_goes_on(with_index: bool, tmp_path: Path) -> None:
    go = GoDirectory(tmp_path)
    go.file(0, [prewrite(100, b"a"), commit(100, 110), prewrite(120, b"b"), fake(115)], footer=True)
    go.file(3, [commit(120, 130), rollback(1), prewrite(140, b"c")], footer=False)  # Go's GC took 1 and 2
    if with_index:
        go.index(max_commit_ts=130, gc_ts=0)
    store = open_store(tmp_path, **SMALL)
    assert stream(store) == [(100, 110), (120, 130)]
    assert [each.start_ts for each in store.prewrites.oldest()] == [140]
    store_all(store, commit(140, 150))
    assert stream(store)[-1] == (140, 150)


@pytest.mark.parametrize("length", [1, 7, 15, 16, 17, 40, 200])
def test_a_torn_tail_that_a_go_pump_appended_behind_is_refused_and_has_a_recorded_way_past_it(
    length: int, tmp_path: Path
) -> None:
    go = GoDirectory(tmp_path)
    go.file(
        0, [prewrite(100, b"a"), TORN[:length], commit(100, 110), prewrite(120, b"b"), commit(120, 130)], footer=False
    )
    go.index(max_commit_ts=130, gc_ts=50)
    with pytest.raises(BadRecord) as refused:
        open_store(tmp_path, **SMALL)
    assert refused.value.path.endswith("000000.vlog")
    assert "accept-damage" in str(refused.value.hint)
    (found,) = damage.verify(tmp_path).damages
    assert (found.start, found.stop - found.start) == (refused.value.offset, length)
    damage.accept(tmp_path, [found.name], reason="Go appends behind a torn tail", who="test", at=1.0)
    store = open_store(tmp_path, **SMALL)
    assert stream(store, 50) == [(100, 110), (120, 130)]
    assert store.gc_point == 50, "the floor of the Go Pump is kept"
    assert not store.orphans()
    store_all(store, prewrite(200, b"more"), commit(200, 210))
    store.close()
    store = open_store(tmp_path, **SMALL)
    assert stream(store, 50)[-1] == (200, 210)


def test_what_we_append_reads_as_the_go_pump_reads_it(tmp_path: Path) -> None:
    """Every record in the log, every key in LevelDB, both pointers: by a reader that knows only the format."""
    store = open_store(tmp_path, **SMALL)
    items = [prewrite(100, b"v" * 2000), commit(100, 105), prewrite(110, b"v" * 2500), commit(110, 115), fake(120)]
    for item in items:
        assert write(store, item) == [None]
    settle(store)
    expected = {row[0] for row in pull_all(store)}
    store.close()
    seen = {}
    for path in value_files(tmp_path):
        data, at = path.read_bytes(), 0
        while at < len(data):
            if len(data) - at == 12:
                assert struct.unpack_from("<qI", data, at)[1] == 0x123AB922
                break
            magic, length, _checksum = struct.unpack_from("<IQI", data, at)
            assert magic == 0x823A56E8
            seen[data[at + 16 : at + 16 + length]] = (int(path.stem), at)
            at += 16 + length
    assert list(seen) == [item.payload for item in items]
    db = plyvel.DB(str(tmp_path / "kv"))
    for item in items:
        ts = item.start_ts if item.tp == 0 else item.commit_ts
        assert struct.unpack("<Iq", db.get(b"ts:" + struct.pack(">Q", ts))) == seen[item.payload]
    assert struct.unpack("<Iq", db.get(b"!binlog!headPointer")) == seen[items[-1].payload]
    assert struct.unpack("<q", db.get(b"!binlog!maxCommitTS")) == (max(expected),)
    db.close()
