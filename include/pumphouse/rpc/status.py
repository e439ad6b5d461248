"""Errors on the wire: the one table of error class <-> gRPC code and ErrorInfo reason, and the texts of the Go Pump.

On ``pumphouse.v1`` a refusal is the code of the table with ``google.rpc.ErrorInfo`` in the status details: reason from
the table, domain ``pumphouse``, the error's facts as text. On ``binlog.Pump`` it is UNKNOWN with the text that the Go
Pump would give (docs/formats.md, "WriteBinlog"), because that is what TiDB's client reads; what is too large is
RESOURCE_EXHAUSTED with grpc-go's text, because to anything else TiDB answers by sending it again, to every Pump.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from pumphouse import errors
from pumphouse.errors import BinlogError
from pumphouse.proto.pumphouse_pb2 import ItemStatus

DOMAIN = "pumphouse"
DETAILS_KEY = "grpc-status-details-bin"
_RETRY_DELAY_S = 1
# Trailers are limited to 8 KiB by default peers.
_LONGEST_TEXT = 1500
_HINT = "hint"
_OWN = {"self", *dir(BinlogError(""))}

Code = grpc.StatusCode

TABLE: dict[type[BinlogError], tuple[grpc.StatusCode, str]] = {
    errors.ClusterMismatch: (Code.FAILED_PRECONDITION, "CLUSTER_MISMATCH"),
    errors.BadBinlog: (Code.INVALID_ARGUMENT, "BAD_BINLOG"),
    errors.PumpUnavailable: (Code.UNAVAILABLE, "PUMP_UNAVAILABLE"),
    errors.PumpDraining: (Code.UNAVAILABLE, "PUMP_DRAINING"),
    errors.PumpReadOnly: (Code.RESOURCE_EXHAUSTED, "PUMP_READ_ONLY"),
    errors.PositionCollected: (Code.OUT_OF_RANGE, "POSITION_COLLECTED"),
    errors.PullTooSlow: (Code.RESOURCE_EXHAUSTED, "PULL_TOO_SLOW"),
    errors.OrphanCommit: (Code.FAILED_PRECONDITION, "ORPHAN_COMMIT"),
    errors.LateCommit: (Code.FAILED_PRECONDITION, "LATE_COMMIT"),
    errors.WriterFailed: (Code.INTERNAL, "WRITER_FAILED"),
    errors.ResolverOverlap: (Code.ALREADY_EXISTS, "RESOLVER_OVERLAP"),
    errors.PeerRefused: (Code.PERMISSION_DENIED, "PEER_REFUSED"),
    errors.UsageError: (Code.INVALID_ARGUMENT, "USAGE"),
    errors.CorruptionError: (Code.DATA_LOSS, "CORRUPTION"),
    errors.GapError: (Code.FAILED_PRECONDITION, "GAP"),
    errors.PumpError: (Code.UNKNOWN, "PUMP_ERROR"),
    BinlogError: (Code.UNKNOWN, "ERROR"),
}
_CLASS_OF = {reason: cls for cls, (_, reason) in TABLE.items()}
_CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in Code}

# Facts that are numbers; everything else comes back as text.
_NUMBERS = frozenset(
    {
        "got",
        "want",
        "available",
        "limit",
        "size",
        "seconds",
        "offset",
        "start_from",
        "gc_point",
        "start_ts",
        "commit_ts",
    }
    | {"watermark", "from_ts", "to_ts"}
)


class Abort(NamedTuple):
    """Arguments of ``context.abort(*…)``, in its order."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()


