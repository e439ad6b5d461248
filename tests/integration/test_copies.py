"""Copies of an archive as a user has them: commands, a real S3 server, kill -9, and restores from the copy (row A5)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.retention import Policy
from pumphouse.archive.verify import verify
from pumphouse.cli import cli
from pumphouse.errors import ConfigError, StoreError, UsageError
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import show
from pumphouse.objectstore.open import open_store
from pumphouse.runs import copy, expire, proof
from pumphouse.settings import ArchiveSettings, Settings
from pumphouse.status.look import look
from tests.stack.s3 import S3Server as Elsewhere
from tests.stack.supervisor import Supervisor
from tests.support import formats
from tests.support.agedarchive import Aged, grown
from tests.support.bases import folded
from tests.support.dumpedsource import DumpedSource
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, target_rows
from tests.support.mariadb import as_lines
from tests.support.motoserver import s3_server

pytestmark = [pytest.mark.row("A5"), pytest.mark.usefixtures("target")]
SOURCE = DumpedSource
_CHILD = (
    "import sys; from pumphouse.cli import cli; import boto3, pumphouse.runs.copy; print('ready', flush=True); cli()"
)


@pytest.fixture
def made(source: MadeSource) -> Aged:
    assert isinstance(source, DumpedSource)
    found = grown(source, rounds=2)
    folded(source)
    return found


def written(tmp_path: Path, settings: Settings) -> Path:
    """As a settings file."""
    of = settings.archive
    path = tmp_path / "pumphouse.toml"
    path.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{of.root}"\ns3_endpoint = "{of.s3_endpoint}"\n'
        f's3_access_key = "{of.s3_access_key}"\ns3_secret_key = "{of.s3_secret_key.get_secret_value()}"\n[load]\n'
        f'engine = "local"\n[target]\n{as_lines(settings.target)}'
    )
    return path


def command(tmp_path: Path, settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--config", str(written(tmp_path, settings)), *words])


def at(settings: ArchiveSettings, root: str, cluster_id: int) -> Archive:
    return Archive.open(settings.model_copy(update={"root": root}), cluster_id)


def every_moment_restored(made: Aged, settings: Settings, root: str, target: TargetConnection) -> None:
    there = settings.model_copy(update={"archive": settings.archive.model_copy(update={"root": root})})
    for moment, rows in made.moments:
        restored(there, to=moment, dry_run=False, task="apply")
        assert target_rows(target) == rows, show(moment)


def objects(archive: Archive) -> dict[str, bytes]:
    return {each.key: archive.store.get(each.key) for each in archive.store.list("") if "probe/" not in each.key}


@pytest.mark.parametrize("kind", ["file", "s3"])
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_killed_by_9_at_any_moment_it_goes_on_and_every_moment_is_restored_from_the_copy(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path, kind: str, kills: int
) -> None:
    rng, cluster_id = random.Random(kills), made.source.cluster_id
    with s3_server() as server:
        root = f"file://{tmp_path}/copy"
        if kind == "s3":
            of = server.archive_settings()
            for key, data in objects(made.source.archive).items():
                open_store(of).put(f"{cluster_id}/{key}", data)
            settings, root = settings.model_copy(update={"archive": of}), f"{of.root}-copy"
        words = ["--config", str(written(tmp_path, settings)), "archive", "copy", root]
        killed = 0
        for turn in range(kills):
            child = subprocess.Popen([sys.executable, "-c", _CHILD, *words], stdout=subprocess.PIPE, cwd=tmp_path)
            assert child.stdout is not None
            with child.stdout:
                assert child.stdout.readline() == b"ready\n"
                # The first ones early: a whole copy takes less where nothing else runs.
                time.sleep(rng.random() * turn / kills * (0.5 if kind == "file" else 2.5))
                child.send_signal(signal.SIGKILL)
                killed += child.wait() == -signal.SIGKILL
            reached = at(settings.archive, root, cluster_id)
            if reached.begun():
                assert [each.what for each in verify(reached, deep=False).problems] == []
        assert killed
        done = copy.run(settings, root)
        archive, there = at(settings.archive, settings.archive.root, cluster_id), at(settings.archive, root, cluster_id)
        assert done.end == there.end() == archive.end()
        ours, theirs = objects(archive), objects(there)
        assert theirs.pop(layout.COPY)
        assert {key: ours[key] for key in theirs} == theirs
        assert {key for key in ours.keys() - theirs.keys() if not key.startswith("schema/")} == set()
        assert verify(there).problems == []
        assert copy.run(settings, root).objects == 0
        every_moment_restored(made, settings, root, target)


def test_the_commands_say_how_far_the_copy_is_and_nobody_takes_it_for_the_archive(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    root, last = f"file://{tmp_path}/there/copy", made.source.archive.end()
    nowhere = command(tmp_path, settings, "archive", "copy")
    assert isinstance(nowhere.exception, UsageError)
    dry = command(tmp_path, settings, "archive", "copy", root, "--dry-run")
    assert "there is no copy of" in dry.output
    assert not (tmp_path / "there").exists(), "a dry run makes nothing"
    first = command(tmp_path, settings, "archive", "copy", root, "--json")
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    formats.check("copy-output", found)
    assert (found["was_ts"], found["end_ts"]) == (None, last)
    with made.source.txn() as txn:
        txn.insert("new0", id=501)
    made.source.cut()
    behind = json.loads(command(tmp_path, settings, "archive", "copy", root, "--dry-run", "--json").stdout)
    assert (behind["was_ts"], behind["windows"], behind["dry_run"]) == (last, 1, True)
    done = command(tmp_path, settings, "archive", "copy", root)
    assert "copied: 1 windows" in done.output
    assert (
        f"has windows from {show(made.source.archive.range().start)} to {show(made.source.archive.end())}"
        in done.output
    )
    listed = command(tmp_path, settings, "archive", "ls", "--archive", root)
    assert f", a copy of {made.source.archive.url}" in listed.output
    assert command(tmp_path, settings, "archive", "verify", "--archive", root).exit_code == 0
    there = settings.model_copy(update={"archive": settings.archive.model_copy(update={"root": root})})
    before = objects(at(settings.archive, root, made.source.cluster_id))
    for words in (
        ("snapshot",),
        ("archive", "init"),
        ("archive", "base", "--at", str(made.moments[-1][0])),
        ("archive", "expire", "--keep-bases", "1", "--yes"),
        ("archive", "mark", str(last), "--reason", "it"),
        ("schema", "rebuild"),
    ):
        refused = command(tmp_path, there, *words)
        assert isinstance(refused.exception, ConfigError), (words, refused.output)
        assert "is a copy of the archive at" in str(refused.exception), words
    assert objects(at(settings.archive, root, made.source.cluster_id)) == before
    assert proof_of(there, made, target)
    every_moment_restored(made, settings, root, target)


def test_a_copy_lies_at_another_provider_with_an_account_and_an_encryption_of_its_own(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    """Two servers: neither has the bucket of the other."""
    with s3_server() as here, Elsewhere(Supervisor(tmp_path / "elsewhere"), bucket="elsewhere") as there:
        of, place = here.archive_settings(), ArchiveSettings.model_validate(there.settings())
        for key, data in objects(made.source.archive).items():
            open_store(of).put(f"{made.source.cluster_id}/{key}", data)
        own = {f"copy_{name}": getattr(place, name) for name in ("s3_endpoint", "s3_access_key", "s3_secret_key")}
        of = of.model_copy(update={"copy_root": place.root, **own})
        with pytest.raises(StoreError, match="NoSuchBucket"):  # as the archive is reached
            copy.run(settings.model_copy(update={"archive": of}))
        with pytest.raises(ValueError, match="copy_s3_region too"):
            ArchiveSettings.model_validate(of.model_dump())
        own |= {"copy_s3_region": "us-east-1", "copy_s3_encryption": "aws:kms", "copy_s3_kms_key": "alias/aws/s3"}
        own |= {"copy_s3_object_lock": True, "copy_s3_base_class": "GLACIER_IR"}
        settings = settings.model_copy(update={"archive": of.model_copy(update=own)})
        done = copy.run(settings)
        assert (done.end, done.objects > 10) == (made.source.archive.end(), True)
        bucket, client = place.root.split("/")[2], there.client()
        kept = {}
        for each in client.list_objects_v2(Bucket=bucket)["Contents"]:
            head = client.head_object(Bucket=bucket, Key=each["Key"])
            assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/aws/s3"), each["Key"]
            kept.setdefault(head.get("StorageClass", "STANDARD"), set()).add(each["Key"].rpartition(".")[2])
        assert kept.keys() == {"STANDARD", "GLACIER_IR"}
        assert kept["GLACIER_IR"] == {"parquet"}
        assert not any(each.who == "copy" for each in look(settings, {}, within_s=20).findings)
        # Reading the copy as an archive takes the copy's account too.
        every_moment_restored(made, settings, place.root, target)
        # The archive is there, and these keys do not reach it: it is not taken for lost.
        words = ("archive", "promote", "--yes", "--archive")
        reached = settings.model_copy(update={"archive": place})
        refused = command(tmp_path, reached, *words, place.root)
        assert "is lost cannot be told with these keys" in str(refused.exception), refused.output
        assert "--archive-is-lost" in refused.exception.hint


def proof_of(there: Settings, made: Aged, target: TargetConnection) -> bool:
    """Rows of a restore from the copy, held against the copy."""
    del target
    restored(there, to=made.moments[-1][0], dry_run=False, task="main")
    return proof.prove(there, on="target").verdict == "equal"


def test_what_expires_in_the_archive_is_still_restored_from_the_copy(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    root = f"file://{tmp_path}/copy"
    copy.run(settings, root)
    expire.run(settings, Policy(bases=1))
    assert made.source.archive.range().number
    said = command(tmp_path, settings, "archive", "copy", root)
    assert "of its windows have expired in the archive" in said.output
    every_moment_restored(made, settings, root, target)


def test_expiry_and_status_know_how_far_the_copy_is(made: Aged, settings: Settings, tmp_path: Path) -> None:
    root = f"file://{tmp_path}/copy"
    of = settings.archive.model_copy(update={"copy_root": root, "copy_late_s": 0.001})
    settings = settings.model_copy(update={"archive": of})

    def said() -> str:
        found = [each.what for each in look(settings, {}, within_s=20).findings if each.who == "copy"]
        return found[0] if found else ""

    assert "there is none at" in said()
    held = expire.run(settings, Policy(bases=1))
    assert made.source.archive.range().number == 0
    assert "archive.copy_root does not say what it has" in held.held[0]
    copy.run(settings)
    assert said() == ""
    with made.source.txn() as txn:
        txn.insert("new0", id=502)
    made.source.cut()
    assert f"{root}/{made.source.cluster_id} ends at" in said()
    assert "1 windows behind the archive" in said()
    copy.run(settings)
    at(settings.archive, root, made.source.cluster_id).store.put(layout.HEAD, b"damaged")
    assert "HEAD" in said()
    assert "archive.copy_root does not say" in expire.run(settings, Policy(bases=1)).held[0]
    assert made.source.archive.range().number == 0
    let_go = expire.run(settings, Policy(bases=1), without=[expire.COPY])
    assert let_go.held == ()
    assert made.source.archive.range().number == 1
