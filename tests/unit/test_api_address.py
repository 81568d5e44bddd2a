from __future__ import annotations

import pytest

from cron.api.address import DEFAULT, SERVERS_MAX, parse_server, parse_servers
from cron.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7400", "127.0.0.1:7400"),
        ("127.0.0.1", "127.0.0.1:7400"),
        ("127.3.2.1:1", "127.3.2.1:1"),
        ("localhost:65535", "localhost:65535"),
        ("[::1]:7400", "[::1]:7400"),
        ("[::1]", "[::1]:7400"),
    ],
)
def test_an_address_on_loopback_is_read(text, address):
    assert parse_server(text) == address


@pytest.mark.parametrize("text", ["10.0.0.1:7400", "example.com:7400", "[2001:db8::1]:7400"])
def test_an_address_beyond_loopback_is_refused_with_the_reason(text):
    with pytest.raises(InvalidInput, match="beyond loopback") as caught:
        parse_server(text)
    assert "TLS" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1:7400"),
        ("r1.example.com:7401", "r1.example.com:7401"),
        ("[2001:db8::1]:7400", "[2001:db8::1]:7400"),
    ],
)
def test_an_address_may_be_anywhere_behind_tls(text, address):
    assert parse_server(text, is_secure=True) == address
    assert parse_servers(text, is_secure=True) == [address]


@pytest.mark.parametrize("text", ["unix:/tmp/x:1", "dns:///a:1", "a b:1", "-a:1", "a:1:1", "é:1"])
def test_also_behind_tls_an_address_is_a_host_and_a_port(text):
    with pytest.raises(InvalidInput, match="is not host:port"):
        parse_server(text, is_secure=True)


@pytest.mark.parametrize(
    "text",
    ["", ":7400", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:7400000", "a:²"],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_server(text)


def test_a_list_keeps_its_order_and_drops_what_is_named_twice():
    assert parse_servers(" 127.0.0.1:2, 127.0.0.1:1,,127.0.0.1:2") == ["127.0.0.1:2", "127.0.0.1:1"]


def test_the_default_names_the_three_replicas_of_dev():
    assert parse_servers(DEFAULT) == ["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]


@pytest.mark.parametrize("text", ["", ",", " "])
def test_an_empty_list_is_refused(text):
    with pytest.raises(InvalidInput, match="empty"):
        parse_servers(text)


def test_a_list_that_is_too_long_is_refused():
    def many(count: int) -> str:
        return ",".join(f"127.0.0.1:{7400 + n}" for n in range(count))

    assert len(parse_servers(many(SERVERS_MAX))) == SERVERS_MAX
    with pytest.raises(InvalidInput, match="at most"):
        parse_servers(many(SERVERS_MAX + 1))
