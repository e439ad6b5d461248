"""A value that is made when it is first asked for, by the object that it is of.

As ``functools.cached_property`` of Python 3.12 and later. That of 3.11 holds one lock for all objects of a class while
the value is made: a server that does not answer would hold up whoever asks another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - it is used as a decorator
    """``@once``, in place of ``@property``. Two threads that ask at once may both make it; one of the values stays."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | Self:
        if instance is None:
            return self
        # The name in the object's own dictionary goes before this descriptor from now on.
        value: T = instance.__dict__.setdefault(self._name, self._make(instance))
        return value
