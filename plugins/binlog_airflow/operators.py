"""Operators: the tasks of our DAGs, for DAGs of others. Each is the class around a function of `binlog_airflow.tasks`.

Which installation one works on say the names of its connections, best in a DAG's ``default_args``. It retries what may
pass and nothing else, ends its log with one sentence, returns a small report, and tells each asset among its outlets
where that stands now. What it can only wait for, it waits for in a trigger, without a worker's slot.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import structlog
from airflow.sdk import Asset, BaseOperator

from binlog_airflow import assets, tasks
from binlog_airflow.advice import SOURCE, in_airflow
from binlog_airflow.hooks import ARCHIVE, CLUSTER, KAFKA
from binlog_airflow.installation import Installation
from binlog_airflow.lineage import Asked
from binlog_airflow.retry import ended, one_sentence, policy
from binlog_airflow.served import AirflowSkipException, TaskDeferred
from binlog_airflow.triggers import EVERY_S, GRACE, PauseTrigger, WindowTrigger
from pumphouse.clock import duration
from pumphouse.errors import BinlogError, TargetBusy, UsageError, WindowHeld
from pumphouse.settings import DOWNSTREAM

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy
    from airflow.triggers.base import BaseTrigger

log = structlog.get_logger()
# A worker's slot is held for no longer by who only waits.
PATIENCE_S = 20.0
_LONGEST_PAUSE_S = 120.0


class PumphouseOperator(BaseOperator):  # type: ignore[misc]  # airflow has no types for strict mode
    """What all have in common.

    Args:
        archive_conn_id: connection of the archive.
        cluster_conn_id: connection of the Pumps' cluster.
        source_conn_id: connection of the database that dumps read.
        targets: connections of the targets of loads, where the settings do not say them: the first is `target`.
        restore_targets: connections of what may be restored to, where the settings do not say them.
        settings_file: in place of pumphouse.toml.
        deferrable: wait in a trigger; False = in the worker.
        kwargs: of every operator.
    """

    template_fields: Sequence[str] = (
        "archive_conn_id", "cluster_conn_id", "source_conn_id", "targets", "restore_targets", "settings_file",
    )  # fmt: skip
    ui_color = "#dcebf7"
    # The errors that are waited for, and for how long; what the settings say of it, `wait_s` of the class says.
    waits_on: ClassVar[tuple[type[BinlogError], ...]] = ()
    # What says which data it moved, once it has.
    flow: Asked | None = None

    def __init__(
        self,
        *,
        archive_conn_id: str = ARCHIVE,
        cluster_conn_id: str = CLUSTER,
        source_conn_id: str = SOURCE,
        targets: Sequence[str] = (),
        restore_targets: Sequence[str] = (),
        settings_file: str = "",
        deferrable: bool = True,
        retries: int | None = 3,
        retry_policy: RetryPolicy | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **policy(retry_policy), **kwargs)
        self.archive_conn_id = archive_conn_id
        self.cluster_conn_id = cluster_conn_id
        self.source_conn_id = source_conn_id
        self.targets = targets
        self.restore_targets = restore_targets
        self.settings_file = settings_file
        self.deferrable = deferrable

    @property
    def here(self) -> Installation:
        """What it works on."""
        return Installation(
            archive=self.archive_conn_id,
            cluster=self.cluster_conn_id,
            source=self.source_conn_id,
            targets=tasks.named(lines("targets", self.targets)),
            restore_targets=tasks.named(lines("restore_targets", self.restore_targets)),
            settings_file=str(self.settings_file),
        )

    @property
    def patience_s(self) -> float | None:
        """How long a worker waits for something to come; None = as the settings say."""
        return PATIENCE_S if self.deferrable else None

    @abstractmethod
    def work(self, context: Context) -> Any:
        """What the task does; returns its report."""

    def wait_s(self) -> float:
        """How long it waits for what it `waits_on`, all in all."""
        return 3600.0

    def until_it_may_go_on(self, error: BinlogError, **waiting: Any) -> BaseTrigger:
        """The trigger that waits after such an error."""
        del error
        return PauseTrigger(**waiting)

    def gave_up(self, error: BinlogError) -> None:
        """What it waited for did not come."""

    @one_sentence
    def execute(self, context: Context) -> Any:
        """Do it, or wait for what is in the way."""
        return self._tried(context, None, 0)

    @one_sentence
    def go_on(self, context: Context, event: dict[str, Any]) -> Any:
        """After a wait, whose event says which it was, and since when."""
        return self._tried(context, event["since"], event["turn"])

    def _tried(self, context: Context, since: float | None, turn: int) -> Any:
        try:
            return self.work(context)
        except self.waits_on as error:
            if not self.deferrable:
                raise
            # What it did before it had to wait is no part of the wait.
            self._wait(error, since or time.time(), turn)

    def _wait(self, error: BinlogError, since: float, turn: int) -> NoReturn:
        left = since + self.wait_s() - time.time()
        if left <= 0:
            self.gave_up(error)
            raise ended(error, waited=True) from None
        held = f"{error.said(in_airflow)}; waiting in a trigger, for at most {duration(left)} more"
        log.info(held)
        trigger = self.until_it_may_go_on(
            error,
            installation=self.here.to_dict(),
            told={"since": since, "turn": turn + 1},
            pause_s=min(EVERY_S * 2 ** min(turn, 8), _LONGEST_PAUSE_S),
            every_s=EVERY_S,
            until=time.time() + left,
        )
        raise TaskDeferred(
            trigger=trigger,
            method_name="go_on",
            timeout=timedelta(seconds=left) + GRACE,
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What OpenLineage's provider asks for, in the process of the task; None for a task that moved no data."""
        del task_instance
        return None if self.flow is None else self.flow().to_openlineage()

    def moved(self, context: Context, end: str | int, **facts: Any) -> None:
        """Tell every asset among the outlets where it stands now."""
        for each in self.outlets:
            if isinstance(each, Asset):
                context["outlet_events"][each].extra = assets.moved(end, **facts)


