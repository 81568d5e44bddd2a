"""The identity, timeouts and callbacks that all connections of a replica share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from pysyncobj.node import Node

from consensus.engine.network.complaints import Complaints
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
