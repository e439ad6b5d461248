"""From a directory of golden files to cases. The kind of a file is told by what is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.golden import codec_cases, file_cases, loader_cases, scenario_cases, storage_cases
from tests.support.golden.case import Case, Json

_DRAINER_FILTERS = (
    "filters of a Drainer's configuration: here a load's rules leave tables out, by patterns of another form"
)


def _not_here(why: str) -> Callable[[Json], Iterator[Case]]:
    """Every entry skipped, for one reason."""

    def cases(content: Json) -> Iterator[Case]:
        for name, part in content.items():
            for index, entry in enumerate(part if isinstance(part, list) else [part]):
                title = entry.get("name", index) if isinstance(entry, dict) else index
                yield Case(f"{name}-{title}", skip=why)

    return cases


# Keys of the file, keys of its first vector -> its cases.
KINDS: dict[str, tuple[set[str], set[str], Callable[[Json], Iterator[Case]]]] = {
    "scenario": ({"steps", "arrival_order"}, set(), scenario_cases.scenario),
    "pump_storage": ({"store_run"}, set(), storage_cases.pump_storage),
    "loader": ({"dml_sql"}, set(), loader_cases.loader),
    "misc": ({"row_keys", "tso"}, set(), codec_cases.misc),
    "binlogfile": ({"frames", "names"}, set(), file_cases.binlogfile),
    "columns": ({"vectors"}, {"column_info", "value_hex"}, codec_cases.columns),
    "missing_column_defaults": ({"vectors"}, {"column_info", "origin_default"}, codec_cases.missing_column_defaults),
    "decimals": ({"vectors"}, {"precision", "frac"}, codec_cases.decimals),
    "json_binary": ({"vectors"}, {"type_code", "hex"}, codec_cases.json_binary),
    "protobuf": ({"vectors"}, {"message", "fields"}, codec_cases.protobuf),
    "ddl_text": ({"vectors"}, {"binlog_ddl_query"}, loader_cases.ddl_text),
    "filter": ({"vectors"}, {"probes"}, _not_here(_DRAINER_FILTERS)),
}


def kind_of(content: Json) -> str | None:
    """Name of the kind, or None."""
    vectors = content.get("vectors") or [{}]
    for kind, (keys, first, _) in KINDS.items():
        if keys <= set(content) and first <= set(vectors[0]):
            return kind
    return None


def _unknown(path: Path, _: Path) -> None:
    raise AssertionError(f"{path} is of no known kind")


def collect(directory: Path) -> list[Case]:
    """Cases of every JSON file of a directory, their ids led by the file's name."""
    found = []
    files = sorted(directory.glob("*.json"))
    for path in files:
        kind = kind_of(json.loads(path.read_text()))
        if kind is None:
            found.append(Case(path.stem, lambda tmp, path=path: _unknown(path, tmp)))
            continue
        for case in KINDS[kind][2](json.loads(path.read_text())):
            found.append(Case(_plain(f"{path.stem}-{case.id}"), case.run, case.skip, case.rows))
    if not files:
        found.append(Case("none", lambda tmp: _unknown(directory / "*.json", tmp)))
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^\w.,()-]+", "_", name)
