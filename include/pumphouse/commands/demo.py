"""``pumphouse demo``: the local stack; run it checked from end to end, start it to stay, end it."""

from __future__ import annotations

import json
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pumphouse.stack.local import LocalStack

BUILD = Path("build")
_build = click.option(
    "--build", type=click.Path(path_type=Path), default=BUILD, show_default=True, help="Directory for all files."
)


@click.group()
def demo() -> None:
    """The whole product on this machine, without a container engine."""


@contextmanager
def _locked(stack: LocalStack) -> Iterator[None]:
    stack.lock()
    try:
        yield
    finally:
        stack.unlock()


def _end_on_sigterm() -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@demo.command()
@_build
@click.option("--keep", is_flag=True, help="Leave everything running at the end; `pumphouse demo down` ends it.")
@click.option("--transactions", default=20_000, show_default=True, help="Minimum number of transactions.")
@click.option("--rate", default=140.0, show_default=True, help="Transactions a second.")
@click.option("--limit-s", default=1800.0, show_default=True, help="Give up after this many seconds.")
@click.option(
    "--seed", type=int, help="Seed of an earlier run: decides where loads are held and killed. [default: a new one]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(
    build: Path, keep: bool, transactions: int, rate: float, limit_s: float, seed: int | None, as_json: bool
) -> None:
    """Run everything for some minutes and check it end to end; exit code 0 only if every check passes."""
    from pumphouse.demo.run import Demo, DemoSize, summary, write_up
    from pumphouse.demo.say import Say
    from pumphouse.demo.up import end
    from pumphouse.stack import system
    from pumphouse.stack.local import LocalStack

    system.ensure()
    _end_on_sigterm()
    say = Say()
    stack = LocalStack(build / "demo")
    up_file = build / "up.json"
    with _locked(stack):
        end(stack, up_file)
        stack.clear()
        done = False
        try:
            size = DemoSize(
                transactions=transactions,
                rows=int(transactions * 7.5),
                rate=rate,
                limit_s=limit_s,
                seed=secrets.randbelow(1_000_000) if seed is None else seed,
            )
            outcome = Demo(stack, say, size).run()
            done = True
        finally:
            if done and keep:
                write_up(stack, up_file)
            else:
                if not done:
                    say(f"what each process said: {stack.supervisor.run_dir}; each task: {stack.airflow.home / 'logs'}")
                say("ending every process …")
                stack.stop()
    rows = summary(outcome, say.elapsed_s)
    if as_json:
        click.echo(json.dumps({name: str(value) for name, value in rows}, indent=2))
    else:
        say.table("Everything holds.", rows)
    if keep:
        click.echo(f"\nstill running: {stack.airflow.url} (login in {up_file}); end it with `make down`")


@demo.command()
@_build
@click.option("--json", "as_json", is_flag=True, help="Print what up.json holds.")
def up(build: Path, as_json: bool) -> None:
    """Start the stack to stay, with a slow workload and the UI; an archive of an earlier `up` goes on.

    On a running stack, it starts missing parts, such as a killed Pump, and leaves the rest alone.
    """
    from pumphouse.demo import up as stay
    from pumphouse.demo.say import Say
    from pumphouse.stack import system

    system.ensure()
    _end_on_sigterm()
    up_file = build / "up.json"
    stack = stay.up_stack(build / "up")
    with _locked(stack):
        found = stay.running(stack, up_file)
        if found is None:
            ran = stay.runs(stack)
            try:
                found = stay.start(stack, Say(error=as_json), up_file)
            except BaseException:
                # What ran before goes on: `demo down` ends it.
                if not ran:
                    stay.end(stack, up_file)
                raise
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"Airflow {found['airflow']['url']}, user {found['airflow']['user']}; all addresses: {up_file}")


@demo.command()
@_build
@click.option("--purge", is_flag=True, help="Also remove the data.")
def down(build: Path, purge: bool) -> None:
    """End what `demo up` or `demo run --keep` started. No error if nothing runs."""
    from pumphouse.demo import up as stay
    from pumphouse.stack.local import LocalStack

    up_file = build / "up.json"
    names = []
    for name in ("up", "demo"):
        if not (build / name).is_dir():
            continue
        stack = LocalStack(build / name)
        with _locked(stack):
            names += stay.end(stack, up_file)
            if purge:
                stack.clear()
    click.echo(f"ended {', '.join(names)}" if names else "nothing was running", file=sys.stderr)
