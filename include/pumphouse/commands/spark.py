"""``pumphouse spark``: our code for a Spark cluster."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.group()
def spark() -> None:
    """Package our code for a Spark cluster."""


@spark.command("package")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("build/pumphouse-spark.zip"),
    show_default=True,
    help="File to write.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def package(output: Path, as_json: bool) -> None:
    """Write our code, with compiled kernels, as one file for workers that have the packages of locks/spark.lock."""
    from spark_tasks.jobs import load
    from spark_tasks.package import build, code_conf

    path = build(output.absolute())
    conf, job = code_conf(path), Path(str(load.__file__))
    if as_json:
        click.echo(json.dumps({"path": str(path), "bytes": path.stat().st_size, "conf": conf, "job": str(job)}))
        return
    click.echo(f"{path}: {path.stat().st_size:,} bytes")
    click.echo(f"  pumphouse and DAGs:  [spark] package = {json.dumps(str(path))}")
    flags = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    click.echo(f"  spark-submit:        spark-submit --master spark://HOST:7077 {flags} {job}")
    click.echo(f"  a Connect server:    start-connect-server.sh --master spark://HOST:7077 {flags}")
