"""What of the archive may expire: from the wishes for retention, and from what still needs something. Pure (row A5).

A restore to a moment needs a dump that leads there and the windows from the dump's low on; a load needs the windows
from its checkpoint on. What is kept is a dump, every later dump, and the windows from one on. The newest dump and the
newest windows are always kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumphouse.archive.base import Base
from pumphouse.archive.losses import Losses, losses_of, together
from pumphouse.archive.manifest import DdlEntry, PumpEntry
from pumphouse.archive.range import OldestBase, Range
from pumphouse.archive.view import ArchiveView
from pumphouse.archive.windows import Windows
from pumphouse.errors import UsageError
from pumphouse.model.tso import MAX_TSO, Tso, compose, physical_ms, show

_DAY_MS = 86_400_000
# HEAD may be written late by a writer that was slow; what it names has to be there.
_NEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How much is kept: so many dumps, the moments of so many days; of both, whatever one of them wants. None = no say.

    Neither: nothing expires.
    """

    bases: int | None = None
    days: float | None = None

    @property
    def wishes(self) -> bool:
        """Whether anything may go."""
        return self.bases is not None or self.days is not None

    def __str__(self) -> str:
        said = [f"{self.bases} bases"] if self.bases is not None else []
        said += [f"{self.days:g} days"] if self.days is not None else []
        return " and ".join(said) or "everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What still needs something.

    Args:
        who: as people know it, ``target``, ``mark``, ``dump``…
        ts: the windows from here on are needed; 0 = everything is.
        restorable: a dump that leads to ``ts`` is needed too.
        why: the rest of a sentence that begins with ``who``.
        hint: what to do about it.
    """

    who: str
    ts: Tso
    restorable: bool
    why: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.who} {self.why}" + (f" ({self.hint})" if self.hint else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What expires.

    Args:
        start: windows are kept from here on.
        base: the oldest dump that is kept; None = there is none at all.
        bases: all that are kept.
        bases_gone: dumps that go.
        windows_gone: windows that go, in order.
        losses: what the windows that are gone lacked, and a base that is kept lacks, too.
        window: digest of what the first window that is kept hangs on.
        pumps: as that lists them.
        held: those who need something that would have gone without them.
        why_nothing: why nothing goes; '' = something does.
    """

    start: Tso
    base: Base | None
    bases: tuple[Base, ...]
    bases_gone: tuple[Base, ...]
    windows_gone: Windows
    losses: Losses
    window: str
    pumps: tuple[PumpEntry, ...]
    held: tuple[Hold, ...]
    why_nothing: str

    @property
    def moves(self) -> bool:
        """Whether the range moves."""
        return bool(self.bases_gone or self.windows_gone)

    def after(self, kept: Range, ddl: Sequence[DdlEntry], *, who: str, at_ms: int) -> Range:
        """The next version of the range; ``ddl``: what the windows brought that are gone then."""
        assert self.base is not None  # noqa: S101 - without a dump nothing moves
        return kept.next(
            who=who,
            at_ms=at_ms,
            start=self.start,
            window=self.window,
            pumps=self.pumps,
            ddl=tuple(ddl),
            base=OldestBase.of(self.base),
            losses=self.losses,
            expired_by=who,
            expired_ms=at_ms,
        )


def plan_expiry(view: ArchiveView, policy: Policy, holds: Sequence[Hold], now: Tso) -> Expiry:
    """Say what expires.

    Args:
        view: the whole archive that is kept.
        policy: what is wished.
        holds: what still needs something.
        now: days count back from here.
    """
    bases, windows = view.bases, view.windows
    wished = _wished(bases, policy, now)
    first = min([wished, *(_base_of(view, each) for each in holds if each.restorable)])
    first, lacking = _whole(view, first)
    # Windows before the first dump are kept, too, while nobody wishes that anything goes.
    start = _start(view, _needed(bases[first:], holds)) if policy.wishes else view.kept.start
    gone = windows.ended(start)
    return Expiry(
        start=start,
        base=bases[first] if bases else None,
        bases=bases[first:],
        bases_gone=bases[:first],
        windows_gone=gone,
        losses=_losses(view, bases[first:], gone),
        window=view.kept.window if start == view.kept.start else gone.digest,
        pumps=view.kept.pumps if (last := gone.last) is None else last.pumps,
        held=(*_holding(view, holds, wished), *lacking),
        why_nothing="" if first or gone else _why_nothing(bases, policy, wished, now),
    )


