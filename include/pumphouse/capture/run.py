"""``pumphouse capture run``: the process of one source, from its start to its end.

One thread reads the binlog ahead, up to a number of bytes; the main one encodes; a group is published by it, or by one
beside it while more waits; one renews the lease, says how far it is, and lets go of what no Pump can ask about any
more.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from pymysql.err import MySQLError

from pumphouse.capture.begin import take_picture
from pumphouse.capture.check import check_source
from pumphouse.capture.ddl import Schema
from pumphouse.capture.follow import Follower
from pumphouse.capture.journal import NOTHING, Journal, Mark, has_journal, open_journal, timestamps_went_back
from pumphouse.capture.keys import writes_actions
from pumphouse.capture.lease import Lease, Progress, new_owner
from pumphouse.capture.primary import find_primary
from pumphouse.capture.publish import Entry, Publisher, Stopped
from pumphouse.capture.schemas import Schemas, ServerKind, StoredSchema, server_kind
from pumphouse.capture.shadow import LOST, Shadow, flavor_of, require_followed, series
from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.session import position_now
from pumphouse.capture.source.warm import warm
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import ResolverServer
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.dump.source import execute, identity, session, where
from pumphouse.durable import PRIVATE_DIR, make_dirs
from pumphouse.errors import CaptureRefused, ConfigError, GapError, HistoryUnavailable, SourceFailed, SourceHeld
from pumphouse.loader.apart import require_no_target
from pumphouse.loader.state import parts_schemas
from pumphouse.model.captured import OF_A_START, PREFIX
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.mysql import ServerConnection
from pumphouse.registry.base import CaptureRecord, Cluster
from pumphouse.schema.history import JobSource, MysqlTableSource
from pumphouse.schema.ident import qualified
from pumphouse.schema_import.changes import Known
from pumphouse.schema_import.columns import Raw
from pumphouse.schema_import.write import HistoryTable
from pumphouse.settings import Settings, SourceSettings

log = structlog.get_logger()

_HISTORY_AGAIN_S = 2.0
_SOURCE_AGAIN_S = 2.0
_ANEW = (
    "`pumphouse capture run --anew` begins at the source's present position: what was committed in between is in no "
    "archive, and loads and restores stop there until `pumphouse archive dump` has begun a new base (docs/capture.md)"
)


def run_capture(
    settings: Settings,
    cluster: Cluster,
    history: JobSource | None,
    stop: threading.Event,
    *,
    anew: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Follow the source of [source] until ``stop`` is set.

    While a source does not answer at the start, what is decided is told to the Pumps that ask: the source may never
    come back. ``anew``: begin at the source's present position, and say in the history that rows before it are unknown.

    Raises:
        ConfigError: the source, the history or the machine lacks something; all of it is named.
        CaptureFenced: another process runs this capture.
        CaptureRefused, GapError: the source's binlog cannot be followed from here; nothing was skipped.
    """
    table = _history_table(history)
    warm()  # before a source waits, and before a lease can run out
    with ExitStack() as stack:
        owner = new_owner()
        dead = stack.enter_context(_owned(settings.capture.directory, owner))
        run = _Run(settings, cluster, table, stop, clock)
        there: _There | None = None
        try:
            there = run.look()
        except SourceFailed as error:
            if anew or not has_journal(settings.capture.directory):
                if not isinstance(error, SourceHeld):
                    raise
                try:
                    there = run.wait_for_source()
                except Stopped:
                    return
        lease = Lease.take(
            cluster,
            settings.capture.id,
            source=where((there.settings if there else settings).source),
            server=there.server if there else "",
            owner=owner,
            dead=dead,
            clock=clock,
        )
        failure: BaseException | None = None
        try:
            with suppress(Stopped):
                journal, publisher, shadow = run.answer(stack, lease, there, anew=anew)
                run.start(there or run.wait_for_source(), journal, publisher, shadow).run()
            lease.require_kept()
        except (OSError, MySQLError) as error:
            said = f"the capture ended with {type(error).__name__}: {error}"
            lost = bool(error.args) and error.args[0] in LOST  # the shadow, or the history's server
            failure = SourceFailed(said, hint="start the capture again") if lost else CaptureRefused(said)
            raise failure from error
        except BaseException as error:
            failure = error
            if isinstance(error, GapError):
                error.advice = (_ANEW,)
            raise
        finally:
            lease.release(run.progress(), failure)