class _WindowOperator(PumphouseOperator):
    """Waits for the Pumps that hold its window."""

    waits_on = (WindowHeld,)

    def wait_s(self) -> float:
        """As the pull of a command does."""
        return self.here.settings().archive.pull_timeout_s

    def until_it_may_go_on(self, error: BinlogError, **waiting: Any) -> BaseTrigger:
        """Until those that the error names bring the window further."""
        from pumphouse.archive.holders import DDL_HISTORY

        holders = getattr(error, "holders", None) or ()
        names = [each["node_id"] for each in holders if each["node_id"] != DDL_HISTORY]
        return WindowTrigger(node_ids=names, end=str(self.window_end()), **waiting)

    def gave_up(self, error: BinlogError) -> None:
        """The failure is a snapshot's, from now on."""
        tasks.note_held(error, self.here)

    @abstractmethod
    def window_end(self) -> str | int:
        """Up to where it wants to come, a TSO; 0 where any step is one."""


def run_of(context: Context) -> str:
    """Who holds a target: a retry takes over from itself, and not from another DAG's run of the same interval."""
    return f"{context['run_id']} of {context['ti'].dag_id}"[:255]


def lines(name: str, value: Sequence[str] | str | None) -> Sequence[str]:
    """A list, also as a template leaves it: a text with one a line; UsageError for the text of a list."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "(")):
        raise UsageError(
            f"{name} came as the text {value!r}, not as a list",
            hint="set render_template_as_native_obj=True in the DAG, or give a task's .output",
        )
    return value.splitlines() if isinstance(value, str) else value or ()


def flag(name: str, value: Any) -> bool:
    """Yes or no, also as a template leaves it; UsageError for anything else."""
    if (text := str(value).strip().lower()) not in ("true", "false"):
        raise UsageError(f"{name} came as {value!r}, which is neither true nor false")
    return text == "true"


def interval_end(context: Context) -> datetime | None:
    """The end of the run's interval; None for a run by hand, which has none."""
    end: datetime | None = context.get("data_interval_end")
    return end


