"""In which order files of tests are dealt out to the workers of a run: what takes long first, so that all end together."""

from __future__ import annotations

# The longest, by what they took. What waits for Airflow is dealt out among what works, and not all of it at first: what
# the first one makes once, the next ones would wait for.
LONGEST = (
    "tests/ui/test_walk.py",
    "tests/integration/test_spark_cluster.py",
    "tests/integration/test_capture_campaign.py",
    "tests/integration/test_capture.py",
    "tests/ui/test_page.py",
    "tests/dags/test_backfill.py",
    "tests/integration/test_dump.py",
    "tests/dags/test_own_dags.py",
    "tests/integration/test_export_kafka.py",
    "tests/integration/test_s3_faults.py",
    "tests/e2e/test_up.py",
    "tests/integration/test_capture_failover.py",
    "tests/integration/test_import_pb.py",
    "tests/integration/test_recorded_histories.py",
    "tests/integration/test_spark_load.py",
    "tests/crash/test_capture_kill.py",
    "tests/integration/test_monitoring.py",
    "tests/integration/test_spark_connect.py",
    "tests/integration/test_copies.py",
    "tests/integration/test_one_view.py",
    "tests/integration/test_pump_kill.py",
    "tests/integration/test_archive_on_pumps.py",
    "tests/unit/archive/test_every_byte.py",
)
TIERS = ("e2e", "ui", "tidb", "dags", "integration", "crash", "property", "golden", "unit", "architecture")


def place(nodeid: str) -> tuple[int, int]:
    """Sorts tests: those of long files, then those of slow tiers."""
    return _index(LONGEST, nodeid.partition("::")[0]), _index(TIERS, tier_of(nodeid))


def tier_of(nodeid: str) -> str:
    """The folder of tests; '' of what is in none."""
    return nodeid.split("/")[1] if nodeid.startswith("tests/") else ""


def _index(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)
