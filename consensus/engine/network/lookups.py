"""Host name lookups in threads of their own: DNS may hang, and a tick must not.

At most one thread per name runs at a time, so there are never more threads than peers. The last
result is used while a new lookup runs and if it fails, so a cell survives its name servers.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Final

AGAIN_AFTER_S: Final = 1.0
"""How old a result may be before it is looked up again."""

Resolve = Callable[[str], list[str]]


def resolve(host: str) -> list[str]:
    """Return the IPs of `host` in the system's order of preference. Blocks. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class _Name:
    """The results for one name."""

    def __init__(self) -> None:
        self.ips: list[str] = []
        self.error = ""
        self.is_asked = False
        self.answered_at: float | None = None
        self.turn = 0


class Lookups:
    """The addresses of the peers' names."""

    def __init__(
        self, ring: Callable[[], None], mono: Callable[[], float], ask: Resolve = resolve
    ) -> None:
        """`ring` is called from another thread when a lookup has ended."""
        self._ring, self._mono, self._ask = ring, mono, ask
        self._names: dict[str, _Name] = {}

    def find(self, host: str) -> str | None:
        """Return an IP of `host`, in turn if there are several; None while the first lookup runs.

        Raises:
            OSError: the name has no address.
        """
        if is_ip(host):
            return host
        name = self._names.setdefault(host, _Name())
        answered_at = name.answered_at
        is_old = answered_at is None or self._mono() - answered_at > AGAIN_AFTER_S
        if is_old and not name.is_asked:
            name.is_asked = True
            threading.Thread(
                target=self._look_up, args=(host, name), name="consensus-lookup", daemon=True
            ).start()
        if name.ips:
            name.turn += 1
            return name.ips[name.turn % len(name.ips)]
        if answered_at is not None and not is_old:
            raise OSError(f"{host}: {name.error}")
        return None

    def _look_up(self, host: str, name: _Name) -> None:
        try:
            ips, error = self._ask(host), "has no address"
        except (OSError, UnicodeError) as failure:
            ips, error = [], str(failure)
        # Single assignments, the flag last, so that the other thread reads only complete results.
        name.ips, name.error = ips or name.ips, error
        name.answered_at = self._mono()
        name.is_asked = False
        self._ring()


def is_ip(host: str) -> bool:
    """Return whether `host` is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
