"""The source's schema as TiDB would hold it in its meta data: databases, tables, versions, ids. One JSON file.

Written only inside the gate's barrier, by an atomic rename; readers look at the file's stamp when they enter the gate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.durable import write_atomic
from pumphouse.model.table import TableInfo

Raw = dict[str, Any]


@dataclass(slots=True)
class Catalog:
    """All of it. ``tables`` is keyed by (database, table) and holds raw TableInfos, views included."""

    schema_version: int = 0
    next_id: int = 100
    jobs: int = 0
    dbs: dict[str, Raw] = field(default_factory=dict)
    tables: dict[tuple[str, str], Raw] = field(default_factory=dict)

    def take_id(self) -> int:
        """A new id; tables, partitions, databases and jobs share one sequence."""
        self.next_id += 1
        return self.next_id

    def table(self, db: str, name: str) -> TableInfo:
        """One table."""
        return TableInfo.from_dict(self.tables[db, name])

    def all_tables(self) -> list[tuple[str, TableInfo]]:
        """Every table (no views, no sequences) with its database, by name."""
        infos = [(db, TableInfo.from_dict(raw)) for (db, _), raw in sorted(self.tables.items())]
        return [(db, info) for db, info in infos if not info.is_view and not info.is_sequence]

    def save(self, path: Path) -> None:
        """Write it."""
        body = {
            "schema_version": self.schema_version,
            "next_id": self.next_id,
            "jobs": self.jobs,
            "dbs": self.dbs,
            "tables": [[db, name, raw] for (db, name), raw in self.tables.items()],
        }
        write_atomic(path, json.dumps(body).encode())

    @classmethod
    def load(cls, path: Path) -> Catalog:
        """Read it; an empty one when there is no file."""
        if not path.exists():
            return cls()
        body = json.loads(path.read_bytes())
        return cls(
            schema_version=body["schema_version"],
            next_id=body["next_id"],
            jobs=body["jobs"],
            dbs=body["dbs"],
            tables={(db, name): raw for db, name, raw in body["tables"]},
        )


def stamp(path: Path) -> tuple[int, int]:
    """What changes with every write of the file."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino
