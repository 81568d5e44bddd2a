"""Which hosts and addresses a target may reach."""

from __future__ import annotations

import ipaddress

import pytest

from launcher.targets.addresses import Allowed


@pytest.mark.parametrize(
    ("hosts", "host", "is_allowed"),
    [
        (("example.com",), "example.com", True),
        (("Example.COM.",), "example.com", True),
        (("example.com",), "EXAMPLE.com.", True),
        (("example.com",), "a.example.com", False),
        (("example.com",), "example.com.evil.net", False),
        (("*.example.com",), "a.example.com", True),
        (("*.example.com",), "a.b.example.com", True),
        (("*.example.com",), "example.com", False),
        (("*.example.com",), "evilexample.com", False),
        (("*",), "anything", True),
        (("*",), "127.0.0.1", True),
        (("*.1",), "127.0.0.1", False),
        (("10.0.0.1", "::1"), "::1", True),
        (("10.0.0.1",), "10.0.0.2", False),
    ],
)
def test_hosts(hosts: tuple[str, ...], host: str, is_allowed: bool) -> None:
    assert Allowed(hosts).host(host) is is_allowed


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1", "fe80::1", "fc00::1", "fd00::1",
        "100.64.0.1", "198.18.0.1", "192.0.2.1", "240.0.0.1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::a9fe:a9fe",
        "fec0::1", "64:ff9b:1::7f00:1", "::ffff:0:7f00:1", "5f00::1",
        "2002:7f00:1::", "2002:a00:1::1", "2001:0:4136:e378:8000:63bf:80ff:fffe",
    ],
)  # fmt: skip
def test_addresses_that_only_their_own_network_reaches_are_refused(address: str) -> None:
    found = ipaddress.ip_address(address)
    assert "`networks` does not allow it" in Allowed(("*",)).address(found)
    assert "`networks` does not allow it" in Allowed(("*",), ("203.0.113.0/24",)).address(found)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert Allowed(("*",)).address(ipaddress.ip_address(address)) == ""


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ("10.0.0.0/8", "10.1.2.3"), ("10.0.0.0/8", "::ffff:10.1.2.3"), ("::1/128", "::1"),
        ("127.0.0.0/8", "127.0.0.1"), ("fd00::/8", "fd00::1"),
        ("169.254.169.254", "169.254.169.254"),
    ],
)  # fmt: skip
def test_networks_allow_their_addresses(network: str, address: str) -> None:
    assert Allowed(("*",), (network,)).address(ipaddress.ip_address(address)) == ""
