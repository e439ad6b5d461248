"""A real MySQL for tests, beside MariaDB: ``python -m tests.support.mysql`` makes its programs in build/mysql.

Debian's stable has none, so the programs are those of Debian's unstable, with their libraries, in a root file system of
their own that debootstrap makes (root; a minute, 650 MB). They run from there by its own dynamic loader: nothing of the
machine is changed, and their data lies where the test says. `tests.support.kind` knows whether it is there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pumphouse.durable import write_atomic
from pumphouse.mysql.dsn import Dsn
from tests.stack import system
from tests.stack.mariadb import MariaDbServer
from tests.stack.once import copy_once_made, stamp
from tests.stack.supervisor import StackError
from tests.support.kind import MYSQL_PROGRAM, MYSQL_ROOT

_SMALL = (
    "--innodb-buffer-pool-size=128M",
    "--innodb-redo-log-capacity=64M",
    "--key-buffer-size=1M",
    "--max-allowed-packet=1G",
    "--table-open-cache=400",
    "--mysqlx=OFF",
)


class MySqlServer(MariaDbServer):
    """What `MariaDbServer` is, with a MySQL."""

    @property
    def dsn(self) -> Dsn:
        """Where root gets in, by TLS: the server takes no digest of a password that it has not seen yet."""
        return replace(super().dsn, tls_ca=str(self.data_dir / "ca.pem"), tls_check_name=False)

    def _install(self) -> None:
        if (self.data_dir / "mysql").is_dir():
            return
        names = [each for each in self.arguments if each.startswith("--lower-case-table-names")]  # never changed later

        def make(at: Path) -> None:
            done = subprocess.run(
                [*_command(at), "--initialize-insecure", "--innodb-redo-log-capacity=8M", *names],
                check=False,
                capture_output=True,
                text=True,
                env=self._env(),
            )
            if done.returncode:
                raise StackError(f"no MySQL data directory could be made: {(done.stderr or done.stdout)[-600:]}")
            (at / "auto.cnf").unlink(missing_ok=True)  # a server's own id, which it makes itself at its first start

        copy_once_made("mysql", self.data_dir, make, of=(stamp(str(MYSQL_PROGRAM)), *names))

    def _start_once(self) -> None:
        init = self.directory / "init.sql"
        secret = self.password.replace("'", "")
        # The user by its socket is the one that there is from the beginning; a restart changes nothing.
        write_atomic(
            init,
            (
                f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{secret}';\n"
                f"CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '{secret}';\n"
                "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
            ).encode(),
            mode=0o600,
        )
        self.supervisor.start(
            self.name,
            [
                *_command(self.data_dir),
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--socket={self._socket()}",
                f"--pid-file={self.directory / 'mysqld.pid'}",
                f"--init-file={init}",
                "--secure-file-priv=NULL",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--local-infile=1",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_bin",
                *_SMALL,
                *(() if self.durable else ("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF")),
                *self.arguments,
            ],
            env=self._env(),
        )
        self.supervisor.wait_until(self.name, self._answers, timeout_s=180)


def _command(data: Path) -> list[str]:
    """The server by the loader and with the libraries of its own root file system."""
    loader = next(iter(sorted(MYSQL_ROOT.glob("usr/lib*/ld-linux-*.so.*"))), None) or next(
        MYSQL_ROOT.glob("usr/lib/ld-*.so.*")
    )
    libraries = ":".join(str(path) for path in sorted(MYSQL_ROOT.glob("usr/lib/*-linux-gnu*")))
    user = ("--user=root",) if os.geteuid() == 0 else ()
    return [
        str(loader), "--library-path", libraries, str(MYSQL_PROGRAM), "--no-defaults", f"--basedir={MYSQL_ROOT / 'usr'}",
        f"--datadir={data}", *user,
    ]  # fmt: skip


def mysqld(path: Path) -> Path:
    """A program at a path that is this MySQL's server, for whoever starts one himself."""
    loader, option, libraries, program, _, base, *_ = _command(path)
    words = shlex.join([loader, option, libraries, program])
    write_atomic(path, f'#!/bin/sh\nexec {words} "$@" {shlex.quote(base)}\n'.encode(), mode=0o700)
    return path


def make() -> None:
    """The programs, where they are missing; StackError where this machine cannot."""
    if MYSQL_PROGRAM.exists():
        return
    program = system.find_program("debootstrap")
    if program is None or os.geteuid() != 0:
        raise StackError(
            "a MySQL for tests is made by root with debootstrap, from Debian's packages",
            hint="as root: apt-get install -y debootstrap; then again. Tests that need it are skipped",
        )
    print("making a MySQL in build/mysql: a minute or two, without a word", file=sys.stderr, flush=True)
    # One that was killed leaves half a file system: it is made aside and renamed.
    aside = MYSQL_ROOT.with_name("root.new")
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    done = subprocess.run(
        [program, "--variant=minbase", "--include=mysql-server-core", "sid", str(aside), _mirror()],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise StackError(f"debootstrap failed: {' '.join((done.stderr or done.stdout).splitlines()[-3:])}")
    aside.rename(MYSQL_ROOT)


def _mirror() -> str:
    """Where this machine's apt has its packages from."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        check=False,
        capture_output=True,
        text=True,
    )
    sites = [line for line in done.stdout.splitlines() if re.search(r"/debian/?$", line)]
    if not sites:
        raise StackError("apt names no mirror of Debian", hint="`apt-get indextargets` lists what it reads")
    return sites[0]


def main() -> int:
    """Entry point; ``--optional``: a machine that cannot is no error."""
    try:
        make()
    except StackError as error:
        print(error, file=sys.stderr)
        return 0 if "--optional" in sys.argv[1:] else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
