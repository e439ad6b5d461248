"""Recorded histories of a real TiDB (tests/recorded/histories): two Pumps serve what it wrote, a MariaDB gets it by windows.

At each recorded moment, after each load and after a restore, every row and column is what that TiDB showed, and the archive
alone proves it. No rule helps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.proofs import Outcome
from pumphouse.errors import ConversionUnknown
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.restore.parts import Chosen
from pumphouse.runs import restore_parts
from pumphouse.runs.proof import prove
from pumphouse.settings import TargetSettings
from tests.support import kind, mariadb
from tests.support.recorded import DIRECTORY, Recorded, load_and_compare, replayed, take_windows
from tests.support.somerows import choose
from tests.tidb.chain import empty
from tests.tidb.contents import differences, target_contents
from tests.tidb.history import ACTIONS, TYPES

RECORDS = sorted(DIRECTORY.glob("*.tar.xz"))
# A DOUBLE of 22 characters becomes a VARCHAR in it; what a MySQL makes of such a value is not what TiDB makes of it.
STOPS_MYSQL = "every_kind"
# Whose tables are restored always: what the generator makes, and what it does not. Those of the others in a campaign.
SHORT = ("every_kind", "seed-9")
_MOST_BYTES = 5_000_000  # of all that is in tests/recorded

pytestmark = pytest.mark.row("S1", "S2", "S3", "L1", "L6")


@pytest.fixture(scope="module")
def history() -> Iterator[TargetSettings]:
    """Has the DDL jobs."""
    with mariadb.in_memory() as settings:
        yield settings


@pytest.mark.row("R4")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name.partition(".")[0])
def test_a_mariadb_equals_the_tidb_at_each_moment(
    record: Path, history: TargetSettings, server: TargetSettings, tmp_path: Path
) -> None:
    empty(server)
    recorded = Recorded.read(record)
    with replayed(recorded, tmp_path, history=history, target=server) as settings:
        if kind.is_mysql() and record.name.startswith(STOPS_MYSQL):
            with pytest.raises(ConversionUnknown, match="from double to varchar"):
                load_and_compare(recorded, settings)
            return
        assert load_and_compare(recorded, settings) == []
        proof = prove(settings)
        assert proof.of(Outcome.DIFFERENT) == ()
        assert proof.unexpected == ()
        assert len(proof.of(Outcome.EQUAL)) > len(proof.of(Outcome.UNPROVEN))


@pytest.mark.mariadb("a MySQL takes one conversion less, which stops the table it is in")
@pytest.mark.row("R3")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "record",
    [each if each.name.startswith(SHORT) else pytest.param(each, marks=pytest.mark.slow) for each in RECORDS],
    ids=lambda path: path.name.partition(".")[0],
)
def test_tables_that_are_restored_by_themselves_equal_the_tidb_at_each_moment(
    record: Path, history: TargetSettings, server: TargetSettings, tmp_path: Path
) -> None:
    """All of a database at once, some tables each alone, beside each other, and some rows of these."""
    empty(server)
    recorded, rng, chosen = Recorded.read(record), random.Random(record.name), 0
    with replayed(recorded, tmp_path, history=history, target=server) as settings:
        take_windows(recorded, settings)
        for ts, contents in rng.sample(list(recorded.moments.items()), 2):

            def apart(*tables: str, at: Tso = ts, anew: bool = False, **how: Any) -> None:
                asked = Chosen(tables=tables, **how)
                restore_parts.run(settings, chosen=asked, into="target", to=at, dry_run=False, anew=anew)

            names, wanted = sorted(contents), {f"copy_{name}": table for name, table in contents.items()}
            empty(server)
            for database in sorted({name.partition(".")[0] for name in names}):
                apart(f"{database}.%", database=f"copy_{database}")
            alone = rng.sample(names, min(len(names), 3))
            for name in alone:
                apart(name, called=f"one.{name.replace('.', '_')}")
                wanted[f"one.{name.replace('.', '_')}"] = contents[name]
            assert differences(wanted, target_contents(server, wanted)) == [], ts
            with TargetConnection.open(server) as connection:
                for name in alone:
                    count, wrong = choose(connection, f"one.{name.replace('.', '_')}", rng, partial(apart, name))
                    assert wrong == [], ts
                    chosen += count
        assert chosen


def test_the_records_cover_what_the_generator_makes_and_are_small() -> None:
    records = [Recorded.read(path) for path in RECORDS]
    assert ACTIONS - {action for each in records for action in each.actions()} == set()
    assert TYPES - {kind for each in records for kind in each.types()} == set()
    assert all(len(each.moments) > 2 and len(each.pumps) == 2 for each in records)
    assert sum(path.stat().st_size for path in DIRECTORY.parent.rglob("*") if path.is_file()) < _MOST_BYTES


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorded = Recorded.read(RECORDS[0])
    recorded.write(tmp_path / "again.tar.xz")
    assert Recorded.read(tmp_path / "again.tar.xz") == recorded
