"""docs/formats.md against the code: names, numbers, messages, and bytes of small files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import google_crc32c
import pytest
from jsonschema import Draft202012Validator

from pump_service.api import arrow as pull_frame
from pump_service.node.lifecycle import TABLE, Action
from pump_service.store import frame
from pumphouse.archive import ddl, layout, segment
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.registry.base import CaptureRecord, CaptureState, ResolverRecord
from pumphouse.registry.file import FileCluster
from pumphouse.registry.file_tso import boot_id
from tests.e2e.story import write_up
from tests.stack.local import LocalStack
from tests.support import formats, rowreference

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for folder in ("include", "pump_service", "spark_tasks", "plugins", "dags")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".proto"} and "_pb2" not in path.name
]


def test_every_section_that_the_code_refers_to_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), title)
        for path in SOURCES
        for title in re.findall(r"formats\.md,\s+\"([^\"]+)\"", path.read_text())
    }
    assert len(named) > 10
    assert [each for each in sorted(named) if each[1] not in formats.headings()] == []


@pytest.mark.row("O7")
def test_every_schema_is_one_and_says_which_fields_there_are() -> None:
    def objects(schema: object) -> list[dict[str, object]]:
        if isinstance(schema, list):
            return [found for each in schema for found in objects(each)]
        if not isinstance(schema, dict):
            return []
        mine = [schema] if schema.get("type") == "object" and "properties" in schema else []
        return mine + [found for each in schema.values() for found in objects(each)]

    assert len(formats.schemas()) > 20
    for name, schema in formats.schemas().items():
        Draft202012Validator.check_schema(schema)
        for each in objects(schema):
            if each["properties"].keys() == {"id", "type", "state"} or "job" in name:
                continue
            assert each.get("additionalProperties") is False, f"{name} lets unknown fields pass: {list(each)}"
            assert set(each.get("required", ())) <= set(each["properties"]), name


def test_a_drifted_field_is_found() -> None:
    good = {"format_version": 2, "gc_point": 5, "deletion_limit": 4, "judged_fid": 0, "judged_offset": 9}
    formats.check("gc", good)
    for bad in (
        {**good, "new": 1},
        {"format_version": 2, "gc_point": 5},
        {**good, "gc_point": "5"},
        {**good, "format_version": 1},
    ):
        with pytest.raises(AssertionError, match="gc is not as"):
            formats.check("gc", bad)
    shown = formats.Shown()
    shown.check("gc", {**good, "deletion_limit": 0})
    assert shown.missing("gc") == []
    assert shown.missing("cluster") == ["/format_version", "/cluster_id"]


@pytest.mark.row("W1", "W2")
def test_messages_of_the_page_are_those_of_the_proto_files() -> None:
    real = {}
    for path in (ROOT / "include/pumphouse/proto").glob("*.proto"):
        if path.stem == "slave_binlog":
            continue  # its messages are called as those of binlog.proto, and are a table of the page
        real |= formats.messages(path.read_text())
    documented = formats.documented_messages()
    assert {"Binlog", "PrewriteValue", "TableMutation", "StatusResponse", "PullBatchesResponse"} <= documented.keys()
    assert documented == {name: real[name] for name in documented}


def test_columns_of_the_page_are_those_that_are_written() -> None:
    formats.check_columns("segment", segment.SCHEMA)
    formats.check_columns("ddl", ddl.SCHEMA)
    formats.check_columns("frame", pull_frame.SCHEMA)


def test_numbers_and_names_of_the_page_are_those_of_the_code() -> None:
    page = formats.PAGE.read_text()
    assert f"{MAX_TRANSACTION_BYTES:,}" in page
    assert f"{frame.FOOTER_AT_CLOSE_FROM:,}" in page
    assert layout.window_key(Tso(5)) == "windows/00000000000000000005.json"
    for name in (
        layout.GENESIS,
        layout.WINDOWS,
        layout.SEGMENTS,
        layout.DDL,
        layout.BASE,
        layout.SCHEMA,
        layout.DECLARED,
        layout.HEAD,
    ):
        assert f"| `{name}" in page, name


@pytest.mark.row("P13")
def test_the_table_of_states_has_every_move_of_the_code() -> None:
    section = formats.PAGE.read_text().split("## Node states")[1].split("\n## ")[0].split("\n# ")[0]
    rows = {
        tuple(cell.strip() for cell in line.split("|")[1:4:2]) for line in section.splitlines() if line.startswith("|")
    }
    moves = {(str(old), str(new)) for (old, action), new in TABLE.items() if action is not Action.START}
    assert rows - {("from", "to"), ("---", "---")} == moves | {("any", "online")}


@pytest.mark.row("P1")
@pytest.mark.parametrize("payload", [b"", b"x", b"payload" * 100])
def test_a_record_and_a_footer_are_the_bytes_of_the_drawing(payload: bytes) -> None:
    found = formats.read("record", frame.encode_record(payload))
    assert found == {
        "magic": frame.RECORD_MAGIC, "length": len(payload), "crc": google_crc32c.value(payload), "payload": payload,
    }  # fmt: skip
    assert formats.read("footer", frame.encode_footer(77)) == {"max_ts": 77, "magic": frame.FOOTER_MAGIC}
    assert (formats.size_of("record"), formats.size_of("footer")) == (frame.HEADER_BYTES, frame.FOOTER_BYTES)
    with pytest.raises(AssertionError, match="magic"):
        formats.read("footer", bytes(12))


def test_a_row_key_is_the_bytes_of_the_drawing() -> None:
    made = rowreference.record_key(-7, 12)
    assert formats.read("row-key", made) == {"t": b"t", "table_id": -7, "r": b"_r", "handle": 12}
    assert len(made) == formats.size_of("row-key")


@pytest.mark.row("W4")
def test_a_cluster_directory_is_as_the_page_says(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    last = cluster.tso()
    for kind, node_id in ((NodeKind.PUMP, "host:8250"), (NodeKind.DRAINER, "pumphouse-main")):
        status = NodeStatus(node_id=node_id, host="h:1", state=NodeState.PAUSED, max_commit_ts=last, label={"a": "b"})
        cluster.update_node(kind, node_id, lambda _, status=status: status)
    cluster.put_resolver(ResolverRecord(resolver_id="app", host="h:2", prefixes=(b"app/", b""), heartbeat=1.5))
    capture = CaptureRecord(
        capture_id="main",
        source="root@h:3306",
        server="h:3306:/d/",
        owner="a1",
        host="h",
        state=CaptureState.RUNNING,
        heartbeat=1.5,
        gtid="0-1-2",
        semi_sync=True,
        reason="so",
    )
    cluster.update_capture("main", lambda _: capture)
    assert cluster.captures() == [capture]
    root = tmp_path / "cluster"
    assert {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} == {
        "cluster.json", "tso", "tso.bound", "registry.lock", "resolvers/app", "captures/main",
        "tidb-binlog/v1/pumps/host:8250", "tidb-binlog/v1/drainers/pumphouse-main",
    }  # fmt: skip
    shown = formats.Shown()
    for name, file in (
        ("cluster", "cluster.json"),
        ("resolver", "resolvers/app"),
        ("capture", "captures/main"),
        ("node-status", "tidb-binlog/v1/pumps/host:8250"),
    ):
        shown.check(name, json.loads((root / file).read_bytes()))
    assert shown.missing("cluster") == shown.missing("resolver") == shown.missing("capture") == []
    data = (root / "tso").read_bytes()
    found = formats.read("tso", data)
    assert len(data) == formats.size_of("tso") == 36
    assert found["last"] == last
    assert found["boot"] == boot_id()
    assert found["crc"] == google_crc32c.value(data[:32])
    assert (root / "tso.bound").read_bytes() == b"%d\n" % found["bound"]
    assert found["bound"] > last


@pytest.mark.row("O6", "O7")
@pytest.mark.parametrize("store", ["s3", "file"])
def test_up_json_is_as_the_page_says(tmp_path: Path, store: str) -> None:
    stack = LocalStack(tmp_path, store=store)
    written = tmp_path / "up.json"
    write_up(stack, written, {"workload": {"rate": 20.0, "processes": ["writer-1"]}})
    formats.check("up", json.loads(written.read_bytes()))
    formats.check("up", stack.describe())
    assert written.stat().st_mode & 0o777 == 0o600
    if (ROOT / "build/up.json").exists():
        formats.check("up", json.loads((ROOT / "build/up.json").read_bytes()))