def code_and_reason(error: BinlogError) -> tuple[grpc.StatusCode, str]:
    """Row of the table for an error; a class without a row of its own uses its nearest ancestor's."""
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def abort_details(error: BinlogError) -> Abort:
    """How ``pumphouse.v1`` refuses: ``await context.abort(*abort_details(error))``."""
    code, reason = code_and_reason(error)
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    for name, value in error.facts.items():
        if value is not None:
            info.metadata[name] = _as_text(value)
    if error.hint:  # as the command line says it: no client of a Pump is Airflow
        info.metadata[_HINT] = error.hint[:_LONGEST_TEXT]
    message = error.message[:_LONGEST_TEXT]
    status = status_pb2.Status(code=code.value[0], message=message, details=[_pack(info)])
    if error.retryable:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = _RETRY_DELAY_S
        status.details.append(_pack(retry))
    return Abort(code, message, ((DETAILS_KEY, status.SerializeToString()),))


def too_large_text(size: int, most: int) -> str:
    """What grpc-go says of a message that is over a limit; TiDB's client looks for these words, case and all."""
    return f"grpc: received message larger than max ({size} vs. {most})"


def go_abort(error: BinlogError) -> Abort:
    """How ``binlog.Pump`` refuses: UNKNOWN and Go's text, no details; RESOURCE_EXHAUSTED what is too large or slow."""
    if isinstance(error, errors.BadBinlog) and (limit := error.facts.get("limit")) is not None:
        return Abort(Code.RESOURCE_EXHAUSTED, f"{too_large_text(error.facts['size'], limit)}: {error.message}")
    code = Code.RESOURCE_EXHAUSTED if isinstance(error, errors.PullTooSlow) else Code.UNKNOWN
    return Abort(code, go_text(error))


def go_text(error: BinlogError) -> str:
    """The Go Pump's text where it has one, else our own message."""
    match error:
        case errors.ClusterMismatch():
            return f"cluster ID are mismatch, {error.got} vs {error.want}"
        case errors.PumpDraining():
            return f"no online: {error.state}"
        case errors.PumpReadOnly():
            return f"no available space, available: {error.available}, StopWriteAtAvailableSpace: {error.limit}"
        case errors.BadBinlog():
            return f"proto: {error.message}"
        case errors.LateCommit() | errors.OrphanCommit():
            # The Go Pump passes over these in silence. No hint travels here, and a Drainer stands still until it is
            # followed.
            return f"{error.message}; see pumphouse archive accept"
    return error.message


def item_status(error: BinlogError | None) -> ItemStatus:
    """Status of one payload of a ``WriteBinlogs`` batch; None = durable."""
    if error is None:
        return ItemStatus()
    code, reason = code_and_reason(error)
    return ItemStatus(code=code.value[0], reason=reason, message=str(error)[:_LONGEST_TEXT])


def from_item_status(item: ItemStatus) -> BinlogError | None:
    """The error of one payload, or None; facts do not travel here, the message says them."""
    if item.code == code_pb2.OK:
        return None
    return _CLASS_OF.get(item.reason, errors.PumpError)(item.message)


def from_rpc_error(error: grpc.RpcError, *, peer: str = "") -> BinlogError:
    """Our error for a failed call, of a sync or an aio stub.

    Args:
        error: what the stub raised.
        peer: node id (or address) for the message and the fact ``node_id``.

    Returns:
        The error that the other side refused with, if it says so in details or in Go's words. Else PumpUnavailable
        where no answer came (with a hint where TLS may be why) or something on the way has no room for the call,
        BadBinlog where the message was too large, PumpError for the rest. To see whether a call is known at all, look
        at ``error.code()`` for UNIMPLEMENTED first.
    """
    code, text, metadata = _parts(error)
    ours = _from_details(metadata)
    if ours is not None:
        return ours
    where = f"Pump {peer}: " if peer else ""
    if code is Code.UNKNOWN:
        known = _from_go_text(text)
        if known is not None:
            return known
    if code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED):
        hint = TLS_HINT if _NO_HANDSHAKE.search(text) else ""
        return errors.PumpUnavailable(f"{where}{text or code.name}", hint=hint, node_id=peer, code=code.name)
    if code is Code.RESOURCE_EXHAUSTED and not _TOO_LARGE.search(text):
        return errors.PumpUnavailable(f"{where}{text or code.name}", node_id=peer, code=code.name)
    if code is Code.RESOURCE_EXHAUSTED:
        return errors.BadBinlog(
            f"{where}the message is too large: {text}",
            hint=TOO_LARGE_HINT,
            node_id=peer,
            code=code.name,
            **_sizes(text),
        )
    return errors.PumpError(f"{where}{text}", node_id=peer, code=code.name)


