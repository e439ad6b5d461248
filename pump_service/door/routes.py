"""Which handler a path has, and what the header fields of a request say (RFC 9113, 8.2 and 8.3; gRPC over HTTP/2)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from pump_service.door.group import GroupHandler, Refusal
from pump_service.door.http2.headers import Fields

ACCEPTED_ENCODINGS = "identity,gzip"
_BAD_NAME = re.compile(rb"[\x00-\x20A-Z\x7f-\xff:]|^$")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]$")
_OF_A_CONNECTION = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_GRPC = re.compile(rb"application/grpc(\+proto)?(;.*)?")
# Asked with a call's path and its ``authorization`` header; a Refusal answers the call.
Permit = Callable[[str, bytes], Refusal | None]
_NOT_GRPC = "this port speaks gRPC (POST, content-type: application/grpc) and HTTP/1.1\n"


def everything(path: str, authorization: bytes) -> Refusal | None:
    """The `Permit` of who may call all there is."""
    del path, authorization
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A method whose calls are handled by the group."""

    path: str
    handler: GroupHandler


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """What a request's header fields mean. Shared by all calls that have the same fields."""

    fields: Fields
    path: str = ""
    group: Group | None = None
    method: Any = None  # grpc.RpcMethodHandler
    gzip: bool = False
    content_length: int | None = None
    malformed: str = ""  # the stream ends with PROTOCOL_ERROR
    http_status: int = 0  # the answer is not gRPC: this status and `text`
    text: str = ""
    refusal: Refusal | None = None
    lean: bool = False  # a group call without anything special: needs no state of its own


class Routes:
    """Handlers by path; filled before the server starts."""

    def __init__(self, max_list: int) -> None:
        self._max_list = max_list
        self._methods: dict[str, Any] = {}
        self._groups: dict[str, Group] = {}
        self._generic: list[grpc.GenericRpcHandler] = []

    def add_method(self, path: str, handler: Any) -> None:
        """One method of a generated servicer."""
        self._methods[path] = handler

    def add_generic(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Handlers that are asked for paths that nothing else has."""
        self._generic.extend(handlers)

    def add_group(self, path: str, handler: GroupHandler) -> None:
        """A method handled by the group; goes before a servicer's method of the same path."""
        self._groups[path] = Group(path, handler)

    def head(self, fields: Fields, permit: Permit = everything) -> Head:
        """Meaning of a request's fields, for a peer that may do what ``permit`` says."""
        if sum(len(name) + len(value) + 32 for name, value in fields) > self._max_list:
            # Before anything is read in it: the reader has left out what is above the limit.
            return Head((), http_status=431, text="the request's header list is too large\n")
        if (fault := malformed(fields)) is not None:
            return Head(fields, malformed=fault)
        values = dict(fields)
        lengths = {value for name, value in fields if name == b"content-length"}
        if len(lengths) > 1 or not all(value.isdigit() and len(value) < 19 for value in lengths):
            return Head(fields, malformed="content-length")
        length = int(lengths.pop()) if lengths else None
        if values[b":method"] != b"POST" or not _GRPC.fullmatch(values.get(b"content-type", b"")):
            return Head(fields, content_length=length, http_status=415, text=_NOT_GRPC)
        return self._grpc_head(fields, values, length, permit)

    def _grpc_head(self, fields: Fields, values: dict[bytes, bytes], length: int | None, permit: Permit) -> Head:
        path = values[b":path"].decode("ascii", "replace")
        encoding = values.get(b"grpc-encoding", b"identity")
        if encoding not in (b"identity", b"gzip"):
            text = f"grpc-encoding {encoding.decode('ascii', 'replace')!r} is not supported"
            accepted = (("grpc-accept-encoding", ACCEPTED_ENCODINGS),)
            return Head(fields, path, refusal=Refusal(grpc.StatusCode.UNIMPLEMENTED, text, accepted))
        group = self._groups.get(path)
        method = None if group is not None else self._method(path, fields)
        if group is None and method is None:
            return Head(fields, path, refusal=Refusal(grpc.StatusCode.UNIMPLEMENTED, self._unknown(path)))
        if (refusal := permit(path, values.get(b"authorization", b""))) is not None:
            return Head(fields, path, refusal=refusal)
        gzip = encoding == b"gzip"
        lean = group is not None and length is None and not gzip
        return Head(fields, path, group, method, gzip=gzip, content_length=length, lean=lean)

    def _unknown(self, path: str) -> str:
        """As grpc-go says it."""
        service, sep, method = path.lstrip("/").rpartition("/")
        if not sep:
            return f"malformed method name: {path!r}"
        known = any(each.startswith(f"/{service}/") for each in (*self._methods, *self._groups))
        return f"unknown method {method} for service {service}" if known else f"unknown service {service}"

    def _method(self, path: str, fields: Fields) -> Any:
        found = self._methods.get(path)
        if found is None:
            details = _CallDetails(path, fields)
            found = next((f for handler in self._generic if (f := handler.service(details)) is not None), None)
        return found


class _CallDetails(grpc.HandlerCallDetails):
    def __init__(self, method: str, fields: Fields) -> None:
        self.method = method
        self.invocation_metadata = metadata(fields)


def metadata(fields: Fields) -> tuple[tuple[str, str | bytes], ...]:
    """What a handler sees of the fields: without HTTP's and gRPC's own, ``-bin`` values decoded."""
    out: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.startswith((b":", b"grpc-")) or name in (b"te", b"content-type"):
            continue
        key = name.decode("ascii", "replace")
        if not key.endswith("-bin"):
            out.append((key, value.decode("latin-1")))
            continue
        for part in value.split(b","):
            try:
                out.append((key, base64.b64decode(part + b"=" * (-len(part) % 4))))
            except binascii.Error:
                out.append((key, part))
    return tuple(out)


def malformed(fields: Fields, *, trailers: bool = False) -> str | None:
    """Why a header section is malformed (section 8.1.1), or None."""
    seen: set[bytes] = set()
    regular = trailers
    for name, value in fields:
        if name.startswith(b":"):
            if regular or name in seen or name not in _PSEUDO:
                return f"pseudo-header {name!r}"
            seen.add(name)
            continue
        regular = True
        if _BAD_NAME.search(name) or name in _OF_A_CONNECTION or (name == b"te" and value != b"trailers"):
            return f"header {name!r}"
        if _BAD_VALUE.search(value):
            return f"value of {name!r}"
    if trailers:
        return None
    values = dict(fields)
    if not (values.get(b":method") and values.get(b":scheme") and values.get(b":path")):
        return "a pseudo-header is missing"
    return None