class PumphouseSnapshotOperator(_WindowOperator):
    """Extends the archive up to the end of the run's interval, or up to now, all Pumps in one task.

    Where the archive is there already it says where that is, and what follows goes on. The tasks of `binlog_snapshot`,
    one a Pump, are the three operators below.
    """

    def work(self, context: Context) -> Any:
        """Window by window."""
        done, self.flow = tasks.extend_archive(interval_end(context), self.here, patience_s=self.patience_s)
        if done is None:
            raise AirflowSkipException("the archive begins behind the interval's end")
        self.moved(context, done["end"], manifest=done["manifest"], transactions=done["rows"], ddls=done["ddls"])
        return done

    def window_end(self) -> str | int:
        """Any step is one."""
        return 0


class PumphousePlanOperator(PumphouseOperator):
    """Chooses the next window up to the end of the run's interval, or up to now; skips where there is none."""

    def work(self, context: Context) -> Any:
        """The plan, for the next two operators."""
        found = tasks.plan_window(interval_end(context), self.here)
        if found is None:
            raise AirflowSkipException("the archive reaches the interval's end already")
        return found


class PumphousePullOperator(_WindowOperator):
    """Pulls one Pump of a plan: to be mapped over ``tasks.node_ids(plan)``."""

    template_fields = (*PumphouseOperator.template_fields, "plan", "pump_id")

    def __init__(self, *, plan: Any, pump_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.pump_id = pump_id

    def work(self, context: Context) -> Any:
        """What it brought, for the commit."""
        del context
        return tasks.pull_node(self.plan, self.pump_id, self.here, patience_s=self.patience_s)

    def window_end(self) -> str | int:
        """The plan's."""
        return str(self.plan["end"])


class PumphouseCommitOperator(_WindowOperator):
    """Writes the manifest of a window, then moves the archive's checkpoint."""

    template_fields = (*PumphouseOperator.template_fields, "plan", "reports")

    def __init__(self, *, plan: Any, reports: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.reports = reports

    def work(self, context: Context) -> Any:
        """The newest window."""
        done, self.flow = tasks.commit_window(self.plan, list(self.reports), self.here, patience_s=self.patience_s)
        self.moved(context, done["end"], manifest=done["manifest"], transactions=done["rows"], ddls=done["ddls"])
        return done

    def window_end(self) -> str | int:
        """The plan's."""
        return str(self.plan["until"])


class PumphouseSchemaOperator(PumphouseOperator):
    """Folds the DDL jobs of new windows into the schema timeline."""

    def work(self, context: Context) -> Any:
        """Nothing to do without new DDL."""
        done = tasks.rebuild_schema(self.here)
        self.moved(context, done["upto"], ddls=done["jobs"])
        return done


class PumphouseLoadOperator(PumphouseOperator):
    """Brings a target up to the archive's end, in safe mode.

    Args:
        conn_id: connection of the target, or NAME of [targets.NAME].
        kwargs: of every operator of ours.
    """

    template_fields = (*PumphouseOperator.template_fields, "conn_id")
    waits_on = (TargetBusy,)

    def __init__(self, *, conn_id: str = DOWNSTREAM, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    def work(self, context: Context) -> Any:
        """From its checkpoint on."""
        done, self.flow = tasks.load_target(run_of(context), self.conn_id, self.here)
        self.moved(context, done["to"], rows=done["rows"], target=done["target"])
        return done


class PumphouseApplyOperator(PumphouseOperator):
    """Loads a restored target up to the end of the run's interval, and no further than a moment.

    Args:
        conn_id: its connection.
        stop: a TIME as for `pumphouse restore`; None = the interval's end.
        kwargs: of every operator of ours.
    """

    template_fields = (*PumphouseOperator.template_fields, "conn_id", "stop")
    waits_on = (TargetBusy,)

    def __init__(self, *, conn_id: str, stop: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.stop = stop

    def work(self, context: Context) -> Any:
        """Nothing to do where the checkpoint is there already."""
        end = interval_end(context)
        if end is None:
            raise UsageError(
                "this run has no interval",
                hint="make a backfill of it: in the form, or `airflow backfill create --dag-id binlog_apply …`",
            )
        if not self.conn_id:
            offered = ", ".join(self.here.replaced(self.here.parsed("airflow")))
            raise UsageError("no target is named", hint=f"give `target` in the conf: {offered}")
        if self.stop == "":
            raise UsageError("stop came out empty", hint="None = no stop before the interval's end")
        done, self.flow = tasks.apply_interval(end, self.conn_id, self.stop, run_of(context), self.here)
        return done


class PumphouseKafkaOperator(PumphouseOperator):
    """Sends what a topic of Kafka does not have yet, each transaction once and in commit order.

    Args:
        kafka_conn_id: connection of the brokers, which names the topic too.
        since: a TIME at which an empty topic begins; None = where the topic stands.
        anew: begin there whatever the topic has.
        kwargs: of every operator of ours.
    """

    template_fields = (*PumphouseOperator.template_fields, "kafka_conn_id", "since", "anew")

    def __init__(
        self, *, kafka_conn_id: str = KAFKA, since: str | None = None, anew: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.kafka_conn_id = kafka_conn_id
        self.since = since
        self.anew = anew

    def work(self, context: Context) -> Any:
        """Up to the archive's end."""
        if self.since == "":
            raise UsageError("since came out empty", hint="None = where the topic stands")
        anew = flag("anew", self.anew)
        done, self.flow = tasks.send_to_kafka(self.since, self.here, conn_id=self.kafka_conn_id, anew=anew)
        self.moved(context, done["to_ts"], topic=done["topic"], messages=done["messages"])
        return done


class PumphouseGcOperator(PumphouseOperator):
    """Tells every Pump how far the archive reaches, and reports what its GC freed and who holds the rest."""

    def work(self, context: Context) -> Any:
        """Every Pump, one report each."""
        del context
        return tasks.collect_pumps(self.here)


class PumphouseDumpOperator(PumphouseOperator):
    """Dumps the source while it is written to.

    Args:
        tables: database.table or database.*: only these are read; None = everything.
        kwargs: of every operator of ours.
    """

    template_fields = (*PumphouseOperator.template_fields, "tables")

    def __init__(self, *, tables: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tables = tables

    def work(self, context: Context) -> Any:
        """Chunk by chunk, then the base."""
        done, self.flow = tasks.dump_source(lines("tables", self.tables), self.here)
        self.moved(context, done["ts"], base=done["key"], tables=done["tables"], rows=done["rows"])
        return done


class PumphouseVerifyOperator(PumphouseOperator):
    """Holds the archive against itself; fails where anything is wrong.

    Args:
        full: read every content, not names and sizes alone.
        kwargs: of every operator of ours.
    """

    template_fields = (*PumphouseOperator.template_fields, "full")

    def __init__(self, *, full: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.full = full

    def work(self, context: Context) -> Any:
        """Nothing expires from an archive that is not sound."""
        del context
        return tasks.verify_archive(self.here, full=flag("full", self.full))


class PumphouseBaseOperator(PumphouseOperator):
    """Folds the newest base and the windows behind it into the next one, if `airflow.base_days` says it is time."""

    def work(self, context: Context) -> Any:
        """`nothing` says why none was."""
        del context
        return tasks.fold_base_if_due(self.here)


class PumphouseCopyOperator(PumphouseOperator):
    """Brings the copy that `archive.copy_root` names, if any, up to date."""

    def work(self, context: Context) -> Any:
        """What it lacks."""
        del context
        return tasks.copy_archive(self.here)


class PumphouseExpireOperator(PumphouseOperator):
    """Lets go of what `[retention]` does not keep; who holds more is in the log and in the result."""

    def work(self, context: Context) -> Any:
        """The range moves, then what lies below it is deleted."""
        del context
        return tasks.expire_archive(self.here)


class PumphouseCompactOperator(PumphouseOperator):
    """Packs the small objects of old windows, if `airflow.maintenance_compact` says so."""

    def work(self, context: Context) -> Any:
        """What was packed, or why nothing was."""
        del context
        return tasks.compact_archive(self.here)


class PumphouseOrphansOperator(PumphouseOperator):
    """Deletes what no document names and no task that runs can name any more."""

    def work(self, context: Context) -> Any:
        """What killed tasks left."""
        del context
        return tasks.delete_orphans(self.here)


class PumphouseRestoreOperator(PumphouseOperator):
    """Restores a target to a moment, without a question: plans, restores, and verifies where it is told to.

    Args:
        to: a TIME as for `pumphouse restore`.
        conn_id: connection of the server whose data is replaced.
        replace: the server's name, HOST:PORT, where it holds data that is dropped then.
        tables: database.table; only these, beside what the target has; one a line, where it is a text. Without it,
            everything; a template or a task's output that comes to nothing is refused.
        called: of one table, its name there.
        database: the database there.
        keys: of one table: primary keys; only their rows.
        key_from: or: its key's first column is this or more.
        key_to: and less than this.
        base: TSO of the dump to begin from; '' = the newest that leads to the moment.
        verify: hold the rows against the archive afterwards; the task fails if anything differs.
        accept_losses: restore although binlogs are lost.
        kwargs: of every operator of ours.
    """

    template_fields = (
        *PumphouseOperator.template_fields,
        "to", "conn_id", "replace", "tables", "called", "database", "keys", "key_from", "key_to", "base", "verify",
        "accept_losses",
    )  # fmt: skip
    waits_on = (TargetBusy,)

    def __init__(
        self,
        *,
        to: str,
        conn_id: str,
        replace: str = "",
        tables: Sequence[str] | str | None = None,
        called: str = "",
        database: str = "",
        keys: Sequence[str] | str | None = None,
        key_from: str | None = None,
        key_to: str | None = None,
        base: str = "",
        verify: bool | str = False,
        accept_losses: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.to = to
        self.conn_id = conn_id
        self.replace = replace
        self.tables = tables
        self._everything = tables is None or tables in ([], ())
        self.called = called
        self.database = database
        self.keys = keys
        self.key_from = key_from
        self.key_to = key_to
        self.base = base
        self.verify = verify
        self.accept_losses = accept_losses

    def work(self, context: Context) -> Any:
        """As `binlog_restore` does, in one task."""
        from pumphouse.restore.plan import LATEST

        tables = tasks.named(lines("tables", self.tables))
        if not tables and not self._everything:
            raise UsageError("tables came out empty", hint="to restore everything, leave the argument out")
        if self.to.strip() != LATEST:
            self.to = str(int(tasks.moment(self.to, self.here)))
        form = tasks.RestoreForm(
            to=self.to,
            target=self.conn_id,
            tables=tables,
            called=self.called,
            database=self.database,
            keys=tuple(each for each in lines("keys", self.keys) if each.strip()),
            key_from=self.key_from,
            key_to=self.key_to,
            base=self.base,
            verify=flag("verify", self.verify),
            accept_losses=flag("accept_losses", self.accept_losses),
        )
        done, self.flow = tasks.restore_at_once(form, run_of(context), self.here, replace=self.replace)
        return done

    def until_it_may_go_on(self, error: BinlogError, **waiting: Any) -> BaseTrigger:
        """The moment counts from before the wait."""
        waiting["told"] |= {"to": self.to}
        return super().until_it_may_go_on(error, **waiting)

    def go_on(self, context: Context, event: dict[str, Any]) -> Any:
        """To the moment that was meant at first."""
        self.to = event["to"]
        return super().go_on(context, event)


class PumphouseDrillOperator(PumphouseOperator):
    """Restores onto a server, proves it, drops it again; the proof is the XCom `proven`, whatever it found.

    Args:
        into: restore_target, target, or NAME of [targets.NAME].
        at: a TIME as for `pumphouse restore`; None = one is drawn.
        seed: what it is drawn by; None = another one for each try.
        whole: restore all that the source had.
        kwargs: of every operator of ours.
    """

    template_fields = (*PumphouseOperator.template_fields, "into", "at", "seed", "whole")

    def __init__(
        self, *, into: str, at: str | None = None, seed: Any = None, whole: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.into = into
        self.at = at
        self.seed = seed
        self.whole = whole

    def work(self, context: Context) -> Any:
        """Red unless the proof is green."""
        seed = tasks.drill_seed(self.seed)
        whole = flag("whole", self.whole)
        done, proof = tasks.drill_server(self.into, self.at, seed, run_of(context), self.here, whole=whole)
        context["ti"].xcom_push("proven", proof)
        tasks.require_equal(proof)
        return done
