"""One captured stack for many histories: targets of either kind, kills of every part, a failover between two servers."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pymysql.connections import Connection

from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.session import position_now
from pumphouse.errors import UsageError
from pumphouse.loader.apart import server_name
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.runs import restore
from tests.stack.local import CAPTURE
from tests.stack.mariadb import MariaDbServer
from tests.stack.ports import free_port
from tests.stack.supervisor import StackError
from tests.support.capturedhistory import History
from tests.support.capturedstack import CapturedStack
from tests.support.capturing import arguments, rows_of, run
from tests.support.images import differences, image, looker
from tests.support.kind import is_mysql
from tests.support.mysql import MySqlServer

_CERTIFICATES = ("ca.pem", "server-cert.pem", "server-key.pem")
_READ_ONLY = "--read-only=ON"  # at a start: else there were two that take writes for a moment
_AGAIN = 3  # starts of a capture that comes no further


_LOST_ITS_WAY = ", 1032, "  # no row is there that a transaction changes: of some 300 histories it ends three so


class Refused(Exception):
    """The capture ends by name, and does so again when it is started again."""


class _Heir(MySqlServer):
    """It has the certificates of another server: one CA is named for all that may be the source."""

    of: MariaDbServer

    def _install(self) -> None:
        super()._install()
        for name in _CERTIFICATES:
            shutil.copy(self.of.data_dir / name, self.data_dir / name)


class CampaignStack(CapturedStack):
    """``into``: kind of both targets. ``heir``: a second server replicates the source, and may take its place."""

    def __init__(self, directory: Path, *, into: str, heir: bool, **settings: Any) -> None:
        if heir:
            self.history_server = "notes"
        super().__init__(directory, **settings)
        self.done: Counter[str] = Counter()
        made = {"mysql": MySqlServer, "mariadb": MariaDbServer}[into]
        for name in ("target", "restore"):
            self.databases[name] = made(self.directory / name, name=name, supervisor=self.supervisor)
        self._has_heir = heir
        if heir:
            self._add_heir()

    def _add_heir(self) -> None:
        how: dict[str, Any] = {"supervisor": self.supervisor, "durable": True}
        if is_mysql():
            made = _Heir(self.directory / "heir", name="heir", arguments=arguments(2), **how)
            made.of = self.databases["source"]
            self.databases["heir"] = made
        else:
            self.databases["heir"] = MariaDbServer(self.directory / "heir", name="heir", arguments=arguments(2), **how)
        self.databases["notes"] = MariaDbServer(self.directory / "notes", name="notes", supervisor=self.supervisor)
        for name in ("source", "heir"):  # one user for both
            (self.directory / name).mkdir(parents=True)
            (self.directory / name / "identity").write_text(f"{free_port()} secret-of-all\n")

    def start_stores(self, *, s3: bool | None = None) -> None:
        """The source comes first: the heir has its certificates."""
        if not self.databases["source"].attach():
            self.databases["source"].start()
        super().start_stores(s3=s3)
        if self._has_heir:
            self._replicate(self._position("source"))

    def write_settings(self) -> None:
        """The heir may take the source's place."""
        if self._has_heir:
            names = [self.databases[name].dsn for name in ("source", "heir")]
            self.settings["capture"]["hosts"] = [f"{each.host}:{each.port}" for each in names]
        super().write_settings()

    def open_source(self, **options: Any) -> Connection[Any]:
        """A session of the server that is the source now."""
        return self.databases["source"].connect(autocommit=True, **options)

    # -- replication

    def _on(self, name: str, *statements: str) -> None:
        with self.databases[name].connect(autocommit=True) as connection:
            run(connection, *statements)

    def _replicate(self, now: str) -> None:
        """From now on the heir has what the source has, of which it has all up to here; what it wrote by itself is its own."""
        source = self.databases["source"]

        def address(word: str) -> str:
            values = {"HOST": "'127.0.0.1'", "PORT": source.port, "USER": "'root'", "PASSWORD": f"'{source.password}'"}
            return ", ".join(f"{word}_{name} = {value}" for name, value in values.items())

        if is_mysql():
            self._on(
                "heir",
                "SET GLOBAL super_read_only = OFF",
                "RESET BINARY LOGS AND GTIDS",
                f"SET GLOBAL gtid_purged = '{now}'",
                "SET GLOBAL replica_parallel_workers = 1",  # several end now and then with a row that is not there yet
                f"CHANGE REPLICATION SOURCE TO {address('SOURCE')}, SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 1",
                "START REPLICA",
                "SET GLOBAL super_read_only = ON",
            )
        else:
            self._on(
                "heir",
                "RESET MASTER",
                f"SET GLOBAL gtid_slave_pos = '{now}'",
                f"CHANGE MASTER TO {address('MASTER')}, MASTER_USE_GTID = slave_pos",
                "START SLAVE",
                "SET GLOBAL read_only = ON",
            )

    def _position(self, name: str) -> str:
        with self.databases[name].connect(autocommit=True) as connection:
            return str(position_now(connection).gtids)

    def fail_over(self, history: History) -> None:
        """The source is killed between transactions; the heir, which has all of them, takes its place, and the old one the heir's."""
        with history.gate.closed():
            asked = "WAIT_FOR_EXECUTED_GTID_SET" if is_mysql() else "MASTER_GTID_WAIT"
            now = self._position("source")
            with self.databases["heir"].connect(autocommit=True) as connection:
                ((lacks,),) = rows_of(connection, f"SELECT {asked}('{now}', 60)")
                status = str(rows_of(connection, "SHOW REPLICA STATUS"))
            if lacks and is_mysql() and _LOST_ITS_WAY in status:
                self.done["a MySQL's replica that stopped by itself, made anew"] += 1
                print(status, flush=True)
                self._renew_heir()
            else:
                assert lacks == 0, f"the heir has not {now} within a minute: {status}"
            old, new = self.databases["source"], self.databases["heir"]
            self.kill_source()
            if is_mysql():
                self._on(
                    "heir",
                    "STOP REPLICA",
                    "RESET REPLICA ALL",
                    "SET GLOBAL super_read_only = OFF, GLOBAL read_only = OFF",
                )
            else:
                self._on("heir", "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
            self.databases["source"], self.databases["heir"] = new, old
        new.arguments = tuple(each for each in new.arguments if each != _READ_ONLY)
        old.arguments = (*old.arguments, _READ_ONLY)
        old.start()
        self._replicate(now)
        self.write_settings()

    def _renew_heir(self) -> None:
        """From the files of the source."""
        source, heir = self.databases["source"], self.databases["heir"]
        now = self._position("source")
        heir.stop()
        source.stop()
        shutil.rmtree(heir.data_dir)
        shutil.copytree(source.data_dir, heir.data_dir, ignore=shutil.ignore_patterns("auto.cnf", "*.sock*"))
        source.start()
        heir.start()
        self._replicate(now)

    # -- trouble

    def trouble(self, kind: str, history: History, rng: random.Random) -> None:
        """Something dies, and comes back."""
        self.done[f"killed: {kind}" if kind not in ("snapshot", "dump") else kind] += 1
        if kind == "capture":
            self._kill_capture()
            time.sleep(rng.random())
            self.start_capture()
        elif kind == "shadow":
            self._kill_shadow()
        elif kind == "pump":
            pump = rng.choice(self.pumps)
            pump.kill()
            time.sleep(rng.random())
            pump.start()
        elif kind == "source":
            with history.xa.killing:
                self.kill_source()
            time.sleep(rng.random())
            self.databases["source"].start()
        elif kind == "journal":
            self._kill_capture()
            self.lose_journal()
            self.start_capture()
        elif kind == "failover":
            self.fail_over(history)
        elif kind == "snapshot":
            self.snapshot()

    def _kill_capture(self) -> None:
        if self.supervisor.alive(CAPTURE):
            self.kill_capture()

    def _kill_shadow(self) -> None:
        pid = self.supervisor.pid(CAPTURE)
        with suppress(psutil.Error):
            for child in psutil.Process(pid).children() if pid else ():
                child.kill()

    def catch_up(self, *, timeout_s: float = 180.0) -> None:
        """Everything is captured. A capture that ends is started again, as a service manager does; Refused."""
        wanted = GtidSet.parse(self._position("source"), self._flavor())
        until, ended, last = time.monotonic() + timeout_s, 0, ""
        while True:
            record = self.capture_record()
            if record.gtid and GtidSet.parse(record.gtid, wanted.flavor).covers(wanted):
                return
            if time.monotonic() > until:
                raise StackError(f"not captured: {record}\n{self.supervisor.tail(CAPTURE, 40)}")
            if not self.supervisor.alive(CAPTURE):
                ended = ended + 1 if record.gtid == last else 1
                last = record.gtid
                if ended == _AGAIN:
                    raise Refused(record.reason)
                self.done[f"ended: {record.reason[:60]}"] += 1
                with suppress(StackError):  # it ends at once
                    self.start_capture()
            time.sleep(0.1)

    def _flavor(self) -> Any:
        with self.open_source() as connection:
            return position_now(connection).gtids.flavor

    # -- what is held against the source

    def restored_differs(self, gtid: str, kept: Any, databases: list[str]) -> list[str]:
        """What a restore to a GTID has otherwise than the source had."""
        settings = self.read_settings
        restore.run(settings, to=self._moment(gtid), replace=server_name(settings.restore_target), dry_run=False)
        with looker(self.dsn("restore")) as looking:
            return differences(kept, image(looking, databases))

    def _moment(self, gtid: str) -> Tso:
        with Parts(self.read_settings) as parts:
            try:
                return parts.moment(f"gtid {gtid}").ts
            except UsageError as error:  # the last transaction changed nothing that is captured
                _, _, same = str(error).partition("the same state: gtid ")
                if not same:
                    raise
                self.done["a GTID that is no moment"] += 1
                return parts.moment(f"gtid {same.split(',')[0]}").ts
