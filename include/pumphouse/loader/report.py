"""What a load did: the same facts for people, for Airflow and for tests."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import structlog

from pumphouse.archive.losses import Losses, Range
from pumphouse.archive.manifest import Declaration
from pumphouse.loader.rules import Rules
from pumphouse.loader.state import NOTHING_RECORDED, Recorded
from pumphouse.loader.target import address
from pumphouse.model.tablerows import TableRows
from pumphouse.model.tso import Tso

if TYPE_CHECKING:  # with it comes Arrow, which a Pump's progress bar does not need
    from pumphouse.loader.steps import Given, Steps

log = structlog.get_logger()


class Progress(Protocol):
    """Told of each step: what it is, how much of it is done, of how much."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """One step forward."""
        ...


def silent(step: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
    del step, done, total


class Counted:
    """Progress that several threads make."""

    def __init__(self, progress: Progress, step: str, of: int) -> None:
        self._progress, self._step, self._of = progress, step, of
        self._done = 0
        self._lock = threading.Lock()

    def one(self, _what: object) -> None:
        """One more is done."""
        with self._lock:
            self._done += 1
            self._progress(self._step, self._done, self._of)


@dataclass(kw_only=True)
class LoadReport:
    """Totals of one call.

    Args:
        target: address.
        task: name of the load.
        from_ts: checkpoint before.
        to_ts: checkpoint after.
        plans: plans finished.
        resumed: whether the first of them was begun by an earlier run.
        epochs: epochs of tables with something to apply.
        deleted: rows or keys in delete units.
        inserted: rows in insert units.
        units: units applied by this call.
        ddls: DDL statements done.
        skipped: tables left out, with the reason.
        parked: tables in quarantine, since when and why: the target is not whole.
        notes: what the target cannot say of the source's DDL.
        declared: what was given up in the ranges that were loaded; see `Losses` for this and the next two.
        unsynced: Pumps that ran without fsync then.
        binlog_skipped: ranges in which TiDB skipped binlogs.
        steps: what the run consists of, in order: ``step``, ``what``, ``state`` (to do, done, done before).
        dry_run: whether nothing was done.
        written: rows put by this call into each table that it is about, as it is called there.
        cluster_id: of the archive that was read.
        engine: where the last plan was decoded and applied, and why there; '' where nothing was.
        seconds: duration.
    """

    target: str
    task: str
    from_ts: Tso
    to_ts: Tso
    plans: int = 0
    resumed: bool = False
    epochs: int = 0
    deleted: int = 0
    inserted: int = 0
    units: int = 0
    ddls: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    parked: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    declared: list[Declaration] = field(default_factory=list)
    unsynced: list[str] = field(default_factory=list)
    binlog_skipped: list[Range] = field(default_factory=list)
    steps: list[dict[str, str]] = field(default_factory=list)
    dry_run: bool = False
    written: TableRows = field(default_factory=TableRows)
    cluster_id: int = 0
    engine: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, given: Given) -> Self:
        """As it begins: what the rules of a run leave out, and what is to be said of them."""
        target, task, rules = address(given.target), given.task, given.rules
        report = cls(
            target=target, task=task, from_ts=Tso(0), to_ts=Tso(0), parked=rules.parked,
            cluster_id=given.view.genesis.cluster_id,
            skipped={name: str(each) for name, each in rules.tables.items() if not each.parked},
        )  # fmt: skip
        report.tell_unheard(rules)
        said = Rules.of(given.settings.rules, Tso(0))
        report.notes += [
            f"{name} is still left out, though no rule says so any more: --resync brings a table back"
            for name in sorted(report.skipped)
            if said.left_out(name) is None
        ]
        if rules.parked:
            log.warning("tables_parked", server=target, task=task, tables=rules.parked)
        return report

    def planned(self, steps: Steps, recorded: Recorded = NOTHING_RECORDED, *, dry_run: bool = True) -> Self:
        """The same, with what is to be done; ``dry_run``: and nothing was."""
        self.from_ts, self.to_ts, self.dry_run = steps.from_ts, steps.to_ts, dry_run
        self.steps = steps.to_dict(recorded)
        return self

    def step_lines(self) -> list[str]:
        """What the run consists of, in order, for people."""
        done = {"done before": " (done before)"}
        return [each["what"] + done.get(each["state"], "") for each in self.steps] or ["nothing to do"]

    def tell_unheard(self, rules: Rules) -> None:
        """Rules that fit nothing are said: a name that is misspelt would do nothing, without a word."""
        for what in rules.unheard_of:
            self.notes.append(f"{what}; is it misspelt?")
            log.warning("rule_of_nothing", server=self.target, task=self.task, what=what)

    @property
    def losses(self) -> Losses:
        """What is not in the ranges that were loaded."""
        return Losses(
            declared=tuple(self.declared), unsynced=tuple(self.unsynced), binlog_skipped=tuple(self.binlog_skipped)
        )

    def add_losses(self, found: Losses) -> None:
        """Count what one more range lacks."""
        self.declared += [each for each in found.declared if each not in self.declared]
        self.unsynced = sorted({*self.unsynced, *found.unsynced})
        self.binlog_skipped += [each for each in found.binlog_skipped if each not in self.binlog_skipped]

    def to_dict(self) -> dict[str, Any]:
        """Small JSON, for XCom and ``--json``; ``from``, ``to`` and ``rows`` beside the fields."""
        data = asdict(self)
        # Lineage alone tells these.
        del data["written"], data["cluster_id"]
        return {
            "target": data.pop("target"),
            "task": data.pop("task"),
            "from": int(data.pop("from_ts")),
            "to": int(data.pop("to_ts")),
            "rows": self.inserted + self.deleted,
            **data,
        }
