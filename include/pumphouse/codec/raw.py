"""Loads, stores and copies of bytes inside kernels, as the machine does them. Bounds are the caller's business."""

# mypy: disable-error-code="misc"
# (numba's extension interface has no types)

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to one byte of an uint8 array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _load(bits: int, result: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(_typing: Any, array: Any, index: Any) -> Any:
        del index

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(context, builder, signature.args[0], args[0], args[1])
            return builder.load(builder.bitcast(place, ir.IntType(bits).as_pointer()), align=1)

        return result(array, types.intp), codegen

    return load


@intrinsic  # type: ignore[untyped-decorator]
def store_u16(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Two bytes of an uint8 array from a 16-bit integer, the lower one first."""
    del index, value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        builder.store(args[2], builder.bitcast(place, ir.IntType(16).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint16), codegen


# (array, index): little-endian integer of an uint8 array, at any alignment.
load_u64 = _load(64, types.uint64)
load_u32 = _load(32, types.uint32)


@intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(_typing: Any, value: Any) -> Any:
    """Zero bits below the lowest one of a 64-bit integer; 64 of zero."""
    del value

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Have the processor bring the line of this byte of an uint8 array, which is read soon."""
    del index

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(call, [place, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_typing: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:
    """``target[to : to + size] = source[at : at + size]`` of two uint8 arrays that do not overlap."""
    del to, at, size

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        into = _place(context, builder, signature.args[0], args[0], args[1])
        out_of = _place(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, into, out_of, args[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), codegen
