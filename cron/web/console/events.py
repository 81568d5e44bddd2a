"""Server-sent events: they tell an open page that there is something new, and from whom it comes.

An event has no data of the cell but how the replica stands; the page asks for itself again, as its
caller. Each stream makes its next event when the one before has left, so a slow reader holds
nothing but its connection, which ends after `WRITE_S` seconds without reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from cron import limits
from cron.api.rpc import encode
from cron.web.console.page_request import ServingNow
from cron.web.exchange import Exchange
from cron.web.turns import Turns

PERIOD_S: Final = 2.0
"""How often a stream looks whether there is something new."""
EACH_S: Final = 0.01
"""Each open stream makes all of them look less often by this: a thousand take as much of the event
loop as two hundred."""
KEPT_OPEN_S: Final = 15.0
"""After so long without an event a comment is sent, so that a client that is gone is noticed."""
KIND: Final = "text/event-stream"


def streams_within(connections_max: int) -> int:
    """Return how many streams may be open where a replica may have so many connections: streams
    are never idle, and requests need connections, too."""
    return max(1, connections_max * limits.HTTP_EVENTS_MAX // limits.HTTP_CONNECTIONS_MAX)


class Events:
    """The streams of events of one replica."""

    def __init__(
        self,
        serving: ServingNow,
        streams_max: int = limits.HTTP_EVENTS_MAX,
        period_s: float = PERIOD_S,
    ) -> None:
        self._serving = serving
        self._turns = Turns(streams_max, waiting=0)
        self._period_s = period_s
        self.open = 0

    async def send(self, exchange: Exchange, check: Callable[[], None]) -> None:
        """Send events until the client goes away, or `check` raises because its caller may not see
        pages any more.

        Raises:
            Refusal: as many streams are open as may be.
        """
        async with self._turns.turn():
            self.open += 1
            try:
                await exchange.stream(KIND, self._events(), check)
            finally:
                self.open -= 1

    async def _events(self) -> AsyncIterator[bytes]:
        said, silent_s = b"", 0.0
        while True:
            serving = self._serving()
            event = encode(
                {
                    "replica": serving.replica,
                    "leader": serving.leadership.leader or "",
                    "term": serving.leadership.term,
                    "index": serving.fresh.applied,
                    "warning": serving.warning,
                }
            )
            if event != said:
                said, silent_s = event, 0.0
                yield b"data: " + event + b"\n\n"
            elif silent_s >= KEPT_OPEN_S:
                silent_s = 0.0
                yield b": nothing new\n\n"
            pause_s = max(self._period_s, EACH_S * self.open)
            await asyncio.sleep(pause_s)
            silent_s += pause_s
