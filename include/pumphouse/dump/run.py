"""Take a dump of a source that is written to: rounds of reading until no DDL has spoilt a table, then the document.

Exactness (the watermark method of DBLog, arXiv 2010.12597): rows are read after every Pump has passed a table's low, so
they hold every transaction up to it; what is newer in them lies in the log above it, up to a moment that is taken after
the last read. A commit ts is older than its visible commit, which is why the Pumps' watermarks are waited for, by
extending the archive: that also says which DDLs there were. Of a source that is captured from its binlog, a commit ts
is younger than the transaction in the binlog, and may be older than the visible commit, or younger: there source and
capture are waited for before a moment is taken, and before rows are read behind it (`Settle`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import structlog

from pumphouse import advice
from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base, BaseBegun, BaseChunk
from pumphouse.archive.document import sha256
from pumphouse.archive.failed import noting
from pumphouse.archive.objects import SourceObjects
from pumphouse.archive.publish import put_once
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.clock import SYSTEM_CLOCK, Clock, Throttle
from pumphouse.dump.chunks import ChunkWriter, Stopped
from pumphouse.dump.objects import read_objects
from pumphouse.dump.source import TableChanged, execute, identity, require_binlogs, require_primary, session, where
from pumphouse.dump.survey import Survey, survey
from pumphouse.errors import ConfigError, ManifestConflict, SourceFailed, SourceHeld, UsageError, WindowHeld
from pumphouse.loader.apart import require_no_target
from pumphouse.loader.state import parts_schemas
from pumphouse.model.node import NodeKind
from pumphouse.model.tablerows import TableRows
from pumphouse.model.tso import Tso, physical_ms, show
from pumphouse.mysql import ServerConnection
from pumphouse.registry.base import Cluster, KeepsReadable
from pumphouse.schema.actions import is_system
from pumphouse.schema.history import JobSource, MysqlTableSource
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import Settings

_T = TypeVar("_T")
log = structlog.get_logger()

# A table that changes again and again, or that the history knows otherwise than the source, is given up then.
_MOST_ROUNDS = 20
_PAUSE_S = 2.0
_SHOWN = 20  # names of tables in a sentence
_SHOWN_UNSEEN = 3

Progress = Callable[[str, int, int], None]
# Waits, for so many seconds or as long as it takes, until the source shows what its binlog has, and the Pumps have it.
Settle = Callable[[float | None], None]


def silent(_what: str, _rows: int, _estimate: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpReport:
    """What was taken: ``base`` is visible at ``key``. ``resumed``: an earlier run had begun it, after ``low``.

    ``rows_before``: of ``rows`` those that an earlier run had read. ``kept``: of ``tables`` those that were not read,
    but taken over from the dump that is exact from ``kept_from`` on; ``only``: the names that were asked for then.
    ``without``: tables that a rule left out, with its reason; ``idle``: rules that fit no table. ``unknown``: tables of
    the source that ``schema.history`` does not know. ``objects``: what was kept as text, in words; ``unseen``: what of
    it is not kept. ``read``: the tables that were read, by this run or an earlier one.
    """

    key: str
    cluster_id: int
    low: Tso
    ts: Tso
    tables: int
    rows: int
    bytes: int
    seconds: float
    resumed: bool
    rows_before: int = 0
    kept: int = 0
    kept_from: Tso | None = None
    only: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    objects: str = ""
    unseen: tuple[str, ...] = ()
    read: TableRows = field(default_factory=TableRows)

    def to_dict(self) -> dict[str, Any]:
        """Small JSON, for XCom and ``--json``; what lineage alone tells is no part."""
        found = asdict(self)
        del found["read"], found["cluster_id"]
        return found

    def text(self) -> str:
        """What was read now, what by an earlier run, and what is older."""
        said = f"dumped {self.tables} tables, {self.rows:,} rows"
        if self.kept and self.kept_from is not None:
            said += (
                f"; {self.kept} of the tables were not read: they are those of the dump of {show(self.kept_from)}, "
                f"because this one is of {', '.join(self.only)} alone"
            )
        if self.resumed:
            said += f"; it was begun at {show(self.low)} by an earlier run, which had read {self.rows_before:,} rows"
        if self.without:
            told = ", ".join(f"{name} ({why})" for name, why in self.without.items())
            said += f"; NOT in it, by dump.without: {told}"
        if self.idle:
            said += f"; dump.without names no table by {', '.join(self.idle)}: check the spelling"
        if self.unknown:
            more = f" and {len(self.unknown) - _SHOWN} more" if len(self.unknown) > _SHOWN else ""
            names = ", ".join(self.unknown[:_SHOWN]) + more
            said += f"; NOT in it, because schema.history does not know them (`pumphouse schema import`): {names}"
        if self.objects:
            said += f"; kept as text beside it, because no copy gets them: {self.objects}"
        if self.unseen:
            said += f"; of triggers, events, routines, views and users, {len(self.unseen)} are not kept: "
            said += "; ".join(self.unseen[:_SHOWN_UNSEEN])
        return said


def take_dump(
    archive: Archive,
    cluster: Cluster,
    history: JobSource | None,
    settings: Settings,
    *,
    tables: Sequence[str] | None = None,
    progress: Progress = silent,
    settle: Settle,
    clock: Clock = SYSTEM_CLOCK,
) -> DumpReport:
    """Dump the source, or finish a dump that was killed; the archive is extended as far as that needs.

    Args:
        archive: where to.
        cluster: the archive's.
        history: DDL jobs of the source.
        settings: the source, sizes and rates.
        tables: ``database.table`` or ``database.*`` of what is read anew; the rest is taken over from the newest dump,
            with the log since then. None = everything, or what the dump that was killed was of, if it is not older than
            ``dump.resume_s``.
        progress: called with (what, rows, estimate) for each chunk.
        settle: waits until source and Pumps have the same: `pumphouse.capture.passed.waiter`.
        clock: for tests.

    Raises:
        ConfigError: no source is known, or there is no archive.
        UsageError: a dump of other tables is unfinished, there is none to take the rest from, a name is no table's, or
            ``dump.without`` leaves it out. Nothing is begun then.
        SourceFailed: the source does not answer, or a table never equals what the history says of it.
        WindowHeld: a Pump holds the window that the dump needs.
    """
    with noting(archive, "dump", clock):
        return _Dump(archive, cluster, history, settings, progress, settle, clock).take(tables)


class _Dump:
    def __init__(
        self,
        archive: Archive,
        cluster: Cluster,
        history: JobSource | None,
        settings: Settings,
        progress: Progress,
        settle: Settle,
        clock: Clock,
    ) -> None:
        self._archive = archive
        self._cluster = cluster
        self._history = history
        self._settings = settings
        self._progress = progress
        self._settle = settle
        self._clock = clock
        self._throttle = Throttle(settings.dump.bytes_per_s, clock)
        self._rows = self._estimate = 0
        self._server = ""
        self._lock = threading.Lock()
        self._extending = threading.Lock()

    def take(self, tables: Sequence[str] | None) -> DumpReport:
        """Round after round until nothing is missing."""
        started = self._clock.monotonic()
        require_no_target(self._settings.source, self._settings.target_sections)
        there = self._patiently(self._look)
        found = self._unfinished(self._server)
        if found is not None and tables is not None and tuple(tables) != found.tables:
            names = ", ".join(found.tables or ("everything",))
            raise UsageError(
                f"a dump of {names} was begun at {show(found.low)} and has not ended",
                hint=(advice.dump(), " without names goes on with it"),
            )
        begun = found or self._begin(tables)
        low = begun.low
        before = {chunk.segment.key for chunk in self._chunks(low) if chunk.segment is not None}
        earlier = self._earlier(begun)
        log_from = low if earlier is None else earlier.low
        kept = [] if earlier is None else [t for t in earlier.tables if not _chosen((t.db, t.table), begun.tables)]
        why: Mapping[str, str] = {}

        def chosen(version: TableVersion) -> bool:
            return begun.tables is not None and _chosen(version.name, begun.tables)

        for number in range(_MOST_ROUNDS):
            at = self._extend()
            # What began before `at` has ended below the next end: DDLs too, whose effect a read may have met.
            self._extend()
            view = read_view(self._archive, since=log_from)
            state = survey(view, log_from, self._chunks(low), at, kept, chosen, self._settings.dump.without)
            self._require_same_server()
            if not state.missing:
                base = Base(begun=low, low=log_from, ts=at, tables=state.tables, columns=True, sha256="",
                            descends=None if earlier is None else earlier.since)  # fmt: skip
                objects, digest = self._patiently(lambda: self._keep_objects(low))
                base = replace(base, without=state.without, objects=digest)
                base = self._archive.publish_base(base, begun=layout.base_begun(low), clock=self._clock)
                segments = [segment for table in base.tables for segment in table.segments]
                report = DumpReport(
                    key=layout.base_document(low),
                    cluster_id=self._archive.cluster_id,
                    low=low,
                    ts=base.ts,
                    tables=len(base.tables),
                    rows=base.rows,
                    bytes=sum(segment.payload_bytes for segment in segments),
                    seconds=round(self._clock.monotonic() - started, 3),
                    resumed=found is not None,
                    rows_before=sum(segment.rows for segment in segments if segment.key in before),
                    kept=sum(table.low < low for table in base.tables),
                    kept_from=None if earlier is None else earlier.ts,
                    only=begun.tables or (),
                    without={each.name: each.why for each in base.without},
                    idle=tuple(
                        rule.table
                        for rule in self._settings.dump.without
                        if not any(rule.covers(*version.name) for version in view.timeline.tables_at(view.end))
                    ),
                    unknown=self._unknown_tables(view, there),
                    objects=objects.counts(),
                    unseen=objects.unseen,
                    read=TableRows.of(
                        {f"{each.db}.{each.table}": each.rows for each in base.tables if each.low >= low}
                    ),
                )
                if report.without or report.idle or report.unknown:
                    log.warning("dump_lacks_tables", without=report.without, idle=report.idle, unknown=report.unknown)
                return report
            (log.warning if why else log.info)(
                "dump_round", round=number, low=int(low), tables=len(state.missing), again=dict(why)
            )
            if why:
                # A DDL under way, a job that is not in the history yet, or a lock: it wants a moment.
                self._clock.sleep(_pause_s(number))
            why = self._read(view, low, state)
        lacking = [f"{v.db}.{v.table.name}" for v in state.missing]
        told = ", ".join(f"{name} ({why.get(name, 'it changed meanwhile')})" for name in lacking[:5])
        raise SourceFailed(
            f"the dump is not whole after {_MOST_ROUNDS} rounds: {told}",
            hint=(
                "does schema.history describe this source (`pumphouse schema import`)? To go on with what was read: ",
                *advice.joined(advice.dump(), _without_hint(lacking[0])),
            ),
        )

    # -- beginning and end

    def _look(self) -> list[tuple[str, str]]:
        """Whether the source can be dumped, and which tables it has."""
        with session(self._settings.source) as connection:
            require_primary(connection, self._settings.source)
            pumps = [node.node_id for node in self._cluster.readable_nodes(NodeKind.PUMP)]
            require_binlogs(connection, self._settings.source, self._cluster.url, pumps)
            self._estimate = _estimated_rows(connection)
            self._server = identity(connection)
            return _tables_of(connection)

    def _require_same_server(self) -> None:
        """Behind an address there may be another server by now."""
        with session(self._settings.source) as connection:
            if identity(connection) != self._server:
                raise SourceFailed(
                    f"{where(self._settings.source)} is another server than the one that this dump began to read",
                    hint=(advice.dump(), " begins anew"),
                )

    def _patiently(self, look: Callable[[], _T]) -> _T:
        """What looks at all tables of the source, again while one is locked; SourceHeld when it stays so."""
        for number in range(1, _MOST_ROUNDS):
            try:
                return look()
            except SourceHeld as held:
                log.warning("dump_waits", reason=held.message)
                self._clock.sleep(_pause_s(number))
        return look()

    def _unfinished(self, server: str) -> BaseBegun | None:
        """The newest dump that was begun; None when there is nothing to go on with.

        One that is published is done, and an older one nobody's any more. One that is too old would be a dump of rows
        from then. One of tables that there are not would read nothing. One of another server may have read what neither
        this one nor the log has.
        """
        keys = {each.key for each in self._archive.store.list(layout.BASE)}
        begun = [layout.base_low(key) for key in keys if key == layout.base_begun(layout.base_low(key))]
        low = max(begun, default=None)
        if low is None or layout.base_document(low) in keys:
            return None
        key = layout.base_begun(low)
        found = BaseBegun.from_json(key, self._archive.store.get(key))
        age_s = (physical_ms(self._cluster.tso()) - physical_ms(low)) / 1000
        unknown = _unknown(read_view(self._archive), found.tables) if found.tables is not None else []
        if age_s > self._settings.dump.resume_s or unknown or found.server != server:
            log.warning(
                "dump_given_up", begun=show(low), age_s=round(age_s), tables=found.tables, unknown=unknown,
                server=found.server, server_now=server,
            )  # fmt: skip
            return None
        log.info("dump_resumed", begun=show(low), tables=found.tables or "all")
        return found

    def _begin(self, tables: Sequence[str] | None) -> BaseBegun:
        """Everything up to its low is in the archive and, for whoever reads now, visible at the source."""
        for rule in self._settings.dump.without:
            if named := [name for name in tables or () if rule.covers(*name.partition(".")[::2])]:
                raise UsageError(
                    f"dump.without leaves {named[0]} out: {rule.why}", hint="take the rule away, then dump the table"
                )
        low, over = self._extend(), None
        if tables is not None:
            bases = [base for base in self._archive.bases(low) if base.columns]
            if not bases:
                raise UsageError(
                    "there is no dump to take the other tables from",
                    hint=("dump everything once: ", advice.dump()),
                )
            over = bases[-1].begun
            if unknown := _unknown(read_view(self._archive), tables):
                raise UsageError(
                    f"there is no table {unknown[0]} in the schema history",
                    hint="name tables as database.table or database.*; `pumphouse schema show` lists them",
                )
        begun = BaseBegun(
            cluster_id=self._archive.cluster_id,
            low=low,
            tables=None if tables is None else tuple(tables),
            over=over,
            server=self._server,
        )
        body = begun.to_json()
        put_once(self._archive.store, layout.base_begun(low), body, lambda found: found == body, clock=self._clock)
        log.info("dump_begun", low=int(low), tables=begun.tables)
        return begun

    def _earlier(self, begun: BaseBegun) -> Base | None:
        """The dump that tables are taken over from."""
        if begun.over is None:
            return None
        found = next((base for base in reversed(self._archive.bases(begun.low)) if base.begun == begun.over), None)
        if found is None:
            raise ConfigError(
                f"the dump of {show(begun.over)}, which this one takes tables from, is not there any more",
                hint=f"remove {layout.base_begun(begun.low)} from the archive, then dump everything",
            )
        return found

    def _extend(self, *, wait_s: float | None = None) -> Tso:
        """The archive reaches a ts that is taken now: every Pump has passed it, and what a read has met is below it.

        ``wait_s``: for so long and no more.
        """
        self._settle(wait_s)
        settings, deadline = self._settings, None
        if wait_s is not None:
            deadline = self._clock.monotonic() + wait_s
            archive = settings.archive.model_copy(update={"pull_timeout_s": wait_s, "ddl_wait_s": wait_s})
            settings = settings.model_copy(update={"archive": archive})
        ts = self._cluster.tso()
        if not self._extending.acquire(timeout=-1 if wait_s is None else wait_s):
            raise WindowHeld("another table took all the time")
        try:
            run_snapshot(self._archive, self._cluster, ts, settings, self._history, clock=self._clock)
        finally:
            self._extending.release()
        if deadline is not None and self._clock.monotonic() > deadline:
            raise WindowHeld("the archive was extended too late")
        return ts

    def _ours(self) -> set[str]:
        """Databases that are none of the source."""
        history = self._history.schema if isinstance(self._history, MysqlTableSource) else ""
        return {history, *parts_schemas(self._settings.written_to)}

    def _keep_objects(self, low: Tso) -> tuple[SourceObjects, str]:
        """What a copy of the source lacks, as text, and its digest; what another run has kept is as good."""
        with session(self._settings.source) as connection:
            found, unseen = read_objects(connection, {each.lower() for each in self._ours()})
        kept = SourceObjects(cluster_id=self._archive.cluster_id, begun=low, objects=tuple(found), unseen=tuple(unseen))
        key, data = layout.base_objects(low), kept.to_json()
        try:
            put_once(self._archive.store, key, data, lambda there: there == data, clock=self._clock)
        except ManifestConflict:
            data = self._archive.store.get(key)
            kept = SourceObjects.from_json(key, data)
        return kept, sha256(data)

    def _unknown_tables(self, view: ArchiveView, there: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """Of the tables that the source had at the begin, those that no job up to now ever named."""
        known = {version.name for versions in view.timeline.versions.values() for version in versions}
        ours = self._ours()
        return tuple(".".join(name) for name in there if name not in known and not ours & {name[0], name[0].lower()})

    # -- reading

    def _chunks(self, low: Tso) -> Iterator[BaseChunk]:
        folder = layout.base_begun(low).removesuffix("begun.json")
        for each in self._archive.store.list(folder):
            if each.key.endswith(".json") and each.key.count("/") > folder.count("/"):
                yield BaseChunk.from_json(each.key, self._archive.store.get(each.key))

    def _read(self, view: ArchiveView, dump_low: Tso, state: Survey) -> dict[str, str]:
        """Read what is missing, as the schema is at the view's end; names of tables that want another round."""
        self._settle(None)  # what is captured up to there may be hidden at the source
        now = {version.table.id: version for version in view.timeline.tables_at(view.end)}
        wanted = [now[each.table.id] for each in state.missing if each.table.id in now]
        self._rows = sum(table.rows for table in state.tables)
        self._rows += sum(chunk.rows for chunks in state.begun.values() for chunk in chunks)
        stop = threading.Event()
        writer = ChunkWriter(
            store=self._archive.store,
            dump_low=dump_low,
            source=self._settings.source,
            settings=self._settings.dump,
            throttle=self._throttle,
            tell=self._tell,
            stop=stop,
            keep=self._cluster.keep_readable if isinstance(self._cluster, KeepsReadable) else lambda _: nullcontext(),
        )

        def exact() -> Tso:
            return self._extend(wait_s=self._settings.dump.lock_wait_s)

        def read(version: TableVersion) -> tuple[str, str] | None:
            done = state.begun.get(version.table.id, ())
            try:
                writer.read_table(version, done[0].low if done else view.end, done, exact)
            except (TableChanged, SourceHeld) as changed:
                return f"{version.db}.{version.table.name}", str(changed)
            except Stopped:
                return None
            except SourceFailed as error:
                stop.set()
                name = ".".join(version.name)
                error.add_hint((f"if {name} alone cannot be read: ", *_without_hint(name)))
                raise
            except BaseException:
                stop.set()
                raise
            return None

        with ThreadPoolExecutor(self._settings.dump.connections, thread_name_prefix="dump") as pool:
            try:
                return dict(again for again in pool.map(read, wanted) if again is not None)
            except BaseException:
                stop.set()  # also for who stops the command: the readers end with their page
                raise

    def _tell(self, chunk: BaseChunk) -> None:
        with self._lock:
            self._rows += chunk.rows
            rows = self._rows
        self._progress(f"{chunk.db}.{chunk.table}", rows, max(self._estimate, rows))