def _wished(bases: Sequence[Base], policy: Policy, now: Tso) -> int:
    """Which dump the policy wants to be the oldest."""
    wishes = []
    if policy.bases is not None:
        wishes.append(max(0, len(bases) - policy.bases))
    if policy.days is not None:
        since = compose(physical_ms(now) - int(policy.days * _DAY_MS))
        wishes.append(max((at for at, base in enumerate(bases) if base.ts <= since), default=0))
    return min(wishes, default=0)


def _base_of(view: ArchiveView, hold: Hold) -> int:
    """The newest dump that leads to what a hold needs."""
    base = view.base_for(hold.ts)
    return 0 if base is None else view.bases.index(base)


def _whole(view: ArchiveView, first: int) -> tuple[int, list[Hold]]:
    """The newest dump, this one or one before, that has with those behind it the rows of every table; and why.

    A dump lacks a table that a rule left out, or that came back behind it. A table that no older dump has either keeps
    none, and so does one that is dropped where this dump is exact: no moment that is kept has it. One that was dropped
    behind it keeps a dump: the moments between need it.
    """
    why: list[Hold] = []
    since = view.bases[first].ts if view.bases else view.kept.start

    def without(at: int) -> dict[int, str]:
        return {each.table_id: each.name for each in view.bases[at].without}

    while first > 0:
        base, older = view.bases[first], first
        for table_id, name in without(first).items():
            has = max((at for at in range(first) if table_id not in without(at)), default=first)
            if has < first and not view.timeline.at_ts(table_id, since).dropped:
                said = f"of {show(base.ts)} lacks {name}, to whose rows the one of {show(view.bases[has].ts)} leads"
                why.append(Hold(who="dump", ts=view.bases[has].ts, restorable=True, why=said))
                older = min(older, has)
        if view.recovered(base, view.end):
            said = f"of {show(base.ts)} lacks a table that came back behind it"
            why.append(Hold(who="dump", ts=view.bases[first - 1].ts, restorable=True, why=said))
            older = min(older, first - 1)
        if older == first:
            break
        first = older
    return first, why


def _needed(bases: Sequence[Base], holds: Sequence[Hold]) -> Tso:
    """The windows from here on are needed."""
    return Tso(min([*(base.low for base in bases), *(each.ts for each in holds)], default=0))


def _losses(view: ArchiveView, bases: Sequence[Base], gone: Windows) -> Losses:
    """What bases descend from without the log that goes, or has gone."""
    since = min((base.since for base in bases), default=view.kept.start)
    before = view.kept.losses.above(since) if since < view.kept.start else Losses()
    return together(before, losses_of(gone, after=since, upto=MAX_TSO))


def _start(view: ArchiveView, needed: Tso) -> Tso:
    """Start of the window that they begin in, and of the one that a DROP PARTITION behind them began in."""
    if not view.bases:
        return view.kept.start
    begun = [each.dropping_since for each in view.timeline.ddls(needed, view.end) if each.dropping_since]
    low = min([needed, *begun])
    older = view.windows[: max(1, len(view.windows) - _NEWEST + 1)].starts
    return Tso(int(max(older[older <= low], default=view.kept.start)))


def _holding(view: ArchiveView, holds: Sequence[Hold], wished: int) -> list[Hold]:
    """Those without whom more would go."""
    needed = _needed(view.bases[wished:], ())
    free = _start(view, needed)
    return [
        each
        for each in holds
        if (each.restorable and _base_of(view, each) < wished) or (each.ts < needed and _start(view, each.ts) < free)
    ]


def _why_nothing(bases: Sequence[Base], policy: Policy, wished: int, now: Tso) -> str:
    if not bases:
        return "there is no dump, so every window is needed: `pumphouse archive dump`"
    if not policy.wishes:
        return "no retention is set: retention.keep_bases (--keep-bases) or retention.keep_days (--keep-days)"
    if wished:
        return "it is held"
    if policy.bases is not None and len(bases) <= policy.bases:
        return (
            f"{len(bases)} of the {policy.bases} bases that are kept are there; `pumphouse archive base` or `pumphouse "
            "archive dump` makes the next"
        )
    age = (physical_ms(now) - physical_ms(bases[0].ts)) / _DAY_MS
    if policy.days is not None and age <= policy.days:
        return f"the oldest base is {age:.1f} days old, and {policy.days:g} days are kept"
    return "moments of that long ago need the oldest base; the next base that gets old enough lets it go"


def require_policy(bases: int | None, days: float | None) -> Policy:
    """A policy that keeps something; UsageError."""
    if bases is not None and bases < 1:
        raise UsageError("one dump at least is kept", hint="--keep-bases 1")
    if days is not None and days < 0:
        raise UsageError("days are not negative", hint="--keep-days 0")
    return Policy(bases=bases, days=days)
