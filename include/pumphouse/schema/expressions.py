"""Which expressions of a TiDB a MariaDB and a MySQL compute alike: a closed list of operators and functions, by types.

What is on it was compared on servers, over edge values (`tests/tidb/test_generated.py`). Everything else is not known:
date_format of a zero date, upper() of Georgian and a number out of a JSON string are others there.

A type of a value is one letter: ``i`` integer, ``n`` DECIMAL, ``t`` text, ``a`` ASCII text, ``b`` bytes, ``d`` DATE,
``m`` DATETIME, ``j`` JSON, ``0`` NULL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pumphouse.model.table import INTEGERS, STRINGS, ColumnFlag, ColumnInfo, MysqlType

# No text with a quote in it: a MariaDB 10.11 cannot open the table that it made with such an expression.
_TOKEN = re.compile(
    r"\s*(?:(?P<name>`(?:[^`]|``)+`)|(?P<text>(?:_utf8mb4)?'[^'\\]*')|(?P<number>\d+(?:\.\d+)?(?![\w.]))"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<sign><=>|<=|>=|<>|!=|[-+*%=<>(),!]))"
)
_PATH = re.compile(r"(?:_utf8mb4)?'\$(?:\.[A-Za-z_][A-Za-z0-9_]*)+'")
_COMPARISONS = frozenset({"=", "<=>", "<", "<=", ">", ">=", "<>", "!="})
# What an argument may be. Everything printable is taken as text in the same way.
_TAKEN = {"i": "i0", "n": "in0", "s": "ta0", "x": "tab0", "a": "a0", "c": "tain0dm", "d": "dm0", "*": "tain0dm"}
# Arguments ('+' = the last one again, any number of times; '*' = all such ones of one type), and the result ('*' = it).
_FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "abs": (("n",), "*"), **dict.fromkeys(("floor", "ceil", "ceiling"), (("n",), "i")),
    "sign": (("i",), "i"), "if": (("i**",), "*"), "ifnull": (("**",), "*"), "coalesce": (("*+",), "*"),
    **dict.fromkeys(("greatest", "least"), (("ii+",), "i")),
    "concat": (("c+",), "t"), "concat_ws": (("sc+",), "t"),
    **dict.fromkeys(("left", "right", "repeat"), (("si",), "t")),
    **dict.fromkeys(("substring", "substr"), (("si", "sii"), "t")), "mid": (("sii",), "t"),
    **dict.fromkeys(("trim", "ltrim", "rtrim", "reverse"), (("s",), "t")),
    "replace": (("sss",), "t"), "substring_index": (("ssi",), "t"), **dict.fromkeys(("lpad", "rpad"), (("sis",), "t")),
    **dict.fromkeys(("length", "octet_length", "bit_length", "crc32"), (("x",), "i")),
    **dict.fromkeys(("char_length", "character_length"), (("s",), "i")),
    **dict.fromkeys(("md5", "sha", "sha1", "to_base64"), (("x",), "a")), "sha2": (("si",), "a"),
    "hex": (("x", "i"), "a"), **dict.fromkeys(("lower", "upper", "lcase", "ucase"), (("a",), "a")),
    **dict.fromkeys(
        ("year", "month", "day", "dayofmonth", "hour", "minute", "second", "microsecond", "quarter", "dayofweek",
         "weekday", "dayofyear", "to_days"),
        (("d",), "i"),
    ),
    **dict.fromkeys(("date", "last_day"), (("d",), "d")),
    "json_unquote": (("j",), "t"),
}  # fmt: skip
# A DECIMAL of more digits or decimals than a MySQL and a TiDB have is another one on a MariaDB.
_DIGITS, _SCALE, _OF_AN_INTEGER = 65, 30, 20


class _Unknown(Exception):
    """Nothing is known of how others compute it."""


def alike(column: ColumnInfo, columns: Mapping[str, ColumnInfo]) -> bool:
    """Whether a MariaDB and a MySQL compute the values of a TiDB's generated column as it does.

    ``columns``: of the table, by their names in lower case.
    """
    try:
        found = _Typer(column.generated_expr, columns).whole()
    except (_Unknown, RecursionError):
        return False
    tp = column.type.tp
    if tp in INTEGERS:
        return found in "i0"
    if tp == MysqlType.NEWDECIMAL:
        return found in "in0"
    if tp in STRINGS:
        kinds = {"utf8mb4": "tai0", "utf8": "tai0", "latin1": "ai0", "ascii": "ai0"}
        return found in kinds.get(column.type.charset, "-")
    return found == {int(MysqlType.DATE): "d", int(MysqlType.JSON): "j"}.get(tp)


class _Typer:
    """Recursive descent, from OR down to a single value; each step returns a type or raises `_Unknown`."""

    def __init__(self, expression: str, columns: Mapping[str, ColumnInfo]) -> None:
        self._columns = columns
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._signs: set[bool] = set()
        self._decimals, self._digits, self._scale = False, 0, 0
        place, text = 0, expression.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise _Unknown
            kind, word = match.lastgroup, match[match.lastgroup]
            self._tokens.append((kind, word if kind in ("name", "text") else word.lower()))
            place = match.end()

    def whole(self) -> str:
        """Type of the whole expression."""
        found = self._or()
        if self._at < len(self._tokens) or len(self._signs) > 1:
            raise _Unknown
        if self._decimals and (self._digits > _DIGITS or self._scale > _SCALE):
            raise _Unknown
        return found

    def _next(self, *words: str) -> str:
        """The next token where it is one of these; else ''."""
        if self._at < len(self._tokens):
            kind, word = self._tokens[self._at]
            if kind in ("word", "sign") and word in words:
                self._at += 1
                return word
        return ""

    def _need(self, word: str) -> None:
        if not self._next(word):
            raise _Unknown

    @staticmethod
    def _all(found: Sequence[str], of: str, result: str) -> str:
        if any(each not in of for each in found):
            raise _Unknown
        return result

    def _or(self) -> str:
        found = [self._not()]
        while self._next("or", "and", "xor"):
            found.append(self._not())
        return found[0] if len(found) == 1 else self._all(found, "i0", "i")

    def _not(self) -> str:
        return self._all([self._not()], "i0", "i") if self._next("not", "!") else self._comparison()

    def _comparison(self) -> str:
        found = self._sum()
        while True:
            if self._next("is"):
                self._next("not")
                self._need("null")
                found = "i"
            elif self._next(*_COMPARISONS):
                found = self._all([found, self._sum()], "in0", "i")
            elif self._next("between"):
                low = self._sum()
                self._need("and")
                found = self._all([found, low, self._sum()], "in0", "i")
            elif self._next("in"):
                self._need("(")
                found = self._all([found, *self._list()], "in0", "i")
            else:
                return found

    def _sum(self) -> str:
        found = [self._product()]
        while self._next("+", "-"):
            found.append(self._product())
        return self._number(found)

    def _product(self) -> str:
        found = [self._value()]
        while sign := self._next("*", "%", "mod", "div"):
            if sign == "*":
                found.append(self._value())
                continue
            # By a number that is not 0: what a division by 0 is depends on the sql_mode.
            kind, word = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            if kind != "number" or not word.isdecimal() or not int(word):
                raise _Unknown
            self._at += 1
            found = [self._all(found, "i0", "i")]
        return self._number(found)

    def _number(self, found: list[str]) -> str:
        if len(found) == 1:
            return found[0]
        return self._all(found, "in0", "n" if "n" in found else "i")

    def _list(self) -> list[str]:
        """Values up to a closing parenthesis."""
        found = [self._or()]
        while self._next(","):
            found.append(self._or())
        self._need(")")
        return found

    def _value(self) -> str:
        if self._next("("):
            found = self._list()
            if len(found) != 1:
                raise _Unknown
            return found[0]
        if self._next("-"):
            return self._number([self._value(), "i"])
        if self._next("case"):
            return self._case()
        if constant := self._next("null", "true", "false"):
            return "0" if constant == "null" else "i"
        if self._at >= len(self._tokens):
            raise _Unknown
        kind, word = self._tokens[self._at]
        self._at += 1
        return self._call(word) if kind == "word" else self._simple(kind, word)

    def _simple(self, kind: str, word: str) -> str:
        if kind == "text":
            return "a" if word.isascii() else "t"
        if kind == "number":
            whole, _, part = word.partition(".")
            return self._counted("n" if part else "i", len(whole) + len(part), len(part))
        if kind == "name":
            return self._column(word)
        raise _Unknown

    def _case(self) -> str:
        results = []
        if not self._next("when"):
            self._all([self._or()], "i0", "i")
            self._need("when")
        while True:
            self._all([self._or()], "i0", "i")
            self._need("then")
            results.append(self._or())
            if not self._next("when"):
                break
        if self._next("else"):
            results.append(self._or())
        self._need("end")
        return _one(results)

    def _call(self, name: str) -> str:
        self._need("(")
        if name == "json_extract":
            return self._json()
        given = [] if self._next(")") else self._list()
        patterns, result = _FUNCTIONS.get(name, ((), ""))
        for pattern in patterns:
            wanted = pattern.rstrip("+")
            if pattern.endswith("+"):
                wanted = wanted.ljust(len(given), wanted[-1])
            taken = [each in _TAKEN.get(want, want) for want, each in zip(wanted, given, strict=False)]
            if len(wanted) == len(given) and all(taken):
                if result == "t" and all(each in "ain0dm" for each in given):
                    return "a"
                if result != "*":
                    return result
                return _one([e for w, e in zip(wanted, given, strict=True) if w == "*"] or given)
        raise _Unknown

    def _json(self) -> str:
        """``json_extract(column, 'path')`` of names alone."""
        if self._at + 4 > len(self._tokens):
            raise _Unknown
        (kind, name), (_, comma), (_, path), (_, end) = self._tokens[self._at : self._at + 4]
        self._at += 4
        if (kind, comma, end) != ("name", ",", ")") or not _PATH.fullmatch(path):
            raise _Unknown
        if self._column(name) != "j":
            raise _Unknown
        return "j"

    def _column(self, name: str) -> str:
        column = self._columns.get(name[1:-1].replace("``", "`").lower())
        if column is None or column.type.flag & ColumnFlag.ZEROFILL:
            raise _Unknown
        tp = column.type.tp
        if tp in INTEGERS:
            self._signs.add(column.type.unsigned)
            return self._counted("i", _OF_AN_INTEGER, 0)
        if tp == MysqlType.NEWDECIMAL:
            return self._counted("n", column.type.flen, max(column.type.decimal, 0))
        kind = {"utf8mb4": "t", "utf8": "t", "binary": "b"}.get(column.type.charset)
        if tp in STRINGS and kind is not None:
            return kind
        kinds = {int(MysqlType.DATE): "d", int(MysqlType.DATETIME): "m", int(MysqlType.JSON): "j"}
        if tp not in kinds:
            raise _Unknown
        return kinds[tp]

    def _counted(self, kind: str, digits: int, scale: int) -> str:
        self._decimals |= kind == "n"
        self._digits += digits
        self._scale += scale
        return kind


def _one(kinds: Sequence[str]) -> str:
    """The type that values of these become."""
    found = {each for each in kinds if each != "0"}
    if len(found) > 1 and found <= {"i", "n"}:
        return "n"
    if len(found) > 1 and found <= {"t", "a"}:
        return "t"
    if len(found) > 1:
        raise _Unknown
    return found.pop() if found else "0"
