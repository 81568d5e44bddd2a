"""Safeguards that can be switched off, one by one: each has to turn some seed red.

For the test of the tests only. Each mutant says what it takes away; all of it comes back when the
context ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from cron.leader import dispatch
from cron.leader.dispatch import Dispatcher
from cron.leader.executors import Executors
from cron.leader.leader import Leader
from cron.leader.settle import Settler
from cron.scheduler.fair_queue import FairQueue
from cron.scheduler.gates import Gates
from cron.scheduler.limits import Bucket, LimitTable
from cron.scheduler.places import Places
from cron.scheduler.plan import _Choice
from cron.scheduler.queues import Queues
from cron.state import begins, parts, retries
from cron.state import commands as c
from cron.state.batches import Batch
from cron.state.codec import decode_entry
from cron.state.machine import Machine
from cron.state.outcome import Outcome
from launcher.executor import rules
from launcher.executor.attempt import Attempt
from launcher.executor.handlers.workers import Workers
from launcher.executor.launches import Launches
from launcher.executor.ledger import Ledger
from launcher.executor.rows import ACCEPTED, ENDED, FENCED, tombstone
from launcher.pool.events import Reported
from launcher.pool.pool import Pool
from launcher.protocol.orders import FenceOrder, JobWork, StartBatch
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Status
from launcher.protocol.work import Epoch, WorkSpec
from tests.simulation.executors import Host
from tests.simulation.patching import patched
from tests.simulation.spawners import Spawner
from tests.simulation.thread_pools import Process

Mutant = Callable[[], contextlib.AbstractContextManager[None]]


def no_epoch_in_machine() -> contextlib.AbstractContextManager[None]:
    """Entries of deposed leaders change State (rule R3)."""
    real = Machine.apply

    def apply(self: Machine, term: int, index: int, data: bytes) -> Outcome:
        entry, state, known = decode_entry(data), self.state, self.state.epoch
        is_claim = bool(entry.commands) and isinstance(entry.commands[0], c.Claim)
        state.epoch = Epoch() if is_claim else entry.epoch
        try:
            return real(self, term, index, data)
        finally:
            if not is_claim:
                state.epoch = known

    return patched(Machine, apply=apply)


def no_epoch_at_executors() -> contextlib.AbstractContextManager[None]:
    """Executors do not remember the highest epoch, and obey whoever reaches them (rules R3, R4)."""
    return patched(Ledger, raise_epoch=lambda self, epoch: None)


def no_fence() -> contextlib.AbstractContextManager[None]:
    """What would be fenced is taken for never run at once, without asking the executor."""

    real = Pool.order

    def order(
        self: Pool, executor: str, ledger: str, *, fences: Sequence[FenceOrder] = (), **orders: Any
    ) -> bool:
        facts = [RowReport(one.index, one.row, Status.FENCED) for one in fences]
        self._on_event(Reported(executor, ledger, tuple(map(RowReport.as_batch, facts))))
        return real(self, executor, ledger, **orders)

    return patched(Pool, order=order)


def no_tombstones() -> contextlib.AbstractContextManager[None]:
    """Fences are answered and leave nothing in the ledger."""

    def fence(ledger: Ledger, grave: Batch, into: rules.Decisions) -> None:
        row = ledger.row(grave.index, grave.rows[0])
        if row is None:
            grave.states[0] = FENCED
        rules._answer(row or grave.row(0), grave.mark, into)

    return patched(rules, _fence=fence)


def repeats_known_rows() -> contextlib.AbstractContextManager[None]:
    """A start of a known row starts it again."""
    real = rules._start

    def start(ledger: Ledger, given: Any, conditions: Any, into: rules.Decisions) -> None:
        known = [ledger.row(given.index, number) for number in given.rows]
        works, ends_ms = given.works, given.not_after_ms
        real(ledger, given, conditions, into)
        for row, work, not_after_ms in zip(known, works, ends_ms, strict=True):
            if row is not None and row.status in (ACCEPTED, ENDED) and work.spec is not None:
                batch = tombstone(row.index, row.row, row.name, row.epoch)
                again = Attempt(
                    row.index, row.row, ACCEPTED, name=row.name, epoch=row.epoch,
                    batch=batch, place=0, spec=work.spec, not_after_ms=not_after_ms,
                )  # fmt: skip
                into.accepted.append(again)

    return patched(rules, _start=start)


@contextlib.contextmanager
def no_window() -> Iterator[None]:
    """Neither executor nor spawner looks at `not_after` (rule R7): windows are open for ever."""
    admit = rules._admit

    def early(batch: Any, conditions: rules.Conditions, into: Any) -> dict[int, str]:
        batch.not_after_ms = [1 << 62] * len(batch.rows)
        return admit(batch, conditions, into)

    with patched(rules, _admit=early):
        yield


@contextlib.contextmanager
def no_overlap_in_plan() -> Iterator[None]:
    """Neither the plan nor its queues ask whether the job's slot is held; State still refuses such
    a Begin."""
    plan = patched(_Choice, _is_held=lambda self, record: False)
    with plan, patched(Queues, _job_limit=lambda self, number: 0):
        yield


@contextlib.contextmanager
def no_overlap() -> Iterator[None]:
    """Nor does State: the check of a Begin, behind the plan's own, is gone too (rule R6)."""
    with no_overlap_in_plan(), patched(begins, holds_slot=lambda state, record, now_ms: False):
        yield


