"""Whether the data is safe, in one look: the first line of `pumphouse status` and of the page. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.model.tso import Tso, compose, physical_ms, to_datetime
from pumphouse.status.findings import CAPTURE_LAG_S, NO_DUMP, ago
from pumphouse.status.past import Event, Past
from pumphouse.status.report import CaptureStatus, Severity, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One look: how it stands (``good``, ``warn``, ``bad``), in a word, and the sentences behind it."""

    mood: str
    word: str
    says: tuple[str, ...]


def clock(ts: int | None) -> str:
    """``2026-11-28 21:04:10Z``."""
    return "-" if not ts else f"{to_datetime(ts):%Y-%m-%d %H:%M:%S}Z"


def from_second(ts: Tso) -> Tso:
    """The first whole second that is not before it: typed as `clock` shows that, it is none of what lies before."""
    second = compose(1000)
    return Tso(-(-ts // second) * second)


def headline(status: Status, past: Past | None = None) -> Headline:
    """Whether the data is safe. An archive that stands still is red, whatever the runs look like.

    ``past`` None: it was not asked for, or is still being read; nothing is said of proofs.
    """
    archive = status.archive
    errors = sum(each.severity is Severity.ERROR for each in status.findings)
    if archive.end is None:
        return Headline(mood="bad", word="Not safe", says=(archive.problem or "there is no archive",))
    if archive.restorable_from is None:
        return Headline(mood="bad", word="Not safe", says=(NO_DUMP, f"archived until {clock(archive.end)}"))
    since = f"{clock(archive.end)}, {ago(archive.age_s)} ago"
    says = [f"restorable from {clock(from_second(archive.restorable_from))}"]
    stopped = archive.stops[0] if archive.stops else None
    if stopped is not None:
        says.append(f"the whole is restorable only up to {clock(stopped.at)}, until the next dump: {stopped.why}")
    proven = past.proven if past else None
    if past is not None:
        says.append("never proved" if proven is None else _proved(proven, status.now))
    # The archive's end goes on without a capture: what the source wrote meanwhile is not there all the same.
    behind = [each for each in status.captures if each.state != "running" or each.lag_s > CAPTURE_LAG_S]
    says += [_behind(each) for each in behind]
    if errors or archive.late or behind or stopped:
        first = f"the archive stands still: safe until {since}" if archive.late else f"safe until {since}"
        return Headline(mood="bad", word="Late" if archive.late else "Needs a hand", says=(first, *says))
    if status.findings:
        return Headline(mood="warn", word="Safe, with remarks", says=(f"until {since}", *says))
    return Headline(mood="good", word="Safe", says=(f"until {since}", *says))


def _behind(capture: CaptureStatus) -> str:
    stands = f"{ago(capture.lag_s)} behind" if capture.state == "running" else capture.state
    why = f" ({capture.reason})" if capture.reason else ""
    return f"capture {capture.capture_id} is {stands}: what {capture.source} wrote since is not there{why}"


def _proved(proof: Event, now: Tso) -> str:
    return f"proved {ago((physical_ms(now) - (proof.ended_ms or 0)) / 1000)} ago: {proof.of}, as at {clock(proof.at)}"
