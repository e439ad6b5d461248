"""Binlog files as they are read: names, order, frames; whatever does not fit is refused with its place."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumphouse.errors import BadRecord, BinlogError, CorruptionError, ImportRefused, TornTail, UsageError
from pumphouse.export.pbfiles import NOTES, Note, Origin, file_name
from pumphouse.export.pbframes import ddl_payload, framed
from pumphouse.file_import import files, kernels
from pumphouse.file_import.files import Source
from pumphouse.file_import.rows import zone_table
from pumphouse.file_import.schema import as_tidb_reads, dropped, parted
from pumphouse.model.tso import Tso, compose
from pumphouse.objectstore.file import FileStore

pytestmark = pytest.mark.row("A6")
START = compose(1_790_000_000_000)
MOST = 1 << 20
GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [
        ddl_payload(START + (at << 18), b"use `d`; CREATE TABLE t%d(a INT);" % at) for at in range(first, first + count)
    ]


def put(folder: Path, number: int, some: list[bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / file_name(number, START)
    path.write_bytes(b"".join(map(framed, some)))
    return path


def read(folder: Path) -> list[bytes]:
    return [
        bytes(block.payload(at))
        for block in Source.of(FileStore(folder)).blocks(MOST)
        for at in range(len(block.starts))
    ]


def test_frames_come_in_order_whatever_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = payloads(40)
    put(tmp_path, 0, some[:25])
    put(tmp_path, 1, some[25:])
    for size in (1, 13, 64, 1 << 20):
        monkeypatch.setattr(files, "_READ_BYTES", size)
        assert read(tmp_path) == some


def test_a_file_that_ends_amid_a_frame_is_named_with_the_byte_to_cut_it_at(tmp_path: Path) -> None:
    some = payloads(3)
    path = put(tmp_path, 0, some)
    whole, kept = path.read_bytes(), len(b"".join(map(framed, some[:2])))
    for size in range(kept + 1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(TornTail, match=f"byte {kept}: ") as error:
            read(tmp_path)
        assert f"truncate -s {kept} {path.name}" in error.value.hint
    path.write_bytes(whole[:kept])
    assert read(tmp_path) == some[:2]
    put(tmp_path, 1, payloads(1, first=3))
    path.write_bytes(whole[:-1])
    with pytest.raises(TornTail) as error:
        read(tmp_path)
    assert "copy it again" in error.value.hint


def test_where_there_are_no_files_the_folders_that_have_some_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the Drainers' folders lies one that nobody may read."""
    put(tmp_path / "one", 0, payloads(1))
    (tmp_path / "lost+found").mkdir()
    scandir = os.scandir

    def forbidden(path: str) -> Any:
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(UsageError, match=r"no binlog files .*one have some"):
        Source.of(FileStore(tmp_path))


def test_each_changed_byte_is_found(tmp_path: Path) -> None:
    some = payloads(3)
    path = put(tmp_path, 0, some)
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x41
        path.write_bytes(changed)
        with pytest.raises((CorruptionError, ImportRefused)) as error:
            read(tmp_path)
        assert path.name in error.value.message


def test_a_file_of_another_export_is_none_of_its_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = payloads(3)
    path = put(tmp_path, 0, some)
    data = path.read_bytes()
    note = Note(
        origin=Origin(cluster_id=1, archive_id="a"), number=0, name=path.name, digest=hashlib.sha256(data).hexdigest(),
        size=len(data), from_ts=Tso(START - 1), to_ts=Tso(START + (3 << 18)), transactions=0, changes=0, ddls=3,
    )  # fmt: skip
    (tmp_path / NOTES).mkdir()
    (tmp_path / note.key).write_bytes(note.to_json())
    for size in (13, 1 << 20):
        monkeypatch.setattr(files, "_READ_BYTES", size)
        assert read(tmp_path) == some
        path.write_bytes(data.replace(framed(some[1]), framed(some[1].replace(b"t1", b"u1"))))
        # Before its first frame: a window of what stands before the other bytes would stay in the archive.
        with pytest.raises(ImportRefused, match=f"{path.name} is not the file that {note.key} names"):
            next(Source.of(FileStore(tmp_path)).blocks(MOST))
        path.write_bytes(data)


def test_files_that_are_missing_twice_there_packed_or_elsewhere_are_named(tmp_path: Path) -> None:
    def refusal(folder: str, kind: type[BinlogError]) -> str:
        with pytest.raises(kind) as error:
            Source.of(FileStore(tmp_path / folder))
        return str(error.value)

    for number in (3, 4, 7):
        put(tmp_path / "gap", number, payloads(1, first=number))
    assert "lacks the files 5 to 6" in refusal("gap", ImportRefused)
    path = put(tmp_path / "twice", 0, payloads(1))
    path.with_name("binlog-0000000000000000-20300101000000").write_bytes(path.read_bytes())
    assert "two files of number 0" in refusal("twice", UsageError)
    path = put(tmp_path / "packed", 0, payloads(1))
    path.rename(path.with_name(f"{path.name}-407623959013752832.tar.gz"))
    assert "is compressed" in refusal("packed", ImportRefused)
    (tmp_path / "several").mkdir()
    for name in ("one", "two"):
        put(tmp_path / "several" / name, 0, payloads(1))
    assert "one, two have some" in refusal("several", UsageError)
    put(tmp_path / "late", 5, payloads(1))
    assert not Source.of(FileStore(tmp_path / "late")).begins