@dataclass(frozen=True, slots=True)
class _There:
    """A source that answers, and can be captured: [source] of ``settings``. ``own``: databases there that are ours."""

    settings: Settings
    server: str
    own: frozenset[str]
    kind: ServerKind
    writes_actions: bool


class _Run:
    def __init__(
        self, settings: Settings, cluster: Cluster, history: MysqlTableSource, stop: threading.Event, clock: Clock
    ) -> None:
        self._settings = settings  # [source] is one of several, and may be dead
        self._cluster = cluster
        self._history = history
        self._stop = stop
        self._clock = clock
        self._began = clock.now()
        self._trouble = ""  # why there is no source yet
        self._publisher: Publisher | None = None
        self._follower: Follower | None = None
        self._kept_from = 0  # number of a stored schema

    def look(self) -> _There:
        """The source; SourceFailed, ConfigError."""
        settings = self._of(find_primary(self._settings.source, self._settings.capture))
        require_no_target(settings.source, settings.target_sections)
        with session(settings.source) as connection:
            own = own_databases(settings, connection, self._history)
            _require_fit(connection, settings, own)
            kind = server_kind(connection)
            return _There(
                settings, identity(connection), own, kind, writes_actions(connection, flavor_of(kind.version))
            )

    def answer(
        self, stack: ExitStack, lease: Lease, there: _There | None, *, anew: bool
    ) -> tuple[Journal, Publisher, Shadow]:
        """What needs no source: from now on Pumps are told what is decided. Without one the journal is there."""
        capture, self._lease = self._settings.capture, lease
        self._schemas = Schemas(self._history, capture.id, lease.held)
        self._schemas.create()
        self._prefix = PREFIX + f"{capture.id}/".encode()
        journal = self._open(capture.directory, there, anew=anew)
        stack.callback(journal.close)
        stored, fresh = self._stored(journal.mark.schema, there)
        # A child, before gRPC has threads.
        shadow = Shadow.start(capture.directory / "shadow", stored, capture.shadow, capture.leaves_out)
        stack.callback(shadow.close)
        if fresh:
            passed = self._schemas.position(journal.mark.schema) or ""
            self._schemas.save(journal.mark.schema, passed, stored)
        self._add_jobs(journal.jobs())  # whoever was killed right behind a decision had no time to
        client = PumpClient(self._cluster, copies=capture.copies, tls=self._settings.tls)
        stack.callback(client.close)
        publisher = self._publisher = Publisher(
            client,
            journal,
            self._prefix,
            held=lease.held,
            add_jobs=self._add_jobs,
            stop=self._stop,
            clock=self._clock,
        )
        resolver = ResolverServer(
            self._cluster,
            f"capture-{capture.id}",
            [self._prefix],
            publisher.answer,
            addr=capture.listen,
            tls=self._settings.tls,
            clock=self._clock,
        )
        stack.callback(resolver.close)
        lease.keep(self.progress, lambda said: self._let_go(journal, said), self._stop)
        return journal, publisher, shadow

    def wait_for_source(self) -> _There:
        """Look for it until it answers; Stopped, ConfigError."""
        while True:
            try:
                return self.look()
            except (SourceFailed, HistoryUnavailable) as error:
                log.warning("source_not_reached", error=str(error), again_in_s=_SOURCE_AGAIN_S)
                self._trouble = error.message
                if self._stop.wait(_SOURCE_AGAIN_S):
                    raise Stopped from error

    def start(self, there: _There, journal: Journal, publisher: Publisher, shadow: Shadow) -> Follower:
        """Everything up to the first byte of the binlog; after `answer`."""
        capture = self._settings.capture
        known = Known.of(list(self._history.jobs())) if self._has_table() else Known.of(())
        schema = Schema(
            shadow=shadow, known=known, own=there.own, without=capture.leaves_out, writes_actions=there.writes_actions
        )
        self._reconcile(schema, publisher, journal.mark, there.settings.source)

        def fits(source: SourceSettings) -> None:
            """ConfigError where a server that took the source's place cannot be captured, or is a target."""
            require_no_target(source, self._settings.target_sections)
            with session(source) as connection:
                _require_fit(connection, self._of(source), there.own)

        self._follower = Follower(
            self._settings,
            journal,
            publisher,
            schema,
            self._schemas,
            self._history,
            fits,
            lambda: self._lease.paused,
            self._stop,
            self._clock,
        )
        log.info("capture_started", id=capture.id, source=where(there.settings.source), gtid=journal.mark.gtid)
        return self._follower

    def progress(self) -> Progress | None:
        """For the record in the cluster; None = what it says stays."""
        if self._follower is not None:
            return self._follower.progress()
        if self._publisher is None:
            return None
        return Progress(
            mark=self._publisher.said,
            lag_s=self._clock.now() - self._began if self._trouble else 0.0,
            why=self._trouble,
        )

    # -- the start

    def _of(self, source: SourceSettings) -> Settings:
        return self._settings.model_copy(update={"source": source})

    def _open(self, directory: Path, there: _There | None, *, anew: bool) -> Journal:
        """The journal; a new one at the source's present position where the capture is new, or that is asked for."""
        capture = self._settings.capture
        about = {"capture": capture.id, "cluster_id": self._cluster.cluster_id()}
        journal = open_journal(directory, about)
        if journal is not None and not anew:
            self._require_newest(journal)
            return journal
        if there is None:
            raise SourceFailed(f"no source answers, and {directory} has no journal", hint="start the source")
        said = self._said()
        if journal is None and not anew and said.start_ts:  # it has run before
            return Journal.begin(directory, about, self._found_again(there.settings.source, said))
        picture = take_picture(there.settings, self._stop, self._clock)
        number = 1 + (self._schemas.newest() if journal is None else journal.mark.schema)
        self._schemas.save(number, picture.gtid, picture.schema)
        consumed = any(not node.left for node in self._cluster.nodes(NodeKind.DRAINER))
        mark = Mark(
            gtid=picture.gtid,
            moment=0.0 if journal is None else journal.mark.moment,
            schema=number,
            transactions=0 if journal is None else journal.mark.transactions,
            anew=consumed,
            start_ts=self._cluster.tso() if journal is None else journal.mark.start_ts,
            commit_ts=0 if journal is None else journal.mark.commit_ts,
        )
        if journal is None:
            journal = Journal.begin(directory, about, mark)
        else:
            self._lease.held()
            journal.append(NOTHING, mark)
        # A journal is held against the record: after RESET MASTER the old position would cover the new one.
        self._lease.say(Progress(mark=mark))
        return journal

    def _stored(self, number: int, there: _There | None) -> tuple[StoredSchema, bool]:
        """The schema, of a server as the source is now where that answers; and whether that is news."""
        stored = self._schemas.load(number)
        if there is None or there.kind == stored.server:
            return stored, False
        require_followed(stored.server, there.kind)
        if series(there.kind.version) != series(stored.server.version):
            log.warning("source_of_another_version", was=stored.server.version, now=there.kind.version)
        return replace(stored, server=there.kind), True

    def _said(self) -> CaptureRecord:
        """What the cluster says of this capture, which this process holds."""
        return next(each for each in self._cluster.captures() if each.capture_id == self._settings.capture.id)

    def _found_again(self, source: SourceSettings, said: CaptureRecord) -> Mark:
        """The mark of a journal that is lost; CaptureRefused, with what to do, where it is not found."""
        from pumphouse.archive.archive import Archive  # Arrow is a fifth of an idle capture
        from pumphouse.capture.recover import Recovery

        capture, lost = self._settings.capture, f"{self._settings.capture.directory} has no journal"
        hint = f"set capture.directory to where the journal is; if it is lost, {_ANEW}"
        log.warning("journal_lost", id=capture.id, directory=str(capture.directory), said=said.gtid)
        with session(source) as connection:
            flavor = flavor_of(server_kind(connection).version)
        archive = Archive.open(self._settings.archive, self._cluster.cluster_id())
        jobs = list(self._history.jobs()) if self._has_table() else []
        try:
            found = Recovery(
                self._cluster, archive, jobs, said, self._prefix, self._lease.held, self._settings.tls
            ).run(flavor)
        except CaptureRefused as error:
            raise error.rebuild(f"{lost}: {error.message}", error.advice or hint, error.facts) from error
        number = found.schema or self._schemas.at(found.gtids)
        passed = None if number is None else self._schemas.position(number)
        if number is None or passed is None:
            raise CaptureRefused(f"{lost}, and no stored schema is as old as {found.gtids}", hint=hint)
        return Mark(
            # Statements that publish nothing are on no Pump: what the schema says was passed before its rows.
            gtid=str(GtidSet.parse(f"{found.gtids},{passed}", flavor)),
            moment=found.moment,
            schema=number,
            transactions=found.transactions,
            anew=found.anew,
            server=said.server,
            start_ts=found.start_ts,
            commit_ts=found.commit_ts,
        )

    def _require_newest(self, journal: Journal) -> None:
        """CaptureRefused where the journal is older than what is published: it would be published again.

        The record in the cluster is written after the journal.
        """
        said, mark = self._said(), journal.mark
        older = mark.start_ts < said.start_ts  # GTIDs begin anew with RESET MASTER
        if said.gtid and mark.start_ts == said.start_ts:
            flavor = flavor_of(self._schemas.load(mark.schema).server.version)
            older = not GtidSet.parse(mark.gtid, flavor).covers(GtidSet.parse(said.gtid, flavor))
        if older:
            raise CaptureRefused(
                f"the journal in {self._settings.capture.directory} is at {mark.gtid}, and this capture has published "
                f"up to {said.gtid}: it is older than that, a copy or a backup",
                hint=f"set capture.directory to the newest one; if it is lost, {_ANEW}",
            )
        now = self._cluster.tso()
        if now <= journal.last_start_ts:
            raise timestamps_went_back(now, journal.last_start_ts)

    def _reconcile(self, schema: Schema, publisher: Publisher, mark: Mark, source: SourceSettings) -> None:
        """The history says what the source has; where rows came before the capture, that too."""
        consumed = any(not node.left for node in self._cluster.nodes(NodeKind.DRAINER))
        with session(source) as connection:

            def had_rows(db: str, table: str) -> bool:
                if not consumed:
                    return False
                rows = execute(connection, f"SELECT 1 FROM {qualified(db, table)} LIMIT 1")  # noqa: S608
                # It is empty now: at the mark it was if nothing has happened since.
                now = position_now(connection).gtids
                return bool(rows) or not GtidSet.parse(mark.gtid, now.flavor).covers(now)

            jobs = schema.reconcile(had_rows, anew=mark.anew)
        # Rows that XA transactions have prepared are of tables as they were: they are encoded anew at their commit.
        clear = replace(mark, anew=False, prepared={} if jobs else mark.prepared)
        if jobs and consumed:
            entries = [Entry(f"{OF_A_START}{mark.schema}/{at}".encode(), job=job) for at, job in enumerate(jobs)]
            publisher.publish(entries, clear)
        elif jobs:
            self._add_jobs(jobs)
        if clear != mark and not (jobs and consumed):
            publisher.publish([], clear)

    # -- what goes on beside

    def _let_go(self, journal: Journal, said: Progress | None) -> None:
        """Drop what no Pump can ask about: each has passed it. ``said``: what the cluster knows by now."""
        passed = [
            int(node.max_commit_ts)
            for node in self._cluster.nodes(NodeKind.PUMP)
            if node.state is not NodeState.OFFLINE
        ]
        journal.drop_below(min(passed, default=0))
        # Without its journal the capture would go on at the mark that the cluster knows by now, or behind it.
        if said is not None and said.mark.schema != self._kept_from:
            self._kept_from = said.mark.schema
            self._schemas.drop_before(self._kept_from)

    def _has_table(self) -> bool:
        with HistoryTable.open(self._history) as table:
            if not table.exists():
                table.create()
        return True

    def _add_jobs(self, jobs: Sequence[Raw]) -> None:
        """Bring decided jobs into the history; those that are there are left. Tries until it is stopped."""
        while jobs:
            try:
                with HistoryTable.open(self._history) as table:
                    if not table.exists():
                        table.create()
                    table.connection.begin()  # a group is there as a whole, or not at all
                    for raw in jobs:
                        there = self._history.job(int(raw["id"]))
                        if there is None:
                            table.add(raw)
                        elif int(there.raw.get("start_ts") or 0) != int(raw["start_ts"]):
                            raise CaptureRefused(
                                f"{self._history.url} has another job {raw['id']}: something else writes there",
                                hint="a history belongs to one capture alone: no `schema import`, no other source",
                            )
                    table.connection.commit()
            except HistoryUnavailable as error:
                log.warning("history_not_written", error=str(error), again_in_s=_HISTORY_AGAIN_S)
                if self._stop.wait(_HISTORY_AGAIN_S):
                    raise Stopped from error
            else:
                return