# What a connection dies of when one side speaks TLS and the other does not, or asks for another certificate. A peer
# that goes down in the middle of a call does not fail to connect, and a dead one refuses.
_NO_HANDSHAKE = re.compile(
    r"failed to connect.*(Socket closed|Connection reset)|[Hh]andshake (read )?failed", re.DOTALL
)
TLS_HINT = "do both sides speak TLS? Check the settings tls.ca, tls.cert and tls.key"

TOO_LARGE_HINT = "split the transaction, or raise pump.max_message_bytes where that is the limit"
_GO_TOO_LARGE = re.compile(r"received message larger than max \((\d{1,20}) vs\. (\d{1,20})\)", re.IGNORECASE)
# As grpc-go, gRPC's core and grpc-java say it.
_TOO_LARGE = re.compile(r"(message|size).*\b(larger than|exceeds)\b", re.IGNORECASE)
_GO_MISMATCH = re.compile(r"cluster ID are mismatch, (\d+) vs (\d+)")
_GO_STATE = re.compile(r"no online: (\w+)")
_GO_SPACE = re.compile(r"no available space, available: (\d+), StopWriteAtAvailableSpace: (\d+)")
_GO_PARSER = re.compile(r"proto: |unexpected EOF")


def _sizes(text: str) -> dict[str, int]:
    """Facts of a refusal for size, of grpc-go or of gRPC's core."""
    found = _GO_TOO_LARGE.search(text)
    return {"size": int(found[1]), "limit": int(found[2])} if found else {}


def _from_go_text(text: str) -> BinlogError | None:
    if found := _GO_MISMATCH.search(text):
        return errors.ClusterMismatch(
            text,
            hint="check the setting cluster.url: it must be the same for Pumps and clients",
            got=int(found[1]),
            want=int(found[2]),
        )
    if found := _GO_STATE.search(text):
        return errors.PumpDraining(text, state=found[1])
    if found := _GO_SPACE.search(text):
        return errors.PumpReadOnly(text, available=int(found[1]), limit=int(found[2]))
    if _GO_PARSER.match(text):
        return errors.BadBinlog(text.removeprefix("proto: "))
    return None


def _from_details(metadata: Iterable[tuple[str, str | bytes]]) -> BinlogError | None:
    for key, value in metadata:
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except DecodeError:
            return None
        info = error_details_pb2.ErrorInfo()
        for detail in status.details:
            if detail.Unpack(info) and info.domain == DOMAIN:
                # A peer's fact takes the place of nothing that an error has.
                facts = {name: _from_text(name, text) for name, text in info.metadata.items() if name not in _OWN}
                kind = _CLASS_OF.get(info.reason, errors.PumpError)
                return kind.rebuild(status.message, info.metadata[_HINT], facts)
    return None


def _parts(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, Iterable[tuple[str, str | bytes]]]:
    # Both kinds of stub raise an RpcError that is also a Call; the base class alone declares none of its methods.
    call: Any = error
    if not hasattr(call, "code"):
        return Code.UNKNOWN, str(error), ()
    code = call.code()
    if not isinstance(code, grpc.StatusCode):
        code = _CODE_OF_NUMBER.get(code, Code.UNKNOWN)
    return code, call.details() or "", tuple(call.trailing_metadata() or ())


def _as_text(value: Any) -> str:
    return (value.hex() if isinstance(value, bytes) else str(value))[:_LONGEST_TEXT]


def _from_text(name: str, text: str) -> int | str:
    return int(text) if name in _NUMBERS and text.lstrip("-").isdecimal() else text


def _pack(message: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
