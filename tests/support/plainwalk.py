"""Reading records out of a buffer in plain Python: what tests hold the kernel of `pump_service.store.scan` against."""

from __future__ import annotations

from typing import NamedTuple

from pump_service.store import frame


class Walked(NamedTuple):
    """One record, with what a block keeps beside an entry."""

    tp: int
    start_ts: int
    commit_ts: int
    fid: int
    offset: int
    size: int
    key: bytes
    ddl_job_id: int


def walk(data: bytes, fid: int) -> list[Walked]:
    """The records of a whole file, all of which are good."""
    found, at = [], 0
    while at < len(data):
        magic, length, checksum = frame.decode_header(data, at)
        payload = data[at + frame.HEADER_BYTES :][:length]
        assert (magic, checksum) == (frame.RECORD_MAGIC, frame.crc32c(payload))
        meta = frame.read_meta(payload)
        key = meta.prewrite_key if meta.tp == 0 else b""
        job = frame.ddl_job_id(payload)
        found.append(Walked(min(meta.tp, 255), meta.start_ts, meta.commit_ts, fid, at, length, key, job))
        at += frame.HEADER_BYTES + length
    return found
