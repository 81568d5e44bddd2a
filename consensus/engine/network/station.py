"""What the connections of one replica share: who it is, and whom they tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from pysyncobj.node import Node

from consensus.engine.network.complaints import Complaints
from consensus.engine.network.net import Network
from consensus.engine.network.wire import Goodbye, Hello, Welcome

INTRODUCED_WITHIN_S: Final = 5.0
"""How long it may take from the dial to the Welcome, and from the accepting to the Hello."""
GOODBYE_MS: Final = 1_000
"""How long a Goodbye may take to leave."""
GOODBYE_BYTES_MAX: Final = 500
"""What of its text is sent: the frame must fit into HELLO_BYTES_MAX."""


class Gate(Protocol):
    """Who may speak with this replica, by its log; it is the core's."""

    def hello(self, to: str) -> Hello:
        """Return what this replica says first to the peer `to`."""

    def welcome(self, to: str, protocol: int) -> Welcome:
        """Return its answer to the Hello of `to`; `protocol` is what both will speak."""

    def judge(self, caller: Hello | Welcome) -> Goodbye | None:
        """Return why `caller` is refused, None if it is not."""

    def refused(self, by: str, goodbye: Goodbye) -> None:
        """Learn that the peer `by` refuses this replica."""

    def caller_gone(self, name: str) -> None:
        """Learn that the connection on which `name` spoke is over."""


class Station(Protocol):
    """What both kinds of connections see of the transport that they belong to."""

    replica: str
    network: Network
    gate: Gate
    mono: Callable[[], float]
    complaints: Complaints

    def link_up(self, node: Node) -> None:
        """`node` can be spoken to."""

    def link_down(self, node: Node) -> None:
        """`node` cannot be spoken to any more."""


def cut_text(goodbye: Goodbye) -> Goodbye:
    """Return `goodbye` with no more text than its frame may carry."""
    text = goodbye.text.encode(errors="replace")[:GOODBYE_BYTES_MAX].decode(errors="ignore")
    return Goodbye(goodbye.reason, goodbye.number, text)
