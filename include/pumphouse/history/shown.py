"""History as people and programs get it: lines of text, JSON objects, SQL that does a change again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pumphouse.codec.columnar import DELETE, INSERT
from pumphouse.codec.reading import readable
from pumphouse.errors import UsageError
from pumphouse.history.changes import Changed
from pumphouse.history.versions import Version
from pumphouse.loader.changes import OPS, Form
from pumphouse.loader.literals import inserts, literals
from pumphouse.model.table import ColumnFlag
from pumphouse.model.tso import Tso, show, to_datetime
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.versions import DdlEvent

_SHOWN = 60


def clock(ts: int) -> str:
    """ISO time of a TSO."""
    return to_datetime(ts).isoformat(timespec="milliseconds")


def stamps(found: Changed | DdlEvent) -> list[Tso]:
    """Commit ts of each change, or of the DDL."""
    return [found.commit_ts] if isinstance(found, DdlEvent) else [Tso(int(ts)) for ts in found.commit_ts]


# -- JSON


def objects(found: Changed | DdlEvent) -> Iterator[dict[str, Any]]:
    """One for each change, or for the DDL."""
    if isinstance(found, DdlEvent):
        yield {
            "commit_ts": int(found.commit_ts), "commit_time": clock(found.commit_ts), "op": "ddl",
            "action": found.action.name, "job_id": found.job.id, "query": found.job.query,
            "tables": _names(found),
        }  # fmt: skip
        return
    table = ".".join(found.form.version.name)
    old, new = rows(found.form, found.old), rows(found.form, found.new)
    for at, (before, after, gtid) in enumerate(zip(old, new, found.gtid.to_pylist(), strict=True)):
        ts, op = int(found.commit_ts[at]), int(found.op[at])
        yield {
            "commit_ts": ts, "commit_time": clock(ts), "start_ts": int(found.start_ts[at]), "gtid": gtid, "op": OPS[op],
            "table": table, "old": None if op == INSERT else before, "new": None if op == DELETE else after,
        }  # fmt: skip


def version_object(version: Version, upto: Tso) -> dict[str, Any]:
    """Of one version of a row; ``upto``: the range's end. ``to_ts`` None = nothing ended it up to there."""
    return {
        "table": ".".join(version.form.version.name),
        "from_ts": None if version.since is None else int(version.since),
        "from_time": None if version.since is None else clock(version.since),
        "to_ts": None if version.until is None else int(version.until),
        "to_time": None if version.until is None else clock(version.until),
        "ended": version.ended or None,
        "upto_ts": int(upto),
        "upto_time": clock(upto),
        "row": _readable(version.form, version.values),
    }


