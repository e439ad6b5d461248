"""Cases of the Pump's storage: records, footers, keys, pointers, and whole runs of a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pumphouse.model.position import Pointer
from tests.support.golden.case import Case, Json

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
            yield Case(name, skip=f"{name} is not known to this driver")


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
    from pump_service.store.store import Item
    from pumphouse.codec.payload import parse

    for payload in payloads:
        binlog = parse(payload)
        answered = threading.Event()
        statuses: list[Any] = []

        def done(results: list[Any], statuses: list[Any] = statuses, answered: threading.Event = answered) -> None:
            statuses.extend(results)
            answered.set()

        item = Item(
            payload=payload,
            tp=int(binlog.tp),
            start_ts=binlog.start_ts,
            commit_ts=binlog.commit_ts,
            prewrite_key=binlog.prewrite_key,
        )
        store.submit([item], done)
        assert answered.wait(WAIT_S)
        assert statuses == [None]


def pull(store: Any, after: int, upto: int) -> list[tuple[int, int, bytes]]:
    """(start ts, commit ts, payload) of everything above `after`, once the watermark has reached `upto`."""
    deadline = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if store.watermark >= upto:
            break
        deadline.wait(0.01)
    assert store.watermark >= upto
    found: list[tuple[int, int, bytes]] = []
    while True:
        batch = store.stream.pull(after, max_bytes=1 << 20)
        found += batch.rows()
        if not len(batch):
            return found
        after = found[-1][1]


def payloads_of(batch: Any) -> list[bytes]:
    """Payloads of a batch."""
    return [bytes(payload) for payload in batch.payloads]


def _run(part: Json, directory: Path) -> None:
    import plyvel

    store = open_store(directory)
    try:
        submit(store, [bytes.fromhex(write["payload_hex"]) for write in part["writes_in_order"]])
        wanted = [
            (each["meta_start_ts"], each["meta_commit_ts"], bytes.fromhex(each["payload_hex"]))
            for each in part["pulled"]
        ]
        assert pull(store, part["pull_from_offset"], wanted[-1][1]) == wanted
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
        submit(store, [parts[each] for each in arrivals])
        wanted = [(s["start_ts"], s["commit_ts"], bytes.fromhex(s["pulled_payload_hex"])) for s in content["steps"]]
        assert pull(store, 0, wanted[-1][1]) == wanted
    finally:
        store.close()