def test_what_is_older_than_what_stands_before_it_and_what_is_too_large_is_refused(tmp_path: Path) -> None:
    first, second = payloads(2)
    put(tmp_path, 0, [second])
    put(tmp_path, 1, [first])
    with pytest.raises(ImportRefused, match="comes after"):
        read(tmp_path)
    put(tmp_path, 1, payloads(1, first=2))
    with pytest.raises(ImportRefused, match="larger than the 20 that are taken") as error:
        list(Source.of(FileStore(tmp_path)).blocks(20))
    assert "--transaction-mib" in error.value.hint


def test_what_a_drainer_that_was_killed_writes_again_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = payloads(12)
    put(tmp_path, 0, some[:6])
    put(tmp_path, 1, [*some[5:8], *some[4:8], some[7], some[8], some[8]])
    put(tmp_path, 2, some[3:9])
    put(tmp_path, 3, some[8:])
    for size in (1, 1 << 20):
        monkeypatch.setattr(files, "_READ_BYTES", size)
        assert read(tmp_path) == some
    assert Source.of(FileStore(tmp_path)).last(MOST) == START + (11 << 18)
    # A batch of DDLs has one time; and another one at a time that has gone is none that came again.
    batch = [ddl_payload(START + (12 << 18), b"CREATE TABLE d.u%d(a INT);" % at) for at in (1, 2)]
    put(tmp_path, 4, [*batch, *batch])
    assert read(tmp_path) == some + batch
    put(tmp_path, 5, [ddl_payload(START + (3 << 18), b"DROP TABLE d.t3;")])
    with pytest.raises(ImportRefused, match=r"comes after .* and is not what came at that time before"):
        read(tmp_path)


def test_the_last_time_is_known_before_an_empty_file_and_one_that_repeats(tmp_path: Path) -> None:
    some = payloads(5)
    put(tmp_path, 0, some[:2])
    put(tmp_path, 1, some[2:])
    put(tmp_path, 2, some[3:4])
    put(tmp_path, 3, [])
    assert Source.of(FileStore(tmp_path)).last(MOST) == START + (4 << 18)


def test_what_is_written_meanwhile_is_left_to_the_next_run(tmp_path: Path) -> None:
    some = payloads(3)
    put(tmp_path, 0, some[:2])
    source = Source.of(FileStore(tmp_path))
    put(tmp_path, 0, some)
    assert [int(ts) for block in source.blocks(MOST) for ts in block.commit_ts] == [START, START + (1 << 18)]


def test_a_damaged_length_is_no_large_transaction(tmp_path: Path) -> None:
    path = put(tmp_path, 0, payloads(1))
    data = bytearray(path.read_bytes())
    data[4:12] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(BadRecord, match="byte 0"):
        read(tmp_path)