def rows(form: Form, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a form, readable and exact."""
    types = {c.name: c.type for c in form.columns()}
    columns = [
        [readable(each, types[name]) for each in column.to_pylist()]
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _readable(form: Form, values: Mapping[str, Any]) -> dict[str, Any]:
    types = {c.name: c.type for c in form.columns()}
    return {name: readable(value, types[name]) for name, value in values.items()}


# -- text


def lines(found: Changed | DdlEvent) -> Iterator[str]:
    """One for each change, or for the DDL."""
    for each in objects(found):
        when = show(each["commit_ts"])
        if each["op"] == "ddl":
            yield f"{when}  {each['action']} (job {each['job_id']}): {_one_line(each['query'])}"
            continue
        old, new, key = each["old"], each["new"], _key_of(found)
        if old is None or new is None:
            said = fields(new if old is None else old)
        else:
            changed = {name: f"{_value(old[name])} -> {_value(new[name])}" for name in new if old[name] != new[name]}
            named = {name: _value(new[name]) for name in new if name in key and name not in changed}
            said = ", ".join(f"{name} {text}" for name, text in {**named, **changed}.items())
        gtid = f"{each['gtid']}  " if each["gtid"] else ""
        yield f"{when}  {gtid}{each['op']} {each['table']}: {said}"


def fields(row: Mapping[str, Any]) -> str:
    """A row on one line."""
    return ", ".join(f"{name} {_value(value)}" for name, value in row.items())


def version_line(version: Version, upto: Tso) -> str:
    """A version of a row on one line; ``upto``: the range's end."""
    since = "earlier" if version.since is None else show(version.since)
    if version.until is None:  # nobody looked behind the range
        until = f"the end of the range, {show(upto)}"
    else:
        until = f"{show(version.until)} ({version.ended})"
    return f"{since} to {until}: {fields(_readable(version.form, version.values))}"


def _key_of(found: Changed | DdlEvent) -> tuple[str, ...]:
    return () if isinstance(found, DdlEvent) else found.form.wanted.key


def _value(value: Any) -> str:
    """Of text nothing reaches a terminal but what can be printed."""
    if value is None:
        return "NULL"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    text = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _one_line(query: str) -> str:
    return "".join(each for each in " ".join(query.split()) if each.isprintable())


def _names(event: DdlEvent) -> list[str]:
    return sorted({".".join(side.name) for change in event.changes for side in change.sides})


# -- SQL


def statements(found: Iterable[Changed | DdlEvent]) -> Iterator[str]:
    """Changes as transactions that do them again, once; a DDL is a comment, as its names may need a database.

    Columns that the table computes are left out. What ends in an error leaves its last transaction open.

    Raises:
        UsageError: the table has no key, so that a statement could meet another row.
    """
    opened: tuple[int, int] | None = None
    for each in found:
        if isinstance(each, DdlEvent):
            if opened is not None:
                yield "COMMIT;"
                opened = None
            yield f"-- {show(each.commit_ts)}: {each.action.name}: {_one_line(each.job.query)}"
            continue
        if not each.form.wanted.key:
            raise UsageError(
                f"{'.'.join(each.form.version.name)} has no key: a statement could meet another row",
                hint="--json tells all",
            )
        for txn, statement in _of_changes(each):
            if txn != opened:
                if opened is not None:
                    yield "COMMIT;"
                yield f"-- {show(txn[0])}"
                yield "BEGIN;"
                opened = txn
            yield statement
    if opened is not None:
        yield "COMMIT;"


def _of_changes(found: Changed) -> Iterator[tuple[tuple[int, int], str]]:
    """(commit ts, start ts) of each change, and its statement."""
    form, key = found.form, found.form.wanted.key
    name = qualified(*form.version.name)
    old, new = _literals(found.old), _literals(found.new)
    put = _written(form, found.new)
    stamped = {c.name for c in form.columns() if c.type.flag & ColumnFlag.ON_UPDATE_NOW}
    for at in range(len(found)):
        txn, op = (int(found.commit_ts[at]), int(found.start_ts[at])), int(found.op[at])
        if op == INSERT:
            yield txn, f"{next(inserts(name, put.slice(at, 1)))[0].decode(errors='surrogateescape')};"
            continue
        where = " AND ".join(f"{quote(each)} = {old[each][at]}" for each in key)
        if op == DELETE:
            yield txn, f"DELETE FROM {name} WHERE {where};"  # noqa: S608 - names and values are quoted
            continue
        changed = {each for each in put.schema.names if new[each][at] != old[each][at]}
        if changed:
            # A server gives a column with ON UPDATE the time of the run where the statement does not assign it.
            names = [each for each in put.schema.names if each in changed | stamped]
            sets = ", ".join(f"{quote(each)} = {new[each][at]}" for each in names)
            yield txn, f"UPDATE {name} SET {sets} WHERE {where};"  # noqa: S608


def row_statements(form: Form, batch: pa.RecordBatch) -> Iterator[str]:
    """INSERTs of rows."""
    for text, _ in inserts(qualified(*form.version.name), _written(form, batch)):
        yield f"{text.decode(errors='surrogateescape')};"


def _written(form: Form, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that a server takes values of: the others it computes."""
    return batch.select([name for name in batch.schema.names if name not in form.wanted.stored])


def _literals(batch: pa.RecordBatch) -> dict[str, list[str]]:
    return {
        name: ["NULL" if each is None else each.decode(errors="surrogateescape") for each in values.to_pylist()]
        for name, values in zip(batch.schema.names, literals(batch), strict=True)
    }
