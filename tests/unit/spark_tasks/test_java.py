"""The Java that Spark gets."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pumphouse.errors import ConfigError
from spark_tasks import java


def test_without_a_java_the_wheel_serves_behind_a_wrapper_that_drops_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path))
    home = java.java_home()
    assert home.parent == tmp_path
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Xmx32m", "-version"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert java.java_home() == home


def test_an_older_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    assert java.java_home() != tmp_path / "old"


@pytest.mark.parametrize("how", ["a link", "open to all"])
def test_nobody_else_says_where_the_wrapper_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path))
    home = java.java_home()
    shutil.rmtree(home)
    mine = tmp_path / "mine"
    mine.mkdir()
    if how == "a link":
        home.symlink_to(mine)
    else:
        home.mkdir()
        home.chmod(0o777)
    with pytest.raises(ConfigError, match="not a directory of this user alone"):
        java.java_home()
    assert not list(mine.iterdir())
