"""Cases of single values, messages and keys: columns, missing_column_defaults, decimals, json_binary, protobuf, misc."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pumphouse.codec import key as keys
from pumphouse.codec.columnar import INSERT, decode_images
from pumphouse.codec.datum import encode_value, read_datum
from pumphouse.codec.decimal import encode_decimal, read_decimal
from pumphouse.codec.json import (
    ARRAY,
    DATE,
    DATETIME,
    DOUBLE,
    LITERAL,
    OBJECT,
    OPAQUE,
    TIME,
    TIMESTAMP,
    UINT64,
    encode_json,
    json_text,
)
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.payload import PrewriteValueBuilder, canonical
from pumphouse.codec.row import encode_insert
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.table import ColumnInfo, SchemaState, TableInfo
from pumphouse.model.tso import compose, logical, physical_ms
from pumphouse.proto import binlog_pb2, cistern_pb2, pump_pb2
from pumphouse.registry.etcd_nodes import EtcdNodes
from pumphouse.secret_text import encrypt, secret_key
from tests.support import rowreference
from tests.support.golden.case import Case, Json, assert_same
from tests.support.golden.file_cases import file_column
from tests.support.golden.kafka_cases import kafka_column
from tests.support.rowreference import decode_insert, loader_value, project
from tests.support.secrettext import decrypt

UNKNOWN = "is not known to this driver"


def table_of(*columns: Json) -> TableInfo:
    """A table with these columns and a hidden handle."""
    return TableInfo.from_dict({"id": 1, "name": "t", "cols": list(columns), "state": int(SchemaState.PUBLIC)})


def fast_values(written: TableInfo, wanted: TableInfo, image: bytes, *, doubles: bool = False) -> dict[str, Any]:
    """Values of one inserted row by column name, decoded in columns."""
    data = np.frombuffer(image, np.uint8)
    layout = RowLayout.of(written, wanted, doubles=doubles)
    batch = decode_images(data, np.zeros(1, np.int64), np.array([len(image)]), INSERT, layout)
    batch.validate(full=True)
    return batch.to_pylist()[0]


def columns(content: Json) -> Iterator[Case]:
    """One case a vector."""
    for vector in content["vectors"]:
        yield Case(vector["name"], partial(_column, vector), rows=("L1",))
        yield Case(f"{vector['name']}-file", partial(file_column, vector), rows=("A6",))
        yield Case(f"{vector['name']}-kafka", partial(kafka_column, vector), rows=("A6",))


def _column(vector: Json, _: Path) -> None:
    column = ColumnInfo.from_dict(vector["column_info"])
    value_form = bytes.fromhex(vector["value_hex"])
    datum, end = read_datum(value_form, 0)
    assert end == len(value_form)
    value = loader_value(column.type, datum)
    assert_same(value, vector["loader_value_utc"], "reference")
    assert encode_value(column.type, value) == value_form
    if "key_form_hex" in vector:
        assert keys.encode_key_value(column, value).hex() == vector["key_form_hex"]
    table = table_of(vector["column_info"])
    image = bytes.fromhex(vector["inserted_row_hex"])
    assert decode_insert(table, image) == {column.id: value}
    assert_same(fast_values(table, table, image)[column.name], vector["loader_value_utc"], "columns")
    handle = int(vector["int_handle"])
    if value is not None:  # the file writes NULL into the list, TiDB leaves it out where no default is
        assert encode_insert(table, {column.id: value}, handle=handle) == image


def missing_column_defaults(content: Json) -> Iterator[Case]:
    """One case a vector."""
    for index, vector in enumerate(content["vectors"]):
        name = f"{index}-{vector['column']}-{vector['origin_default']}"
        yield Case(name, partial(_missing, vector), rows=("S3",))
        yield Case(f"{name}-kafka", partial(kafka_column, vector), rows=("A6",))


def _missing(vector: Json, _: Path) -> None:
    missing = ColumnInfo.from_dict(vector["column_info"])
    table = table_of(vector["column_info"])
    older = table_of()
    image = bytes.fromhex(vector["inserted_row_hex"])
    for written in (table, older):
        row = project(written, table, decode_insert(written, image))
        assert_same(row[missing.id], vector["loader_value_process_tz_utc"], "reference")
        assert_same(fast_values(written, table, image)[missing.name], vector["loader_value_process_tz_utc"], "columns")


def decimals(content: Json) -> Iterator[Case]:
    """One case a vector."""
    for vector in content["vectors"]:
        yield Case(vector["name"], partial(_decimal, vector), rows=("L1",))


def _decimal(vector: Json, _: Path) -> None:
    data = bytes.fromhex(vector["hex"])
    assert data[:2] == bytes((vector["decoded_precision"], vector["decoded_frac"]))
    assert read_decimal(data, 0) == (vector["decoded_text"], len(data))
    assert encode_decimal(vector["value_text"], vector["precision"], vector["frac"]) == data
    column = {
        "id": 2,
        "name": "d",
        "type": {"Tp": 246, "Flag": 0, "Flen": vector["precision"], "Decimal": vector["frac"]},
    }
    table = table_of(column)
    image = bytes.fromhex("08020804" + "06") + data
    assert fast_values(table, table, image) == {"d": vector["decoded_text"]}


def json_binary(content: Json) -> Iterator[Case]:
    """One case a vector."""
    for vector in content["vectors"]:
        yield Case(vector["name"], partial(_json, vector), rows=("L1",))


def _json(vector: Json, _: Path) -> None:
    data = bytes.fromhex(vector["hex"])
    datum, end = read_datum(data, 0)
    assert end == len(data)
    assert isinstance(datum.value, bytes)
    assert datum.value[0] == vector["type_code"]
    assert json_text(datum.value) == vector["value_text"]
    told = json_text(datum.value, doubles=True)
    types = set(_json_types(datum.value[0], datum.value[1:]))
    if not types & {UINT64, OPAQUE, DATE, DATETIME, TIMESTAMP, TIME}:
        assert encode_json(told) == datum.value
    if DOUBLE not in types:
        assert told == vector["value_text"]
    else:  # the text does not say of which type a value was
        assert json_text(encode_json(vector["value_text"])) == vector["value_text"]
    table = table_of({"id": 2, "name": "j", "type": {"Tp": 245, "Flag": 128}})
    assert fast_values(table, table, bytes.fromhex("08020804") + data) == {"j": vector["value_text"]}
    assert fast_values(table, table, bytes.fromhex("08020804") + data, doubles=True) == {"j": told}


def _json_types(code: int, body: bytes) -> Iterator[int]:
    """Type codes of a binary JSON value and of all within it."""
    yield code
    if code not in (OBJECT, ARRAY):
        return
    (count,) = struct.unpack_from("<I", body)
    entries = 8 + (6 * count if code == OBJECT else 0)
    for at in range(entries, entries + 5 * count, 5):
        inner, offset = struct.unpack_from("<BI", body, at)
        yield from _json_types(inner, b"" if inner == LITERAL else body[offset:])


def protobuf(content: Json) -> Iterator[Case]:
    """One case a vector."""
    for vector in content["vectors"]:
        package, _, name = vector["message"].rpartition(".")
        if package != "binlog":
            yield Case(vector["name"], skip=f"package {package} {UNKNOWN}")
        else:
            yield Case(vector["name"], partial(_message, vector, name), rows=("W1", "P4"))


def _message(vector: Json, name: str, _: Path) -> None:
    wanted = bytes.fromhex(vector["hex"])
    kind = next(getattr(m, name) for m in (binlog_pb2, pump_pb2, cistern_pb2) if hasattr(m, name))
    message = kind()
    _fill(message, vector["fields"])
    assert _serialize(message) == wanted
    again = kind()
    again.ParseFromString(wanted)
    assert _serialize(again) == wanted
    for field in vector["fields"]:
        plain = field.removesuffix("_hex")
        assert getattr(again, plain) == getattr(message, plain)


def _fill(message: Any, fields: Json) -> None:
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name.removesuffix("_hex")]
        target = getattr(message, field.name)
        if isinstance(value, dict):
            target.SetInParent()
            _fill(target, value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    _fill(target.add(), each)
                else:
                    target.append(_scalar(field, each, name))
        else:
            setattr(message, field.name, _scalar(field, value, name))


def _scalar(field: Any, value: Any, name: str) -> Any:
    if field.type == field.TYPE_BYTES:
        return bytes.fromhex(value) if name.endswith("_hex") else value.encode()
    return value if field.type == field.TYPE_STRING else int(value)


def _serialize(message: Any) -> bytes:
    """As the product writes it."""
    if isinstance(message, binlog_pb2.Binlog):
        return canonical(message)
    obsolete = any(mutation.deleted_ids or mutation.deleted_pks for mutation in getattr(message, "mutations", ()))
    if isinstance(message, binlog_pb2.PrewriteValue) and not obsolete:  # ours never writes obsolete fields
        builder = PrewriteValueBuilder(message.schema_version)
        for mutation in message.mutations:
            add = {
                binlog_pb2.MutationType.Insert: (builder.insert, iter(mutation.inserted_rows)),
                binlog_pb2.MutationType.Update: (builder.update, iter(mutation.updated_rows)),
                binlog_pb2.MutationType.DeleteRow: (builder.delete, iter(mutation.deleted_rows)),
            }
            for number in mutation.sequence:
                call, rows = add[number]
                call(mutation.table_id, next(rows))
        return builder.build()
    return message.SerializeToString()


def misc(content: Json) -> Iterator[Case]:
    """One case an entry."""
    known = {
        "etcd_key_to_node_id": (_node_key, ("W4",)),
        "meta_keys": (_meta_key, ()),
        "row_keys": (_row_key, ("W1",)),
        "tso": (_tso, ("W4",)),
        "node_status": (_node_status, ("W4",)),
        "encrypted_password": (_password, ()),
    }
    for name, part in content.items():
        entries = part if isinstance(part, list) else [part]
        for index, entry in enumerate(entries):
            if name in known:
                check, rows = known[name]
                yield Case(f"{name}-{index}", partial(check, entry), rows=rows)
            else:
                yield Case(f"{name}-{index}", skip=f"{name} {UNKNOWN}")


def _node_key(entry: Json, _: Path) -> None:
    # The other form is of a Pump before v1, which no Go Pump writes any more.
    key = EtcdNodes(None)._key(NodeKind.PUMP, entry["node_id"]).decode()
    assert key == entry["key"].replace("/tidb-binlog/pumps/", "/tidb-binlog/v1/pumps/")


def _meta_key(entry: Json, _: Path) -> None:
    if "job_id" in entry:
        assert rowreference.job_history_key(entry["job_id"]).hex() == entry["hex"]
    else:
        assert rowreference.meta_key(entry["hash"].encode(), entry["field"].encode()).hex() == entry["hex"]


def _password(entry: Json, _: Path) -> None:
    key = entry["key"]
    known = secret_key({}) if key.startswith("default") else bytes.fromhex(key)
    assert decrypt(entry["ciphertext_b64"], known) == entry["plaintext"]
    assert decrypt(encrypt(entry["plaintext"], known), known) == entry["plaintext"]


def _row_key(entry: Json, _: Path) -> None:
    # Of a clustered table whose key is no integer: the key form of its columns.
    handle = bytes.fromhex(entry["handle_hex"]) if "handle_hex" in entry else int(entry["handle"])
    assert rowreference.record_key(entry["table_id"], handle).hex() == entry["hex"]
    assert rowreference.parse_record_key(bytes.fromhex(entry["hex"])) == (entry["table_id"], handle)


def _tso(entry: Json, _: Path) -> None:
    assert compose(entry["physical_ms"], entry["logical"]) == entry["ts"]
    assert (physical_ms(entry["ts"]), logical(entry["ts"])) == (entry["physical_ms"], entry["logical"])


def _node_status(entry: Json, _: Path) -> None:
    assert NodeStatus.from_json(entry["json_text"]).to_json().decode() == entry["json_text"]
