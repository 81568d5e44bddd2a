"""How fast an executor comes back, and how patient it is, by how many others do the same.

A leader that dies is lost to all executors of its cell at the same moment. Ten thousand that all
come back at once keep each other out: each of them is refused or times out, and comes once more.
So the cell says, in each Welcome and each refusal, over how long its executors are to spread their
return: long enough that one replica can greet them one after the other. A small cell says 0, and
its executors are back as soon as somebody leads. Where nobody gets to say anything, each executor
guesses: it comes half as often, and waits longer, after each visit that nobody answered in time.
"""

from __future__ import annotations

import hashlib
from typing import Final

from launcher.config import ExecutorConfig

SPREAD_MS_MAX: Final = 10_000
"""More is not believed: half of the lease in which work must find a leader again (rule R5)."""
CROWDED_FROM: Final = 3
"""Visits in a row that nobody answers in time: a replica that is frozen alternates with others that
say so, and costs no more time than it did."""
CROWDED_MS_MIN: Final = 500
_WHOLE: Final = 1 << 64


class Backoff:
    """The rests between the visits of one executor. Pure: `seed` decides all that looks like
    chance, and no two executors have the same."""

    def __init__(self, config: ExecutorConfig, seed: str) -> None:
        self._config = config
        self._seed = seed
        self._draws = 0
        self._pause_ms = config.reconnect_ms_min
        self._late_leader_streams = 0
        self._said_ms = 0

    @property
    def spread_ms(self) -> int:
        """What a replica has said of the cell; or more, while none has time to say anything: twice
        as much after each visit."""
        if self._late_leader_streams < CROWDED_FROM:
            return self._said_ms
        guess_ms = CROWDED_MS_MIN << min(self._late_leader_streams - CROWDED_FROM, 10)
        return max(self._said_ms, min(guess_ms, SPREAD_MS_MAX))

    def met(self, *, is_late: bool) -> None:
        """Take note of how a visit ended: `is_late` where nobody said anything in time."""
        self._late_leader_streams = self._late_leader_streams + 1 if is_late else 0

    def learn(self, spread_ms: int) -> None:
        """Go by what a replica says of the size of its cell."""
        self._said_ms = max(0, min(spread_ms, SPREAD_MS_MAX))

    # ---- how long to wait for a replica that has many to greet

    @property
    def connect_ms(self) -> int:
        """How long a connection may take."""
        return self._config.connect_ms + self.spread_ms // 4

    @property
    def welcome_ms(self) -> int:
        """How long a welcome may take."""
        return self._config.welcome_ms + self.spread_ms

    @property
    def answer_ms(self) -> int:
        """How long a heartbeat may go unanswered."""
        return self._config.answer_ms + self.spread_ms // 4

    # ---- how long to rest

    def first(self, replicas: int) -> int:
        """Return which replica to try first after a stream that ended."""
        return self._drawn(replicas) if self.spread_ms else 0

    def after_stream_ms(self) -> int:
        """Return the rest after a stream that was welcome: some come at once, and none later than
        the spread."""
        self._pause_ms = self._config.reconnect_ms_min
        return self._drawn(self.spread_ms + 1) if self.spread_ms else 0

    def after_failure_ms(self) -> int:
        """Return the rest after a visit that came to nothing; longer each time, up to a bound."""
        pause_ms = self._pause_ms / len(self._config.leaders)
        self._pause_ms = min(self._pause_ms * 2, self._config.reconnect_ms_max)
        if not self.spread_ms:
            return round(pause_ms)
        wide_ms = max(round(pause_ms), self.spread_ms)
        return wide_ms // 2 + self._drawn(wide_ms // 2 + 1)

    def _drawn(self, below: int) -> int:
        """Return a number from 0 to `below` - 1, another one each time."""
        self._draws += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._draws}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") * below // _WHOLE
