"""A real data directory against docs/formats.md: value log, LevelDB, and the bookkeeping beside them."""

from __future__ import annotations

import json
from pathlib import Path

import plyvel
import pytest

from pump_service.store.frame import crc32c
from tests.support import formats
from tests.support.storekit import commit, fake, open_store, prewrite, rollback, settle, store_all, until

CHECKPOINT = 10_000


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that met a late and an orphan commit, accepted and healed, settled prewrites, rotated and collected."""
    path = tmp_path_factory.mktemp("store") / "data"
    store = open_store(path, value_log_file_bytes=4096)
    for n in range(10, 400, 10):
        store_all(store, prewrite(n, b"v" * 400), commit(n, n + 5))
    store_all(store, prewrite(500), rollback(500), fake(600))
    until(lambda: store.watermark >= 600)
    store_all(store, commit(7, 8))
    store_all(store, commit(700, 710))
    until(lambda: len(store.orphans()) == 2)
    store.accept(7, 8, "seen in the logs")
    store_all(store, prewrite(700), commit(700, 710))
    store_all(store, prewrite(800), prewrite(810))
    store.settling.rolled_back(800, reason="host is gone", who="ops")
    store.settling.committed(810, 820, reason="its row is there", who="ops")
    until(lambda: store.prewrites.count == 0)
    store.gc.collect({"pumphouse-main": 300}, CHECKPOINT)
    settle(store)
    store.close()
    return path


def test_the_directory_holds_what_the_page_lists(data_dir: Path) -> None:
    page = formats.PAGE.read_text()
    own = {path.name for path in (data_dir / "pumphouse").iterdir()}
    assert {"incarnation.json", "gc.json", "commits.jsonl", "settled.jsonl", "files"} <= own
    for name in own - {"files"}:
        assert f"| `{name}`" in page, name
    for name in {path.name for path in data_dir.iterdir()}:
        assert f"`{name}" in page, name


@pytest.mark.row("P1", "O7")
def test_value_log_files_are_records_and_a_footer_as_drawn(data_dir: Path) -> None:
    files = sorted((data_dir / "value").iterdir())
    assert len(files) > 1
    footers = 0
    for file in files:
        data, at = file.read_bytes(), 0
        while len(data) - at > formats.size_of("footer"):
            found = formats.read("record", data[at:])
            assert crc32c(found["payload"]) == found["crc"]
            at += formats.size_of("record") + found["length"]
        if at < len(data):
            assert formats.read("footer", data[at:])["max_ts"] > 0
            footers += 1
    assert footers == len(files) - 1


@pytest.mark.row("P2")
def test_leveldb_keys_and_values_are_as_the_page_says(data_dir: Path) -> None:
    named = {b"!binlog!headPointer", b"!binlog!handlePointer", b"!binlog!maxCommitTS"}
    database = plyvel.DB(str(data_dir / "kv"), compression=None)
    try:
        pairs = dict(database.iterator())
    finally:
        database.close()
    stamps = {key for key in pairs if key.startswith(b"ts:")}
    assert named <= pairs.keys() - stamps <= named | {b"!binlog!gcts"}
    assert len(stamps) > 10
    for key in stamps:
        assert len(key) == formats.size_of("ts-key")
        ts, pointer = formats.read("ts-key", key)["ts"], formats.read("pointer", pairs[key])
        record = (data_dir / "value" / f"{pointer['fid']:06d}.vlog").read_bytes()[pointer["offset"] :]
        payload = formats.read("record", record)["payload"]
        assert payload
        assert ts in {0, *range(8, 1000)}
    for key in named - {b"!binlog!maxCommitTS"}:
        assert len(pairs[key]) == formats.size_of("pointer")
    assert len(pairs[b"!binlog!maxCommitTS"]) == 8
    for key in pairs.keys() - stamps:
        assert key.decode() in formats.PAGE.read_text()


@pytest.mark.row("P11", "O7")
def test_identity_and_gc_numbers_are_as_the_page_says(data_dir: Path) -> None:
    shown = formats.Shown()
    for name, file in (("incarnation", "incarnation.json"), ("gc", "gc.json")):
        shown.check(name, json.loads((data_dir / "pumphouse" / file).read_bytes()))
    assert shown.missing("gc") == []
    assert shown.missing("incarnation") == []


@pytest.mark.row("P7")
def test_events_of_kept_out_commits_and_settlements_are_as_the_page_says(data_dir: Path) -> None:
    shown = formats.Shown()
    for name, file in (("commits-line", "commits.jsonl"), ("settled-line", "settled.jsonl")):
        text = (data_dir / "pumphouse" / file).read_bytes()
        assert text.endswith(b"\n")
        for line in text.splitlines():
            shown.check(name, json.loads(line))
    assert shown.missing("commits-line") == shown.missing("settled-line") == []
    events = {json.loads(line)["event"] for line in (data_dir / "pumphouse/commits.jsonl").read_bytes().splitlines()}
    assert events == {"pending", "accepted", "healed"}


@pytest.mark.row("P11")
def test_summaries_are_one_line_and_rows_as_drawn(data_dir: Path) -> None:
    files = sorted((data_dir / "pumphouse/files").iterdir())
    assert files
    for file in files:
        head, _, body = file.read_bytes().partition(b"\n")
        formats.check("summary-head", json.loads(head))
        line, _, checksum = head.rpartition(b',"crc32c":')
        assert int(checksum.rstrip(b"}")) == crc32c(line + b"}" + body)
        assert len(body) % formats.size_of("summary-row") == 0
        ends = []
        for at in range(0, len(body), formats.size_of("summary-row")):
            ends.append(formats.read("summary-row", body[at:])["end"])
        assert ends[-1] == json.loads(head)["end"]
