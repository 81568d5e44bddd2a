"""The executors as the plan needs them: free slots, and those whose lease is over."""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec
import structlog

from cron.clock import Clock
from cron.executor_grants import ExecutorGrants, Granted
from cron.launch_state import LaunchState
from cron.leader.applier import StateApplier
from cron.scheduler.places import Capacity, Place
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.state import ExecutorRecord
from cron.where import HOST_LABEL
from launcher.pool.lease import Key
from launcher.pool.pool import Pool
from launcher.pool.session import Session

_log = structlog.get_logger()

REST_MIN_MS = 500
REST_MAX_MS = 10_000
"""How long an executor that refused a start gets no work; doubled each time it refuses again."""
STORE_MS = 600_000
"""How long object storage may take no output of a drained executor; then it leaves with them."""
FEW = 256
"""Up to so many executors are looked at in each turn. Of more, only those that have changed are,
and all of them twice a second or less often: each takes a tenth of a millisecond."""
LOOK_ALL_MS = 500
REFUSED_KEPT = 10_000
"""Executors whose refused claims are known, so that each is logged once."""
REFUSED_SHOWN = 10
"""Refused claims in one line of the log."""


class Executors:
    """The sessions of the pool, together with the records of State."""

    def __init__(self, pool: Pool, applier: StateApplier, clock: Clock) -> None:
        self._pool = pool
        self._applier = applier
        self._clock = clock
        self._rests: dict[Key, tuple[int, int]] = {}  # -> (until, how long), monotonic ms
        self._draining: dict[str, ExecutorRecord] = {}
        self._drained: frozenset[str] = frozenset()
        self._storing: dict[str, tuple[int, int]] = {}  # -> (outputs, since when not fewer)
        # As they were placed, and by which revision of the rules.
        self._offers: dict[int, tuple[object, ...]] = {}
        self._rules_revision = -1
        self._grants = ExecutorGrants({}, are_needed=False)
        self._refused_claims: dict[str, tuple[str, ...]] = {}  # as they were logged
        self._numbers: dict[str, int] = {}  # of those that are placed
        self._look_all_ms = 0
        self._expired: list[int] = []  # whose lease is over, as of this turn

    def refused(self, executor: str, ledger: str) -> None:
        """Give an executor that refused a start no work for a while.

        It may be full of launches that State counts as lost, be stopping, or have a wrong clock.
        Without a rest the same launch would begin and be refused fifty times a second.
        """
        now = self._clock.mono_ms()
        until_ms, rest_ms = self._rests.get((executor, ledger), (0, 0))
        if now < until_ms:
            return
        is_again = now < until_ms + 2 * rest_ms
        rest_ms = min(2 * rest_ms, REST_MAX_MS) if is_again else REST_MIN_MS
        self._rests[(executor, ledger)] = (now + rest_ms, rest_ms)

    def grant_all(self) -> None:
        """Give every executor of State a full lease, as a new leader does (rule R5)."""
        self._rests.clear()
        self._storing.clear()
        self._offers.clear()
        self._numbers.clear()
        self.look_at_all()
        now_mono = self._clock.mono_ms()
        for record in self._applier.state.executors.values():
            self._pool.leases.renew((record.executor, record.ledger), now_mono)

    def connected(self) -> frozenset[int]:
        """Return the numbers of the executors that are connected."""
        known = self._applier.state.executor_of
        records = [known(one.executor, one.ledger) for one in self._pool.sessions()]
        return frozenset(record.number for record in records if record is not None)

    def place(self, queues: Queues) -> None:
        """Update the queues: which executors may get work now, and what they offer."""
        now_mono = self._clock.mono_ms()
        rules = self._applier.state.access
        if rules.revision != self._rules_revision:  # what was revoked counts from now on
            self._rules_revision, self._grants = rules.revision, rules.executor_grants()
            self.look_at_all()
        touched = self._pool.take_touched()
        if self._pool.count <= FEW or now_mono >= self._look_all_ms:
            views = {one.executor: one for one in self._pool.sessions()}
            self._look_all_ms = now_mono + max(LOOK_ALL_MS, len(views) // 10)
            looked: dict[str, Session | None] = {**dict.fromkeys(self._numbers), **views}
            self._draining.clear()
        else:
            resting = (executor for executor, _ in self._rests)
            looked = {name: self._pool.view(name) for name in touched.union(resting)}
        for executor, session in looked.items():
            self._look(executor, session, queues)

    def look_at_all(self) -> None:
        """Have the next turn look at all executors: something outside the pool has changed."""
        self._look_all_ms = 0

    def _look(self, executor: str, session: Session | None, queues: Queues) -> None:
        """Add an executor to the queues, or remove it."""
        places, record = queues.places, None
        if session is not None:
            record = self._applier.state.executor_of(session.executor, session.ledger)
        if record is not None and record.drained_by:
            self._draining[executor] = record
        else:
            self._draining.pop(executor, None)
        if session is None or record is None or not self._gets_work(session, record):
            self._take_away(executor, queues)
            return
        if self._numbers.get(executor, record.number) != record.number:
            self._take_away(executor, queues)
        self._numbers[executor] = record.number
        places.set_clock(record.number, session.ahead_ms)
        knows_secrets = session.greeting.knows_secrets
        rules = self._rules_revision
        accounts = session.greeting.accounts
        offer = (record.joined_ms, record.slots, session.offers, rules, knows_secrets, accounts)
        if self._offers.get(record.number) != offer or record.number not in places.views:
            self._offers[record.number] = offer
            granted = self._granted(record, session)
            # Its slots for commands, of which some may wait there, and those of its workers.
            ahead = sum(one.slots - record.slots for one in granted.offers if not one.handlers)
            commands = (Capacity(record.slots, ahead=max(0, ahead)),)
            groups = tuple(
                Capacity(one.slots, one.handlers) for one in granted.offers if one.handlers
            )
            place = Place.of(
                record.number,
                record.executor,
                granted.labels.get(HOST_LABEL, ""),
                granted.labels,
                (*(commands if granted.has_commands else ()), *groups),
                record.cpu_milli,
                record.memory_bytes,
            )
            place = msgspec.structs.replace(
                place,
                users=granted.users,
                withheld=granted.withheld,
                knows_secrets=knows_secrets,
                accounts=accounts,
            )
            places.put(place)
            queues.serve(record.number, granted.offers)

    def _granted(self, record: ExecutorRecord, session: Session) -> Granted:
        """Return what an executor has of what it claims; log what is refused, if that is new."""
        granted = self._grants.granted(
            record.executor, dict(record.labels), record.host, session.offers
        )
        if granted.refused != self._refused_claims.get(record.executor, ()):
            if len(self._refused_claims) >= REFUSED_KEPT:
                self._refused_claims.clear()
            self._refused_claims[record.executor] = granted.refused
            if granted.refused:
                _log.warning(
                    "executor.claims_refused",
                    executor=record.executor,
                    claims=", ".join(granted.refused[:REFUSED_SHOWN]),
                    count=len(granted.refused),
                    hint=f"`raftcron executor grant {record.executor}` grants them",
                )
        return granted

    def _gets_work(self, session: Session, record: ExecutorRecord) -> bool:
        until_ms, _ = self._rests.get(session.key, (0, 0))
        is_resting = self._clock.mono_ms() < until_ms
        return session.gets_work and not record.drained_by and not is_resting

    def _take_away(self, executor: str, queues: Queues) -> None:
        number = self._numbers.pop(executor, None)
        if number is not None:
            queues.places.drop(number)
            queues.serve(number, ())
            self._offers.pop(number, None)

    def drained(self) -> list[c.ExecutorLeft]:
        """Return the commands by which drained executors leave that have finished their launches
        and stored their outputs, or cannot store them."""
        finished = [record for record in self._draining.values() if not record.batches]
        done = {
            record.executor: c.ExecutorLeft(record.number, "it was drained", outputs)
            for record in finished
            if (outputs := self._outputs_left(record.executor)) is not None
        }
        self._drained = frozenset(done)
        storing = [record.executor for record in finished if record.executor in self._storing]
        self._storing = {executor: self._storing[executor] for executor in storing}
        return list(done.values())

    def _outputs_left(self, executor: str) -> int | None:
        """Return how many outputs a drained executor leaves on its disk; None while it may still
        store some."""
        session = self._pool.view(executor)
        if session is None or not self._pool.is_storing(executor):
            self._storing.pop(executor, None)
            return 0
        now_mono, waiting = self._clock.mono_ms(), session.outputs_waiting
        before, since_ms = self._storing.get(executor, (0, now_mono))
        if waiting < before:
            since_ms = now_mono
        self._storing[executor] = (waiting, since_ms)
        return waiting if now_mono >= since_ms + STORE_MS else None

    def expired(self) -> list[int]:
        """Return the executors whose lease is over, by number. Their self-kill deadline is earlier,
        so nothing holds the slots of their launches (rules R5, R6). A drained executor without open
        launches stays in State, so that it is still drained if it comes back."""
        self._expired = []
        for lease in self._pool.leases.expired(self._clock.mono_ms()):
            record = self._applier.state.executor_of(*lease)
            if record is None:
                self._pool.leases.forget(lease)
            elif record.batches or not record.drained_by:
                self._expired.append(record.number)
        return self._expired

    def log_lost(self, commands: Iterable[c.Command]) -> None:
        """Log the launches that these commands give up, one line for each executor."""
        state = self._applier.state
        counts: dict[int, int] = {}
        for command in commands:
            if isinstance(command, c.ExecutorLeft) and command.number in self._expired:
                counts.setdefault(command.number, 0)
            if isinstance(command, c.ExecutorLeft) and command.outputs:
                gone_with = state.executors[command.number].executor
                error = "object storage does not take them: they stay on its disk"
                _log.warning(
                    "outputs.abandoned", executor=gone_with, count=command.outputs, error=error
                )
            if not isinstance(command, c.Report):
                continue
            for gone in command.executors:
                record = state.executors.get(gone.executor)
                count = 0 if record is None else record.count_open(gone.through_index)
                counts[gone.executor] = counts.get(gone.executor, 0) + count
            for key, _, end in command.items:
                row = state.active.get(key) if end.state is LaunchState.LOST else None
                for start in row.starts() if row is not None else ():
                    if start.number == end.number:
                        counts[start.executor] = counts.get(start.executor, 0) + 1
        for number, count in counts.items():
            record = state.executors.get(number)
            name = record.executor if record is not None else str(number)
            if not count:
                _log.info("executor.left", executor=name, error="its lease ended")
                continue
            error = "it does not know what became of them"
            if number in self._expired:
                error = "its lease ended: it did not come back in time"
            _log.warning("launches.lost", executor=name, count=count, error=error)

    def measure_again(self) -> None:
        """End all sessions after the leader's clock was set, so that executors join again. They
        measured their offsets against the old clock, and would refuse work by that until their next
        welcome (rule R10)."""
        for session in self._pool.sessions():
            self._pool.refuse(session.executor, "the leader's clock was set; join again")

    def let_go(self, joining: Container[Key]) -> None:
        """Forget leases and end sessions of executors that State has forgotten, except `joining`,
        whose entry is on its way."""
        known = self._applier.state.by_ledger
        for lease in self._pool.leases.expired(self._clock.mono_ms()):
            if lease not in known:
                self._pool.leases.forget(lease)
        for session in self._pool.sessions():
            key = (session.executor, session.ledger)
            if key in known or key in joining:
                continue
            if session.executor in self._drained:
                self._pool.dismiss(session.executor, "it was drained")
            else:
                self._pool.refuse(session.executor, "its lease ended; join again")
