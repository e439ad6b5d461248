"""The catalog of the demo's source as its writers read it."""

from __future__ import annotations

from pathlib import Path

from pumphouse.demo.catalog import Catalog, stamp
from pumphouse.demo.rows import SourceTable
from pumphouse.demo.world import WEIGHTS


class Tables:
    """The schema as a thread knows it; looked at again inside the gate."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = (0, 0)
        self.version = 0
        self.choices: list[SourceTable] = []
        self.weights: list[int] = []
        self.by_name: dict[tuple[str, str], SourceTable] = {}

    def refresh(self) -> None:
        """Read the catalog when it changed."""
        now = stamp(self._path)
        if now == self._stamp:
            return
        catalog = Catalog.load(self._path)
        self._stamp, self.version = now, catalog.schema_version
        tables = [SourceTable.of(db, info) for db, info in catalog.all_tables()]
        self.by_name = {(table.db, table.info.name): table for table in tables}
        self.choices = [table for table in tables if table.info.name in WEIGHTS]
        self.weights = [WEIGHTS[table.info.name] for table in self.choices]
