"""A DDL history without jobs, for archives that need none."""

from __future__ import annotations

from collections.abc import Iterator

from pumphouse.model.table import Job


class NoJobHistory:
    """`pumphouse.schema.history.JobSource`."""

    def job(self, job_id: int) -> Job | None:
        """None."""
        del job_id

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        """Nothing."""
        del after_id
        return iter(())
