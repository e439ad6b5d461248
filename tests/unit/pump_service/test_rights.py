"""Who may do what at a Pump, and what a web page may not (row W8)."""

from __future__ import annotations

import pytest

from pump_service.api.browsers import Names
from pump_service.api.rights import TABLE, Caller, Right, Rights, exposed
from pumphouse.settings import Settings, TlsSettings

pytestmark = pytest.mark.row("W8")
TOKEN = "a-token-of-an-operator"
STRANGER = "ipv4:192.0.2.7:40000"
OPERATORS = sorted(name for name, right in TABLE.items() if right not in (Right.WRITE, Right.PULL, Right.LOOK))
EVERYBODYS = sorted(set(TABLE) - set(OPERATORS))


def may(rights: Rights, what: str, peer: str = STRANGER, authorization: str = "") -> bool:
    return rights.refusal(what, Caller(peer, authorization)) is None


@pytest.mark.parametrize("what", EVERYBODYS)
def test_writing_pulling_and_looking_need_no_proof(what: str) -> None:
    assert may(Rights(TlsSettings(), tokens=[TOKEN], trust_loopback=False), what)


@pytest.mark.parametrize("what", [*OPERATORS, "/pumphouse.v1.PumpBatch/Unknown", "DELETE /status", ""])
def test_what_an_operator_does_needs_one_of_three_proofs(what: str) -> None:
    rights = Rights(TlsSettings(), tokens=["an-older-token-that-still-holds", TOKEN])
    assert not may(rights, what)
    assert not may(rights, what, authorization=TOKEN)
    assert not may(rights, what, authorization=f"Bearer {TOKEN} ")
    assert not may(rights, what, authorization="Bearer ")
    assert not may(rights, what, authorization="Bearer \udcff")
    assert may(rights, what, authorization=f"Bearer {TOKEN}")
    assert may(rights, what, authorization="Bearer an-older-token-that-still-holds")
    assert may(rights, what, "ipv4:127.0.0.1:5")
    certified = Rights(TlsSettings(ca="ca.pem", cert="c.pem", key="k.pem", cert_allowed_cn=("tidb",)))  # type: ignore[arg-type]
    assert may(certified, what)


def test_without_a_token_nobody_elsewhere_has_one() -> None:
    rights = Rights(TlsSettings())
    assert not may(rights, "GET /debug/binlog/{ts}", authorization="Bearer ")
    assert not may(rights, "GET /debug/binlog/{ts}")


def test_tls_without_names_proves_nothing() -> None:
    assert not may(Rights(TlsSettings(ca="ca.pem", cert="c.pem", key="k.pem")), OPERATORS[0])  # type: ignore[arg-type]


def test_an_operation_can_be_opened_by_its_name_alone() -> None:
    rights = Rights(TlsSettings(), open_to_all=["state"])
    assert may(rights, "PUT /state/{node_id}/{action}")
    assert not may(rights, "POST /debug/gc/trigger")


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:1", True),
        ("ipv4:127.8.9.1:1", True),
        ("ipv6:[::1]:1", True),
        ("ipv6:%5B::1%5D:1", True),
        ("ipv6:[::ffff:127.0.0.1]:1", True),
        ("unix:", True),
        ("unix:/run/pump.sock", True),
        ("ipv6:[::ffff:192.0.2.1]:1", False),
        ("ipv4:192.0.2.1:1", False),
        ("ipv6:[fe80::1%eth0]:1", False),
        ("gone:", False),
        ("ipv4:unix:1", False),
        ("", False),
    ],
)
def test_who_is_local(peer: str, local: bool) -> None:
    assert Caller(peer).is_local is local
    assert may(Rights(TlsSettings()), OPERATORS[0], peer) is local
    assert not may(Rights(TlsSettings(), trust_loopback=False), OPERATORS[0], peer)


def test_a_refusal_says_who_and_what_to_do() -> None:
    refused = Rights(TlsSettings(), tokens=[TOKEN]).refusal("/pumphouse.v1.PumpBatch/Settle", Caller(STRANGER))
    assert refused is not None
    assert refused.message == f"Settle is for operators, and {STRANGER} shows no token"
    assert "cluster.operator_token" in refused.hint
    assert "pump.open_operations = settle" in refused.hint
    assert TOKEN not in str(refused)


@pytest.mark.parametrize("text", ["short", "x" * 16 + "\nshort", "ä" * 16])
def test_a_token_that_can_be_guessed_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(Exception, match=r"cluster\.operator_token.*openssl rand") as error:
        Settings.read(overrides={"cluster.operator_token": text})
    assert text not in str(error.value)


def test_several_tokens_are_lines_of_one_file(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path) + "/token"
    with open(path, "w") as file:
        file.write(f"{TOKEN}\nthe-token-before-this-one\n")
    monkeypatch.setenv("PUMPHOUSE_CLUSTER__OPERATOR_TOKEN_FILE", path)
    assert Settings.read().cluster.operator_tokens == (TOKEN, "the-token-before-this-one")


def test_where_a_pump_listens_in_clear() -> None:
    assert exposed(["0.0.0.0:8250", "127.0.0.1:8251", "[::]:8252", "pump-1:8253", "[::1]:1", "localhost:2"], TlsSettings()) == (
        "0.0.0.0:8250", "[::]:8252", "pump-1:8253",
    )  # fmt: skip
    assert exposed(["0.0.0.0:8250"], TlsSettings(ca="ca.pem")) == ()  # type: ignore[arg-type]


NAMES = Names(["0.0.0.0:8250", "pump-1.example:8250"], ["Metrics.example"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 0),
        ({"Host": "127.0.0.1:8250"}, 0),
        ({"Host": "[::1]:8250"}, 0),
        ({"Host": "192.0.2.1"}, 0),
        ({"Host": "LOCALHOST:8250"}, 0),
        ({"Host": "pump-1.example:8250"}, 0),
        ({"Host": "pump-1.example.:8250"}, 0),
        ({"Host": "metrics.example"}, 0),
        ({"Host": "evil.example:8250"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "pump-1.example.evil"}, 421),
        ({"Host": ""}, 421),
        # A page of a name that leads to us, and pages of others.
        ({"Host": "evil.example:8250", "Origin": "http://evil.example:8250"}, 421),
        ({"Host": "127.0.0.1:8250", "Origin": "http://evil.example"}, 403),
        ({"Host": "127.0.0.1:8250", "Origin": "null"}, 403),
        ({"Host": "127.0.0.1:8250", "Origin": "http://127.0.0.1:9000"}, 403),
        ({"Origin": "http://127.0.0.1:9000"}, 403),
        ({"Host": "127.0.0.1:8250", "Origin": "http://127.0.0.1:8250"}, 0),
        ({"Host": "127.0.0.1:8250", "Origin": "http://[::1"}, 403),
        ({"Host": "127.0.0.1:8250", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "127.0.0.1:8250", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "127.0.0.1:8250", "Sec-Fetch-Site": "none"}, 0),
    ],
)
def test_what_a_web_page_made_a_browser_send_is_refused(headers: dict[str, str], status: int) -> None:
    page = NAMES.refusal("PUT", headers, acts=True)
    assert (page[0] if page else 0) == status


def test_a_page_may_link_to_what_everybody_may_see() -> None:
    assert NAMES.refusal("GET", {"Host": "127.0.0.1:8250", "Sec-Fetch-Site": "cross-site"}, acts=False) is None


def test_the_check_of_names_can_be_left_out() -> None:
    assert Names([], ["*"]).refusal("GET", {"Host": "anything.example"}, acts=False) is None
