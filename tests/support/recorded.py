"""Histories of a real TiDB, recorded: what its Pumps held, its DDL jobs, and its rows at some moments.

`python -m tests.tidb.record` writes tests/recorded/histories/NAME.tar.xz, in which

    record.json   {"format":1, "cluster_id":N, "genesis":TS, "source":what was played, "moments":[TS, …]}
    history.sql   what was said to that TiDB
    jobs.json     its DDL jobs, whole, as its status API gives them
    rows.json     {TS: {table: {"columns":[[name, type], …], "rows":[[count, value, …], …]}}} (tests.tidb.contents)
    pump-N.data/  data directory of a Pump that was stopped, without what it makes again by itself

`replayed` serves such a history by real Pumps, where neither TiDB nor PD is needed.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.registry.file import FileCluster
from pumphouse.runs import load
from pumphouse.schema.actions import Action, is_system
from pumphouse.settings import Settings, TargetSettings
from tests.support.loading import restored
from tests.support.pumpserver import PumpServer
from tests.tidb.contents import Contents, differences, from_json, target_contents, to_json

DIRECTORY = Path(__file__).resolve().parents[1] / "recorded" / "histories"
# Of a Pump's directory; it makes its index and its reserve again.
_KEPT = ("value/*.vlog", ".node", "pumphouse/*.json")


@dataclass(kw_only=True)
class Recorded:
    """One history."""

    cluster_id: int
    genesis: Tso  # the archive begins after it
    source: str
    sql: str
    jobs: list[dict[str, Any]]
    moments: dict[Tso, Contents]  # ascending; the last is the end
    pumps: dict[str, dict[str, bytes]] = field(default_factory=dict)  # node id -> file -> bytes

    def write(self, path: Path) -> None:
        """As NAME.tar.xz; the same history gives the same members in the same order."""
        record = {
            "format": 1,
            "cluster_id": self.cluster_id,
            "genesis": self.genesis,
            "source": self.source,
            "moments": list(self.moments),
        }
        rows = {str(ts): to_json(contents) for ts, contents in self.moments.items()}
        members = {
            "record.json": json.dumps(record).encode(),
            "history.sql": self.sql.encode(),
            "jobs.json": json.dumps(self.jobs, separators=(",", ":")).encode(),
            "rows.json": json.dumps(rows, separators=(",", ":")).encode(),
        }
        for node, files in sorted(self.pumps.items()):
            members |= {f"{node}.data/{name}": data for name, data in sorted(files.items())}
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w:xz", preset=9) as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """From NAME.tar.xz."""
        members: dict[str, bytes] = {}
        with tarfile.open(path, "r:xz") as tar:
            for info in tar:
                opened = tar.extractfile(info)
                assert opened is not None
                members[info.name] = opened.read()
        record = json.loads(members["record.json"])
        assert record["format"] == 1
        rows = json.loads(members["rows.json"])
        pumps: dict[str, dict[str, bytes]] = {}
        for name, data in members.items():
            node, inside, file = name.partition(".data/")
            if inside:
                pumps.setdefault(node, {})[file] = data
        return cls(
            cluster_id=record["cluster_id"],
            genesis=Tso(record["genesis"]),
            source=record["source"],
            sql=members["history.sql"].decode(),
            jobs=json.loads(members["jobs.json"]),
            moments={Tso(ts): from_json(rows[str(ts)]) for ts in record["moments"]},
            pumps=pumps,
        )

    @property
    def end(self) -> Tso:
        """The last moment."""
        return list(self.moments)[-1]

    def actions(self) -> set[Action]:
        """Types of DDL job in it (`actions_of`)."""
        return actions_of(map(Job.from_dict, self.jobs), after=self.genesis)

    def types(self) -> set[str]:
        """Types of column of which it has a value."""
        found = set()
        for contents in self.moments.values():
            for table in contents.values():
                for at, (_, kind) in enumerate(table.columns):
                    if any(row[at] is not None for row in table.rows):
                        found.add(kind)
        return found


def actions_of(jobs: Iterable[Job], *, after: Tso) -> set[Action]:
    """Types of the jobs that began after a ts and were done, parts of multi-schema changes too; nothing of TiDB's own."""
    found = set()
    for job in jobs:
        raw = job.raw
        if job.done and int(raw.get("start_ts") or 0) > after and not is_system(job.schema_name):
            parts = (raw.get("multi_schema_info") or {}).get("sub_jobs") or ()
            found |= {Action(job.type), *(Action(int(part["type"])) for part in parts)}
    return found


