"""What `GET /debug/binlog/{ts}` shows: all of a small binlog, and of a large one as much as is good for the Pump."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from pump_service.api import debug_page, fields
from pump_service.api.debug_page import describe
from pump_service.api.fields import Fields, InMemory, Source
from pump_service.api.operations import Operations
from pump_service.store.logfile import Stored
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from tests.support.storekit import (
    find,
    open_store,
    prewrite,
    store_all,
)

pytestmark = pytest.mark.row("P12")
LONGEST = 2 * debug_page._LONGEST
ROOT = Path(__file__).parents[3]


def value_of(text: str) -> str:
    return text.partition("prewrite value (")[2].partition("\n")[2]


@st.composite
def mutations(draw: st.DrawFn) -> TableMutation:
    rows = st.lists(st.binary(max_size=40), max_size=3)
    return TableMutation(
        table_id=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        inserted_rows=draw(rows),
        updated_rows=draw(rows),
        deleted_ids=draw(st.lists(st.integers(-5, 5), max_size=2)),
        deleted_rows=draw(rows),
        sequence=draw(st.lists(st.sampled_from(list(MutationType.values())), max_size=5)),
    )


@given(st.integers(-1, 1 << 40), st.lists(mutations(), max_size=3), st.binary(max_size=30))
def test_a_binlog_that_fits_is_shown_as_protobuf_writes_it(
    version: int, tables: list[TableMutation], key: bytes
) -> None:
    value = PrewriteValue(schema_version=version, mutations=tables)
    binlog = Binlog(tp=BinlogType.Prewrite, start_ts=7, prewrite_key=key, ddl_query=b"create \xff", ddl_job_id=-1)
    binlog.prewrite_value = value.SerializeToString()
    text = describe(InMemory(binlog.SerializeToString()), "nowhere")
    assert "nowhere" not in text
    assert text_format.Parse(value_of(text), PrewriteValue()) == value
    head = text_format.Parse(text.removeprefix("binlog:\n").partition("prewrite value (")[0], Binlog())
    binlog.ClearField("prewrite_value")
    assert head == binlog


@given(st.lists(mutations(), max_size=4), st.integers(20, 70))
def test_fields_are_counted_over_pieces_that_end_anywhere(tables: list[TableMutation], piece: int) -> None:
    data = PrewriteValue(schema_version=3, mutations=tables).SerializeToString()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fields, "_PIECE", piece)
        whole = Fields(InMemory(data)).tally(0, len(data))
        assert (whole.counts[1], whole.counts[2], whole.damaged_at) == (1, len(tables), -1)
        assert whole.sizes[2] == sum(table.ByteSize() for table in tables)
        for table in tables:
            data = table.SerializeToString()
            tally = Fields(InMemory(data)).tally(0, len(data))
            repeated = (
                table.inserted_rows,
                table.updated_rows,
                table.deleted_ids,
                [],
                table.deleted_rows,
                table.sequence,
            )
            assert tally.counts.tolist()[1:8] == [1, *map(len, repeated)]
            cut = Fields(InMemory(data + b"\x12")).tally(0, len(data) + 1)
            assert cut.damaged_at == len(data)


class Watched:
    """A source that tells what is read of it."""

    def __init__(self, data: bytes) -> None:
        self._held = InMemory(data)
        self.size = len(data)
        self.largest = 0

    def read(self, at: int, size: int) -> bytes:
        assert 0 <= at <= at + size <= self.size
        self.largest = max(self.largest, size)
        return self._held.read(at, size)


def large() -> bytes:
    """A prewrite of 40 MiB over three tables: many rows, few large ones, one small one."""
    row = os.urandom(1000)
    value = PrewriteValue(schema_version=3)
    value.mutations.add(table_id=7, inserted_rows=[row] * 25_000, sequence=[MutationType.Insert] * 25_000)
    value.mutations.add(table_id=8, updated_rows=[row * 5000] * 3, sequence=[MutationType.Update] * 3)
    value.mutations.add(table_id=9, deleted_rows=[b"small"], sequence=[MutationType.DeleteRow])
    return prewrite(77, value.SerializeToString()).payload


def test_of_a_large_binlog_the_beginning_is_shown_and_of_the_rest_numbers_and_sizes() -> None:
    source = Watched(large())
    describe(source)  # compiles
    tracemalloc.start()
    text = describe(source, "tail -c +17 file")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(text) < LONGEST
    assert peak < 8 << 20
    assert source.largest <= 1 << 20
    shown = text.count("inserted_rows: ")
    assert 5 < shown < 1000
    left = 25_000 - shown
    assert f"# not shown, for its size: {left:,} inserted_rows ({left * 1000:,} bytes), 25,000 sequence" in text
    assert "  table_id: 8\n" in text and "of 5,000,000 bytes\n" in text
    assert " of 1,000 bytes" not in text  # a small row is shown or counted, not begun
    assert 'table_id: 9\n  deleted_rows: "small"\n' in text
    assert text.endswith("\n# the whole of it: tail -c +17 file\n")


def test_of_very_many_tables_and_fields_no_more_is_shown() -> None:
    value = PrewriteValue(mutations=[TableMutation(table_id=n, sequence=[MutationType.Insert]) for n in range(100_000)])
    text = describe(InMemory(prewrite(1, value.SerializeToString()).payload))
    assert len(text) < LONGEST
    shown = text.count("mutations {")
    assert f"# not shown, for its size: {100_000 - shown:,} mutations (" in text
    unknown = b"\xa0\x06\x01" * 400_000  # field 100
    text = describe(InMemory(prewrite(1).payload + unknown))
    assert len(text) < LONGEST
    assert "\n100: 1\n" in text
    assert " unknown (" in text
    key = describe(InMemory(prewrite(1, key=b"\xff" * (1 << 20)).payload))
    assert len(key) < LONGEST and "of 1,048,576 bytes" in key and "prewrite value (5 bytes)" in key


def test_very_many_prewrite_values_are_counted_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last counts, and none is shown where it is found: no room would be used up by them."""
    walked: list[int] = []
    field = Fields.field

    def counted(self: Fields, at: int, end: int) -> fields.Field | None:
        walked.append(at)
        return field(self, at, end)

    monkeypatch.setattr(Fields, "field", counted)
    text = describe(InMemory(Binlog(prewrite_value=b"12").SerializeToString() * 100_000))
    assert len(walked) < 20_000
    assert "prewrite_value" in text.partition("not shown, for its size")[2]


