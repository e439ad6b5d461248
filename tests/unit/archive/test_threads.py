"""What reads the archive's content leaves no thread of Arrow's behind: one that outlives Python aborts the process."""

import subprocess
import sys

SCRIPT = """
import os
from pumphouse.archive.ddl import ArchivedJob, read_jobs, write_jobs
from pumphouse.archive.segment import read_segment
from pumphouse.model.tso import Tso
from tests.support.memorystore import MemoryStore
from tests.unit.archive.test_segment import END, batch, payload, write

store = MemoryStore()
(segment,) = write(store, [batch([payload(100), payload(110)])])
job = ArchivedJob(commit_ts=Tso(5), start_ts=Tso(4), job_id=1, schema_state=5, query=b"q", job="{}")
jobs = write_jobs(store, "ddl/1.parquet", [job])

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
assert len(read_jobs(store, jobs)) == 1
assert threads() == before, "a thread was left by the reader of jobs"
assert list(read_segment(store, segment, after=Tso(0), upto=END))
assert threads() == before, "a thread was left by the reader of segments"
"""


def test_reading_leaves_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
