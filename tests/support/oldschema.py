"""``schema/<ts>.json``, as releases wrote it before the DDL jobs lay by table: each object adds to the one before."""

from __future__ import annotations

from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, sha256
from pumphouse.archive.schema_store import KIND, fold_schema, schema_key
from pumphouse.model.tso import Tso


def write_old_schema(archive: Archive) -> list[str]:
    """One object for each window that brought DDL, the first one whole; returns their names."""
    genesis, windows, keys = archive.genesis(), archive.chain(), []
    base: tuple[Tso, str] | None = None
    known: set[int] = set()
    for number, window in enumerate(windows):
        jobs = fold_schema(archive, windows[: number + 1], None).timeline.jobs
        fresh = [each for each in jobs if each.job.id not in known]
        if not fresh:
            continue
        data = dump(
            KIND,
            {
                "upto": int(window.end),
                "genesis_sha256": genesis.sha256,
                "window_sha256": window.sha256,
                "base": None if base is None else int(base[0]),
                "base_sha256": "" if base is None else base[1],
                "depth": len(keys),
                "jobs": [each.to_dict() for each in fresh],
            },
        )
        keys.append(schema_key(window.end))
        archive.store.put(keys[-1], data)
        base = window.end, sha256(data)
        known |= {each.job.id for each in jobs}
    return keys
