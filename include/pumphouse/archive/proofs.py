"""Proofs: what the rows of a server were found to be, held against the archive, by table and range of the key.

One object for each proof (docs/formats.md, "Proofs"). While the proof runs, the object is put again as it goes on, and
says that it has not ended: a run that is killed goes on from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import structlog

from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, parse
from pumphouse.archive.layout import PROOFS, proof_key
from pumphouse.errors import BadManifest, BinlogError
from pumphouse.model import strict
from pumphouse.model.record import ASIDE, UNSAID, Int64, Named, Record, Uint64, Within
from pumphouse.model.tso import Tso

log = structlog.get_logger()
KIND = "proof"
# Task of the proof of a drill, whose rows are gone by now.
DRILL = "drill"
MODULUS = 1 << 64
_Bound = Annotated[int, Within(strict.MIN_INT64, strict.MAX_UINT64)]
_LATEST = 16
_REMEDY = "delete it, then prove again: pumphouse archive prove"


class Outcome(StrEnum):
    """What was found of one table."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNPROVEN = "unproven"  # the archive alone does not tell its rows, or a rule leaves it out
    OPEN = "open"  # the proof has not come to it yet


@dataclass(frozen=True, slots=True)
class Sums(Record):
    """How many rows there are, and the sum of their checksums modulo 2^64: equal for equal multisets of rows."""

    rows: int
    sum: int

    def plus(self, other: Sums) -> Sums:
        """Of both sets of rows together."""
        return Sums(self.rows + other.rows, (self.sum + other.sum) % MODULUS)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {"rows": self.rows, "sum": f"{self.sum:016x}"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        text = strict.text(data["sum"])
        if len(text) != 16:
            raise ValueError(f"{text!r:.60} is no sum")
        return cls(strict.integer(data["rows"]), int(text, 16))


NO_ROWS = Sums(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenRange(Record):
    """Rows of a table with ``low <= key < below`` (None = no bound): the first column of its key.

    ``target``: as the server says; ``archive``: as the archive does. None = not looked at yet.
    """

    low: Annotated[_Bound | None, Named("from")] = None
    below: _Bound | None = None
    target: Sums | None = None
    archive: Sums | None = None

    @property
    def equal(self) -> bool:
        """Whether both sides are known and the same."""
        return self.target is not None and self.target == self.archive


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingRow(Record):
    """A row that only one side has; ``row``: its key, or some of its columns where it has none, for people."""

    side: str
    row: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenTable(Record):
    """One table of a proof.

    Args:
        db: database of the source.
        table: its name there.
        table_id: its id at the moment.
        there: what it is called on the target, ``database.table``.
        key: the column that ranges are of; '' = there is one range, of all rows.
        columns: those that the checksums are of.
        without: columns that they are not of, and why.
        ranges: ascending, without gap; () where nothing can be compared.
        why: why it is unproven, or differs whatever its rows say; '' where neither is so.
        rows: some rows that differ.
    """

    db: str
    table: str
    table_id: Int64
    there: str
    why: str = ""
    key: str = ""
    columns: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)
    ranges: tuple[ProvenRange, ...] = ()
    rows: tuple[DifferingRow, ...] = ()
    differs: Annotated[bool, ASIDE] = False

    BEHIND: ClassVar = {"outcome": "there"}

    @property
    def name(self) -> str:
        """``database.table`` of the source."""
        return f"{self.db}.{self.table}"

    @property
    def outcome(self) -> Outcome:
        """What was found."""
        if self.differs:
            return Outcome.DIFFERENT
        if self.why:
            return Outcome.UNPROVEN
        if not self.ranges or any(each.target is None or each.archive is None for each in self.ranges):
            return Outcome.OPEN
        return Outcome.EQUAL if all(each.equal for each in self.ranges) else Outcome.DIFFERENT

    @property
    def different(self) -> tuple[ProvenRange, ...]:
        """Ranges whose rows differ."""
        return tuple(each for each in self.ranges if each.archive is not None and not each.equal)

    def total(self, side: str) -> Sums | None:
        """Of all ranges, of ``archive`` or ``target``; None where one is not known."""
        found = NO_ROWS
        for each in self.ranges:
            sums: Sums | None = getattr(each, side)
            if sums is None:
                return None
            found = found.plus(sums)
        return found if self.ranges else None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object; ValueError where its outcome is not what its sums say."""
        outcome = Outcome(strict.text(data["outcome"]))
        found = cls.read(data, differs=bool(data["why"]) and outcome is Outcome.DIFFERENT)
        if found.outcome is not outcome:
            raise ValueError(f"{found.name} is said to be {outcome}, and is {found.outcome} by its sums")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Record):
    """One proof, or one that has not ended.

    Args:
        cluster_id: of the archive.
        attempt: tells proofs of one moment apart.
        at: the moment.
        base: the dump that the archive's side begins from.
        plan_sha256: digest of what the archive's side is computed from.
        target: address of the server, without secrets.
        task: load or restore whose rows these are.
        fence: owner number of the target then.
        only: tables that were asked for, ``database.table``; () = all.
        begun_ms: Unix time.
        ended_ms: the same; None = it has not ended.
        tables: by name.
        unexpected: tables on the target that the source did not have at the moment.
        losses: what the archive lacks of the range, in words.
        where: which rows of the table, in words; '' = all.
        ruled: transactions and DDLs that rules leave out or replace on both sides, in words with the reason.
    """

    cluster_id: Uint64
    attempt: str
    at: Tso
    base: Tso
    plan_sha256: str
    target: str
    task: str
    fence: Uint64
    only: tuple[str, ...]
    begun_ms: int
    ended_ms: int | None = None
    tables: tuple[ProvenTable, ...] = ()
    unexpected: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    where: Annotated[str, UNSAID] = ""
    ruled: Annotated[tuple[str, ...], UNSAID] = ()

    BEHIND: ClassVar = {"verdict": "ended_ms"}

    @property
    def key(self) -> str:
        """Its name in the archive."""
        return proof_key(self.at, self.attempt)

    def of(self, outcome: Outcome) -> tuple[ProvenTable, ...]:
        """Its tables of one outcome."""
        return tuple(each for each in self.tables if each.outcome is outcome)

    @property
    def subject(self) -> str:
        """What was compared: ``all tables of HOST``, ``shop.orders, as shop.orders_before, of HOST``."""
        names = sorted({each.there for each in self.tables if each.there.lower() != each.name.lower()})
        databases = ", ".join(sorted({name.partition(".")[0] for name in names}))
        if len(self.only) == 1:
            said = [self.only[0], *(f"as {name}" for name in names)]
        else:
            said = [f"{len(self.only) or 'all'} tables", *([f"in {databases}"] if self.only and names else [])]
        said += [f"rows {self.where}"] if self.where else []
        return f"{', '.join(said)}{',' * (len(said) > 1)} of {self.target}"

    @property
    def rows(self) -> int:
        """Rows of the archive's side that were found equal."""
        totals = (each.total("archive") for each in self.of(Outcome.EQUAL))
        return sum(each.rows for each in totals if each is not None)

    @property
    def equal(self) -> bool:
        """Whether it has ended, compared something, and found no difference."""
        proven = any(each.outcome is Outcome.EQUAL for each in self.tables) or not self.tables
        return self.ended_ms is not None and proven and not (self.of(Outcome.DIFFERENT) or self.unexpected)

    @property
    def verdict(self) -> str:
        """``equal``, ``DIFFERENT``, ``not ended`` or ``nothing proven``."""
        if self.ended_ms is None:
            return "not ended"
        if self.of(Outcome.DIFFERENT) or self.unexpected:
            return "DIFFERENT"
        return "equal" if self.equal else "nothing proven"

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(KIND, self.to_dict())

    def summary(self) -> dict[str, Any]:
        """Small JSON for reports: what differs in full, of the others how many there are."""
        different = self.of(Outcome.DIFFERENT)
        return {
            "key": self.key,
            "at": int(self.at),
            "target": self.target,
            "verdict": self.verdict,
            "equal": len(self.of(Outcome.EQUAL)),
            "rows": self.rows,
            "different": [
                {
                    "table": each.name,
                    "there": each.there,
                    "why": each.why,
                    "ranges": [of.to_dict() for of in each.different[:10]],
                    "rows": [{"side": of.side, "row": dict(of.row)} for of in each.rows],
                }
                for each in different
            ],
            "unproven": {each.name: each.why for each in self.of(Outcome.UNPROVEN)},
            "unexpected": list(self.unexpected),
            **({"where": self.where} if self.where else {}),
            **({"ruled": list(self.ruled)} if self.ruled else {}),
        }

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Proof:
        """Read the stored object; BadManifest."""
        found = parse(key, data, KIND, cls.from_dict, remedy=_REMEDY)
        if key != found.key:
            raise BadManifest(f"{key} is {found.key}", hint=_REMEDY, path=key, offset=0, reason="name")
        return found


def write_proof(archive: Archive, proof: Proof) -> None:
    """Put it, in the place of what it was before."""
    archive.store.put(proof.key, proof.to_json())


def read_proofs(archive: Archive, last: int | None = None) -> tuple[Proof, ...]:
    """Every proof, by when it was begun; one that cannot be read is none, and `archive verify` names it.

    ``last``: only so many, of the latest moments.
    """
    found = []
    for each in list(archive.store.list(PROOFS))[-last if last else None :]:
        try:
            found.append(Proof.from_json(each.key, archive.store.get(each.key)))
        except BinlogError as error:
            log.warning("proof_not_read", key=each.key, why=error.message)
    return tuple(sorted(found, key=lambda proof: proof.begun_ms))


def newest_proof(archive: Archive) -> Proof | None:
    """The last one that has ended, of whole tables of a server that still has the rows."""
    found = (each for each in reversed(read_proofs(archive)) if each.task != DRILL and not each.where)
    return next((each for each in found if each.ended_ms is not None), None)


def red_proofs(archive: Archive) -> tuple[Proof, ...]:
    """Of each server, task and choice of rows the newest red proof, unless a later one found equal what differed.

    Only proofs of the latest moments are looked at.
    """
    red: dict[tuple[str, str, str], Proof] = {}
    for proof in read_proofs(archive, last=_LATEST):
        of = proof.target, proof.task, proof.where
        if proof.verdict == "DIFFERENT" and proof.task != DRILL:
            red[of] = proof
        elif proof.equal and of in red:
            differed, equal = red[of].of(Outcome.DIFFERENT), {each.name for each in proof.of(Outcome.EQUAL)}
            if not proof.only or not (red[of].unexpected or {each.name for each in differed} - equal):
                del red[of]
    return tuple(red.values())
