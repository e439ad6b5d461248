"""The shop (deploy/shop) on a stack: its processes, its DDL, and what it has done.

Where the stack captures its source, the shop speaks SQL alone; else it writes binlogs, by a bad network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pumphouse.registry.resolvers import is_live
from tests.e2e.scenario import Step
from tests.stack.local import CAPTURE, LocalStack
from tests.stack.supervisor import StackError

RESOLVER = "resolver"
# Transactions a second, when what was to be done is done and others want the machine.
_WALK = 10.0
_SOLD = '{"transactions"'


class Workload:
    """What changes the source of a stack."""

    def __init__(self, stack: LocalStack, *, processes: int = 2, threads: int = 3, rate: float = 0.0) -> None:
        self.stack = stack
        self.processes = processes
        self.threads = threads
        self.rate = rate
        self.plain = stack.captures
        self.module = "deploy.shop" if self.plain else "tests.e2e.trouble"
        self.writer_names = [f"writer-{number}" for number in range(1, processes + 1)]
        self.ddl_done: list[str] = []
        self.ddl_error: BaseException | None = None
        self.turn = threading.Lock()  # of whoever lets no DDL begin
        self._walks = False
        self._ddl: threading.Thread | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Where the shop's server is, and the settings of `pumphouse schema import`."""
        source = self.stack.dsn("source")
        server = {"SHOP_HOST": source.host, "SHOP_PORT": str(source.port), "SHOP_PASSWORD": source.password}
        return {**server, "PUMPHOUSE_CONFIG": str(self.stack.config)}

    def open(self, *, customers: int = 600) -> None:
        """Make the shop, once."""
        self._shop("open", "--customers", str(customers), *self._client)

    @property
    def _client(self) -> tuple[str, ...]:
        return () if self.plain else ("--client",)

    def start_resolver(self) -> None:
        """Start who answers the Pumps, and wait until it is registered."""
        supervisor, cluster = self.stack.supervisor, self.stack.cluster
        if supervisor.alive(RESOLVER):
            return
        command = [sys.executable, "-m", "deploy.shop", "answer", self.stack.cluster_url]
        supervisor.start(RESOLVER, command, env=self.environment)

        def answers() -> bool:
            return any(is_live(each, time.time()) for each in cluster.resolvers())

        supervisor.wait_until(RESOLVER, answers, timeout_s=180)

    def start_writers(self) -> None:
        """Start the writers that do not run; they begin at once."""
        for name in self.writer_names:
            if not self.stack.supervisor.alive(name):
                self._start(name, self.rate / self.processes)

    def _start(self, name: str, rate: float) -> None:
        options = ["--threads", str(self.threads), "--rate", str(rate)]
        if not self.plain:
            options.append(self.stack.cluster_url)
        self.stack.supervisor.start(name, [sys.executable, "-m", self.module, "sell", *options], env=self.environment)

    def check(self) -> None:
        """StackError when a writer has ended by itself, or a DDL failed."""
        for name in (*self.writer_names, CAPTURE if self.plain else RESOLVER):
            if not self.stack.supervisor.alive(name):
                raise StackError(f"{name} has ended:\n{self.stack.supervisor.tail(name)}")
        self.check_ddl()

    def counts(self) -> Counter[str]:
        """What has become of transactions so far, as the writers say each second."""
        found: Counter[str] = Counter()
        for path in self.stack.supervisor.run_dir.glob("writer-*.log"):
            lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith(_SOLD)]
            if lines:
                said = json.loads(lines[-1])
                found.update({name: said[name] for name in ("transactions", "rows", "rolled back")})
        return found

    def start_ddl(self, steps: Sequence[Step], over_s: float, told: Callable[[str], None]) -> None:
        """Run the steps in a thread, spread over so many seconds."""
        self._ddl = threading.Thread(target=self._run_ddl, args=(steps, over_s, told), name="ddl", daemon=True)
        self._ddl.start()

    def wait_ddl(self, timeout_s: float) -> None:
        """Wait until every step is done."""
        if self._ddl is not None:
            self._ddl.join(timeout_s)
            if self._ddl.is_alive():
                raise StackError(f"the DDLs have not ended after {timeout_s:.0f} s")
        self.check_ddl()

    def check_ddl(self) -> None:
        """StackError when a DDL failed."""
        if self.ddl_error is not None:
            raise StackError(f"a DDL of the shop failed: {self.ddl_error}") from self.ddl_error

    def slow_down(self) -> None:
        """Let one writer go on at a walk; the others end."""
        if not self._walks:
            self._walks = True
            self.stop_writers()
            self.writer_names = ["writer-slow"]
            self._start("writer-slow", _WALK)

    def stop_writers(self) -> None:
        """End the writers after their transactions under way."""
        for name in self.writer_names:
            self.stack.supervisor.stop(name, timeout_s=120)

    def run_ddl(self, step: Step, told: Callable[[str], None]) -> None:
        """Run this step now; for any thread."""
        with self.turn:
            self._shop("change", *step.statements.values(), *step.told, *self._client)
        self.ddl_done += step.statements
        told(", ".join(step.statements))

    def _run_ddl(self, steps: Sequence[Step], over_s: float, told: Callable[[str], None]) -> None:
        began = time.monotonic()
        try:
            for number, step in enumerate(steps):
                due = began + over_s * (number + 0.5) / len(steps)
                time.sleep(max(0.0, due - time.monotonic()))
                self.run_ddl(step, told)
        except BaseException as error:
            self.ddl_error = error

    def _shop(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "deploy.shop", *words],
            env={**os.environ, **self.environment},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise StackError(f"the shop: {' '.join(words)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
