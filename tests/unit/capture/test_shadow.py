"""What a statement is run with on the shadow."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.capture.schemas import ServerKind
from pumphouse.capture.shadow import Shadow, flavor_of
from pumphouse.capture.source.model import Query


@pytest.mark.row("Q3")
def test_a_statement_has_its_sessions_collations_of_character_sets() -> None:
    kind = ServerKind(
        version="11.8.2-MariaDB", lower_case_table_names=0, character_set="utf8mb4", collation="utf8mb4_bin",
        time_zone="+00:00", system_is_utc=True, explicit_defaults=True,
    )  # fmt: skip
    shadow: Any = Shadow.__new__(Shadow)
    shadow.kind, shadow.flavor = kind, flavor_of(kind.version)
    shadow._charsets = {33: "utf8mb3", 45: "utf8mb4", 2304: "utf8mb4"}
    shadow._collations = {33: "utf8mb3_general_ci", 45: "utf8mb4_general_ci", 2304: "utf8mb4_uca1400_ai_ci"}
    query = Query(text=b"CREATE TABLE t (a TEXT CHARACTER SET utf8mb4)", schema="shop", before=0, client_collation=45)
    assert "@@session.character_set_collations = ''" in shadow._context(query)[0]
    said = Query(
        text=query.text, schema="shop", before=0, client_collation=45, charset_collations=((33, 33), (45, 2304))
    )
    (context,) = shadow._context(said)
    named = "'utf8mb3=utf8mb3_general_ci,utf8mb4=utf8mb4_uca1400_ai_ci'"
    assert f"@@session.character_set_collations = {named}" in context
    shadow._collations = {}  # a server that has none
    assert "character_set_collations" not in shadow._context(said)[0]
