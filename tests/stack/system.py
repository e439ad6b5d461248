"""What the stack needs from the machine: ``python -m tests.stack.system [--browser]`` sees to it.

MariaDB, PostgreSQL (Airflow's database) and etcd come from Debian (no wheel ships a server). So does what tests need:
Chromium, which walks through Airflow's pages, and Prometheus, which evaluates the dashboard. As root on a Debian they
are installed; else one line says what to type.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.stack.supervisor import StackError

_SERVERS = ("mariadb-server", "etcd-server", "postgresql")
_BROWSER = ("chromium", "chromium-driver", "prometheus")
TYPE_THIS = f"sudo apt-get install -y {' '.join((*_SERVERS, *_BROWSER))}"
# Where Debian keeps the programs of PostgreSQL, one directory a version.
_POSTGRES = Path("/usr/lib/postgresql")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ELSEWHERE = (Path("/usr/sbin"), Path("/usr/local/sbin"), Path("/usr/local/bin"), Path("/opt/homebrew/bin"))


def find_program(*names: str) -> str | None:
    """Path of the first program that exists; the sbin directories are searched too."""
    for name in names:
        found = shutil.which(name)
        if found:
            return found
        for directory in _ELSEWHERE:
            if os.access(directory / name, os.X_OK):
                return str(directory / name)
    return None


def mariadbd() -> str:
    """Path of the server; StackError says what to type when it is missing."""
    found = find_program("mariadbd", "mysqld")
    if found is None:
        raise StackError("MariaDB is missing", hint=TYPE_THIS)
    return found


def install_db() -> str:
    """Path of the program that makes a data directory."""
    found = find_program("mariadb-install-db", "mysql_install_db")
    if found is None:
        raise StackError("MariaDB is missing", hint=TYPE_THIS)
    return found


def etcd() -> str:
    """Path of etcd's server."""
    found = find_program("etcd")
    if found is None:
        raise StackError("etcd is missing", hint=TYPE_THIS)
    return found


def postgres(program: str) -> str:
    """Path of a program of PostgreSQL (``postgres``, ``initdb``), of the newest version that is installed."""
    versions = sorted(_POSTGRES.glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]), reverse=True)
    found = next((str(path) for path in versions if os.access(path, os.X_OK)), None) or find_program(program)
    if found is None:
        raise StackError("PostgreSQL is missing", hint=TYPE_THIS)
    return found


def chromium() -> tuple[str, str]:
    """Paths of the browser and of its driver."""
    browser, driver = find_program(*_BROWSERS), find_program("chromedriver")
    if browser is None or driver is None:
        raise StackError("Chromium or its driver is missing", hint=TYPE_THIS)
    return browser, driver


def missing(*, browser: bool = False) -> tuple[str, ...]:
    """Debian packages whose programs are not there; those of the tests' ``browser`` too when asked."""
    has_mariadb = find_program("mariadbd", "mysqld") and find_program("mariadb-install-db", "mysql_install_db")
    has_postgres = any(_POSTGRES.glob("*/bin/initdb")) or find_program("initdb")
    wanted = dict(zip(_SERVERS, (has_mariadb, find_program("etcd"), has_postgres), strict=True))
    if browser:
        wanted |= zip(
            _BROWSER, (find_program(*_BROWSERS), find_program("chromedriver"), find_program("prometheus")), strict=True
        )
    return tuple(package for package, found in wanted.items() if not found)


def ensure(*, browser: bool = False) -> None:
    """Install what is missing when we are root on a Debian; else StackError with the line to type."""
    packages = missing(browser=browser)
    if not packages:
        return
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None:
        raise StackError(f"{' and '.join(packages)} missing on this machine", hint=TYPE_THIS)
    print(f"installing {' and '.join(packages)} …", flush=True)
    # A package's server must not start: it is a machine's service, ours are started by ourselves.
    policy = Path("/usr/sbin/policy-rc.d")
    made = not policy.exists()
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        if made:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        for command in (
            [apt, "-qq", "-o", "DPkg::Lock::Timeout=300", "update"],
            [apt, "-qq", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", *packages],
        ):
            done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
            if done.returncode:
                text = (done.stderr or done.stdout).strip().splitlines()[-3:]
                raise StackError(f"{' '.join(command)} failed: {' '.join(text)}", hint=TYPE_THIS)
    finally:
        if made:
            policy.unlink(missing_ok=True)
    still = missing(browser=browser)
    if still:
        raise StackError(f"{' and '.join(still)} cannot be found after installing", hint=TYPE_THIS)


def main() -> int:
    """Entry point; ``--browser``: what the tests need too."""
    try:
        ensure(browser="--browser" in sys.argv[1:])
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
