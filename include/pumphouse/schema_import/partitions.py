"""Which partitions were added, dropped or reorganized between two versions of a table (pure)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from pumphouse.errors import SchemaError
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import cistr
from pumphouse.schema.actions import Action
from pumphouse.schema.ident import columns as column_list
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.table_sql import partition_definition
from pumphouse.schema_import.columns import Raw

Step = tuple[Action, str, Raw, dict[str, Any]]

_RANGE, _LIST = 1, 3
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")


def partition_steps(
    old: Raw,
    found: Raw,
    name: tuple[str, str],
    dropped: Callable[[str], bool],
    take_id: Callable[[], int],
    *,
    reorganized: bool = False,
) -> Iterator[Step]:
    """(type of job, statement, TableInfo after it, more fields of the job), in order.

    ``dropped`` says whether the user said so of ``DB.TABLE.PARTITION``. A partition that is gone, unsaid, must have its
    range in others: it was reorganized. ``reorganized``: as in `Asked`.
    """
    before, after = old.get("partition") or {}, found.get("partition") or {}
    before = before if before.get("enable") else {}
    if not before and not after:
        return
    if not before or not after or _by(before) != _by(after):
        raise _unspeakable(name, "it is partitioned in another way")
    have: list[Raw] = list(before["definitions"])
    want: list[Raw] = after["definitions"]
    info = old
    gone = [each for each in have if dropped(f"{'.'.join(name)}.{cistr(each['name'])}")]
    if gone:
        have = [each for each in have if each not in gone]
        info = _with(info, have)
        query = f"ALTER TABLE {qualified(*name)} DROP PARTITION {column_list([cistr(d['name']) for d in gone])}"
        more = {"raw_args": [[d["id"] for d in gone]], "state": SchemaState.NONE.value}
        yield Action.DROP_PARTITION, query, info, more
    if [_key(each) for each in have] == [_key(each) for each in want]:
        return
    low, high = _edges(have, want)
    out, into = have[low : len(have) - high], want[low : len(want) - high]
    if before["type"] == _RANGE and not out and high:
        # In the middle of a range only a split makes new ones: the partition above was cut.
        high -= 1
        out, into = have[low : len(have) - high], want[low : len(want) - high]
    fresh = [{**copy.deepcopy(each), "id": take_id()} for each in into]
    info = _with(info, [*have[:low], *fresh, *have[len(have) - high :]])
    added = ",".join(map(partition_definition, fresh))
    if not out:
        yield Action.ADD_PARTITION, f"ALTER TABLE {qualified(*name)} ADD PARTITION ({added})", info, {}
        return
    if before["type"] not in (_RANGE, _LIST):
        raise _unspeakable(name, "it has fewer partitions or other names of them")
    whole = _covers(before["type"], out) == _covers(before["type"], into) if into else False
    if not whole and not (into and reorganized and before["type"] == _RANGE and not high and _is_extended(out, into)):
        there = {_key(each) for each in want}
        lost = [f"{'.'.join(name)}.{cistr(each['name'])}" for each in out if _key(each) not in there]
        raise SchemaError(
            f"the history has partitions that the server has not: {', '.join(lost)}",
            hint=f"were they dropped with their rows: {' '.join(f'--drop {each}' for each in lost)}; were their rows "
            "merged into a neighbour, no trace says so, and that DDL job is yours to write",
            gone=lost,
        )
    names = column_list([cistr(each["name"]) for each in out])
    query = f"ALTER TABLE {qualified(*name)} REORGANIZE PARTITION {names} INTO ({added})"
    yield Action.REORGANIZE_PARTITION, query, info, {}


def renamed_in(partition: Raw | None, before: list[Raw], after: list[Raw]) -> Raw | None:
    """A table's partitioning once its columns have other names; ``before``, ``after``: its columns, with their ids."""
    now = {column["id"]: cistr(column["name"]) for column in after}
    names = {cistr(each["name"]).lower(): now.get(each["id"], cistr(each["name"])) for each in before}
    if not partition or all(key == name.lower() for key, name in names.items()):
        return partition

    def renamed(quoted: re.Match[str]) -> str:
        name = names.get(quoted[1].replace("``", "`").lower())
        return quoted[0] if name is None else quote(name)

    columns = [names.get(key := cistr(each).lower(), key) for each in partition.get("columns") or ()]
    more = {"columns": [{"O": each, "L": each.lower()} for each in columns]} if columns else {}
    return {**partition, "expr": _QUOTED.sub(renamed, str(partition.get("expr") or "")), **more}


def _by(partition: Raw) -> tuple[Any, ...]:
    columns = [cistr(each).lower() for each in partition.get("columns") or ()]
    return int(partition["type"]), str(partition.get("expr") or "").replace("`", "").lower(), columns


def _key(definition: Raw) -> tuple[Any, ...]:
    bounds = [str(each) for each in definition.get("less_than") or ()]
    values = [",".join(map(str, each)) for each in definition.get("in_values") or ()]
    return cistr(definition["name"]), ",".join(bounds), ",".join(values), str(definition.get("comment") or "")


def _edges(have: list[Raw], want: list[Raw]) -> tuple[int, int]:
    """How many partitions are the same at the beginning and, of the rest, at the end."""
    pairs = list(zip(map(_key, have), map(_key, want), strict=False))
    low = next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
    ends = list(zip(map(_key, reversed(have[low:])), map(_key, reversed(want[low:])), strict=False))
    return low, next((at for at, (a, b) in enumerate(ends) if a != b), len(ends))


def _covers(kind: int, definitions: list[Raw]) -> Any:
    """The upper bound of ranges; the values of lists."""
    if kind == _RANGE:
        return ",".join(map(str, definitions[-1].get("less_than") or ()))
    return sorted(text for each in definitions for value in each["in_values"] for text in ",".join(value).split(","))


def _is_extended(out: list[Raw], into: list[Raw]) -> bool:
    """Whether the last range goes further. Of bounds that are no numbers REORGANIZE says so, which lets none shrink."""
    old, new = _covers(_RANGE, out), _covers(_RANGE, into)
    try:
        return int(new) > int(old)
    except ValueError:
        return bool(old != "MAXVALUE")


def _with(info: Raw, definitions: list[Raw]) -> Raw:
    return {**info, "partition": {**info["partition"], "definitions": definitions, "num": len(definitions)}}


def _unspeakable(name: tuple[str, str], why: str) -> SchemaError:
    return SchemaError(
        f"no DDL job can say how {'.'.join(name)} changed: {why}",
        hint=f"make the table anew under another name; or leave it alone: --skip {'.'.join(name)}",
        table=".".join(name),
    )