def no_majority() -> contextlib.AbstractContextManager[None]:
    """Heartbeats are answered at once, by whoever believes to lead (rule R5)."""

    async def answer_beats(self: Leader) -> None:
        while True:
            await self._beat.wait()
            self._beat.clear()
            self.pool.answer_heartbeats(self._clock.mono_ms())
            self._wake.set()

    return patched(Leader, _answer_beats=answer_beats)


def forgets_young_rows() -> contextlib.AbstractContextManager[None]:
    """The ledger's row is not durable before the start: a crash takes those of the last second."""
    return patched(Host, forgets_ms=1_000)


def no_self_kill() -> contextlib.AbstractContextManager[None]:
    """Guarded work outlives its executor's lease (rule R6)."""
    return patched(Spawner, _lease_over=lambda self: None)


def nobody_reaps() -> contextlib.AbstractContextManager[None]:
    """What ran on an executor that was killed lives on, and nobody meets its lease (rule R6)."""
    end_lease = Spawner._lease_over

    def lease_over(self: Spawner) -> None:
        if not self._is_alone:
            end_lease(self)

    return patched(Spawner, _kill_all=lambda self: None, _lease_over=lease_over)


def one_name_for_all_parts() -> contextlib.AbstractContextManager[None]:
    """All parts of an attempt are started under the name of the first."""
    real = Dispatcher.orders

    def orders(*args: Any, **kwargs: Any) -> list[StartBatch[JobWork]]:
        return [msgspec.structs.replace(one, parts=()) for one in real(*args, **kwargs)]

    return patched(Dispatcher, orders=orders)


def first_part_only() -> contextlib.AbstractContextManager[None]:
    """Of a launch of several parts only the first is settled and asked again."""
    real = Settler._ask

    def ask(
        self: Settler,
        state: Any,
        record: Any,
        asked: Sequence[tuple[Batch, Sequence[int]]],
        *rest: Any,
        **options: Any,
    ) -> None:
        firsts = []
        for batch, rows in asked:
            others = [
                row
                for row, launch in batch.detailed.items()
                if (start := launch.start_on(batch.executor)) is not None and start.number != 1
            ]
            firsts.append((batch, [row for row in rows if row not in others]))
        real(self, state, record, firsts, *rest, **options)

    return patched(Settler, _ask=ask)


def succeeds_by_its_first_part() -> contextlib.AbstractContextManager[None]:
    """What becomes of a launch is what became of its first part."""
    return patched(parts, worst=lambda row, retry: (1, row.parts[0]))


def endless_tries() -> contextlib.AbstractContextManager[None]:
    """Nobody counts how often a launch has failed."""
    real = retries._why_not

    def why_not(context: Any, record: Any, row: Any, *rest: Any) -> Any:
        return real(context, record, msgspec.structs.replace(row, tries=0), *rest)

    return patched(retries, _why_not=why_not)


def no_rest() -> contextlib.AbstractContextManager[None]:
    """The next attempt is due at once."""
    return patched(retries, _rest_ends_ms=lambda context, row, item, job: context.at_ms)


def no_dead_letters() -> contextlib.AbstractContextManager[None]:
    """What is given up is forgotten."""
    return patched(retries, _bury=lambda *told: None)


@contextlib.contextmanager
def limits_from_zero() -> Iterator[None]:
    """A new leader counts what it begins, and not what runs already; nor does State."""
    with (
        patched(FairQueue, add_running=lambda self, key, flow: True),
        patched(begins, _holds_all=lambda state, record, job, now_ms: False),
    ):
        yield


def no_rates() -> contextlib.AbstractContextManager[None]:
    """Every bucket has a start in it."""
    return patched(Bucket, starts=lambda self, now_ms: 1)


def no_reservations() -> contextlib.AbstractContextManager[None]:
    """Whoever comes first has the slots, whoever they are reserved for."""
    return patched(LimitTable, leaves_reserved=lambda self, pool, priority, free: True)


def one_slot_for_all_parts() -> contextlib.AbstractContextManager[None]:
    """A launch of several parts leaves what is reserved as if it took one slot."""
    return patched(FairQueue, spares=lambda self, key, slots, free: True)


