"""JSON in proofs, on real MariaDBs: a client's binlogs and dumps of the source spell it differently, its values count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pymysql.connections import Connection

from pumphouse.archive.init import init_archive
from pumphouse.archive.proofs import Outcome, Proof
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.capture.passed import waiter
from pumphouse.client import PrewriteValueBuilder, PumpClient, TransactionBinlog, encode_insert, named_row, tables
from pumphouse.dump.run import take_dump
from pumphouse.parts import Parts
from pumphouse.proof import prove
from pumphouse.runs import load
from pumphouse.runs.proof import hold_against
from pumphouse.runs.proof import prove as run_proof
from pumphouse.settings import Settings
from tests.integration.test_server_variables import Chain, chained

pytestmark = [
    pytest.mark.row("R1", "R4", "R6"),
    pytest.mark.timeout(300),
    pytest.mark.mariadb("a MySQL keeps JSON in a form of its own"),
]
WRITTEN = ['{"b":1,"a":[1,2.0]}', '{"b": 12345678901234567, "a":1e2}', None, '"\\u00e4"']
_MADE = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.doc (id INT PRIMARY KEY, name VARCHAR(9), j JSON, k JSON)",
    "CREATE TABLE shop.named (name VARCHAR(9) PRIMARY KEY, j JSON)",
    "CREATE TABLE shop.only (j JSON)",
)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with chained(tmp_path) as made:
        yield made


def sql(connection: Connection[tuple[object, ...]], statement: str, *values: object) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def write(chain: Chain, settings: Settings) -> None:
    """Rows on the source and in a binlog."""
    known = tables(settings.history)
    value = PrewriteValueBuilder(known.schema_version)
    for n, text in enumerate(WRITTEN):
        rows = {"doc": {"id": n, "name": "x", "j": text, "k": text}, "named": {"name": f"n{n}", "j": text}}
        for name, row in (rows | {"only": {"j": text}}).items():
            table = known["shop", name]
            value.insert(table.id, encode_insert(table, named_row(table, row), handle=n if name == "only" else None))
            marks = ", ".join(["%s"] * len(row))
            sql(chain.at_source, f"INSERT INTO shop.{name} VALUES ({marks})", *row.values())
    with PumpClient(chain.cluster) as client:
        start = chain.cluster.tso()
        binlog = TransactionBinlog(start_ts=start, key=b"shop/x", prewrite_value=value.build())
        client.write_prewrite(binlog.prewrite(), start)
        client.write_commit(binlog.commit(chain.cluster.tso()), start)
        assert client.flush(60)


def found(proof: Proof) -> dict[str, Outcome]:
    return {each.table: each.outcome for each in proof.tables}


def test_json_that_is_only_written_differently_is_equal_and_another_value_is_found(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = chain.settings("json")
    for statement in _MADE:
        sql(chain.at_source, statement)
    chain.import_(settings)
    with Parts(settings) as parts:

        def taken_up(*, dumped: bool) -> None:
            if dumped:
                settle = waiter(chain.cluster, settings.source, settings.capture)
                take_dump(parts.archive, chain.cluster, parts.history, settings, settle=settle)
            run_snapshot(parts.archive, chain.cluster, chain.cluster.tso(), settings, parts.history)
            load.run(settings)

        init_archive(parts.archive, chain.cluster, parts.history, settings=settings)
        taken_up(dumped=True)
        write(chain, settings)
        taken_up(dumped=False)
        equal = dict.fromkeys(("doc", "named", "only"), Outcome.EQUAL)
        assert found(run_proof(settings)) == equal
        where = settings.source.model_dump(include={"host", "port", "user", "password"})
        as_source = settings.target.model_copy(update=where)
        # The source has its own text, the archive the client's, in TiDB's form.
        here = hold_against(settings, as_source, section="source", databases=["shop"])
        assert (found(here), here.equal) == (equal, True)
        taken_up(dumped=True)
    assert sql(chain.at_target, "SELECT j FROM shop.doc WHERE id = 0") == [('{"a": [1, 2], "b": 1}',)]
    proof = run_proof(settings)
    assert (found(proof), proof.equal, proof.rows) == (equal, True, 3 * len(WRITTEN))
    assert Proof.from_json(proof.key, proof.to_json()).equal
    # Another value: in JSON beside rows of other texts, beside JSON, and of how many rows there are.
    for change, table, row in (
        (f"UPDATE shop.doc SET k = '{WRITTEN[1]}' WHERE id = 0".replace("1e2", "101"), "doc", "0"),
        ("UPDATE shop.doc SET j = REPLACE(j, 4567, 4568) WHERE id = 1", "doc", "1"),
        ("UPDATE shop.doc SET name = 'y' WHERE id = 1", "doc", "1"),
        ("UPDATE shop.doc SET j = 'null' WHERE id = 2", "doc", "2"),
        ("UPDATE shop.named SET j = '[]' WHERE name = 'n0'", "named", "n0"),
        ("INSERT INTO shop.only SELECT j FROM shop.only WHERE j LIKE '{%2]%'", "only", WRITTEN[0]),
    ):
        before = sql(chain.at_target, f"SELECT * FROM shop.{table}")
        sql(chain.at_target, change)
        red = next(each for each in run_proof(settings).tables if each.table == table)
        assert red.outcome is Outcome.DIFFERENT, change
        sides = {"target"} if table == "only" else {"archive", "target"}
        assert {each.side for each in red.rows} == sides, change
        assert len(red.rows) == len(sides), change
        if table != "only":
            assert {each.row[next(iter(each.row))] for each in red.rows} == {row}, change
        sql(chain.at_target, f"DELETE FROM shop.{table}")
        for each in before:
            sql(chain.at_target, f"INSERT INTO shop.{table} VALUES ({', '.join(['%s'] * len(each))})", *each)
    assert run_proof(settings).equal
    # Where nobody can look, the outcome says what may be so.
    monkeypatch.setattr(prove, "_SEARCHED_ROWS", 3)
    unseen = run_proof(settings)
    assert unseen.verdict == "DIFFERENT"
    why = {each.table: each.why for each in unseen.tables}
    assert "its JSON (j, k) could only be compared as text" in why["doc"]
    assert "more than 3 rows" in why["doc"]
    assert Proof.from_json(unseen.key, unseen.to_json()).verdict == "DIFFERENT"
