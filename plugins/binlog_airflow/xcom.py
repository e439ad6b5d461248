"""How the library's values travel between tasks: a frozen dataclass becomes plain JSON, and that dataclass again.

XCom and the pages of Airflow that show it carry JSON. TSOs travel as strings: a browser rounds integers beyond 2**53.
Reports, which nobody reads back, are `bounded`.
What comes back is held against every field's type: all fields and no other, a string for a string.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator, ValidationError
from pydantic_core import core_schema as schemas

from binlog_airflow.lines import EXACT, is_tso
from pumphouse.errors import UsageError
from pumphouse.model.tso import Tso, show

T = TypeVar("T")
# What a report may have of each: entries of a list or a dictionary, letters of a text.
_ENTRIES, _LETTERS = 50, 500


def dump(value: Any) -> dict[str, Any]:
    """A dataclass as a JSON object: its fields by name."""
    found: dict[str, Any] = SchemaSerializer(_schema(type(value))).to_python(value, mode="json", warnings="error")
    return found


def read(kind: type[T], data: Any) -> T:
    """The dataclass that `dump` wrote; UsageError names what does not fit."""
    try:
        found: T = SchemaValidator(_schema(kind)).validate_python(data)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise UsageError(
            f"what an earlier task left is no {kind.__name__} of this release: {wrong}",
            hint="clear the whole run, not this task alone",
        ) from error
    return found


def bounded(report: dict[str, Any]) -> dict[str, Any]:
    """A report as XCom and asset events carry it: no number that a browser rounds, no list or text without an end.

    TSOs become strings, with their clock time beside them (``end``, ``end_time``). Of long lists and dictionaries the
    first entries stay, and one that counts the rest.
    """
    found: dict[str, Any] = _bounded(report)
    return found


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for name, each in list(value.items())[:_ENTRIES]:
            kept[str(name)] = _bounded(each)
            if _is_rounded(each) and is_tso(each):
                kept[f"{str(name).removesuffix('_ts')}_time"] = clock_time(each)
        return kept | ({"…": f"and {len(value) - _ENTRIES} more"} if len(value) > _ENTRIES else {})
    if isinstance(value, list | tuple | set):
        listed = [_bounded(each) for each in list(value)[:_ENTRIES]]
        return listed + ([f"and {len(value) - _ENTRIES} more"] if len(value) > _ENTRIES else [])
    if isinstance(value, str):
        return value if len(value) <= _LETTERS else f"{value[:_LETTERS]}…"
    return str(value) if _is_rounded(value) else value


def _is_rounded(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT


def clock_time(ts: int) -> str:
    """``2026-11-21 07:30:00.123Z``; '' for what is none."""
    return show(ts).partition(" (")[2].removesuffix(")")


def _schema(kind: Any) -> CoreSchema:
    """What pydantic needs to write and read a type; it would take a TSO for any integer."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Tso:
        digits = schemas.str_schema(strict=True, pattern="^[0-9]{1,19}$")
        text = schemas.to_string_ser_schema()
        found: CoreSchema = schemas.no_info_after_validator_function(int, digits, serialization=text)
    elif is_dataclass(kind):
        found = _fields(kind)
    elif origin is UnionType:
        (only,) = (each for each in inner if each is not type(None))
        found = schemas.nullable_schema(_schema(only))
    elif origin is tuple:
        found = schemas.tuple_variable_schema(_schema(inner[0]))
    elif origin is dict:
        found = schemas.dict_schema(schemas.int_schema(), _schema(inner[1]))
    elif issubclass(kind, StrEnum):
        found = schemas.enum_schema(kind, list(kind), sub_type="str")
    else:
        found = _PLAIN[kind]
    return found


_PLAIN: dict[type, CoreSchema] = {
    str: schemas.str_schema(strict=True),
    int: schemas.int_schema(strict=True),
    bool: schemas.bool_schema(strict=True),
}


def _fields(kind: Any) -> CoreSchema:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    inner = [schemas.dataclass_field(name, _schema(hints[name]), kw_only=True) for name in names]
    # A slotted class has no dict to fill: it has to be told.
    given = schemas.dataclass_args_schema(kind.__name__, inner, extra_behavior="forbid")
    return schemas.dataclass_schema(kind, given, names, slots=True)
