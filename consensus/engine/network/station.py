"""The identity, timeouts and callbacks that all connections of a replica share, and their
rate-limited log lines: unauthenticated callers can cause any number of errors; a line for each
could fill a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from pysyncobj.node import Node

from consensus.engine.network.net import Network
from consensus.engine.network.wire import Goodbye, Hello, Welcome

INTRODUCED_WITHIN_S: Final = 5.0
"""The longest time from dialling to the Welcome, and from accepting to the Hello."""
GOODBYE_MS: Final = 1_000
"""The longest time for sending a Goodbye."""
GOODBYE_BYTES_MAX: Final = 500
"""How much of its text is sent: the frame must fit into HELLO_BYTES_MAX."""


class Gate(Protocol):
    """Peer admission by the members in this replica's log; the engine implements it."""

    def hello(self, to: str) -> Hello:
        """Return this replica's Hello to the peer `to`."""

    def welcome(self, to: str, protocol: int) -> Welcome:
        """Return the answer to the Hello of `to`; `protocol` is the negotiated version."""

    def judge(self, caller: Hello | Welcome) -> Goodbye | None:
        """Return why `caller` is refused; None if it is accepted."""

    def refused(self, by: str, goodbye: Goodbye) -> None:
        """Record that the peer `by` refuses this replica."""

    def caller_gone(self, name: str) -> None:
        """Record that the connection of `name` is closed."""


class Station(Protocol):
    """The part of the transport that both kinds of connections use."""

    replica: str
    network: Network
    gate: Gate
    mono: Callable[[], float]
    complaints: Complaints

    def link_up(self, node: Node) -> None:
        """`node` is connected."""

    def link_down(self, node: Node) -> None:
        """`node` is not connected any more."""


def cut_text(goodbye: Goodbye) -> Goodbye:
    """Return `goodbye` with its text cut to fit into the frame."""
    text = goodbye.text.encode(errors="replace")[:GOODBYE_BYTES_MAX].decode(errors="ignore")
    return Goodbye(goodbye.reason, goodbye.number, text)


_log = logging.getLogger(__name__)
EVERY_S: Final = 60.0
"""At most one line of a kind in this many seconds."""


class Complaints:
    """Counts and logs errors. `kind` is one of a few constants, never bytes from a socket."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, kind: str, text: str) -> None:
        """Log `text`, unless a line of its kind was logged recently."""
        now = self._mono()
        at, unsaid = self._said.get(kind, (now - EVERY_S, 0))
        if now - at < EVERY_S:
            self._said[kind] = (at, unsaid + 1)
            return
        self._said[kind] = (now, 0)
        more = f" (and {unsaid} more of this kind)" if unsaid else ""
        _log.warning("%s%s", text, more)

    def forget(self, kind: str) -> None:
        """Log the next error of `kind` at once: the previous problem is over."""
        self._said.pop(kind, None)