def no_budgets() -> contextlib.AbstractContextManager[None]:
    """A tenant has retries without end."""
    return patched(retries, _has_budget=lambda context, record: True)


def buries_without_budget() -> contextlib.AbstractContextManager[None]:
    """A launch of a tenant without a retry is a dead letter, as before format 12."""
    return patched(retries, DELAYS_FORMAT=99)


def releases_nobody() -> contextlib.AbstractContextManager[None]:
    """Whoever waits for a retry gets none of those that its tenant earns."""
    return patched(retries, release=lambda context, tenant: None)


def nothing_is_fatal() -> contextlib.AbstractContextManager[None]:
    """No exit code and no handler's word keeps a launch from being tried again."""
    return patched(retries, is_fatal=lambda retry, end: False)


def first_failed_part_decides() -> contextlib.AbstractContextManager[None]:
    """Whether a launch is tried again is for its first part that failed to say."""
    return patched(parts, is_fatal=lambda retry, end: False)


def drops_snoozes() -> contextlib.AbstractContextManager[None]:
    """A snooze is an end like any other."""
    return patched(retries, _is_snooze=lambda state, reason: False)


def forgets_what_was_asked() -> contextlib.AbstractContextManager[None]:
    """The rest that a handler asks for is not what its launch gets."""
    real = retries._rest_ends_ms

    def rest_ends_ms(context: Any, row: Any, item: Any, job: Any) -> int:
        return real(context, row, msgspec.structs.replace(item, retry_after_ms=0), job)

    return patched(retries, _rest_ends_ms=rest_ends_ms)


def works_on_where_drained() -> contextlib.AbstractContextManager[None]:
    """An executor that is drained gets work like any other."""
    return patched(Executors, _gets_work=lambda self, session, record: session.gets_work)


def each_is_any() -> contextlib.AbstractContextManager[None]:
    """A launch for each executor of a kind begins on two of any kind."""
    return patched(Places, choose_each=lambda self, need, each: self.choose_parts(need, 2))


@contextlib.contextmanager
def immortal_workers() -> Iterator[None]:
    """Guarded handlers outlive the lease: nobody ends their process (rule R6)."""
    workers = patched(Workers, _end_lease=lambda self, worker: None)
    with workers, patched(Process, lease_over=lambda self: None):
        yield


@contextlib.contextmanager
def patient_workers() -> Iterator[None]:
    """What waits for a worker, or in one, is begun however late that is (rule R7)."""
    launches_late = patched(Launches, refuse_late=lambda self, group, now_wall_ms: None)
    with launches_late, patched(Attempt, is_late=lambda self, wall_ms: False):
        yield


def open_gates() -> contextlib.AbstractContextManager[None]:
    """Nobody looks at gates."""
    return patched(Gates, of=lambda self, record, job, now_ms: None)


def outlives_its_slot() -> contextlib.AbstractContextManager[None]:
    """Executors do not learn that work must not outlive their lease (rule R6)."""
    real = dispatch.encode_work

    def encode_work(work: WorkSpec) -> bytes:
        return real(msgspec.structs.replace(work, guarded=False))

    return patched(dispatch, encode_work=encode_work)


def nobody_connects() -> contextlib.AbstractContextManager[None]:
    """Executors never come to a leader: no promise is broken, but that anything is launched."""

    async def be_connected(self: Host, way: Any) -> None: ...

    return patched(Host, _be_connected=be_connected)


MUTANTS: Final[dict[str, Mutant]] = {
    "epoch-in-machine": no_epoch_in_machine,
    "epoch-at-executors": no_epoch_at_executors,
    "fence": no_fence,
    "tombstones": no_tombstones,
    "known-names": repeats_known_rows,
    "not-after": no_window,
    "overlap": no_overlap,
    "majority": no_majority,
    "durable-rows": forgets_young_rows,
    "guarded-slots": outlives_its_slot,
    "self-kill": no_self_kill,
    "reaper": nobody_reaps,
    "part-names": one_name_for_all_parts,
    "other-parts": first_part_only,
    "worst-part": succeeds_by_its_first_part,
    "tries": endless_tries,
    "rests": no_rest,
    "dead-letters": no_dead_letters,
    "running": limits_from_zero,
    "gates": open_gates,
    "rates": no_rates,
    "reservations": no_reservations,
    "reserved-parts": one_slot_for_all_parts,
    "budgets": no_budgets,
    "buried": buries_without_budget,
    "releases": releases_nobody,
    "fatal": nothing_is_fatal,
    "fatal-part": first_failed_part_decides,
    "snooze": drops_snoozes,
    "retry-after": forgets_what_was_asked,
    "drains": works_on_where_drained,
    "each": each_is_any,
    "worker-lease": immortal_workers,
    "worker-window": patient_workers,
    "connections": nobody_connects,
}
