"""Every byte of a small value log changed, and the log cut at every length: the durable prefix, or a refusal by name.

Whatever is missing afterwards is missing loudly: by an error that names file and offset, or by a new incarnation, which
the archive takes for a gap to be declared.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.errors import BadRecord
from tests.support.storekit import (
    commit,
    log_payloads,
    open_store,
    prewrite,
    pull_all,
    quick_directory,
    rollback,
    store_all,
    value_files,
)

SMALL = {"value_log_file_bytes": 4096}
# By default a thirteenth of the bytes, others in each state; else each in all of them, and there each of its bits.
THOROUGH = pytest.mark.parametrize(
    "thorough", [pytest.param(False, id="sample"), pytest.param(True, id="all", marks=pytest.mark.slow)]
)
# How the directory was left: closed; killed; killed, and the index is lost; the same without the file summaries.
STATES = ("closed", "killed", "killed without index", "killed with the log alone")


class Log:
    """A directory with a small log, what it holds, and its incarnation."""

    def __init__(self, directory: Path, *, files: int) -> None:
        self.directory = directory
        store = open_store(directory / "live", **SMALL)
        for n in range(4 if files == 1 else 15):
            size = 1 if files == 1 else 900
            store_all(store, prewrite(100 + 10 * n, b"v" * (size + n)), commit(100 + 10 * n, 105 + 10 * n))
        store_all(store, prewrite(990, b"dropped"), rollback(990))
        store_all(store, prewrite(1000, b"open"))
        self.payloads = log_payloads(store)
        self.expected = [row[:3] for row in pull_all(store)]
        self.incarnation = store.incarnation
        shutil.copytree(directory / "live", directory / "killed")
        store.close()
        (directory / "live").rename(directory / "closed")
        for name in ("killed without index", "killed with the log alone"):
            shutil.copytree(directory / "killed", directory / name)
            shutil.rmtree(directory / name / "kv")
        shutil.rmtree(directory / "killed with the log alone" / "pumphouse" / "files")
        self.names = [path.name for path in value_files(directory / "killed")]

    def bytes(self, state: str, name: str) -> bytes:
        return (self.directory / state / "value" / name).read_bytes()

    def damaged(self, state: str, name: str, data: bytes) -> Path:
        """The directory in that state, with other bytes in one file."""
        target = self.directory / "found"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.directory / state, target)
        (target / "value" / name).write_bytes(data)
        return target

    def check(self, target: Path, name: str, where: str, *, upto: int) -> str:
        """What an opener meets: 'refused', 'whole', 'fewer'."""
        try:
            store = open_store(target, **SMALL)
        except BadRecord as error:
            assert error.path.endswith(name), where
            assert 0 <= error.offset <= upto, where
            return "refused"
        try:
            try:
                found = log_payloads(store)
                rows = [row[:3] for row in pull_all(store)]
            except BadRecord as error:
                # A sealed file is not read at open; nothing of it is served unchecked.
                assert error.path.endswith(name), where
                return "refused"
            assert found == self.payloads[: len(found)], f"{where}: not a prefix"
            assert rows == self.expected[: len(rows)], f"{where}: other rows"
            if len(found) == len(self.payloads):
                assert rows == self.expected, where
                return "whole"
            if "killed w" not in where:
                # Where neither index nor a clean close tells of the end, only the registry could (other tests).
                assert store.incarnation != self.incarnation, f"{where}: fewer, and nobody is told"
            return "fewer"
        finally:
            store.close()


def _places(size: int, state: str, *, thorough: bool) -> range:
    return range(size) if thorough else range(STATES.index(state), size, 3 * len(STATES) + 1)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory


@pytest.mark.row("P5", "P1")
@pytest.mark.parametrize("state", STATES)
@THOROUGH
def test_a_changed_byte_anywhere_is_refused_by_name_or_costs_nothing(
    state: str, thorough: bool, tmp_path: Path
) -> None:
    log = Log(tmp_path, files=1)
    (name,) = log.names
    data = log.bytes(state, name)
    chance = random.Random(5)
    seen = set()
    for at in _places(len(data), state, thorough=thorough):
        for mask in [1 << bit for bit in range(8)] if thorough else [chance.randint(1, 255)]:
            changed = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            verdict = log.check(log.damaged(state, name, changed), name, f"{state}, byte {at} ^ {mask}", upto=at)
            seen.add(verdict)
            assert verdict != "fewer", f"{state}, byte {at} ^ {mask:#x} was taken for a torn tail"
    assert "refused" in seen


@pytest.mark.row("P5", "P1")
@pytest.mark.parametrize("state", STATES)
@THOROUGH
def test_a_log_cut_at_any_length_gives_the_durable_prefix_and_keeps_a_copy_of_the_rest(
    state: str, thorough: bool, tmp_path: Path
) -> None:
    log = Log(tmp_path, files=1)
    (name,) = log.names
    data = log.bytes(state, name)
    for size in _places(len(data), state, thorough=thorough):
        target = log.damaged(state, name, data[:size])
        assert log.check(target, name, f"{state}, cut at {size}", upto=size) in ("fewer", "whole")
        left = (target / "value" / name).stat().st_size
        copies = [path.read_bytes() for path in target.glob("value/*.broken*")]
        gone = data[left:size]
        assert gone in copies or not any(gone), f"cut at {size}: what was taken away is nowhere"


@pytest.mark.row("P5", "P1", "P7")
@THOROUGH
def test_a_changed_byte_in_a_sealed_file_is_never_served_and_never_skipped(thorough: bool, tmp_path: Path) -> None:
    log = Log(tmp_path, files=3)
    assert len(log.names) > 2
    chance = random.Random(6)
    for name in log.names[:-1]:
        data = log.bytes("killed", name)
        places = (
            range(len(data)) if thorough else [*chance.sample(range(len(data)), 25), *range(len(data) - 12, len(data))]
        )
        for at in places:
            changed = data[:at] + bytes([data[at] ^ chance.randint(1, 255)]) + data[at + 1 :]
            where = f"{name}, byte {at} of {len(data)}"
            assert log.check(log.damaged("killed", name, changed), name, where, upto=at) in ("refused", "whole"), where


@pytest.mark.row("P5", "P1")
def test_what_is_taken_for_lost_shows_as_another_incarnation_also_after_the_next_start(tmp_path: Path) -> None:
    log = Log(tmp_path, files=1)
    (name,) = log.names
    target = log.damaged("closed", name, log.bytes("closed", name)[:-300])
    log.check(target, name, "closed", upto=1 << 20)
    store = open_store(target, **SMALL)
    after = store.incarnation
    store.close()
    assert after == json.loads((target / "pumphouse" / "incarnation.json").read_bytes())["incarnation"]
    assert after != log.incarnation
