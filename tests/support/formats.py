"""docs/formats.md as tests read it: JSON schemas, DDL, Arrow columns, byte drawings and protobuf messages of its blocks.

`check(name, value)` holds a value against a schema. `Shown` remembers which fields of a schema real output has shown,
so that a field of the page that nothing writes is found too.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/formats.md"
_BLOCK = re.compile(r"^```(\w+)(?: (\w+)=([\w-]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BYTE = 8  # characters of a drawing for one byte


@cache
def blocks(kind: str) -> dict[str, str]:
    """Name -> text of the fenced blocks of a kind (``schema``, ``table``, ``columns``, ``layout``)."""
    return {name: text for _, key, name, text in _BLOCK.findall(PAGE.read_text()) if key == kind}


def headings() -> set[str]:
    """Every heading of the page."""
    return set(re.findall(r"^#+ (.+)$", PAGE.read_text(), re.MULTILINE))


# -- JSON ---------------------------------------------------------------------------------------------------------


@cache
def schemas() -> dict[str, Any]:
    """Name -> JSON schema."""
    return {name: json.loads(text) for name, text in blocks("schema").items()}


@cache
def _registry() -> Registry:
    return Registry().with_resources(
        (name, Resource.from_contents(schema, default_specification=DRAFT202012)) for name, schema in schemas().items()
    )


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": name}, registry=_registry())


def check(name: str, value: Any) -> None:
    """AssertionError that names each place where a value is not as the page says."""
    wrong = [
        f"{'/'.join(map(str, each.absolute_path)) or '(whole)'}: {each.message[:300]}"
        for each in _validator(name).iter_errors(value)
    ]
    assert not wrong, f"{name} is not as docs/formats.md says: " + "; ".join(wrong)


class Shown:
    """Fields of the schemas that checked values had, with something in them."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def check(self, name: str, value: Any) -> None:
        """`check`, and remember."""
        check(name, value)
        self._walk(name, schemas()[name], value)

    def missing(self, name: str) -> list[str]:
        """Fields of a schema that no value had, or only as null or empty."""
        return [path for path in self._fields(name, schemas()[name]) if (name, path) not in self._seen]

    def _resolve(self, schema: Any, base: str) -> tuple[Any, str]:
        while "$ref" in schema:
            document, _, pointer = schema["$ref"].partition("#")
            base = document or base
            schema = schemas()[base]
            for part in pointer.strip("/").split("/"):
                schema = schema[part] if part else schema
        return schema, base

    def _branches(self, schema: Any, base: str) -> list[tuple[Any, str]]:
        schema, base = self._resolve(schema, base)
        found = [(schema, base)]
        for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            found += self._branches(each, base)
        return found

    def _fields(self, root: str, schema: Any, path: str = "", base: str = "") -> list[str]:
        found: list[str] = []
        for branch, at in self._branches(schema, base or root):
            for key, part in branch.get("properties", {}).items():
                found += [f"{path}/{key}", *self._fields(root, part, f"{path}/{key}", at)]
            inner = [
                branch.get("items"),
                branch.get("additionalProperties"),
                *branch.get("patternProperties", {}).values(),
            ]
            for part in inner:
                if isinstance(part, dict):
                    found += self._fields(root, part, f"{path}/*", at)
        return list(dict.fromkeys(found))

    def _walk(self, root: str, schema: Any, value: Any, path: str = "", base: str = "") -> None:
        if value not in (None, "", [], {}):
            self._seen.add((root, path))
        for branch, at in self._branches(schema, base or root):
            if isinstance(value, Mapping):
                properties = branch.get("properties", {})
                for key, each in value.items():
                    if key in properties:
                        self._walk(root, properties[key], each, f"{path}/{key}", at)
                        continue
                    for part in (branch.get("additionalProperties"), *branch.get("patternProperties", {}).values()):
                        if isinstance(part, dict):
                            self._walk(root, part, each, f"{path}/*", at)
            elif isinstance(value, list) and isinstance(branch.get("items"), dict):
                for each in value:
                    self._walk(root, branch["items"], each, f"{path}/*", at)


# -- columns ------------------------------------------------------------------------------------------------------


