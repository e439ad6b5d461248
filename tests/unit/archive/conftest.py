import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import commit_window, plan_window, pull_node, run_snapshot
from pumphouse.model.table import Job
from pumphouse.objectstore.open import open_store
from pumphouse.registry.file import FileCluster
from pumphouse.settings import ArchiveSettings, Settings
from tests.support.agedarchive import archive, copied, made, store  # noqa: F401 - fixtures
from tests.support.memorystore import MemoryStore
from tests.support.pullpump import PullPump


class History:
    """Job history in a dict."""

    def __init__(self):
        self.found = {}

    def add(self, job_id, *, start_ts=0, finished_ts=0, version=0, state=6, **more):
        self.found[job_id] = {
            "id": job_id,
            "type": 3,
            "state": state,
            "query": "create table t (a int)",
            "start_ts": start_ts,
            "binlog": {"SchemaVersion": version or job_id, "FinishedTS": finished_ts},
        } | more

    def job(self, job_id):
        return Job.from_dict(self.found[job_id]) if job_id in self.found else None

    def jobs(self, *, after_id=0):
        for job_id in sorted(self.found):
            if job_id > after_id:
                yield Job.from_dict(self.found[job_id])


class World:
    """A cluster in a directory, Pumps that serve what they are told, an archive in memory."""

    def __init__(self, folder):
        self.folder = folder
        self.cluster = FileCluster(folder / "cluster")
        self.store = MemoryStore()
        self.history = History()
        self.pumps = []
        self.settings = Settings(archive=ArchiveSettings(pull_timeout_s=1.5, poll_interval_s=0.05, ddl_wait_s=0.4))

    @property
    def archive(self):
        return Archive(self.store, self.cluster.cluster_id())

    def pump(self, node_id="pump-1", **options):
        pump = PullPump(self.cluster, node_id, **options).start()
        self.pumps.append(pump)
        return pump

    def sets(self, **more):
        """What the command line is told to find all this; from here on the archive is in a directory."""
        root = f"file://{self.folder}/archive"
        self.store = open_store(ArchiveSettings(root=root))
        sets = {"cluster.url": self.cluster.url, "archive.root": root} | more
        return [part for name, value in sets.items() for part in ("--set", f"{name}={value}")]

    def init(self, **options):
        return init_archive(self.archive, self.cluster, self.history, settings=self.settings, **options)

    def told(self, **changes):
        """Settings with others of the section [archive]."""
        return self.settings.model_copy(update={"archive": self.settings.archive.model_copy(update=changes)})

    def snapshot(self, until=None, **changes):
        until = until or self.cluster.tso()
        return run_snapshot(self.archive, self.cluster, until, self.told(**changes), self.history)

    # The steps of one.

    def plan(self, until=None):
        return plan_window(self.archive, self.cluster, until or self.cluster.tso(), self.settings)

    def pull(self, plan, node_id, settings=None, *more):
        return pull_node(self.archive, self.cluster, plan, node_id, settings or self.settings, *more)

    def pull_all(self, plan, settings=None):
        return [self.pull(plan, node_id, settings) for node_id in plan.node_ids]

    def commit(self, plan, reports, settings=None):
        return commit_window(self.archive, self.cluster, plan, reports, self.history, settings or self.settings)

    def commits(self):
        """(commit ts, node) of everything in the archive, in the order of reading."""
        read = self.archive
        return [
            (ts, segment.node_id)
            for manifest in read.windows()
            for segment in manifest.segments
            for batch in read.segment_batches(manifest, segment)
            for ts in batch.column("commit_ts").to_pylist()
        ]


@pytest.fixture
def world(tmp_path):
    whole = World(tmp_path)
    yield whole
    for pump in whole.pumps:
        pump.stop()
