"""What the manifests of a range say is not in it. Pure: the same facts for a plan, a report and a warning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pumphouse.archive.manifest import AcceptedCommit, Declaration, Manifest
from pumphouse.model.record import Record
from pumphouse.model.tso import MAX_TSO, Tso, show

if TYPE_CHECKING:
    # It brings numpy, which an install for Pumps alone lacks until it is asked for.
    from pumphouse.archive.windows import Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Record):
    """(start, end]."""

    start: Tso
    end: Tso


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses(Record):
    """What is missing, or may be, in what a load or a restore reads.

    Args:
        declared: ranges of Pumps that were given up (`archive declare-lost`), and single transactions (`archive
            accept`): what only they held is in no target.
        unsynced: Pumps that ran without fsync: what they answered may have been lost with the power.
        binlog_skipped: ranges in which TiDB said that it skips binlogs; windows side by side are one range.
    """

    declared: tuple[Declaration, ...] = ()
    unsynced: tuple[str, ...] = ()
    binlog_skipped: tuple[Range, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.declared or self.unsynced or self.binlog_skipped)

    def lines(self) -> list[str]:
        """For people, one line each."""
        return [
            *(
                f"declared lost: Pump {each.node_id} ({show(each.from_ts)}, {show(each.to_ts)}]: {each.reason}"
                f" (by {each.who})"
                for each in self.declared
            ),
            *(f"without fsync: Pump {node}: answered binlogs may be missing" for node in self.unsynced),
            *(
                f"binlogs skipped by TiDB: ({show(each.start)}, {show(each.end)}]: changes are missing"
                for each in self.binlog_skipped
            ),
        ]

    @property
    def certain(self) -> Losses:
        """What is missing, and not only may be: nobody restores over that without saying so."""
        return replace(self, unsynced=())

    def above(self, after: Tso, upto: Tso = MAX_TSO) -> Losses:
        """What of it touches (after, upto]; of a Pump without fsync nobody knows when."""
        return replace(
            self,
            declared=tuple(each for each in self.declared if each.to_ts > after and each.from_ts < upto),
            binlog_skipped=tuple(each for each in self.binlog_skipped if each.end > after and each.start < upto),
        )


def together(one: Losses, behind: Losses) -> Losses:
    """Of two ranges, one behind the other, or of two tables."""
    return Losses(
        declared=tuple(dict.fromkeys((*one.declared, *behind.declared))),
        unsynced=tuple(sorted({*one.unsynced, *behind.unsynced})),
        binlog_skipped=_joined((*one.binlog_skipped, *behind.binlog_skipped)),
    )


def _joined(some: Iterable[Range]) -> tuple[Range, ...]:
    """Ranges that lie side by side or over each other are one."""
    found = list[Range]()
    for each in sorted(some, key=lambda each: each.start):
        if found and each.start <= found[-1].end:
            found[-1] = replace(found[-1], end=max(found[-1].end, each.end))
        else:
            found.append(each)
    return tuple(found)


def _gives_up(accepted: AcceptedCommit, manifest: Manifest) -> bool:
    passed = accepted.kind == AcceptedCommit.LATE and accepted.commit_ts <= manifest.start
    return (passed or accepted.kind in AcceptedCommit.GIVES_UP) and accepted.who != AcceptedCommit.ARCHIVE


def _of_one(accepted: AcceptedCommit) -> Declaration:
    """A transaction that was given up by name is a loss like any other: of its commit ts alone."""
    return Declaration(
        node_id=accepted.node_id,
        incarnation="",
        from_ts=Tso(accepted.commit_ts - 1),
        to_ts=accepted.commit_ts,
        reason=f"{accepted.kind} transaction {accepted.start_ts}: {accepted.reason}",
        who=accepted.who,
    )


def losses_of(windows: Windows, *, after: Tso, upto: Tso) -> Losses:
    """What the windows that hold (after, upto] say, in order; a declaration counts where it touches that range.

    Of later windows what they say of transactions in the range counts: a commit that came late is in no earlier one.
    """
    declared: dict[Declaration, None] = {}
    for manifest in windows.between(after, MAX_TSO).noted():
        of_one = [_of_one(each) for each in manifest.accepted if _gives_up(each, manifest)]
        given_up = (*manifest.declared, *of_one) if manifest.start < upto else of_one
        declared |= {each: None for each in given_up if each.from_ts < upto and each.to_ts > after}
    inside = windows.between(after, upto)
    skipped = _joined(Range(start=start, end=end) for start, end in inside.skipped())
    return Losses(declared=tuple(declared), unsynced=tuple(sorted(inside.unsynced())), binlog_skipped=skipped)
