"""What a Pump loads before it serves."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from pump_service.intake import payloads
from pump_service.store import framing, order, summary
from pump_service.process.warm import warm

warm()
for module in (payloads, framing, summary, order):
    for name, kernel in vars(module).items():
        own = getattr(kernel, "__module__", "") == module.__name__ and hasattr(kernel, "py_func")
        if own and not kernel.targetoptions.get("forceinline"):
            print(name, len(kernel.signatures))
"""


def test_every_kernel_of_the_write_path_is_loaded_in_one_flavour() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200, check=True)
    found = dict(line.split() for line in done.stdout.splitlines())
    assert {"walk_group", "frame_rows", "sum_up"} <= set(found)
    assert {name: count for name, count in found.items() if count != "1"} == {}