def test_the_zone_says_when_a_local_time_was_or_that_it_was_twice_or_never() -> None:
    def offset(zone: str, local: int) -> int:
        table = zone_table(zone)
        return int(table[1, np.searchsorted(table[0], local, "right") - 1])

    summer, winter = 1_719_000_000, 1_705_000_000
    assert offset("America/New_York", summer) == -4 * 3600
    assert offset("America/New_York", winter) == -5 * 3600
    assert offset("Asia/Shanghai", summer) == 8 * 3600
    assert offset("+08:00", 0) == 8 * 3600
    assert offset("-03:30", 0) == -12_600
    assert offset("UTC", summer) == 0
    day = 1_710_028_800  # 2024-03-10, of the zone's own clocks
    assert [offset("America/New_York", day + each) for each in (7199, 7200, 10_799, 10_800)] == [
        -18_000, kernels.GAP, kernels.GAP, -14_400,
    ]  # fmt: skip
    day = 1_730_592_000  # 2024-11-03
    assert [offset("America/New_York", day + each) for each in (3599, 3600, 7199, 7200)] == [
        -14_400, kernels.AMBIGUOUS, kernels.AMBIGUOUS, -18_000,
    ]  # fmt: skip
    assert zone_table("").shape == (2, 0)
    with pytest.raises(BinlogError, match="does not know the time zone"):
        zone_table("Mars/Olympus")


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("CREATE TABLE t (a INT) CHARSET=utf8mb4", "CREATE TABLE t (a INT) CHARSET=utf8mb4 COLLATE utf8mb4_bin"),
        ("CREATE TABLE t (a INT) CHARSET utf8 COLLATE utf8_general_ci", None),
        ("CREATE DATABASE d DEFAULT CHARACTER SET = latin1", "CREATE DATABASE d DEFAULT CHARACTER SET = utf8mb4 COLLATE utf8mb4_bin"),
        ("ALTER TABLE t DEFAULT CHARSET latin1, COLLATE = latin1_bin", "ALTER TABLE t DEFAULT CHARSET utf8mb4, COLLATE = utf8mb4_bin"),
        ("CREATE TABLE t (a TEXT COLLATE Latin1_swedish_ci)", "CREATE TABLE t (a TEXT COLLATE utf8mb4_general_ci)"),
        ("CREATE TABLE t (a INT COMMENT 'CHARSET utf8mb4', `charset utf8` INT /* CHARSET utf8 */)", None),
        ("CREATE TABLE t (a INT) CHARSET=gbk", None),
        ("CREATE TABLE t (a INT) COLLATE=utf8mb4_general_ci DEFAULT CHARSET=utf8mb4", None),
        ("CREATE TABLE t (a INT) CHARSET=utf8mb4, COMMENT='x', COLLATE=utf8mb4_general_ci", None),
        ("CREATE TABLE t (a CHAR(1) CHARACTER SET utf8mb4 NOT NULL COLLATE utf8mb4_general_ci)", None),
        ("CREATE DATABASE d COLLATE utf8mb4_general_ci CHARACTER SET utf8mb4", None),
        (
            "CREATE TABLE t (a CHAR(1) CHARSET latin1, b CHAR(1) COLLATE utf8_bin) CHARSET=utf8mb4 -- (\n",
            ("CREATE TABLE t (a CHAR(1) CHARSET utf8mb4 COLLATE utf8mb4_bin, b CHAR(1) COLLATE utf8_bin) "
            "CHARSET=utf8mb4 COLLATE utf8mb4_bin -- (\n"),
        ),
        (
            "CREATE TABLE t (a CHAR(1) CHARSET latin1) CHARSET=utf8mb4 COMMENT 'x' COLLATE=utf8mb4_general_ci",
            ("CREATE TABLE t (a CHAR(1) CHARSET utf8mb4 COLLATE utf8mb4_bin) CHARSET=utf8mb4 COMMENT 'x' "
            "COLLATE=utf8mb4_general_ci"),
        ),
        (
            "/* x */ ALTER TABLE t ADD a CHAR(1) CHARSET latin1, ADD b CHAR(1) COLLATE utf8_bin",
            "/* x */ ALTER TABLE t ADD a CHAR(1) CHARSET utf8mb4 COLLATE utf8mb4_bin, ADD b CHAR(1) COLLATE utf8_bin",
        ),
        (
            "CREATE TABLE t (a INT CHECK (x COLLATE utf8_bin = 1), b CHAR(1) CHARSET utf8 AS (c COLLATE utf8_bin)))",
            ("CREATE TABLE t (a INT CHECK (x COLLATE utf8_bin = 1), b CHAR(1) CHARSET utf8 COLLATE utf8_bin "
            "AS (c COLLATE utf8_bin)))"),
        ),
    ],
)  # fmt: skip
def test_a_character_set_alone_has_the_collation_of_tidb(text: str, read_as: str | None) -> None:
    assert as_tidb_reads(text) == (read_as or text)


def test_the_text_of_a_ddl_is_parted_from_its_database() -> None:
    assert parted(b"use `a``b`; CREATE TABLE t(a INT);") == ("a`b", b"CREATE TABLE t(a INT)")
    assert parted(b"CREATE DATABASE d;;") == ("", b"CREATE DATABASE d;")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("DROP TABLE IF EXISTS T1, `E`.`a``B` RESTRICT", [("d", "t1"), ("e", "a`b")]),
        ("/* x */ drop database D", [("d",)]),
        ("DROP INDEX i ON t", []),
        ("ALTER TABLE t DROP COLUMN c", []),
    ],
)
def test_what_a_drop_names(text: str, names: list[tuple[str, ...]]) -> None:
    assert dropped(text, "d") == names


def test_golden_frames_and_names(tmp_path: Path) -> None:
    vectors: dict[str, Any] = json.loads((GOLDEN / "binlogfile.json").read_text())
    for vector in vectors["frames"]:
        data = np.frombuffer(bytes.fromhex(vector["hex"]), np.uint8)
        out = [np.empty(1, np.int64) for _ in range(4)]
        found = np.zeros(kernels.S_FIELDS, np.int64)
        kernels.scan(data, 0, len(data), MOST, *out, found)
        payload = bytes.fromhex(vector["payload_hex"])
        if vector["name"] == "pb_ddl":
            assert bytes(data[out[0][0] : out[0][0] + out[1][0]]) == payload
            assert (int(out[2][0]), int(out[3][0])) == (vector["commit_ts"], kernels.DDL)
        else:  # a good checksum around what is no message
            assert int(found[kernels.S_WHY]) == kernels.BAD_PAYLOAD
    for number, vector in enumerate(each for each in vectors["names"] if each["ok"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / vector["file_name"]).write_bytes(b"")
        if vector["file_name"].endswith("gz"):
            continue
        assert [each.index for each in Source.of(FileStore(folder)).files] == [vector["index"]]
