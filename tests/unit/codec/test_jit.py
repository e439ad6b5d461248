"""The disk cache of kernels: what was compiled from other text, or with other constants, is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def run(directory: Path, **environment: str) -> list[int]:
    """What the kernel says of 50, and whether it came from the cache."""
    code = f"import sys; sys.path.insert(0, {str(directory)!r}); import pk.whole"
    # Without byte code, which Python takes for that of a file of the same size and second.
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


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


@pytest.mark.row("P3")
def test_with_no_place_for_the_cache_kernels_are_compiled_in_each_process_and_it_is_said_once(tmp_path: Path) -> None:
    """As under a unit with ProtectSystem=strict and ProtectHome, or on a root file system that is read-only."""
    package = tmp_path / "pk"
    package.mkdir()
    for name, text in FILES.items():
        (package / name).write_text(text)
    (package / "__pycache__").write_text("no directory")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pk.whole; from pumphouse.codec import jit; "
        "print(jit.not_on_disk('pk'))"
    )
    nowhere = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere", "NUMBA_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], env=os.environ | nowhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["112 0", "[]"]
    assert done.stderr.count("Set NUMBA_CACHE_DIR to a directory of this user") == 1
    assert run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "place")) == [112, 0]
    assert run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "place")) == [112, 1]


def test_kernels_are_plain_functions_where_the_compiler_is_off() -> None:
    code = (
        "import numpy as np; from pumphouse.codec import wire; print(wire.read_uvarint(np.array([5], np.uint8), 0, 1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
