"""What the stack needs from the machine: ``python -m pumphouse.stack.system`` sees to it.

MariaDB and etcd come from Debian (no wheel ships a server). As root on a Debian they are installed; else one line says
what to type.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pumphouse.stack.supervisor import StackError

_PACKAGES = ("mariadb-server", "etcd-server")
_TYPE_THIS = "sudo apt-get install -y mariadb-server etcd-server"
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
        raise StackError("MariaDB is missing", hint=_TYPE_THIS)
    return found


def install_db() -> str:
    """Path of the program that makes a data directory."""
    found = find_program("mariadb-install-db", "mysql_install_db")
    if found is None:
        raise StackError("MariaDB is missing", hint=_TYPE_THIS)
    return found


def etcd() -> str:
    """Path of etcd's server."""
    found = find_program("etcd")
    if found is None:
        raise StackError("etcd is missing", hint=_TYPE_THIS)
    return found


def missing() -> tuple[str, ...]:
    """Debian packages whose programs are not there."""
    has_mariadb = find_program("mariadbd", "mysqld") and find_program("mariadb-install-db", "mysql_install_db")
    return tuple(
        package for package, there in zip(_PACKAGES, (has_mariadb, find_program("etcd")), strict=True) if not there
    )


def ensure() -> None:
    """Install what is missing when we are root on a Debian; else StackError with the line to type."""
    packages = missing()
    if not packages:
        return
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None:
        raise StackError(f"{' and '.join(packages)} missing on this machine", hint=_TYPE_THIS)
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
                raise StackError(f"{' '.join(command)} failed: {' '.join(text)}", hint=_TYPE_THIS)
    finally:
        if made:
            policy.unlink(missing_ok=True)
    still = missing()
    if still:
        raise StackError(f"{' and '.join(still)} cannot be found after installing", hint=_TYPE_THIS)


def main() -> int:
    """Entry point."""
    try:
        ensure()
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
