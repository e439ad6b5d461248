"""Cases of the Pump's storage: records, footers, keys, pointers, and whole runs of a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pumphouse.model.binlog import BinlogType
from pumphouse.model.position import Pointer
from tests.support.golden.case import Case, Json
from tests.support.golden.codec_cases import UNKNOWN

WAIT_S = 30.0


def pump_storage(content: Json) -> Iterator[Case]:
    """One case an entry, one for the run."""
    known = {
        "leveldb_ts_keys": _ts_key,
        "value_pointers": _pointer,
        "vlog_footers": _footer,
        "vlog_records": _record,
    }
    for name, part in content.items():
        if name == "store_run":
            yield Case("store_run", partial(_run, part), rows=("P1", "P4", "P5"))
        elif name in known:
            for index, entry in enumerate(part):
                yield Case(f"{name}-{index}", partial(known[name], entry), rows=("P4",))
        else:
            yield Case(name, skip=f"{name} {UNKNOWN}")


def _ts_key(entry: Json, _: Path) -> None:
    from pump_service.store.index import key_ts, ts_key

    assert ts_key(entry["ts"]).hex() == entry["hex"]
    assert key_ts(bytes.fromhex(entry["hex"])) == entry["ts"]


def _pointer(entry: Json, _: Path) -> None:
    pointer = Pointer(entry["fid"], entry["offset"])
    assert pointer.pack().hex() == entry["hex"]
    assert Pointer.unpack(bytes.fromhex(entry["hex"])) == pointer


def _footer(entry: Json, _: Path) -> None:
    from pump_service.store.frame import decode_footer, encode_footer

    assert encode_footer(entry["max_ts"]).hex() == entry["hex"]
    assert decode_footer(bytes.fromhex(entry["hex"])) == entry["max_ts"]


def _record(entry: Json, _: Path) -> None:
    from pump_service.store.frame import decode_header, encode_record

    payload, record = bytes.fromhex(entry["payload_hex"]), bytes.fromhex(entry["hex"])
    assert encode_record(payload) == record
    assert decode_header(record).length == len(payload)


def open_store(directory: Path) -> Any:
    """A store that never refuses for want of space and writes no fakes by itself."""
    from pump_service.store.store import Store
    from pumphouse.settings import PumpSettings

    return Store.open(PumpSettings(data_dir=directory, stop_write_at_available_bytes=0, reserve_bytes=0))


def submit(store: Any, payloads: Sequence[bytes]) -> None:
    """Write binlogs one after the other, each answered before the next."""
    from pump_service.store.records import Item
    from pumphouse.codec.payload import parse
    from tests.support.storekit import write

    for payload in payloads:
        binlog = parse(payload)
        item = Item(
            payload=payload,
            tp=int(binlog.tp),
            start_ts=binlog.start_ts,
            commit_ts=binlog.commit_ts,
            prewrite_key=binlog.prewrite_key,
        )
        assert write(store, item) == [None]


Row = tuple[int, int, bytes]  # start ts, commit ts, payload


def pull(store: Any, after: int, upto: int) -> tuple[list[Row], list[Row]]:
    """What is above `after`, once the watermark has reached `upto`: in order, and apart what is flagged as orphan.

    A Go Pump passes a commit whose prewrite is on no file in silence; ours brings it, with a flag.
    """
    from pump_service.store.batch import ORPHAN

    deadline = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if store.watermark >= upto:
            break
        deadline.wait(0.01)
    assert store.watermark >= upto
    found: list[Row] = []
    orphans: list[Row] = []
    while True:
        batch = store.stream.pull(after, max_bytes=1 << 20)
        for row, flag in zip(batch.rows(), batch.flag_list, strict=True):
            (orphans if flag == ORPHAN else found).append(row)
            after = row[1]
        if not len(batch):
            return found, orphans


def assert_pulled(store: Any, written: Sequence[bytes], after: int, wanted: list[Row]) -> None:
    """What was written is pulled as wanted; commits without a prewrite, and they alone, are flagged as orphans."""
    from pumphouse.codec.payload import parse

    binlogs = [parse(payload) for payload in written]
    prewritten = {binlog.start_ts for binlog in binlogs if binlog.tp == BinlogType.PREWRITE}
    lost = sorted(
        binlog.commit_ts
        for binlog in binlogs
        if binlog.tp == BinlogType.COMMIT and binlog.start_ts not in prewritten and binlog.commit_ts > after
    )
    found, orphans = pull(store, after, max([wanted[-1][1], *lost]))
    assert found == wanted
    assert [commit_ts for _, commit_ts, _ in orphans] == lost


def _run(part: Json, directory: Path) -> None:
    import plyvel

    store = open_store(directory)
    try:
        written = [bytes.fromhex(write["payload_hex"]) for write in part["writes_in_order"]]
        submit(store, written)
        wanted = [
            (each["meta_start_ts"], each["meta_commit_ts"], bytes.fromhex(each["payload_hex"]))
            for each in part["pulled"]
        ]
        assert_pulled(store, written, part["pull_from_offset"], wanted)
    finally:
        store.close()
    for name, content in part["files_after_close"].items():
        assert (directory / name).read_bytes().hex() == content
    database = plyvel.DB(str(directory / "kv"))
    try:
        found = {key.hex(): value.hex() for key, value in database}
    finally:
        database.close()
    assert found == {each["key_hex"]: each["value_hex"] for each in part["leveldb_after_close"]}


def scenario_run(content: Json, directory: Path) -> None:
    """Write a scenario's binlogs in their order of arrival; what is pulled must be its steps."""
    parts = {}
    for step in content["steps"]:
        parts["Prewrite", step["start_ts"]] = bytes.fromhex(step["prewrite_hex"])
        parts["Commit", step["start_ts"]] = bytes.fromhex(step["commit_hex"])
    arrivals = [(each["tp"], each["start_ts"]) for each in content["arrival_order"]]
    store = open_store(directory)
    try:
        written = [parts[each] for each in arrivals]
        submit(store, written)
        wanted = [(s["start_ts"], s["commit_ts"], bytes.fromhex(s["pulled_payload_hex"])) for s in content["steps"]]
        assert_pulled(store, written, 0, [each for each in wanted if ("Prewrite", each[0]) in arrivals])
    finally:
        store.close()
