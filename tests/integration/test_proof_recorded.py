"""Proofs of recorded histories of a real TiDB: what a restore makes of each moment is what the archive alone says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.archive.proofs import Outcome
from pumphouse.runs.proof import prove
from pumphouse.settings import TargetSettings
from tests.integration.test_recorded_histories import RECORDS, history  # noqa: F401 - a fixture
from tests.support.recorded import Recorded, load_and_compare, replayed
from tests.tidb.chain import empty

pytestmark = [pytest.mark.row("R4", "S3"), pytest.mark.mariadb("a MySQL stops at a conversion of every_kind")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name.partition(".")[0])
def test_no_row_of_a_recorded_history_differs(
    record: Path,
    history: TargetSettings,  # noqa: F811
    server: TargetSettings,
    tmp_path: Path,
) -> None:
    empty(server)
    recorded = Recorded.read(record)
    with replayed(recorded, tmp_path, history=history, target=server) as settings:
        assert load_and_compare(recorded, settings) == []
        proof = prove(settings)
        assert proof.of(Outcome.DIFFERENT) == ()
        assert proof.unexpected == ()
        assert len(proof.of(Outcome.EQUAL)) > len(proof.of(Outcome.UNPROVEN))
