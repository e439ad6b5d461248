"""SHOW CREATE TABLE, which says what information_schema spoils: expressions, defaults, a partition for all the rest.

Of an expression a MySQL's information_schema has each byte as a character of ISO 8859-1, with a backslash before quotes
and backslashes. A MariaDB's has `?` for the bytes of characters beyond U+FFFF. Literal defaults have `?` on both.
Moments are in whatever time zone their column was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import COMMAND

from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import LITERAL, literal, qualified, quote, unquote
from pumphouse.schema_import.columns import Inexpressible, Row

_BYTES_DEFAULT = re.compile(
    rb"^  `((?:[^`]|``)+)` (?:var)?binary\(\d+\)(?: NOT NULL)? DEFAULT (?:(0x)|'((?:[^'\\]|''|\\.)*)')", re.MULTILINE
)
_PERIOD = re.compile(r"^\s+PERIOD FOR ", re.MULTILINE)
# What may stand between a column's name and what is looked for: no part of a text. A text with '' in it is read as two:
# were there two ways, a search that finds nothing would try all of them.
_BETWEEN = r"(?:[^'\n]|'(?:[^'\\]|\\.)*')*? "
_LOST = re.compile(r"[?\x80-\U0010ffff]+")
_INTRODUCER = re.compile(r"(?<!\w)_\w+(?=')")
_CODECS = {"utf8mb4": "utf-8", "gb18030": "gb18030"}  # character sets with more characters than information_schema's


class Shown:
    """What a server shows of one table, or of a view."""

    def __init__(self, connection: Connection[Any], dialect: Dialect, name: tuple[str, str]) -> None:
        self._connection, self._dialect, self._name = connection, dialect, name
        connection.use_unicode = False  # a default may be no text
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SHOW CREATE TABLE {qualified(*name)}")
                row = cursor.fetchone()
        finally:
            connection.use_unicode = True
        self._bytes = bytes(row[1]) if row else b""
        self._text = self._bytes.decode("utf-8", "replace")

    @property
    def has_period(self) -> bool:
        """Whether it has a PERIOD, of system time or of the application's."""
        return bool(_PERIOD.search(self._text))

    def cut_defaults(self) -> Iterator[str]:
        """Columns of bytes whose default a MySQL's information_schema does not give whole: there it ends at a NUL."""
        if self._dialect is not Dialect.MYSQL:
            return
        for column, no_text, text in _BYTES_DEFAULT.findall(self._bytes):
            # Zeros at the end fill a BINARY(n) up.
            if no_text or b"\\0" in re.sub(rb"(?:\\0)+$", b"", text.replace(b"\\\\", b"")):
                yield column.decode().replace("``", "`")

    def is_rest(self, partition: str) -> bool:
        """Whether a partition of a list takes all other values (DEFAULT): elsewhere it looks like one of value 0."""
        return re.search(rf"^[ (]PARTITION {re.escape(quote(partition))} DEFAULT", self._text, re.MULTILINE) is not None

    def column(self, row: Row) -> Row:
        """A row of information_schema.COLUMNS with its expression, or its default, as it is; Inexpressible."""
        line = rf"^  {re.escape(quote(str(row['column_name'])))} {_BETWEEN}"
        if row["generation_expression"]:
            text = self._expression(rf"{line}GENERATED ALWAYS AS \(", str(row["generation_expression"]))
            return {**row, "generation_expression": text}
        default = str(row["column_default"] or "")
        computed = "default_generated" in str(row["extra"]).lower()
        if self._dialect is Dialect.MARIADB and "?" in default:
            computed = not LITERAL.fullmatch(default) or "text" in str(row["data_type"])
        if computed:
            return {**row, "column_default": self._expression(rf"{line}DEFAULT \(?", default)}
        if self._dialect is Dialect.MYSQL and default and row["data_type"] == "timestamp":
            return {**row, "column_default": self._moment(line)}
        if "?" in default and row["data_type"] in ("char", "varchar"):
            return {**row, "column_default": self._literal(line, row, default)}
        return row

    def check(self, row: Row) -> Row:
        """A CHECK with its condition as it is: of a column, or of the table; Inexpressible."""
        name = re.escape(quote(str(row["constraint_name"])))
        line = rf"^  {name} {_BETWEEN}" if row["level"] == "Column" else rf"^  CONSTRAINT {name} "
        return {**row, "check_clause": self._expression(rf"{line}CHECK \(", str(row["check_clause"]))}

    def select(self, text: str) -> str:
        """The query of a view; Inexpressible."""
        return self._found(" AS ", text)

    def _expression(self, before: str, text: str) -> str:
        if self._dialect is Dialect.MARIADB:
            return self._found(before, text) if "?" in text else text
        text = unquote(text)
        try:
            return text.encode("latin-1").decode()
        except UnicodeError:
            # Bytes of another character set: they are shown as characters. Those beyond U+FFFF are not.
            found = self._found(before, text)
            if found.count("?") != text.count("?"):
                raise _lost() from None
            return found

    def _found(self, before: str, text: str) -> str:
        """What is shown where information_schema has ``text``."""
        parts = [_INTRODUCER.sub(r"_\\w+", re.escape(each)) for each in _LOST.split(text)]
        match = re.search(f"{before}({_LOST.pattern.join(parts)})", self._text, re.MULTILINE)
        if match is None:
            raise _lost()
        return match[1]

    def _moment(self, line: str) -> str:
        """A moment in UTC: a MySQL's information_schema has it in the time zone of the session that made the column."""
        match = re.search(rf"{line}DEFAULT '([0-9:. -]+)'", self._text, re.MULTILINE)
        if match is None:
            raise _lost()
        return match[1]

    def _literal(self, line: str, row: Row, text: str) -> str:
        """A literal default, as information_schema of this dialect has those without such characters."""
        codec = _CODECS.get(str(row["character_set_name"]))
        if codec is None:
            return text
        if self._dialect is Dialect.MARIADB:
            return literal(self._listed()[str(row["column_name"])])
        match = re.search(rf"{line}DEFAULT 0x([0-9A-F]+)", self._text, re.MULTILINE)
        return bytes.fromhex(match[1]).decode(codec) if match else text

    def _listed(self) -> dict[str, str]:
        """Defaults as the old command for a table's fields gives them: only there a MariaDB says what they are."""
        session: Any = self._connection
        session.select_db(self._name[0])
        session._execute_command(COMMAND.COM_FIELD_LIST, f"{self._name[1]}\0".encode())  # noqa: SLF001
        found = {}
        while not (packet := session._read_packet()).is_eof_packet():  # noqa: SLF001
            *_, name, _ = (packet.read_length_coded_string() for _ in range(6))
            packet.advance(13)
            found[name.decode()] = (packet.read_length_coded_string() or b"").decode("utf-8", "replace")
        session.select_db("information_schema")  # of the current database a view's text has no name
        return found


def _lost() -> Inexpressible:
    return Inexpressible("the server does not show all characters of its expression")
