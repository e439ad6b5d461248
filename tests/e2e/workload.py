"""The application as the demo starts it: resolver and writers as processes, DDL from a thread of ours."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pumphouse.client.pump_client import PumpClient
from pumphouse.demo.ddl import DdlEngine
from pumphouse.demo.scenario import NamedStep
from pumphouse.demo.writer import SLOW
from pumphouse.registry.resolvers import is_live
from tests.stack.local import LocalStack
from tests.stack.supervisor import StackError

RESOLVER = "resolver"


class Workload:
    """What changes the source of a stack. ``directory`` holds catalog, gate and counts."""

    def __init__(self, stack: LocalStack, *, processes: int = 2, threads: int = 3, rate: float = 0.0) -> None:
        self.stack = stack
        self.directory = stack.directory / "application"
        self.processes = processes
        self.threads = threads
        self.rate = rate
        self.ddl_done: list[tuple[str, int]] = []
        self.ddl_error: BaseException | None = None
        self._stop_ddl = threading.Event()
        self._ddl: threading.Thread | None = None

    @property
    def writer_names(self) -> list[str]:
        """Names of the writer processes."""
        return [f"writer-{number}" for number in range(1, self.processes + 1)]

    def start_resolver(self) -> None:
        """Start who answers the Pumps, and wait until it is registered."""
        supervisor, cluster = self.stack.supervisor, self.stack.cluster
        if supervisor.alive(RESOLVER):
            return
        self._start(RESOLVER, ["pumphouse.demo.resolver", "--cluster", self.stack.cluster_url])

        def answers() -> bool:
            return any(is_live(each, time.time()) for each in cluster.resolvers())

        supervisor.wait_until(RESOLVER, answers, timeout_s=180)

    def start_writers(self) -> None:
        """Start the writers that do not run; they begin at once."""
        for number, name in enumerate(self.writer_names, start=1):
            if self.stack.supervisor.alive(name):
                continue
            options = {
                "directory": self.directory,
                "name": name,
                "cluster": self.stack.cluster_url,
                "threads": self.threads,
                "rate": self.rate / self.processes,
                "seed": number,
            }
            arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
            self._start(name, ["pumphouse.demo.writer", *arguments])

    def check(self) -> None:
        """StackError when a writer has ended by itself, or a DDL failed."""
        for name in (*self.writer_names, RESOLVER):
            if not self.stack.supervisor.alive(name):
                raise StackError(f"{name} has ended:\n{self.stack.supervisor.tail(name)}")
        if self.ddl_error is not None:
            raise StackError(f"a DDL of the demo failed: {self.ddl_error}") from self.ddl_error

    def counts(self) -> Counter[str]:
        """What all writers did so far."""
        total: Counter[str] = Counter()
        for path in (self.directory / "writers").glob("*.json"):
            body: dict[str, Any] = json.loads(path.read_bytes())
            total.update({name: value for name, value in body.items() if not name.startswith("added_")})
        return total

    def added_ms(self) -> tuple[float, float]:
        """Median and 99th percentile of what the P added to a transaction: the worst writer's."""
        found = [json.loads(path.read_bytes()) for path in (self.directory / "writers").glob("*.json")]
        return max((b["added_ms_p50"] for b in found), default=0.0), max(
            (b["added_ms_p99"] for b in found), default=0.0
        )

    def start_ddl(self, steps: Sequence[NamedStep], over_s: float, told: Callable[[str], None]) -> None:
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
            raise StackError(f"a DDL of the demo failed: {self.ddl_error}") from self.ddl_error

    def stop_ddl(self) -> None:
        """Leave the steps that have not begun."""
        self._stop_ddl.set()
        if self._ddl is not None:
            self._ddl.join(30)

    def slow_down(self) -> None:
        """Let the writers go on at a walk: what they had to do is done, and others want the machine."""
        (self.directory / SLOW).touch()

    def stop_writers(self) -> None:
        """End the writers after their transactions under way; their last counts are written."""
        for name in self.writer_names:
            self.stack.supervisor.stop(name, timeout_s=120)

    def _start(self, name: str, module: list[str]) -> None:
        environment = {"PUMPHOUSE_DEMO_SOURCE": str(self.stack.dsn("source"))}
        self.stack.supervisor.start(name, [sys.executable, "-m", *module], env=environment)

    def run_ddl(self, steps: Sequence[NamedStep], told: Callable[[str], None]) -> None:
        """Run these steps now; for any thread."""
        with self._ddl_engine() as engine:
            for named in steps:
                self._run_step(engine, named, told)

    def _run_ddl(self, steps: Sequence[NamedStep], over_s: float, told: Callable[[str], None]) -> None:
        began = time.monotonic()
        try:
            with self._ddl_engine() as engine:
                for number, named in enumerate(steps):
                    due = began + over_s * (number + 0.5) / len(steps)
                    if self._stop_ddl.wait(max(0.0, due - time.monotonic())):
                        return
                    self._run_step(engine, named, told)
        except BaseException as error:
            self.ddl_error = error

    def _run_step(self, engine: DdlEngine, named: NamedStep, told: Callable[[str], None]) -> None:
        job = engine.run(named.step, pause_s=1.0)
        self.ddl_done.append((named.name, int(job["id"])))
        told(named.name)

    @contextmanager
    def _ddl_engine(self) -> Iterator[DdlEngine]:
        client = PumpClient(self.stack.cluster)
        engine = DdlEngine(
            directory=self.directory, source=self.stack.dsn("source"), cluster=self.stack.cluster, client=client
        )
        try:
            yield engine
        finally:
            engine.close()
            client.close()


def application_directory(stack: LocalStack) -> Path:
    """Where a stack's application keeps catalog and gate."""
    return stack.directory / "application"
