"""Our code for workers that have Python and the locked packages but not us: one zip file for `spark.archives`.

Spark unpacks it into a directory of the executor's own. A zip on the path (`pyFiles`) would not do: numba compiles what
it cannot find beside the source, in each executor anew. So the kernels lie beside their sources here, compiled before;
`pumphouse.codec.jit` names them by content, so they hold wherever they are unpacked, for the Python version and the CPU
model of the machine that wrote them. On another model the daemon compiles once for each executor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pumphouse
import spark_tasks
from pumphouse.durable import write_atomic
from pumphouse.errors import BinlogError

DIRECTORY = "pumphouse-code"
_COMPILE = "from spark_tasks.daemon import load; load()"


def code_conf(package: Path | str) -> dict[str, str]:
    """Settings of an application whose workers take our code out of this file."""
    return {
        "spark.archives": f"{package}#{DIRECTORY}",
        # The archive is unpacked in the executor's directory; workers of a Connect session run in one below that.
        "spark.executorEnv.PYTHONPATH": f"{DIRECTORY}:../{DIRECTORY}",
        "spark.python.daemon.module": "spark_tasks.daemon",
    }


def build(output: Path) -> Path:
    """Write the file, for workers that run this very version of Python; returns its path."""
    with tempfile.TemporaryDirectory(prefix="pumphouse-package-") as made:
        root = Path(made)
        for package in (pumphouse, spark_tasks):
            source = Path(str(package.__file__)).parent
            shutil.copytree(source, root / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.proto"))
        environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT")}
        _run([sys.executable, "-B", "-c", _COMPILE], root, environment | {"PYTHONPATH": made})
        # Unchecked: a file's time is another one where it is unpacked.
        _run(
            [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "."], root, environment
        )
        output.parent.mkdir(parents=True, exist_ok=True)
        file = root / "package.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*")):
                if path.is_file() and path != file:
                    archive.write(path, path.relative_to(root))
        write_atomic(output, file.read_bytes())
    return output


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=directory, env=environment, check=False, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        said = "; ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise BinlogError(f"the package for Spark cannot be made: {said}")
