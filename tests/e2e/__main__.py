"""``make demo``, ``make up``, ``make down``: ``python -m tests.e2e run|up|down``."""

from __future__ import annotations

import json
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pumphouse.errors import BinlogError
from pumphouse.log import configure_logging
from tests.e2e import up as stay
from tests.e2e.say import Say
from tests.e2e.story import Demo, DemoSize, summary, write_up
from tests.stack import system
from tests.stack.local import LocalStack

_build = click.option(
    "--build",
    type=click.Path(path_type=Path),
    default=Path("build"),
    show_default=True,
    help="Directory for all files.",
)


@click.group()
def main() -> None:
    """The whole product on this machine, without a container engine."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    configure_logging("warning")


@contextmanager
def _locked(stack: LocalStack) -> Iterator[None]:
    stack.lock()
    try:
        yield
    finally:
        stack.unlock()


@main.command()
@_build
@click.option("--keep", is_flag=True, help="Leave everything running at the end; `make down` ends it.")
@click.option(
    "--seed", type=int, help="Seed of an earlier run: decides where loads are held and killed. [default: a new one]"
)
def run(build: Path, keep: bool, seed: int | None) -> None:
    """Run everything for some minutes and check it end to end; exit code 0 only if every check passes."""
    system.ensure()
    say = Say()
    stack = LocalStack(build / "demo", capture=True)
    up_file = build / "up.json"
    with _locked(stack):
        stay.end(stack, up_file)
        stack.clear()
        done = False
        try:
            outcome = Demo(stack, say, DemoSize(seed=secrets.randbelow(1_000_000) if seed is None else seed)).run()
            done = True
        finally:
            if done and keep:
                write_up(stack, up_file)
            else:
                if not done:
                    say(f"what each process said: {stack.supervisor.run_dir}; each task: {stack.airflow.home / 'logs'}")
                say("ending every process …")
                stack.stop()
    say.table("Everything holds.", summary(outcome, say.elapsed_s))
    if keep:
        click.echo(f"\nstill running: {stack.airflow.url} (login in {up_file}); end it with `make down`")


@main.command()
@_build
@click.option("--json", "as_json", is_flag=True, help="Print what up.json holds.")
def up(build: Path, as_json: bool) -> None:
    """Start the stack to stay, with a slow workload and the UI; an archive of an earlier `up` goes on.

    On a running stack, it starts missing parts, such as a killed Pump, and leaves the rest alone.
    """
    system.ensure()
    up_file = build / "up.json"
    stack = stay.up_stack(build / "up")
    with _locked(stack):
        found = stay.running(stack, up_file)
        if found is None:
            ran = stay.runs(stack)
            try:
                found = stay.start(stack, Say(error=as_json), up_file)
            except BaseException:
                # What ran before goes on: `make down` ends it.
                if not ran:
                    stay.end(stack, up_file)
                raise
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"Airflow {found['airflow']['url']}, user {found['airflow']['user']}; all addresses: {up_file}")


@main.command()
@_build
def down(build: Path) -> None:
    """End what `up` or `run --keep` started. No error if nothing runs."""
    up_file = build / "up.json"
    names = []
    for name in ("up", "demo"):
        if not (build / name).is_dir():
            continue
        stack = LocalStack(build / name)
        with _locked(stack):
            names += stay.end(stack, up_file)
    click.echo(f"ended {', '.join(names)}" if names else "nothing was running", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except BinlogError as error:
        sys.exit(str(error))
