"""Records: dataclasses that are JSON objects. Each field is told once: its type says how it is written and read.

A field has its own name in the object, and the order of the class. It is read strictly (`pumphouse.model.strict`): a
value of another type or size raises ValueError, a missing one KeyError; both name the field. Marks in ``Annotated`` say
what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from functools import partial
from inspect import getattr_static
from types import UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from pumphouse.model import strict
from pumphouse.model.tso import Tso


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of an integer; without them from 0 to 2^63 - 1."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Named:
    """What the field is called in the object."""

    name: str


class Mark(Enum):
    """What an object may lack of a field."""

    ASIDE = "it is no field of the object"
    LATER = "older objects lack it, and have its default"
    UNSAID = "it is not written where it has its default"


ASIDE, LATER, UNSAID = Mark
Int64 = Annotated[int, Within(strict.MIN_INT64, strict.MAX_INT64)]
Uint64 = Annotated[int, Within(0, strict.MAX_UINT64)]


class Record:
    """Base of dataclasses that are JSON objects."""

    __slots__ = ()

    BEHIND: ClassVar[Mapping[str, str]] = {}
    """Properties that are written as well, for people, and the fields that they stand behind."""

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        found = {}
        for attribute, name, write, _, _, unsaid, default in _fields(type(self)):
            value = getattr(self, attribute)
            if not unsaid or value != default:
                found[name] = write(value)
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls.read(data)

    @classmethod
    def read(cls, data: dict[str, Any], **aside: Any) -> Self:
        """Read the JSON object; ``aside``: the fields that are not in it."""
        strict.mapping(data)
        for attribute, name, _, read, absent, _, _ in _fields(cls):
            if read is not None and (name in data or not absent):
                value = data[name]
                try:
                    aside[attribute] = read(value)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
        return cls(**aside)


_Form = Callable[[Any], Any]


class _Field(NamedTuple):
    attribute: str
    name: str
    write: _Form
    read: _Form | None
    absent: bool = False
    unsaid: bool = False
    default: Any = None


_KNOWN: dict[type[Any], tuple[_Field, ...]] = {}


def _fields(cls: type[Any]) -> tuple[_Field, ...]:
    if cls in _KNOWN:
        return _KNOWN[cls]
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for each in fields(cls):
        marks = getattr(hints[each.name], "__metadata__", ())
        if ASIDE in marks:
            continue
        name = next((mark.name for mark in marks if isinstance(mark, Named)), each.name)
        absent, unsaid = LATER in marks or UNSAID in marks, UNSAID in marks
        write, read = _forms(hints[each.name])
        if unsaid and each.default is None:  # it is never written as null, so null is refused
            read = _forms(get_args(get_args(hints[each.name])[0])[0])[1]
        found.append(_Field(each.name, name, write, read, absent, unsaid, each.default))
        for behind in (written for written, field in cls.BEHIND.items() if field == each.name):
            result = get_type_hints(getattr_static(cls, behind).fget, include_extras=True)["return"]
            found.append(_Field(behind, behind, _forms(result)[0], None))
    _KNOWN[cls] = tuple(found)
    return _KNOWN[cls]


def _forms(hint: Any) -> tuple[_Form, _Form]:
    """How values of a type are written, and read."""
    if (plain := _PLAIN.get(hint)) is not None:
        return plain
    args, origin = get_args(hint), get_origin(hint)
    if origin is Annotated:
        bounds = [mark for mark in hint.__metadata__ if isinstance(mark, Within)]
        return (_same, partial(strict.integer, low=bounds[0].low, high=bounds[0].high)) if bounds else _forms(args[0])
    if origin in (Union, UnionType):
        write, read = _forms(args[0])
        return partial(_or_none, write), partial(_or_none, read)
    if origin in (tuple, dict, Mapping):
        return _forms_of_many(*args)
    if issubclass(hint, Record):
        return hint.to_dict, hint.from_dict
    if issubclass(hint, StrEnum):
        return str, lambda value: hint(strict.text(value))
    raise TypeError(f"{hint} has no form in JSON")


def _forms_of_many(key: Any, value: Any) -> tuple[_Form, _Form]:
    """Of a tuple, ``key`` is the type and ``value`` an ellipsis. A map by numbers is written by the order of these."""
    number, (write, read) = _forms(key)[1], _forms(key if value is ... else value)
    if value is ...:
        return lambda values: [*map(write, values)], lambda values: tuple(map(read, strict.array(values)))
    if key is str:
        return (
            lambda values: {name: write(each) for name, each in values.items()},
            lambda values: {name: read(each) for name, each in strict.mapping(values).items()},
        )
    return (
        lambda values: {str(name): write(each) for name, each in sorted(values.items())},
        lambda values: {number(int(name)): read(each) for name, each in strict.mapping(values).items()},
    )


def _same(value: Any) -> Any:
    return value


def _or_none(form: _Form, value: Any) -> Any:
    return None if value is None else form(value)


_PLAIN: dict[Any, tuple[_Form, _Form]] = {
    str: (_same, strict.text),
    int: (_same, strict.integer),
    Tso: (int, strict.integer),  # those that are taken from a column are numpy's
    bool: (_same, strict.boolean),
    float: (_same, strict.number),
    bytes: (bytes.hex, lambda value: bytes.fromhex(strict.text(value))),
}