def _pause_s(tried: int) -> float:
    """Longer each time: whoever waits for a lock of ours gets on in between."""
    return _PAUSE_S + tried / 2


def _without_hint(table: str) -> advice.Hint:
    """What to type so that a dump goes on without a table."""
    return "to dump the rest without it, ", advice.Rule("", table=table)


def _chosen(table: tuple[str, str], names: Sequence[str] | None) -> bool:
    """Whether a table (database, name) is read anew."""
    return names is None or f"{table[0]}.{table[1]}" in names or f"{table[0]}.*" in names


def _unknown(view: ArchiveView, names: Sequence[str]) -> list[str]:
    """Names that no table has."""
    tables = [version.name for version in view.timeline.tables_at(view.end)]
    return [name for name in names if not any(_chosen(table, (name,)) for table in tables)]


def _tables_of(connection: ServerConnection) -> list[tuple[str, str]]:
    rows = execute(
        connection,
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type NOT IN ('VIEW', 'SYSTEM VIEW')"
        " ORDER BY 1, 2",
    )
    return [(str(db), str(name)) for db, name in rows if not is_system(str(db))]


def _estimated_rows(connection: object) -> int:
    found = execute(
        connection,  # type: ignore[arg-type]
        "SELECT COALESCE(SUM(table_rows), 0) FROM information_schema.tables WHERE table_schema NOT IN"
        " ('mysql', 'information_schema', 'performance_schema', 'sys')",
    )
    return int(found[0][0])
