"""Records histories of a real TiDB, to be repeated without one: `python -m tests.tidb.record SEED … --script FILE …`.

Each is played on a cluster of its own and stored as tests/recorded/histories/NAME.tar.xz (tests.support.recorded has the
format); `tests/integration/test_recorded_histories.py` loads them. Prints what each one covers, and what all of them lack.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

import pymysql
import structlog

from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.schema.history import TidbStatusSource
from pumphouse.settings import TargetSettings
from tests.support.recorded import DIRECTORY, Recorded, pump_files
from tests.support.tidb import TidbCluster
from tests.tidb import known
from tests.tidb.contents import Contents, source_at
from tests.tidb.history import ACTIONS, TYPES, History, Script

_MOMENTS = 4


def record(directory: Path, source: str, *, steps: int, script: list[str] | None = None) -> Recorded:
    """Play one history (``source``: a seed, or the name of a script) on a new cluster, and keep all that it left."""
    with TidbCluster(directory, servers=2) as tidb:
        settings = tidb.settings(directory / "archive", TargetSettings())
        with Parts(settings) as parts:
            genesis = init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
            history: History | Script
            if script is None:
                history = History(tidb, int(source), steps=steps, without=known.DDL, known_casts=True)
            else:
                history = Script(tidb, script)
            history.run()
            # A window that reaches the end: nothing is open any more at the Pumps.
            run_snapshot(parts.archive, parts.cluster, history.moments[-1], settings, parts.history)
        recorded = Recorded(
            cluster_id=tidb.cluster.cluster_id(),
            genesis=genesis.ts,
            source=f"script {source}" if script else f"seed {source}, {steps} steps",
            sql="\n".join(history.script) + "\n",
            jobs=[job.raw for job in TidbStatusSource(tidb.history).jobs()],
            moments=_shown(tidb, history.moments),
        )
        for number in range(len(tidb.sql_ports)):
            tidb.supervisor.stop(f"tidb-{number}", timeout_s=10)
        for pump in tidb.pumps:
            assert pump.stop() == 0
            recorded.pumps[pump.node_id] = pump_files(pump.data_dir)
    return recorded


def _shown(tidb: TidbCluster, moments: list[Tso]) -> dict[Tso, Contents]:
    """Rows at some of the moments, evenly, the last one too."""
    step = max(1, (len(moments) - 1) // (_MOMENTS - 1))
    found = {}
    for ts in sorted({*moments[step - 1 : -1 : step][-_MOMENTS + 1 :], moments[-1]}):
        try:
            found[ts] = source_at(tidb.dsn(), ts)
        except pymysql.MySQLError as error:
            print(f"TiDB does not show {ts}: {error.args}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--script", type=Path, nargs="*", default=[], help="files of SQL (tests/tidb/scripts)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--into", type=Path, default=DIRECTORY, help="directory of the records")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    wanted: list[tuple[str, str, list[str] | None]] = [(f"seed-{seed}", str(seed), None) for seed in options.seeds]
    wanted += [(path.stem, path.stem, path.read_text().splitlines()) for path in options.script]
    for name, source, script in wanted:
        with tempfile.TemporaryDirectory(prefix="record-") as directory:
            recorded = record(Path(directory), source, steps=options.steps, script=script)
        path = options.into / f"{name}.tar.xz"
        recorded.write(path)
        print(f"{path}: {path.stat().st_size:,} bytes; {describe(recorded)}", flush=True)
    records = [Recorded.read(path) for path in sorted(options.into.glob("*.tar.xz"))]
    print("no record has", sorted(ACTIONS - {a for each in records for a in each.actions()}))
    print("no record has", sorted(TYPES - {kind for each in records for kind in each.types()}))


def describe(recorded: Recorded) -> str:
    """One line."""
    rows = sum(sum(table.rows.values()) for table in recorded.moments[recorded.end].values())
    return (
        f"{len(recorded.moments)} moments, {len(recorded.moments[recorded.end])} tables and {rows} rows at the end, "
        f"{len(recorded.actions())} types of DDL, {len(recorded.types())} types of column"
    )


if __name__ == "__main__":
    main()
