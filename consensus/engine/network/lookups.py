"""Names of hosts turned into addresses, in threads of their own: DNS may hang, a tick may not.

One thread per name at a time, at most; so there are never more than peers. What was found last is
used while a new answer is on its way, also when none comes: a cell outlives its name servers.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Final

AGAIN_AFTER_S: Final = 1.0
"""How old an answer may be before a new one is asked for."""

Resolve = Callable[[str], list[str]]


def resolve(host: str) -> list[str]:
    """Return the IPs of `host`, as the system prefers them; waits as long as that takes. Raises
    OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class _Name:
    """What is known of one name."""

    def __init__(self) -> None:
        self.ips: list[str] = []
        self.error = ""
        self.is_asked = False
        self.answered_at: float | None = None
        self.turn = 0


class Lookups:
    """What the names of peers mean."""

    def __init__(
        self, ring: Callable[[], None], mono: Callable[[], float], ask: Resolve = resolve
    ) -> None:
        """`ring` is called, from another thread, when an answer is here."""
        self._ring, self._mono, self._ask = ring, mono, ask
        self._names: dict[str, _Name] = {}

    def find(self, host: str) -> str | None:
        """Return an IP of `host`, another one each time where there are several; None while the
        first answer is on its way.

        Raises:
            OSError: there is none.
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
        # One assignment each, the flag last: the other thread only reads what is complete.
        name.ips, name.error = ips or name.ips, error
        name.answered_at = self._mono()
        name.is_asked = False
        self._ring()


def is_ip(host: str) -> bool:
    """Whether `host` is an address already."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
