"""Generated protobuf modules are those of the .proto files beside them: `python -m tests.architecture.proto_check PYTHON`.

PYTHON has the generator (locks/proto.lock).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def stale(python: str) -> list[str]:
    """Names of generated files that differ from what the generator makes now."""
    sources = sorted(str(p) for p in (ROOT / "include/pumphouse/proto").glob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        into = [f"-I{ROOT}/include", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
        subprocess.run([python, "-m", "grpc_tools.protoc", *into, *sources], check=True)
        fresh = sorted((Path(out) / "pumphouse/proto").glob("*_pb2*"))
        return [p.name for p in fresh if (ROOT / "include/pumphouse/proto" / p.name).read_bytes() != p.read_bytes()]


if __name__ == "__main__":
    wrong = stale(sys.argv[1])
    if wrong:
        print(f"generated files are stale: {', '.join(wrong)}; run make proto")
    sys.exit(bool(wrong))
