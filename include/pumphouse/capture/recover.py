"""Where a capture goes on whose journal is lost: found again from the Pumps, the archive, the history and its record.

The key of each P (`pumphouse.model.captured`) names the source's transaction, its group, and the P before it. Groups
are decided whole. A commit, wherever it is seen, says that its group was; from the last one on the links lead back
through everything that was decided, one P after the other: one that is missing is named. What is open beside them was
not decided, or nobody has seen it: it is rolled back and read again. Of what is open on them only the commit ts is
lost. Behind all others a new one is as good: an open P holds the watermark of its Pump, and so every window. Between
others there is none that nobody else has, and a Pump finds a binlog by its timestamp alone: that is refused.

`judge` decides and writes nothing. The outcomes are durable on the Pumps before there is a new journal, so whoever is
killed here finds the same again: they are written in the source's order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import structlog

from pumphouse.archive.archive import Archive
from pumphouse.capture.journal import timestamps_went_back
from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.client.transactions import Held, held_by, write_outcomes
from pumphouse.codec.payload import make_commit, make_rollback, parse
from pumphouse.errors import BinlogError, CaptureRefused, PumpUnavailable
from pumphouse.model.captured import OF_A_START, CapturedKey
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso, show
from pumphouse.registry.base import CaptureRecord, Cluster
from pumphouse.settings import TlsSettings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A P of the capture; ``commit_ts``: 0 = no commit was seen. The others are of its key."""

    start_ts: int
    transaction: str
    first: int
    before: int
    schema: int
    micros: int = 0
    commit_ts: int = 0
    is_open: bool = False

    @classmethod
    def of(cls, start_ts: int, key: bytes, *, commit_ts: int = 0, is_open: bool = False) -> Written:
        """Of its key without the prefix; CaptureRefused for one of an earlier version, which has no links."""
        said = CapturedKey.read(key)
        if said is None:
            raise _unknown(f"the key {key!r} says nothing of its group: an earlier version wrote it")
        return cls(
            start_ts=start_ts,
            transaction=said.transaction,
            first=start_ts - said.group,
            before=start_ts - said.before,
            schema=said.schema,
            micros=said.micros,
            commit_ts=commit_ts,
            is_open=is_open,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the transactions of a lost journal.

    Attributes:
        decided: in the source's order; a commit ts of 0 is to be taken, behind all others.
        outcomes: start ts of what is open -> commit ts; 0 = it is rolled back, None = committed with one to be taken.
    """

    decided: tuple[Written, ...]
    outcomes: Mapping[int, int | None]


def judge(found: Iterable[Written], said: CaptureRecord) -> Verdict:
    """Decide what became of each P.

    Args:
        found: every P from ``said.start_ts`` on, and from the oldest open one on.
        said: what the capture's record says: everything up to its start ts was decided, the last with its commit ts.

    Raises:
        CaptureRefused: what is there contradicts itself, or a P that was decided is missing.
    """
    there = {each.start_ts: each for each in found}
    if (last_said := there.get(said.start_ts)) is not None and not last_said.commit_ts:
        there[said.start_ts] = replace(last_said, commit_ts=said.commit_ts)
    decided = _decided(there, said)
    _require_known(decided)
    outcomes: dict[int, int | None] = {each.start_ts: 0 for each in there.values() if each.is_open}
    outcomes |= {each.start_ts: each.commit_ts or None for each in decided if each.is_open}
    return Verdict(decided=tuple(decided), outcomes=outcomes)


def _decided(there: Mapping[int, Written], said: CaptureRecord) -> list[Written]:
    """What the links lead to, in order, back to what the record says and to all that is open."""
    at = max([said.start_ts, *(each.start_ts for each in there.values() if each.commit_ts)])
    if at > said.start_ts:  # the record's is the last of its group
        at = max(each.start_ts for each in there.values() if each.first == there[at].first)
    lowest = min((each.start_ts for each in there.values() if each.is_open), default=said.start_ts + 1)
    out: list[Written] = []
    while at > said.start_ts or (at >= lowest and said.commit_ts):
        if (link := there.get(at)) is None:
            raise _contradicts(f"start ts {at} was decided, and neither a Pump nor the archive has its prewrite")
        if not (link.commit_ts or link.is_open):
            raise _contradicts(f"start ts {at} was decided, and its Pump has it as rolled back")
        out.append(link)
        if link.before < said.start_ts < at and link.before:
            raise _contradicts(f"what was decided last does not come behind start ts {said.start_ts} of the record")
        at = link.before
    on_it = {each.start_ts for each in out}
    for each in there.values():
        if each.commit_ts and each.start_ts > said.start_ts and each.start_ts not in on_it:
            raise _contradicts(f"start ts {each.start_ts} is committed, and nothing that was decided leads there")
    out.reverse()
    return out


def _require_known(decided: Sequence[Written]) -> None:
    """CaptureRefused where a commit ts is lost and a later one is not: none that is made up would be nobody else's."""
    for before, after in pairwise(decided):
        if after.commit_ts and not before.commit_ts:
            raise _unknown(
                f"{before.transaction} (start ts {before.start_ts}) was decided and its Pump never got its commit; its "
                f"commit ts, below {after.commit_ts}, was in the journal alone"
            )
        if after.commit_ts and after.commit_ts <= before.commit_ts:
            raise _contradicts(
                f"{after.transaction} comes behind {before.transaction}, and its commit ts {after.commit_ts} is not "
                f"above {before.commit_ts}"
            )


def position_of(decided: Sequence[Written], said: CaptureRecord, flavor: Flavor) -> GtidSet:
    """What of the source is decided: what the record says, and what was decided since."""
    since = [each.transaction for each in decided if each.start_ts > said.start_ts]
    return GtidSet.parse(said.gtid, flavor).plus(*(each for each in since if not each.startswith(OF_A_START)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Where to go on.

    ``moment``, ``start_ts``, ``commit_ts``: of the last transaction that is decided. ``schema``: number of the stored
    schema that holds behind it; 0 = nothing was decided since the record was written. ``anew``, ``moment``: as the
    journal's mark has them.
    """

    gtids: GtidSet
    moment: float
    transactions: int
    start_ts: int
    commit_ts: int
    schema: int
    anew: bool


class Recovery:
    """Finds a capture's position again.

    Args:
        cluster: where the Pumps are.
        archive: the cluster's; it may not have begun.
        jobs: of the history.
        said: the capture's record.
        prefix: of the keys.
        held: raises CaptureFenced where this process does not run the capture any more.
        tls: certificates.
    """

    def __init__(
        self,
        cluster: Cluster,
        archive: Archive,
        jobs: Sequence[Job],
        said: CaptureRecord,
        prefix: bytes,
        held: Callable[[], None],
        tls: TlsSettings,
    ) -> None:
        self._cluster = cluster
        self._archive = archive
        self._jobs = jobs
        self._said = said
        self._prefix = prefix
        self._lease_held = held
        self._tls = tls

    def run(self, flavor: Flavor) -> Recovered:
        """Settle what is open, and say where to go on.

        Raises:
            CaptureRefused: something that is needed to know is missing, or what is there contradicts itself.
            CaptureFenced: another process runs this capture by now; what it decided is not touched.
            BinlogError: a Pump, the cluster or the archive does not answer.
        """
        pumps = self._pumps()
        held = self._held(pumps)
        floor = min([self._said.start_ts, *(each.above for each in held)])
        found = self._joined(held, self._archived(held, floor), floor)
        verdict = judge(found, self._said)
        self._require_unseen(verdict)
        now, newest = self._cluster.tso(), max([0, *(max(each.start_ts, each.commit_ts) for each in found)])
        if now <= newest:
            raise timestamps_went_back(now, newest)
        fresh = {start_ts: self._cluster.tso() for start_ts, ts in sorted(verdict.outcomes.items()) if ts is None}
        outcomes = {**verdict.outcomes, **fresh}
        self._settle(pumps, held, outcomes)
        self._require_taken(pumps, outcomes, floor)
        decided = [replace(each, commit_ts=fresh.get(each.start_ts, each.commit_ts)) for each in verdict.decided]
        since = [each for each in decided if each.start_ts > self._said.start_ts]
        last = since[-1] if since else None
        gtids = position_of(decided, self._said, flavor)
        log.warning(
            "journal_found_again",
            gtid=str(gtids),
            said=self._said.gtid,
            decided_since=len(since),
            committed=sum(1 for ts in verdict.outcomes.values() if ts != 0),
            rolled_back=sum(1 for ts in verdict.outcomes.values() if ts == 0),
        )
        begun = any(each.transaction.startswith(OF_A_START) for each in since)
        return Recovered(
            gtids=gtids,
            moment=max([self._said.moment, *(each.micros / 1e6 for each in since)]),
            transactions=self._said.transactions + len({each.transaction for each in since}),
            start_ts=last.start_ts if last else self._said.start_ts,
            commit_ts=last.commit_ts if last else self._said.commit_ts,
            schema=last.schema if last else 0,
            anew=self._said.anew and not begun,
        )

    def _settle(
        self, pumps: Mapping[str, NodeStatus], held: Sequence[Held], outcomes: Mapping[int, int | None]
    ) -> None:
        """Write outcomes in order: of those with a new commit ts, none is ever there without the ones before it.

        Neighbours that are open on the same Pumps go to each of these together.
        """
        on: dict[int, list[str]] = {}
        keys: dict[int, bytes] = {}
        for each in held:
            for start_ts in each.open:
                on.setdefault(start_ts, []).append(each.node_id)
                keys[start_ts] = each.prewrites[start_ts]
        for node_ids, some in groupby(sorted(on), on.__getitem__):
            payloads = {}
            for start_ts in some:
                ts, key = outcomes[start_ts], keys[start_ts]
                payloads[Tso(start_ts)] = make_commit(start_ts, ts, key) if ts else make_rollback(start_ts, key)
            for node_id in node_ids:
                self._lease_held()
                write_outcomes(pumps[node_id], self._cluster.cluster_id(), payloads, self._tls)

    def _require_taken(self, pumps: Mapping[str, NodeStatus], outcomes: Mapping[int, int | None], floor: int) -> None:
        """PumpUnavailable where somebody else settled one meanwhile: of two outcomes the first counts."""
        if not outcomes:
            return
        for pump in pumps.values():
            held = held_by(pump, self._cluster.cluster_id(), self._prefix, floor, self._tls)
            for start_ts in outcomes.keys() & held.prewrites.keys():
                if (found := held.commits.get(start_ts, 0)) != outcomes[start_ts]:
                    raise PumpUnavailable(
                        f"start ts {start_ts} has the outcome {found} on Pump {pump.node_id}, and "
                        f"{outcomes[start_ts]} was decided: somebody else settled it meanwhile",
                        hint="start the capture again",
                        node_id=pump.node_id,
                    )

    def _pumps(self) -> dict[str, NodeStatus]:
        """Those that are asked; CaptureRefused where one cannot be."""
        found = {each.node_id: each for each in self._cluster.nodes(NodeKind.PUMP) if not each.left}
        if old := [each.node_id for each in found.values() if each.extra is None]:
            raise _unknown(f"the Go Pump {', '.join(old)} does not say which prewrites it has")
        return found

    def _held(self, pumps: Mapping[str, NodeStatus]) -> list[Held]:
        cluster_id, above = self._cluster.cluster_id(), self._said.start_ts
        held: list[Held] = []
        try:
            # Twice, where one of them has an older one open: what became of its transaction may be on any.
            while not held or any(each.above > above for each in held):
                held = [held_by(each, cluster_id, self._prefix, above, self._tls) for each in pumps.values()]
                above = min([above, *(each.above for each in held)])
        except BinlogError as error:
            if not error.hint:
                error.add_hint("every Pump has to say what it has: start it, then start the capture again")
            raise
        for each in held:
            if strange := each.kept_out & each.prewrites.keys():
                raise _unknown(
                    f"Pump {each.node_id} keeps commits of the capture out of its stream: start ts "
                    f"{', '.join(map(str, sorted(strange)[:3]))}",
                    "`pumphouse pump status` lists them, and `pumphouse archive accept` takes one",
                )
        return held

    def _archived(self, held: Sequence[Held], floor: int) -> dict[int, Written]:
        """What windows have of the capture; CaptureRefused where neither they nor the Pumps have it all."""
        gone = max([0, *(each.gc_point for each in held)])
        left = [int(each.max_commit_ts) for each in self._cluster.nodes(NodeKind.PUMP) if each.left]
        needed = max([gone if gone > floor else 0, *(ts for ts in left if ts > floor)], default=0)
        kept = self._archive.range().start if self._archive.begun() else None
        end = self._archive.end() if kept is not None else Tso(0)
        if needed and (kept is None or kept > floor or end < needed):
            raise _unknown(
                f"Pumps have dropped what was committed up to {show(needed)}, or have left, and the archive does not "
                f"have all of it from {show(floor)} on"
            )
        out: dict[int, Written] = {}
        if kept is None or max(kept, floor) >= end:
            return out
        after = Tso(max(kept, floor))
        columns = ("commit_ts", "start_ts", "part", "payload")
        for manifest in self._archive.windows_between(after, end):
            for segment in manifest.segments:
                for batch in self._archive.segment_batches(manifest, segment, after=after, upto=end, columns=columns):
                    for commit_ts, start_ts, part, payload in zip(
                        *(batch.column(each).to_pylist() for each in columns), strict=True
                    ):
                        if part == 0 and (key := parse(payload).prewrite_key).startswith(self._prefix):
                            out[start_ts] = self._written(start_ts, key, commit_ts=commit_ts)
        return out

    def _joined(self, held: Sequence[Held], archived: Mapping[int, Written], floor: int) -> list[Written]:
        out = dict(archived)
        jobs = {int(each.raw.get("start_ts") or 0): each.finished_ts for each in self._jobs}
        for each in held:
            for start_ts, key in each.prewrites.items():
                known = out.get(start_ts)
                ts = _one({each.commits.get(start_ts, 0), known.commit_ts if known else 0}, start_ts)
                is_open = start_ts in each.open or bool(known and known.is_open)
                out[start_ts] = self._written(start_ts, key, commit_ts=ts, is_open=is_open)
        for start_ts, ts in jobs.items():
            if start_ts <= floor:
                continue
            if start_ts not in out:
                raise _contradicts(f"the history has a job of start ts {start_ts}, and no Pump has its prewrite")
            known = out[start_ts]
            out[start_ts] = replace(known, commit_ts=_one({known.commit_ts, int(ts)}, start_ts))
        return list(out.values())

    def _written(self, start_ts: int, key: bytes, *, commit_ts: int, is_open: bool = False) -> Written:
        return Written.of(start_ts, key.removeprefix(self._prefix), commit_ts=commit_ts, is_open=is_open)

    def _require_unseen(self, verdict: Verdict) -> None:
        end = self._archive.end() if self._archive.begun() else Tso(0)
        for start_ts, ts in verdict.outcomes.items():
            if ts and ts <= end:
                raise _contradicts(
                    f"the transaction of start ts {start_ts} is open on a Pump, and belongs into the archive, which "
                    f"ends at {show(end)}, without it"
                )


def _one(seen: Collection[int], start_ts: int) -> int:
    known = {each for each in seen if each}
    if len(known) > 1:
        raise _contradicts(f"the transaction of start ts {start_ts} has the commit ts {sorted(known)}")
    return next(iter(known), 0)


def _contradicts(why: str) -> CaptureRefused:
    return CaptureRefused(f"the journal is lost, and what is left does not agree: {why}")


def _unknown(why: str, hint: str = "") -> CaptureRefused:
    return CaptureRefused(f"the journal is lost, and what was published last is not known: {why}", hint=hint)