def pump_files(data_dir: Path) -> dict[str, bytes]:
    """Of a stopped Pump: what `Recorded.pumps` holds."""
    return {str(path.relative_to(data_dir)): path.read_bytes() for pattern in _KEPT for path in data_dir.glob(pattern)}


@contextmanager
def replayed(
    recorded: Recorded, directory: Path, *, history: TargetSettings, target: TargetSettings
) -> Iterator[Settings]:
    """Pumps that serve a recorded history, and an archive that begins where its archive began.

    ``history``: a MariaDB that takes the DDL jobs, as no TiDB is there to be asked; not the target.
    """
    root = directory / "cluster"
    cluster = _cluster(root, recorded)
    database = directory.name.replace("-", "_")
    _fill_history(history, database, recorded.jobs)
    settings = Settings.model_validate(
        {
            "cluster": {"url": cluster.url},
            "archive": {"root": f"file://{directory}/archive", "archive_id": "recorded", "poll_interval_s": 0.02},
            "schema": {
                "history": f"mysql://{history.user}@{history.host}:{history.port}/{database}.job",
                "history_password": history.password,
            },
            "target": target,
            "load": {"engine": "local"},
        }
    )
    with ExitStack() as opened:
        pumps = []
        for node, files in recorded.pumps.items():
            pump = PumpServer(directory, cluster, node_id=node)
            for name, data in files.items():
                path = pump.data_dir / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            pump.spawn()
            pumps.append(pump)
        for pump in pumps:
            opened.enter_context(pump)
            pump.wait_until_serving()
        parts = opened.enter_context(Parts(settings))
        init_archive(parts.archive, _Then(root, recorded.genesis), parts.history, settings=settings)
        yield settings


class _Then(FileCluster):
    """A cluster whose clock stands at a moment of the past."""

    def __init__(self, directory: Path, ts: Tso) -> None:
        super().__init__(directory, create=False)
        self._then = ts

    def tso(self) -> Tso:
        return self._then


def _cluster(directory: Path, recorded: Recorded) -> FileCluster:
    """A cluster with the id of the recorded one and a clock that is beyond it (docs/formats.md)."""
    FileCluster(directory)
    (directory / "cluster.json").write_text(json.dumps({"format_version": 1, "cluster_id": recorded.cluster_id}))
    (directory / "tso.bound").write_text(f"{recorded.end + 1}\n")
    return FileCluster(directory, create=False)


def _fill_history(server: TargetSettings, database: str, jobs: list[dict[str, Any]]) -> None:
    with TargetConnection.open(server) as connection:
        connection.execute(f"CREATE DATABASE `{database}`")
        connection.execute(f"CREATE TABLE `{database}`.job (job_id BIGINT PRIMARY KEY, job LONGTEXT)")
        for raw in jobs:
            connection.execute(f"INSERT INTO `{database}`.job VALUES (%s, %s)", (raw["id"], json.dumps(raw)))


def take_windows(recorded: Recorded, settings: Settings) -> None:
    """One up to each moment."""
    with Parts(settings) as parts:
        for ts in recorded.moments:
            run_snapshot(parts.archive, parts.cluster, ts, settings, parts.history)


def load_and_compare(recorded: Recorded, settings: Settings) -> list[str]:
    """A window and a load up to each moment, a restore to one in the middle, the load that goes on; what differed."""
    found = []

    def compare(what: str, ts: Tso) -> None:
        there = target_contents(settings.target, recorded.moments[ts])
        found.extend(f"{what} {ts}: {line}" for line in differences(recorded.moments[ts], there))

    moments = list(recorded.moments)
    # All windows first: a load that applied a drop before it was recovered would need a dump (docs/ddl.md, 25).
    take_windows(recorded, settings)
    for ts in moments:
        load.run(settings, to=ts)
        compare("load to", ts)
    back = moments[len(moments) // 2 - 1]
    restored(settings, to=back, dry_run=False)
    compare("restore to", back)
    load.run(settings, to=recorded.end)
    compare("restore, then load to", recorded.end)
    return found
