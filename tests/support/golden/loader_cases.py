"""Cases of the loader's SQL and folding, and of the DDL text executed downstream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.golden.case import Case, Json, NotCovered, native
from tests.support.golden.codec_cases import UNKNOWN
from tests.support.plainfold import Change, fold_reference

_STATEMENTS = "rows go in many a statement: what they leave on a server is compared (tests/integration/test_replay.py)"
_DDL_TEXT = "DDL is rendered from the table's structure, and its text is not edited"


def loader(content: Json) -> Iterator[Case]:
    """One case an entry."""
    known = {"merge": (_merge, ("L4",)), "causality": (_causality, ("L3",))}
    for name, part in content.items():
        for index, entry in enumerate(part if isinstance(part, list) else [part]):
            title = f"{name}-{entry.get('name', index) if isinstance(entry, dict) else index}"
            if name in known:
                check, rows = known[name]
                yield Case(title, partial(check, entry), rows=rows)
            else:
                yield Case(title, skip=_STATEMENTS if name == "dml_sql" else f"{name} {UNKNOWN}")


def _values(typed: Json | None) -> dict[str, Any] | None:
    return None if typed is None else {name: native(value) for name, value in typed.items()}


def _causality(entry: Json, _: Path) -> None:
    """Groups are numbered here; the Go loader names one by its first key, and takes a worker by that key's CRC-32."""
    try:
        from pumphouse.replay.causality import Causality
    except ImportError:
        raise NotCovered("pumphouse.replay.causality") from None
    causality, names = Causality(), {}
    for step in entry["steps_with_reset_on_conflict"]:
        group = causality.join(step["keys"])
        assert (group is None) == step["conflict"], step
        if group is None:
            causality.reset()
            names.clear()
            group = causality.join(step["keys"])
        assert names.setdefault(group, step["keys"][0]) == step["group_key"], step


def _merge(entry: Json, _: Path) -> None:
    changes = [Change(e["type"], _values(e["values"]) or {}, _values(e["old_values"])) for e in entry["in"]]
    found: dict[str, list[Any]] = {}
    for change in fold_reference(changes, entry["primary_key"]):
        found.setdefault(change.kind, []).append((change.old, change.values))
    wanted = {
        kind: [(_values(each["old_values"]), _values(each["values"])) for each in entries]
        for kind, entries in entry["out_by_type_unordered"].items()
    }
    assert {kind: sorted(map(repr, rows)) for kind, rows in found.items()} == {
        kind: sorted(map(repr, rows)) for kind, rows in wanted.items()
    }


def ddl_text(content: Json) -> Iterator[Case]:
    """One case a vector."""
    for index, vector in enumerate(content["vectors"]):
        yield Case(f"{index}-{vector['query'][:40]}", skip=_DDL_TEXT)
