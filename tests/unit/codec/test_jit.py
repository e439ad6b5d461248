"""The disk cache of kernels: what was compiled from other text, or with other constants, is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FILES = {
    "__init__.py": "",
    "limits.py": "MOST = 10\n",
    "sizes.py": "MOST = 100\n",
    "parts.py": (
        "from pumphouse.codec.jit import primitive\n"
        "from pk.limits import MOST\n"
        "@primitive\n"
        "def small(n):\n"
        "    return n <= MOST\n"
    ),
    "raw.py": (
        "from numba.core import types\n"
        "from numba.extending import intrinsic\n"
        "@intrinsic\n"
        "def more(typing, n):\n"
        "    def code(context, builder, signature, args):\n"
        "        return builder.add(args[0], context.get_constant(types.int64, 100))\n"
        "    return n(n), code\n"
    ),
    "whole.py": (
        "import sys\n"
        "from pumphouse.codec.jit import kernel\n"
        "from pk import sizes\n"
        "from pk.parts import small\n"
        "from pk.raw import more\n"
        "@kernel\n"
        "def judge(n):\n"
        "    return more((1 if small(n) else 2) + (10 if n <= sizes.MOST else 20))\n"
        "print(judge(50), sum(judge.stats.cache_hits.values()))\n"
    ),
}


def run(directory: Path, module: str = "whole") -> list[int]:
    """What the kernel says of 50, and whether it came from the cache."""
    code = f"import sys; sys.path.insert(0, {str(directory)!r}); import pk.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


NATIVE = """
import ctypes, gc, weakref
import numpy as np
from numba import carray
from numba.core.ccallback import CFunc
from pumphouse.codec.jit import by_address
from pk.parts import small

made = []
compile_it = CFunc.compile

def compile_and_tell(native):
    made.append(weakref.ref(native))
    compile_it(native)
    print(native.cache_hits)

CFunc.compile = compile_and_tell

@by_address
def judge(data_at, table_at):
    table = carray(table_at, 2, np.int64)
    total = 0
    for byte in carray(data_at, table[0], np.uint8):
        total += np.int64(byte)
    table[1] = -total
    return 10_000_000_000 * total + (1 if small(total) else 2)

assert not made  # not before it is asked for
found = judge()
assert judge() is found
assert len(made) == 1
gc.collect()
assert made[0]() is not None  # it has the code
assert found._flags_ & 4  # _FUNCFLAG_PYTHONAPI: it keeps the GIL
table = np.array([4, 0], np.int64)
for _ in range(100):
    said = found(b"\\x00\\x32\\x00\\x00\\xff", ctypes.c_void_p(table.ctypes.data))
assert table.tolist() == [4, -50]
print(said - 500_000_000_000)
"""


def test_a_kernel_that_is_called_by_address_is_compiled_once_and_again_when_what_it_takes_has_changed(
    tmp_path: Path,
) -> None:
    package = tmp_path / "pk"
    package.mkdir()
    for name, text in (FILES | {"native.py": NATIVE}).items():
        (package / name).write_text(text)
    assert run(tmp_path, "native") == [0, 2]
    assert run(tmp_path, "native") == [1, 2]
    (package / "limits.py").write_text("MOST = 70\n")
    assert run(tmp_path, "native") == [0, 1]
    (package / "limits.py").write_text(FILES["limits.py"])
    assert run(tmp_path, "native") == [1, 2]
    names = {path.name.split(".", 1)[0] for path in (package / "__pycache__").glob("native.judge-*.nbi")}
    assert names == {"native"}
    assert len(list((package / "__pycache__").glob("native.judge-*.nbi"))) == 2  # each under its own stamp


def test_a_kernel_is_compiled_again_when_what_it_takes_from_other_files_has_changed(tmp_path: Path) -> None:
    package = tmp_path / "pk"
    package.mkdir()
    for name, text in FILES.items():
        (package / name).write_text(text)
    assert run(tmp_path) == [112, 0]
    assert run(tmp_path) == [112, 1]
    # A constant two files away, one that is named by its module, and the text of what it calls.
    (package / "limits.py").write_text("MOST = 70\n")
    assert run(tmp_path) == [111, 0]
    (package / "sizes.py").write_text("MOST = 7\n")
    assert run(tmp_path) == [121, 0]
    (package / "parts.py").write_text(FILES["parts.py"].replace("<=", ">"))
    assert run(tmp_path) == [122, 0]
    # As it was once: that is still there.
    (package / "parts.py").write_text(FILES["parts.py"])
    assert run(tmp_path) == [121, 1]
    (package / "raw.py").write_text(FILES["raw.py"].replace("100", "200"))
    assert run(tmp_path) == [221, 0]


def test_kernels_are_plain_functions_where_the_compiler_is_off() -> None:
    code = (
        "import numpy as np; from pumphouse.codec import wire; print(wire.read_uvarint(np.array([5], np.uint8), 0, 1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
