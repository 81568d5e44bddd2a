"""How fast an executor reconnects, and how long it waits for answers, in a cell of many executors.

When a leader dies, all executors of its cell lose it at the same moment. If ten thousand came back
at once, they would keep each other out: each one would be refused or time out, and try again. So
each Welcome and each refusal says over how long the cell's executors are to spread their
reconnects: long enough for one replica to accept them one after the other. A small cell says 0, and
its executors are back as soon as there is a leader. If no replica answers, each executor guesses:
after each visit without an answer in time, it tries half as often and waits longer.
"""

from __future__ import annotations

import hashlib
from typing import Final

from launcher.config import ExecutorConfig

SPREAD_MS_MAX: Final = 10_000
"""An upper bound: half of the lease in which work must find a leader again (rule R5)."""
CROWDED_FROM: Final = 3
"""Visits in a row without an answer in time. Fewer may be visits of one frozen replica, between
visits of others that answer."""
CROWDED_MS_MIN: Final = 500
_WHOLE: Final = 1 << 64


class Backoff:
    """The pauses between the visits of one executor. Pure: everything that looks like chance
    follows from `seed`, which differs between executors."""

    def __init__(self, config: ExecutorConfig, seed: str) -> None:
        self._config = config
        self._seed = seed
        self._draws = 0
        self._pause_ms = config.reconnect_ms_min
        self._late_visits = 0
        self._reported_ms = 0

    @property
    def spread_ms(self) -> int:
        """The spread that a replica reported; more while none has time to answer: it doubles with
        each visit."""
        if self._late_visits < CROWDED_FROM:
            return self._reported_ms
        guess_ms = CROWDED_MS_MIN << min(self._late_visits - CROWDED_FROM, 10)
        return max(self._reported_ms, min(guess_ms, SPREAD_MS_MAX))

    def met(self, *, is_late: bool) -> None:
        """Note how a visit ended; `is_late`: without an answer in time."""
        self._late_visits = self._late_visits + 1 if is_late else 0

    def learn(self, spread_ms: int) -> None:
        """Take the spread that a replica reports."""
        self._reported_ms = max(0, min(spread_ms, SPREAD_MS_MAX))

    # ---- how long to wait for a replica with many executors

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

    # ---- how long to pause

    def first(self, replicas: int) -> int:
        """Return the number of the replica to try first after a stream."""
        return self._drawn(replicas) if self.spread_ms else 0

    def after_stream_ms(self) -> int:
        """Return the pause after a stream that had a Welcome, at most the spread."""
        self._pause_ms = self._config.reconnect_ms_min
        return self._drawn(self.spread_ms + 1) if self.spread_ms else 0

    def after_failure_ms(self) -> int:
        """Return the pause after a visit without a Welcome; it grows, up to a bound."""
        pause_ms = self._pause_ms / len(self._config.leaders)
        self._pause_ms = min(self._pause_ms * 2, self._config.reconnect_ms_max)
        if not self.spread_ms:
            return round(pause_ms)
        wide_ms = max(round(pause_ms), self.spread_ms)
        return wide_ms // 2 + self._drawn(wide_ms // 2 + 1)

    def _drawn(self, below: int) -> int:
        """Return a number from 0 to `below` - 1, a different one each time."""
        self._draws += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._draws}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") * below // _WHOLE