def check_columns(name: str, schema: pa.Schema) -> None:
    """AssertionError unless an Arrow schema has the columns, nullability and metadata of the page."""
    lines = [f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema]
    own = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items() if k.startswith(b"pumphouse.")}
    lines += [f"metadata {key}: {value}" for key, value in own.items()]
    assert lines == blocks("columns")[name].splitlines(), f"columns of {name} are not as docs/formats.md says: {lines}"


# -- bytes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a byte drawing. ``size`` 0 = as long as the text says."""

    name: str
    kind: str
    offset: int
    size: int
    constant: str


_KINDS = {"u32le": "<I", "u64le": "<Q", "i64le": "<q", "u64be": ">Q"}


def layout(name: str) -> list[Field]:
    """Fields of a drawing. A byte is eight characters wide, a row eight bytes; a cell ``..`` goes on with the last."""
    lines = blocks("layout")[name].splitlines()
    assert lines[0].split() == list("01234567"), name
    fields: list[Field] = []
    offset = 0
    for number, line in enumerate(lines[1:], 2):
        bars = [at for at, char in enumerate(line) if char == "|"]
        assert bars, f"{name}, line {number}"
        assert bars[0] == 0, f"{name}, line {number}"
        assert all(at % _BYTE == 0 for at in bars), f"{name}, line {number}: a cell ends between bytes: {bars}"
        assert bars[-1] <= 8 * _BYTE, f"{name}, line {number}: more than 8 bytes"
        assert bars[-1] == 8 * _BYTE or number == len(lines), f"{name}, line {number}: less than 8 bytes"
        for begin, end in pairwise(bars):
            text, size = line[begin + 1 : end].strip(), (end - begin) // _BYTE
            title, _, rest = text.partition(":")
            if fields and title in ("..", fields[-1].name):
                last = fields.pop()
                fields.append(Field(last.name, last.kind, last.offset, last.size + size, last.constant))
            else:
                kind, _, constant = rest.strip().partition(" = ")
                fields.append(Field(title, kind.strip(), offset, 0 if kind.startswith("length") else size, constant))
            offset += size
    for field in fields:
        if field.kind in _KINDS:
            assert struct.calcsize(_KINDS[field.kind]) == field.size, (
                f"{name}.{field.name}: {field.kind} in {field.size}"
            )
    return fields


def read(name: str, data: bytes) -> dict[str, Any]:
    """Fields of real bytes, read by the drawing alone; constants are held against it."""
    found: dict[str, Any] = {}
    for field in layout(name):
        if not field.size:
            found[field.name] = data[field.offset : field.offset + found[field.kind.split()[0]]]
            continue
        piece = data[field.offset : field.offset + field.size]
        assert len(piece) == field.size, f"{name}.{field.name}: the bytes end"
        if field.kind in _KINDS:
            (found[field.name],) = struct.unpack(_KINDS[field.kind], piece)
            if field.constant:
                assert found[field.name] == int(field.constant, 16), f"{name}.{field.name}"
        elif field.kind == "i64be^":
            found[field.name] = int.from_bytes(piece, "big") - (1 << 63)
        elif field.kind.endswith("bytes"):
            found[field.name] = piece
        else:
            assert piece == field.kind.encode(), f"{name}.{field.name}"
            found[field.name] = piece
    return found


def size_of(name: str) -> int:
    """Bytes of a drawing without its part of open length."""
    return sum(field.size for field in layout(name))


# -- protobuf -----------------------------------------------------------------------------------------------------


def messages(text: str) -> dict[str, str]:
    """Name -> canonical text of the top-level messages and enums of some .proto text."""
    plain = re.sub(r"//[^\n]*", "", text)
    found = {}
    for start in re.finditer(r"^(?:message|enum) (\w+) ", plain, re.MULTILINE):
        depth, at = 0, plain.index("{", start.start())
        for end in range(at, len(plain)):
            depth += {"{": 1, "}": -1}.get(plain[end], 0)
            if depth == 0:
                break
        found[start.group(1)] = " ".join(plain[start.start() : end + 1].split())
    return found


def documented_messages() -> dict[str, str]:
    """Messages and enums of the page."""
    return messages("\n".join(text for lang, _, _, text in _BLOCK.findall(PAGE.read_text()) if lang == "proto"))
