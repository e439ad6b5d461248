"""Load a target from the archive: `run` for the CLI and the DAGs, `main` for spark-submit."""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Sequence

from include.archive.archive import Archive
from include.errors import ConfigError, TargetIncomplete, UsageError
from include.loader.begin import BEGINNING, begin_equal, begin_from_base
from include.loader.engine import Engine, LocalEngine
from include.loader.report import LoadReport, Progress, silent
from include.loader.run import Loader
from include.loader.state import Checkpoint, TargetState
from include.loader.target import TargetConnection
from include.model.tso import Tso
from include.objectstore.open import open_store
from include.settings import Settings, TargetSettings
from spark_tasks.engine import SparkEngine
from spark_tasks.jobs.schema import timeline_of


def run(
    settings: Settings,
    *,
    target: TargetSettings | None = None,
    task: str | None = None,
    to: Tso | None = None,
    run_id: str = "",
    take_over: bool = False,
    repeat: Tso | None = None,
    equal_at: Tso | None = None,
    abandon: str = "",
    progress: Progress = silent,
) -> LoadReport:
    """Bring a target to ``to`` (the archive's end), in one plan or several.

    Args:
        settings: all settings; ``load.engine`` says where the stages run.
        target: the downstream; ``settings.target`` unless given.
        task: name of the load; ``settings.load.task`` unless given.
        to: last commit ts, inclusive; also in the middle of a window.
        run_id: the same id may take over from itself (a retry whose first attempt still lives).
        take_over: end another run that holds the target.
        repeat: apply (repeat, checkpoint] once more, by force.
        equal_at: first load only: the target equals the source at this moment.
        abandon: give the open plan up for this reason; the target is inconsistent then.
        progress: told of each step.

    Raises:
        TargetBusy, TargetAhead, TargetIncomplete, RowRejected, DdlUncertain, LoadError, UsageError, …
    """
    target, task = target or settings.target, task or settings.load.task
    check_mode(settings)
    archive = open_archive(settings)
    archive.genesis()
    engine = make_engine(settings)
    try:
        with TargetConnection.open(target, owner=True) as connection:
            loader = Loader(
                archive=archive,
                archive_settings=settings.archive,
                connection=connection,
                settings=settings.load,
                task=task,
                timeline=lambda: timeline_of(archive),
                engine=engine,
                progress=progress,
            )
            checkpoint = loader.own(run_id or new_run_id(), take_over=take_over)
            if abandon:
                loader.abandon(abandon)
                return loader.finish(loader.report.to_ts)
            loader.require_covered(to)
            checkpoint = _begin(loader, checkpoint, equal_at)
            if repeat is not None:
                return loader.repeat(checkpoint, repeat)
            return loader.forward(checkpoint, to)
    finally:
        if isinstance(engine, SparkEngine):
            engine.stop()


def _begin(loader: Loader, checkpoint: Checkpoint | None, equal_at: Tso | None) -> Checkpoint:
    if equal_at is not None:
        return begin_equal(loader, equal_at)
    if checkpoint is None or (checkpoint.state is TargetState.INCOMPLETE and checkpoint.reason == BEGINNING):
        return begin_from_base(loader)
    if checkpoint.state is not TargetState.READY:
        raise TargetIncomplete(
            f"target {loader.connection.name} is {checkpoint.state}: {checkpoint.reason}",
            hint="restore it: `pumphouse restore --to …`",
            target=loader.connection.name,
            state=str(checkpoint.state),
        )
    return checkpoint


def check_mode(settings: Settings) -> None:
    """ConfigError for what this release does not do."""
    if settings.load.mode != "merge":
        raise ConfigError(f"load.mode = {settings.load.mode!r} comes with a later release", hint="leave it at 'merge'")
    if not settings.load.safe_mode:
        raise ConfigError(
            "load.safe_mode = false has no meaning for load.mode = 'merge': its delete phase is what makes it safe",
            hint="leave it on",
        )


def make_engine(settings: Settings) -> Engine:
    """Where the stages run, by setting."""
    if settings.load.engine == "local":
        return LocalEngine(settings.load.connections)
    return SparkEngine(settings.spark, connections=settings.load.connections)


def open_archive(settings: Settings) -> Archive:
    """The archive of the configured cluster."""
    from include.registry.open import open_cluster

    cluster = open_cluster(settings.cluster, settings.tls)
    try:
        cluster_id = cluster.cluster_id()
    finally:
        cluster.close()
    return Archive(open_store(settings.archive), cluster_id, archive_id=settings.archive.archive_id)


def new_run_id() -> str:
    """A run id that nobody else has."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m spark_tasks.jobs.load [TSO]``; settings come from pumphouse.toml and the environment."""
    from include.log import configure_logging

    args = list(sys.argv[1:] if argv is None else argv)
    if len(args) > 1:
        raise UsageError("usage: python -m spark_tasks.jobs.load [TSO]")
    configure_logging()
    report = run(Settings.read(), to=Tso(int(args[0])) if args else None)
    sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
