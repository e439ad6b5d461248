import socket

import pytest

from pumphouse.model.address import dialable, joined, reachable
from pumphouse.settings import PumpSettings

pytestmark = pytest.mark.row("W5")


@pytest.mark.parametrize(
    ("addr", "dialed"),
    [
        ("127.0.0.1:8250", "127.0.0.1:8250"),
        ("pump-1:8250", "pump-1:8250"),
        ("::1:8250", "[::1]:8250"),
        ("[::1]:8250", "[::1]:8250"),
        ("fe80::1%eth0:8250", "[fe80::1%eth0]:8250"),
        ("unix:/run/pump.sock", "unix:/run/pump.sock"),
        ("ipv4:127.0.0.1:8250", "ipv4:127.0.0.1:8250"),
        ("dns:///pump-1:8250", "dns:///pump-1:8250"),
        ("", ""),
    ],
)
def test_an_ipv6_host_is_dialed_in_brackets_and_all_else_as_it_is(addr, dialed):
    assert dialable(addr) == dialed


@pytest.mark.parametrize("addr", [":8250", "0.0.0.0:8250", "[::]:8250", ":::8250"])
def test_an_address_that_means_all_is_this_machine_by_name(addr):
    assert reachable(addr) == f"{socket.gethostname()}:8250"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_host_and_port_are_joined_once(host):
    assert joined(host, 8250) == "[::1]:8250"
    assert reachable(joined(host, 8250)) == "[::1]:8250"


def test_an_advertised_address_is_one_that_clients_can_parse():
    assert PumpSettings(advertise_addr="::1:8250").advertise_addr == "[::1]:8250"
    for wrong in (":8250", "[::]:8250", "0.0.0.0:8250"):
        with pytest.raises(ValueError, match="invalid advertiseAddr"):
            PumpSettings(advertise_addr=wrong)
