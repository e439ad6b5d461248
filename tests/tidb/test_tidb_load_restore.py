"""What tests/integration/test_load_restore.py says of restores on a MariaDB holds on a real TiDB."""

# ruff: noqa: F811 - fixtures

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.errors import RestoreError
from pumphouse.loader.target import TargetConnection
from pumphouse.restore.parts import Chosen
from pumphouse.runs import restore_parts
from pumphouse.settings import Settings, TargetSettings
from tests.integration.test_load_restore import *  # noqa: F403
from tests.support.happenings import Happenings
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.madearchive import MadeSource, target_rows
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings


@pytest.mark.row("R7")
def test_tables_come_back_one_at_a_time(source: MadeSource, settings: Settings, target: TargetConnection) -> None:
    Happenings(source, 1).write(5)
    source.cut()
    rows = source.snapshot()
    with pytest.raises(RestoreError, match="restore one table at a time"):
        restore_parts.run(settings, chosen=Chosen(tables=("d.*",), database="copy"), into="target", dry_run=False)
    assert not target.query("SHOW DATABASES LIKE 'copy'")
    for name in rows:
        restore_parts.run(settings, chosen=Chosen(tables=(f"d.{name}",), database="copy"), into="target", dry_run=False)
    assert target_rows(target, "copy") == rows