@pytest.mark.parametrize("place", ["binlog", "value", "table", "passed over"])
def test_where_the_bytes_do_not_parse_they_are_shown(place: str) -> None:
    table = TableMutation(table_id=5, inserted_rows=[b"row"]).SerializeToString()
    bad = b"\x0f\xab\xcd"
    if place == "table":
        table += bad
    if place == "passed over":
        table += b"\x12\x04rows" * 100_000 + bad
    value = PrewriteValue(schema_version=3).SerializeToString()
    value += b"\x12" + _varint(len(table)) + table + (bad if place == "value" else b"")
    text = describe(InMemory(prewrite(1, value).payload + (bad if place == "binlog" else b"")))
    assert "# 3 bytes do not parse:" in text
    assert "0fabcd" in text
    assert "start_ts: 1\n" in text
    assert 'inserted_rows: "row"\n' in text or place == "binlog"
    assert "\n    " not in text


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class Resolver:
    async def ask(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(fate=SimpleNamespace(value="pending"), commit_ts=0)

    async def evidence(self, *_: Any) -> str:
        return "evidence\n"


def operations(store: Any) -> Operations:
    nothing: Any = SimpleNamespace(readable_nodes=None)
    resolver: Any = Resolver()
    return Operations(
        cluster=nothing, timestamps=nothing, registrar=nothing, lifecycle=nothing, store=store, asker=nothing,
        collector=nothing, resolver=resolver, sync_log=True, request=lambda _: None,
    )  # fmt: skip


def test_a_large_prewrite_is_read_on_another_thread_while_the_loop_goes_on(tmp_path: Path) -> None:
    """The reading waits for a turn of the event loop: on the loop's own thread it would wait for ever."""
    store = open_store(tmp_path, value_log_file_bytes=100 << 20)
    store_all(store, prewrite(100, large()))

    async def run() -> str:
        loop = asyncio.get_running_loop()
        here = threading.get_ident()
        turns = 0

        def stored(ts: int) -> Source | None:
            found = store.stream.stored(ts)
            assert isinstance(found, Stored)
            return SlowStored(found.file, found.at, found.size)

        class SlowStored(Stored):
            def read(self, at: int, size: int) -> bytes:
                nonlocal turns
                assert threading.get_ident() != here
                turned = threading.Event()
                loop.call_soon_threadsafe(turned.set)
                assert turned.wait(60), "the event loop stands still"
                turns += 1
                assert size <= 4 << 20
                return super().read(at, size)

        text = await operations(SimpleNamespace(stream=SimpleNamespace(stored=stored))).dump(100)
        assert turns > 3
        return text

    text = asyncio.run(run())
    store.close()
    assert text.endswith("transaction: pending commit_ts: 0\nevidence\n")
    assert f"{tmp_path}/value/000000.vlog | head -c " in text


def test_the_whole_of_a_record_is_where_the_text_says(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=100 << 20)
    store_all(store, prewrite(90), prewrite(100, large()))
    found = store.stream.stored(100)
    assert isinstance(found, Stored)
    payload = find(store, 100)
    assert found.read(0, found.size) == payload
    read, _, decode = found.command.rpartition(" | ")
    cut = subprocess.run(read, shell=True, check=True, stdout=subprocess.PIPE).stdout
    assert cut == payload
    # The compiler of our development tools stands for the operator's.
    decode = decode.replace("protoc ", f"{sys.executable} -m grpc_tools.protoc ", 1)
    small = prewrite(90).payload
    shown = subprocess.run(decode, shell=True, check=True, input=small, stdout=subprocess.PIPE, cwd=ROOT).stdout
    assert text_format.Parse(shown.decode(), Binlog()) == Binlog.FromString(small)
    assert store.stream.stored(5) is None
    store.close()
