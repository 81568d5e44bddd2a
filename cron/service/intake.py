"""Whether a task may come in, beside what State decides: the rate of its queue, and its handler.

Only the leader asks. What it counts begins anew with each leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cron.access import AccessRules
from cron.clock import Clock
from cron.leader.leader import Leader
from cron.state.commands import Claim
from cron.state.outcome import Outcome
from cron.state.tasks import QueueRecord

SERVED_MS: Final = 200
"""How long the list of served handlers is used; it takes a look at every executor."""
SETTLING_MS: Final = 10_000
"""How long executors may take to come to a new leader."""
_WHOLE: Final = 1000
"""The cost of a task: a bucket counts thousandths, so that a rate of 1/s fills it each ms."""


class _Bucket:
    """A token bucket of one queue in integers."""

    def __init__(self, now_ms: int) -> None:
        self.rate = self.most = self.level = 0
        self.seen_ms = now_ms

    def set(self, rate: int, burst: int) -> None:
        """Use another rate; a new bucket is full."""
        most = _WHOLE * (burst or rate)
        if (rate, most) != (self.rate, self.most):
            self.level = most if not self.rate else min(self.level, most)
            self.rate, self.most = rate, most

    def take(self, now_ms: int) -> int:
        """Take a token; return 0, or in how many ms there is one."""
        gained = self.rate * max(0, now_ms - self.seen_ms)
        self.level, self.seen_ms = min(self.most, self.level + gained), now_ms
        if self.level >= _WHOLE:
            self.level -= _WHOLE
            return 0
        return max(1, -(-(_WHOLE - self.level) // self.rate))


class Intake:
    """The rates of queues, and the handlers that workers serve, as the leader sees them."""

    def __init__(self, leader: Leader, clock: Clock, rules: Callable[[], AccessRules]) -> None:
        self._leader = leader
        self._clock = clock
        self._rules = rules
        self._buckets: dict[str, _Bucket] = {}
        self._served: frozenset[str] = frozenset()
        self._served_ms = clock.mono_ms() - SERVED_MS
        self._claimed_ms = clock.mono_ms() - SETTLING_MS

    def follow(self, _index: int, outcome: Outcome) -> None:
        """Note where a new term begins: no executor has come to its leader yet."""
        if outcome.commands and isinstance(outcome.commands[0], Claim):
            self._claimed_ms = self._clock.mono_ms()
            self._served_ms = self._claimed_ms - SERVED_MS
            self._buckets.clear()

    def wait_ms(self, queue: QueueRecord) -> int:
        """Count a task that comes into a queue; return 0, or in how many ms it would be taken."""
        if not queue.rate_per_s:
            return 0
        now_ms = self._clock.mono_ms()
        bucket = self._buckets.get(queue.name)
        if bucket is None:
            bucket = self._buckets[queue.name] = _Bucket(now_ms)
        bucket.set(queue.rate_per_s, queue.burst)
        return bucket.take(now_ms)

    def serves(self, handler: str) -> bool:
        """Return whether a worker of a connected executor serves a handler."""
        now_ms = self._clock.mono_ms()
        if now_ms - self._served_ms >= SERVED_MS:
            grants = self._rules().executor_grants()
            self._served = frozenset(
                one
                for session in self._leader.pool.sessions()
                for offer in grants.granted(session.executor, {}, "", session.offers).offers
                for one in offer.handlers
            )
            self._served_ms = now_ms
        return handler in self._served

    def is_settling(self, executors: Iterable[int]) -> bool:
        """Return whether executors that the cell knows may still come to this new leader."""
        if self._clock.mono_ms() - self._claimed_ms >= SETTLING_MS:
            return False
        return not self._leader.executors.connected() >= frozenset(executors)
