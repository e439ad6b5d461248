"""The archive's side of a proof: the checksum of each row, from its decoded values (`pumphouse.proof.forms`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.proof.forms import LONGEST, Form, Proven

# Rows whose texts are in memory at once.
_AT_ONCE = 1 << 16
# Powers of ten of the first digit between which a MySQL prints no exponent; nor does it above where digits follow the
# point.
_FIRST, _LAST = -15, 14
_PLAIN = 1e15
_NULL = "N,"


def checksums(rows: pa.Table, columns: Sequence[Proven]) -> np.ndarray:
    """64 bits for each row."""
    found = [_of_texts(_texts(some, columns)) for some in _parts(rows.select([each.name for each in columns]))]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)


def total(sums: np.ndarray, copies: np.ndarray) -> int:
    """Their sum modulo 2^64; ``copies``: how often each row is there."""
    with np.errstate(over="ignore"):
        return int((sums * copies.astype(np.uint64)).sum(dtype=np.uint64))


def _parts(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    for at in range(0, rows.num_rows, _AT_ONCE):
        yield from rows.slice(at, _AT_ONCE).combine_chunks().to_batches()


def _of_texts(texts: pa.Array) -> np.ndarray:
    """First eight bytes of the SHA-256 of each."""
    data = memoryview(texts.buffers()[2] or b"")
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1].tolist()
    sha256 = hashlib.sha256
    digests = b"".join([sha256(data[begin:end]).digest()[:8] for begin, end in pairwise(ends)])
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def _texts(batch: pa.RecordBatch, columns: Sequence[Proven]) -> pa.Array:
    pieces: list[pa.Array] = []
    for values, column in zip(batch.columns, columns, strict=True):
        pieces += _BY_FORM[column.form](values, column)
    joined = pc.binary_join_element_wise(*pieces, _bytes("")) if len(pieces) > 1 else pieces[0]
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _bytes(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.large_binary())


def _ended(texts: pa.Array) -> list[pa.Array]:
    """Each with its comma."""
    ended = pc.binary_join_element_wise(texts.cast(pa.large_binary()), _bytes(","), _bytes(""))
    return [pc.fill_null(ended, _NULL.encode())]


def _integers(values: pa.Array, _column: Proven) -> list[pa.Array]:
    return _ended(values.cast(pa.large_string()))


def _reals(values: pa.Array, _column: Proven) -> list[pa.Array]:
    texts = [None if each is None else real(each) for each in values.cast(pa.float64()).to_pylist()]
    return _ended(pa.array(texts, pa.large_string()))


def real(value: float) -> str:
    """A double as a MySQL prints it."""
    value += 0.0  # -0 and 0 are equal
    text = repr(value)
    if "e" not in text and abs(value) < _PLAIN:
        return text.removesuffix(".0")
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    shown, first = "".join(map(str, digits)), len(digits) + int(exponent) - 1
    minus = "-" * sign
    if first < _FIRST or (first > _LAST and len(shown) <= first + 1):
        return f"{minus}{shown[0]}{'.' * (len(shown) > 1)}{shown[1:]}e{first}"
    if first < 0:
        return f"{minus}0.{'0' * (-first - 1)}{shown}"
    whole = shown[: first + 1].ljust(first + 1, "0")
    return f"{minus}{whole}{'.' * (len(shown) > first + 1)}{shown[first + 1 :]}"


def _fixed(values: pa.Array, column: Proven) -> list[pa.Array]:
    """Rows that are older than their column's type, and defaults, may have fewer digits than it."""
    points = pc.find_substring(values, ".")
    behind = pc.if_else(pc.equal(points, -1), 0, pc.subtract(pc.subtract(pc.binary_length(values), points), 1))
    if pc.any(pc.not_equal(behind, column.scale)).as_py():
        texts = [None if each is None else scaled(each, column.scale) for each in values.to_pylist()]
        values = pa.array(texts, pa.large_string())
    return _ended(values)


def scaled(text: str, scale: int) -> str:
    """A text of digits with so many behind the point; one that has more keeps them."""
    whole, _, behind = text.partition(".")
    behind = behind.ljust(scale, "0")
    return f"{whole}.{behind}" if behind else whole


def _strings(values: pa.Array, _column: Proven) -> list[pa.Array]:
    values = values.cast(pa.large_binary())
    sizes = pc.binary_length(values)
    heads = pc.binary_join_element_wise(sizes.cast(pa.large_string()).cast(pa.large_binary()), _bytes(":"), _bytes(""))
    long = pc.fill_null(pc.greater(sizes, LONGEST), False)
    if pc.any(long).as_py():
        digests = [f"#{hashlib.sha256(each).hexdigest()},".encode() for each in values.filter(long).to_pylist()]
        heads = pc.replace_with_mask(heads, long, pa.array(digests, pa.large_binary()))
        values = pc.if_else(long, _bytes(""), values)
    return [pc.fill_null(heads, _NULL.encode()), pc.fill_null(values, b"")]


_BY_FORM = {
    Form.SIGNED: _integers,
    Form.UNSIGNED: _integers,
    Form.REAL: _reals,
    Form.FIXED: _fixed,
    Form.BYTES: _strings,
    Form.TEXT: _strings,
}
