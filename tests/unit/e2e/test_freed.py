"""What GC freed is held against the archive, and a transaction that is missing is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from pump_service.store import frame
from pumphouse.codec.payload import make_commit, make_prewrite, make_rollback
from tests.e2e.freed import FileKeeper, check_freed, records, said_by_pumps, said_by_shop
from tests.stack.pumps import PumpProcess
from tests.stack.supervisor import Supervisor
from tests.support.rowreference import make_fake


class _Archive:
    """Genesis at 100, one window with the given transactions."""

    def __init__(self, *transactions: tuple[int, int]) -> None:
        self.transactions = transactions
        self.ts = 100
        self.segments = [self]

    def genesis(self) -> Any:
        return self

    def windows(self) -> list[Any]:
        return [self]

    def segment_batches(self, manifest: Any, segment: Any, *, columns: tuple[str, ...]) -> list[pa.RecordBatch]:
        rows = [{"start_ts": start, "commit_ts": commit} for start, commit in self.transactions]
        return [pa.RecordBatch.from_pylist(rows).select(list(columns))] if rows else []


class _Source:
    """A status table."""

    def __init__(self, **outcomes: int) -> None:
        self.rows = [(int(name[1:]), commit) for name, commit in outcomes.items() if commit > 0]

    def cursor(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str) -> None:
        assert "commit_ts > 0" in sql

    def fetchall(self) -> list[tuple[int, int]]:
        return self.rows


def _file(path: Path, *payloads: bytes, tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(map(frame.encode_record, payloads)) + tail)
    return path


def test_committed_transactions_of_freed_files_are_looked_for(tmp_path: Path) -> None:
    path = _file(
        tmp_path / "000000.vlog",
        make_prewrite(110, b"k", b""),
        make_commit(110, 111, b"k"),
        make_prewrite(120, b"k", b""),  # its C is in another file
        make_prewrite(130, b"k", b""),
        make_rollback(130, b"k"),
        make_commit(90, 95, b"k"),  # before genesis
        make_fake(140),
        tail=frame.encode_footer(140),
    )
    assert [(meta.start_ts, meta.commit_ts) for meta in records(path)][-1] == (140, 140)
    assert said_by_pumps([path]) == {110: 111, 90: 95}
    said = said_by_shop(_Source(t110=111, t120=125, t130=0, t90=95, t150=151))  # type: ignore[arg-type]
    found = check_freed([path], _Archive((110, 111), (120, 125)), said)  # type: ignore[arg-type]
    assert (found.files, found.transactions, found.before_genesis, found.missing) == (1, 2, 1, [])
    found = check_freed([path], _Archive((110, 111)), said)  # type: ignore[arg-type]
    assert found.missing == [(120, 125)]
    # The same start with another commit ts is another outcome.
    found = check_freed([path], _Archive((110, 112), (120, 125)), said)  # type: ignore[arg-type]
    assert found.missing == [(110, 111)]


def test_deleted_files_keep_their_bytes_aside(tmp_path: Path) -> None:
    pump = PumpProcess(Supervisor(tmp_path / "run"), node_id="p", data_dir=tmp_path / "p", cluster_url="file:///none")
    pump.value_dir.mkdir(parents=True)
    _file(pump.value_dir / "000000.vlog", make_fake(1))
    _file(pump.value_dir / "000001.vlog", make_fake(2))
    keeper = FileKeeper([pump], tmp_path / "kept")
    keeper.look()
    with (pump.value_dir / "000000.vlog").open("ab") as file:
        file.write(frame.encode_record(make_fake(3)))
    (pump.value_dir / "000000.vlog").unlink()
    (freed,) = keeper.freed()
    assert freed.name == "000000.vlog"
    assert [meta.start_ts for meta in records(freed)] == [1, 3]
