"""Which hosts and addresses a target may reach. Pure: nothing is resolved here.

A payload names the host that a request goes to. So a program that may submit work could make the
target reach services that trust its network: metadata services of clouds, databases on loopback.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from launcher.errors import BadConfig

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
ANY: Final = "*"
EVERYWHERE: Final = ("0.0.0.0/0", "::/0")
"""The networks of hosts that no payload names, but the operator."""
_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_PATTERN: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.ASCII)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL: Final = ipaddress.ip_network("2000::/3")
_COMPATIBLE: Final = ipaddress.ip_network("::/96")


class Allowed:
    """The hosts and networks that a configuration allows.

    `hosts` are names, addresses, `*.example.com` for all names below a domain, or `*` for all.
    `networks` are those of private addresses; public addresses are allowed anyway.

    Raises:
        BadConfig: one is neither.
    """

    def __init__(self, hosts: Iterable[str], networks: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._domains: list[str] = []
        self._networks: list[Network] = []
        for said in hosts:
            host = normal(said)
            if host.startswith("*."):
                self._domains.append(host[1:])
            self._names.add(host)
            if host != ANY and address_of(host) is None and not _PATTERN.fullmatch(host):
                raise BadConfig(
                    f"hosts: {said!r} is no host", 'write "example.com", "*.example.com" or "*"'
                )
        for said in networks:
            try:
                self._networks.append(ipaddress.ip_network(said))
            except ValueError as error:
                raise BadConfig(f"networks: {error}", 'write "10.1.0.0/16"') from error

    def host(self, host: str) -> bool:
        """Return whether requests may go to a host of this name."""
        said = normal(host)
        if ANY in self._names or said in self._names:
            return True
        return address_of(said) is None and any(said.endswith(domain) for domain in self._domains)

    def address(self, address: Address) -> str:
        """Return why an address may not be connected to, or "" if it may."""
        meant = _meant(address)
        for one in {address, meant}:
            if any(one in network for network in self._networks if network.version == one.version):
                return ""
        kind = _kind(meant) or _kind(address)
        if not kind and meant.version == 6 and meant not in _GLOBAL:
            kind = "a private or reserved address"
        return f"{address} is {kind}, and `networks` does not allow it" if kind else ""


def normal(host: str) -> str:
    """Return a host as it is compared: in lower case, without the dot of the root."""
    return host.lower().removesuffix(".")


def address_of(host: str) -> Address | None:
    """Return the address that a host in a URL is, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _meant(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _kind(address: Address) -> str:
    """Return the kind of an address that nobody but its own network may reach, "" for others."""
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_unspecified:
        return "no address of a host"
    return "" if address.is_global else "a private or reserved address"