def own_databases(settings: Settings, connection: ServerConnection, history: MysqlTableSource) -> frozenset[str]:
    """Databases of the source that are ours, in lower case: restores of parts, and the history where it lies there.

    Raises:
        ConfigError: the history is on a source whose commits wait for the capture: so would the capture's own.
    """
    own = {name.lower() for name in parts_schemas(settings.written_to)}
    with history.session() as other:
        if identity(other) == identity(connection):
            own.add(history.schema.lower())
            if settings.capture.semi_sync:
                raise ConfigError(
                    "schema.history is on the source, whose commits wait for the capture: its own would, too, and be "
                    "lost with the source",
                    hint="name a table on another server in schema.history, or set semi_sync = false in [capture]",
                )
    return frozenset(own)


def _history_table(history: JobSource | None) -> MysqlTableSource:
    if not isinstance(history, MysqlTableSource):
        raise ConfigError(
            "schema.history names no table to write DDL jobs to",
            hint='set [schema] history = "mysql://user@host:port/history.jobs" and history_password; it may be on the '
            "source, in a database of its own, or on any other server that is no target",
        )
    return history


def _require_fit(connection: ServerConnection, settings: Settings, own: frozenset[str]) -> None:
    """ConfigError, with everything that is wrong and what to type; columns are the shadow's business."""
    wrong = [line for line in check_source(connection, settings.capture, own, schema=False) if line.wrong]
    if wrong:
        typed = [line.type for line in wrong if line.type and "\n" not in line.type]
        raise ConfigError(
            f"the source {where(settings.source)} is not ready: " + "; ".join(line.text for line in wrong),
            hint="; ".join([*typed, "`pumphouse capture check` says all that is to be typed"]),
        )


@contextmanager
def _owned(directory: Path, owner: str) -> Iterator[str]:
    """Hold the directory in an owner's name; the owner before, who is dead. ConfigError where another process holds it.

    A copy of the directory says of nobody that he is dead: host and file are others.
    """
    make_dirs(directory, PRIVATE_DIR)
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process uses {directory}", hint="each capture has a directory and a process of its own"
            ) from None
        found = os.fstat(fd)
        # A clone of the machine, or the same volume on another one, has all but the boot in common with it.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        place = f"{socket.gethostname()} {boot} {found.st_dev} {found.st_ino}"
        before, _, there = os.pread(fd, 4096, 0).decode(errors="replace").partition(" ")
        os.pwrite(fd, f"{owner} {place}\n".encode(), 0)
        os.ftruncate(fd, len(f"{owner} {place}\n"))
        os.fsync(fd)
        yield before if there.strip() == place else ""
    finally:
        os.close(fd)
