"""Records: what an object lacks is taken for a default only where a field says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from pumphouse.model.record import ASIDE, LATER, UNSAID, Named, Record, Uint64
from pumphouse.model.tso import Tso

pytestmark = pytest.mark.row("A4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Record):
    key: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Record):
    ts: Annotated[Tso, Named("at_ts")]
    number: Uint64 = 0
    kept: bool = False
    since: Annotated[int, LATER] = 7
    why: Annotated[str, UNSAID] = ""
    upto: Annotated[Tso | None, UNSAID] = None
    parts: tuple[Part, ...] = ()
    counts: dict[int, int] | None = None
    digest: Annotated[str, ASIDE] = ""

    BEHIND: ClassVar = {"many": "parts"}

    @property
    def many(self) -> int:
        return len(self.parts)


WRITTEN: dict[str, Any] = {
    "at_ts": 5, "number": (1 << 64) - 1, "kept": True, "since": 3, "parts": [{"key": ["00ff"]}], "many": 1,
    "counts": {"2": 1, "10": 1},
}  # fmt: skip


def test_a_record_is_written_in_its_order_and_read_back() -> None:
    made = Whole(
        ts=Tso(5), number=(1 << 64) - 1, kept=True, since=3, parts=(Part(key=(b"\0\xff",)),), counts={10: 1, 2: 1}
    )
    assert list(made.to_dict().items()) == list(WRITTEN.items())
    assert [*(made.to_dict()["counts"])] == ["2", "10"]
    assert Whole.from_dict(WRITTEN) == made
    assert Whole.read({**WRITTEN, "why": "so"}, digest="d") == replace(made, why="so", digest="d")


@pytest.mark.parametrize("name", ["at_ts", "number", "kept", "parts", "counts"])
def test_a_field_that_is_missing_is_refused_whatever_its_default(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        Whole.from_dict({key: value for key, value in WRITTEN.items() if key != name})


def test_what_earlier_releases_did_not_write_has_its_default() -> None:
    assert Whole.from_dict({key: value for key, value in WRITTEN.items() if key != "since"}).since == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [("at_ts", "5"), ("at_ts", 1 << 63), ("number", 1 << 64), ("number", -1), ("number", True), ("kept", 1),
     ("why", None), ("upto", None), ("counts", {"x": 1}), ("counts", {"1": 1.5}), ("counts", []),
     ("parts", [{"key": ["zz"]}]), ("parts", [{"key": [0]}]), ("parts", [{"key": "00"}]), ("parts", [1]), ("parts", {})],
)  # fmt: skip
def test_a_value_of_another_type_or_size_is_refused_by_the_name_of_its_field(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        Whole.from_dict({**WRITTEN, name: value})


def test_a_refusal_names_the_fields_down_to_the_value() -> None:
    with pytest.raises(ValueError, match=r"^parts: key: 5 is no list$"):
        Whole.from_dict({**WRITTEN, "parts": [{"key": 5}]})


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="is no object"):
        Whole.from_dict([*WRITTEN])  # type: ignore[arg-type]


def test_a_moment_that_was_taken_from_a_column_is_written() -> None:
    made = replace(Whole.from_dict(WRITTEN), ts=Tso(np.int64(5)), upto=Tso(np.int64(6)))
    assert json.loads(json.dumps(made.to_dict())) == {**WRITTEN, "upto": 6}
