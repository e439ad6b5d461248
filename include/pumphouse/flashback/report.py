"""What a flashback is to do, or has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pumphouse.archive.losses import Losses
from pumphouse.flashback.apply import Conflict, Done
from pumphouse.flashback.statements import Row
from pumphouse.model.tso import Tso

# Conflicts that are kept in the report itself; the file of a report has all.
MOST_CONFLICTS = 100


@dataclass(slots=True, kw_only=True)
class TableCount:
    """Rows of one table, by what becomes of them.

    Args:
        changes: row changes that were chosen.
        insert: rows that were deleted, and come again.
        update: rows that get their old values.
        delete: rows that were inserted, and go.
        back: rows that are back already.
        conflicts: rows that stay as they are.
    """

    changes: int = 0
    insert: int = 0
    update: int = 0
    delete: int = 0
    back: int = 0
    conflicts: int = 0

    @property
    def put(self) -> int:
        """Rows that are put back."""
        return self.insert + self.update + self.delete


@dataclass(slots=True, kw_only=True)
class FlashbackReport:
    """Of one run.

    Args:
        server: its name.
        version: what it says of itself.
        applied: the server was changed.
        after: changes were chosen from here on, exclusive.
        until: up to here.
        seen: up to where the archive was looked through for later changes.
        transactions: chosen row changes by commit ts.
        tables: by name.
        problems: tables that cannot be put back, and why.
        conflicts: the first of them.
        batches: transactions on the server.
        losses: what the archive lacks.
        notes: what there is to know, one sentence each.
        files: what was written, by kind.
    """

    server: str
    version: str
    applied: bool
    after: Tso
    until: Tso
    seen: Tso
    transactions: dict[int, int] = field(default_factory=dict)
    tables: dict[str, TableCount] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    batches: int = 0
    losses: Losses = field(default_factory=Losses)
    notes: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> TableCount:
        """Of all tables."""
        names = TableCount.__slots__
        return TableCount(**{name: sum(getattr(each, name) for each in self.tables.values()) for name in names})

    @property
    def changes(self) -> int:
        """Row changes that were chosen."""
        return sum(self.transactions.values())

    def count(self, done: Done) -> None:
        """Add what became of a batch."""
        for row in done.put:
            self._of(row, "delete" if row.want is None else "insert" if row.now is None else "update")
        for row in done.back:
            self._of(row, "back")
        for row, _ in done.conflicts:
            self._of(row, "conflicts")

    def _of(self, row: Row, what: str) -> None:
        table = self.tables[row.there.subject.name]
        setattr(table, what, getattr(table, what) + 1)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        found = asdict(self) | {"total": asdict(self.total)}
        found |= {f"{name}_ts": found.pop(name) for name in ("after", "until", "seen")}
        rows = sorted(self.transactions.items())
        return found | {"transactions": [{"commit_ts": ts, "changes": changes} for ts, changes in rows]}
