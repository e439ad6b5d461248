"""Very many windows: what a plan, a listing, a look and a snapshot cost where the archive has 100,000 of them."""

from __future__ import annotations

_WINDOWS = 100_000
_COMMANDS = {
    "plan": ("restore", "--to", "latest", "--dry-run", "--plan-only"),
    "ls": ("archive", "ls"),
    "status": ("status",),
    "snapshot": ("snapshot",),
}
