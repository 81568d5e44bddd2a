"""Who counts starts per second, and slots that are kept free for somebody.

Rates: a bucket for each scope holds a second's worth of starts, one at least, and begins full with
each leader, as documented. So a leader may begin no more in any stretch of time than its rate
gives, and what is in the bucket.

Reservations: a start must leave as many free slots as are reserved and not used, unless it uses one
that is reserved for itself. Slots are reckoned generously: all that executors could offer.

The leader may not have seen yet what was changed just now; it may go by the limits of some seconds
ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from cron.job import COMMAND
from cron.state import commands as c
from cron.state import pool as p
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Outcome, Verdict
from cron.state.state import State
from launcher.protocol.names import split_job_name
from tests.batches import answered

UNSEEN_MS = 10_000
"""For so long an entry may be on its way that was written without knowing of a change."""
THREAD_POOL = "thread_pool"

Limits = dict[p.Scope, p.Limits]


class Class(NamedTuple):
    """What limits go by."""

    tenant: str
    pool: str
    priority: int


class Bucket(msgspec.Struct):
    """Thousandths of starts in hand at a time of the leader's clock."""

    rate_milli: int
    at_ms: int
    hand: float

    @property
    def full(self) -> float:
        """A second's worth, one start at least."""
        return max(1_000.0, float(self.rate_milli))

    def take(self, at_ms: int) -> bool:
        """Take a start; whether there was one. Who sets the clock back gets a full bucket."""
        gained = self.rate_milli * (at_ms - self.at_ms) / 1_000
        self.hand = min(self.full, self.hand + gained) if gained >= 0 else self.full
        self.at_ms = at_ms
        self.hand -= 1_000
        return self.hand > -1


class Pacing:
    """Reads the log, after it was applied. `slots(state, domain)` is how many slots there could
    be, of commands or of workers."""

    def __init__(
        self,
        accuse: Callable[[str, str], None],
        wall_ms: Callable[[], int],
        slots: Callable[[State, str], int],
    ) -> None:
        self._accuse = accuse
        self._wall_ms = wall_ms
        self._slots = slots
        self._limits: list[tuple[int, Limits]] = [(0, {})]
        self._buckets: dict[p.Scope, Bucket] = {}

    def restored(self, state: State) -> None:
        """The cell begins with this again."""
        self._limits = [(0, dict(state.limits))]
        self._buckets.clear()

    def read(self, state: State, outcome: Outcome, at_ms: int) -> None:
        """Read an entry that was accepted, of `at_ms` by its leader's clock."""
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Claim):
                self._buckets.clear()
            elif isinstance(command, p.SetLimits):
                self._limits.append((self._wall_ms(), dict(state.limits)))
            elif isinstance(command, c.Begin):
                verdicts = answered(command, result)
                begun = [item.key for item, verdict in verdicts if verdict == Verdict.ACCEPTED]
                rows = [state.active[key] for key in begun]
                for row in rows:
                    self._look_at_rates(class_of(state, row), at_ms)
                self._look_at_reservations(state, rows)

    def _possible(self) -> list[Limits]:
        """The limits that a leader may go by, the newest last."""
        seen_ms = self._wall_ms() - UNSEEN_MS
        newest = [place for place, (at_ms, _) in enumerate(self._limits) if at_ms < seen_ms]
        return [limits for _, limits in self._limits[(newest or [0])[-1] :]]

    # ---- rates

    def _look_at_rates(self, of: Class, at_ms: int) -> None:
        possible = self._possible()
        for scope in _scopes(of):
            rates = dict.fromkeys(_rate(limits, of, scope) for limits in possible)
            if len(rates) > 1 or 0 in rates:
                self._buckets.pop(scope, None)  # it was changed, or is no limit
                continue
            (rate_milli,) = rates
            bucket = self._buckets.get(scope)
            if bucket is None or bucket.rate_milli != rate_milli:
                bucket = self._buckets[scope] = Bucket(rate_milli, at_ms, 0.0)
                bucket.hand = bucket.full
            if not bucket.take(at_ms):
                told = f"{rate_milli / 1000:g} may in a second"
                self._accuse("s", f"{scope} has begun too many launches: {told}")

    # ---- reservations

    def _look_at_reservations(self, state: State, rows: list[LaunchRow]) -> None:
        if not any(one.reserved for limits in self._possible() for one in limits.values()):
            return
        fresh = {row.key: None for row in rows}
        before = [row for row in state.active.values() if row.key not in fresh]
        for row in rows:
            of = class_of(state, row)
            wrongs = [self._taken(state, limits, of, row, before) for limits in self._possible()]
            before.append(row)
            if all(wrongs):
                self._accuse("v", f"{state.launch_name(row.key)} begins: {wrongs[-1]}")

    def _taken(
        self, state: State, limits: Limits, of: Class, row: LaunchRow, before: list[LaunchRow]
    ) -> str:
        """Whose slots a start takes, as a text."""
        domain = domain_of(of.pool)
        runs = [class_of(state, one) for one in before]
        used = sum(
            len(one.starts())
            for one, its in zip(before, runs, strict=True)
            if domain_of(its.pool) == domain
        )
        left = self._slots(state, domain) - used - len(row.starts())
        pools = _pools(limits, domain)
        before_it = sum(_claims(limits, runs, pool) for pool in pools)
        kept = sum(_claims(limits, [*runs, of], pool) for pool in pools)
        if len(row.starts()) > 1:
            kept = sum(_claims(limits, runs, pool, besides=of) for pool in pools)
        elif kept < before_it:
            return ""  # it uses one that is reserved for it
        return (
            ""
            if left >= kept or not kept
            else f"{left} slots of {domain} are left, {kept} are reserved"
        )


def class_of(state: State, row: LaunchRow) -> Class:
    """Return what the limits of a launch go by."""
    record = state.by_number[row.number]
    job = row.job or record.job
    tenant, _ = split_job_name(record.name)
    if job is None:
        return Class(tenant, COMMAND, 5)
    return Class(tenant, job.pool, job.work.priority)


def domain_of(pool: str) -> str:
    """Return whose slots the launches of a pool share."""
    return COMMAND if pool == COMMAND else THREAD_POOL


def _scopes(of: Class) -> Iterable[p.Scope]:
    return (
        ("", "", -1), ("", of.pool, -1), ("", "", of.priority), ("", of.pool, of.priority),
        (of.tenant, "", -1),
    )  # fmt: skip


def _rate(limits: Limits, of: Class, scope: p.Scope) -> int:
    found = limits.get(scope)
    if found is None and scope[0]:
        found = limits.get(("*", "", -1))
    return found.rate_milli if found is not None else 0


def _pools(limits: Limits, domain: str) -> list[str]:
    pools = [pool for (_, pool, _), one in limits.items() if pool and one.reserved]
    return [pool for pool in dict.fromkeys(pools) if domain_of(pool) == domain]


def _claims(limits: Limits, runs: list[Class], pool: str, besides: Class | None = None) -> int:
    """How many slots a pool and its queues have reserved and do not use, `besides` those that a
    launch may use itself."""

    def unmet(priority: int) -> int:
        reserved = limits.get(("", pool, priority), p.Limits()).reserved
        used = sum(one.pool == pool and priority in (-1, one.priority) for one in runs)
        return max(0, reserved - used)

    queued = {priority: unmet(priority) for priority in range(10)}
    if besides is not None and besides.pool == pool:
        return sum(queued.values()) - queued[besides.priority]
    return max(unmet(-1), sum(queued.values()))
