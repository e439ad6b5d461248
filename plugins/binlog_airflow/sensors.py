"""Sensors: the archive, or a target, reaches a moment. They wait in the triggerer, or as their ``mode`` says."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from binlog_airflow import tasks
from binlog_airflow.hooks import ARCHIVE, CLUSTER
from binlog_airflow.installation import Installation
from binlog_airflow.retry import one_sentence, policy
from binlog_airflow.served import AirflowSensorTimeout, TaskDeferred
from binlog_airflow.triggers import EVERY_S, GRACE, ArchiveReachesTrigger, TargetReachesTrigger
from pumphouse.clock import duration
from pumphouse.errors import UsageError
from pumphouse.model import tso
from pumphouse.settings import DOWNSTREAM

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy
    from airflow.triggers.base import BaseTrigger


class _ReachesSensor(BaseSensorOperator):  # type: ignore[misc]  # airflow has no types for strict mode
    template_fields: Sequence[str] = ("archive_conn_id", "cluster_conn_id", "settings_file", "moment")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        moment: str | None = None,
        archive_conn_id: str = ARCHIVE,
        cluster_conn_id: str = CLUSTER,
        settings_file: str = "",
        deferrable: bool = True,
        poke_interval: float | timedelta = EVERY_S,
        mode: str = "reschedule",
        retries: int | None = 3,
        retry_policy: RetryPolicy | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, mode=mode, retries=retries, **policy(retry_policy), **kwargs)
        self.moment = moment
        self.archive_conn_id = archive_conn_id
        self.cluster_conn_id = cluster_conn_id
        self.settings_file = settings_file
        self.deferrable = deferrable

    @property
    def here(self) -> Installation:
        """What it looks at."""
        return Installation(
            archive=self.archive_conn_id, cluster=self.cluster_conn_id, settings_file=str(self.settings_file)
        )

    @abstractmethod
    def stands(self) -> tso.Tso | None:
        """Where it stands now."""

    @abstractmethod
    def until(self, **waiting: Any) -> BaseTrigger:
        """The trigger that waits."""

    @one_sentence
    def execute(self, context: Context) -> Any:
        """Look once; then wait in the triggerer, or in the way that ``mode`` says."""
        if not self.deferrable:
            return super().execute(context)
        return self._look(str(int(self._moment(context))), time.time() + self.timeout)

    @one_sentence
    def go_on(self, context: Context, event: dict[str, Any]) -> Any:
        """There is reason to look again, or it is time."""
        del context
        return self._look(event["at"], event["until"])

    def poke(self, context: Context) -> bool:
        """Whether it is there."""
        stands, at = self.stands(), self._moment(context)
        self.log.info("%s, for %s", _shown(stands), tso.show(at))
        return stands is not None and stands >= at

    def _look(self, at: str, until: float) -> str:
        stands = self.stands()
        self.log.info("%s, for %s", _shown(stands), tso.show(tso.Tso(int(at))))
        if stands is not None and stands >= int(at):
            return str(int(stands))
        if (left := until - time.time()) <= 0:
            raise AirflowSensorTimeout(
                f"after {duration(self.timeout)}, {_shown(stands)}, not {tso.show(tso.Tso(int(at)))}"
            )
        trigger = self.until(
            installation=self.here.to_dict(),
            told={"at": at, "until": until},
            pause_s=self.poke_interval,
            every_s=self.poke_interval,
            until=until,
            at=at,
        )
        raise TaskDeferred(trigger=trigger, method_name="go_on", timeout=timedelta(seconds=left) + GRACE)

    def _moment(self, context: Context) -> tso.Tso:
        if self.moment is not None:  # what a template leaves empty is no time
            return tasks.moment(self.moment, self.here)
        if (end := context.get("data_interval_end")) is None:
            raise UsageError("this run has no interval", hint="give the sensor a moment=")
        return tso.from_datetime(end)


class PumphouseArchiveSensor(_ReachesSensor):
    """Waits until the archive reaches a moment.

    Args:
        moment: a TIME as for `pumphouse restore`; None = the end of the run's interval.
        archive_conn_id: connection of the archive.
        cluster_conn_id: connection of its cluster.
        settings_file: in place of pumphouse.toml.
        deferrable: wait in the triggerer; False = as ``mode`` says.
        poke_interval: how often it looks.
        mode: without the triggerer.
        retries: of what may pass.
        retry_policy: ours by default.
        kwargs: of every sensor.
    """

    def stands(self) -> tso.Tso | None:
        """The archive's end."""
        return tasks.archive_end(self.here)

    def until(self, **waiting: Any) -> BaseTrigger:
        """Looks at the archive's end."""
        return ArchiveReachesTrigger(**waiting)


class PumphouseTargetSensor(_ReachesSensor):
    """Waits until a target has everything up to a moment, and is whole.

    Args:
        conn_id: its connection, or NAME of [targets.NAME].
        kwargs: as of `PumphouseArchiveSensor`.
    """

    template_fields = (*_ReachesSensor.template_fields, "conn_id")

    def __init__(self, *, conn_id: str = DOWNSTREAM, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    def stands(self) -> tso.Tso | None:
        """Its checkpoint."""
        return tasks.target_stands(self.conn_id, self.here)

    def until(self, **waiting: Any) -> BaseTrigger:
        """Looks at the target's checkpoint."""
        return TargetReachesTrigger(conn_id=self.conn_id, **waiting)


def _shown(stands: tso.Tso | None) -> str:
    return "nothing is there yet" if stands is None else f"it is at {tso.show(stands)}"
