"""A term on a log in memory: its Claim, its ticks, changes that fail, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from consensus.limits import ENTRY_BYTES_MAX
from cron.errors import InvalidInput, LimitExceeded, NotLeader, OutcomeUnknown
from cron.job import Catchup
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader, LeaderSettings
from cron.limits import NOTE_CHARS_MAX
from cron.pace import WakeUp
from cron.scheduler.budget import BUSY_ROWS, HALF_MS, PORTIONS, ROWS_MIN, TurnPace
from cron.scheduler.plan import ROWS_MAX
from cron.service import replica as serving
from cron.state import commands as c
from cron.state.chains import Hold
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.pool import CloseGate, Drain, Gate, GateAction, LiftGates
from cron.state.state import State
from launcher.pool.events import Event, Joined
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.pool.session import End
from launcher.protocol.reports import Greeting
from launcher.protocol.work import Epoch
from tests.fakes.memory_log import MemoryCell
from tests.unit import pool_rig
from tests.unit.queues_rig import SECONDS
from tests.unit.state_rig import T0, job

WITHIN_S = 60.0


class Clocks:
    """Clocks that a test turns."""

    def __init__(self) -> None:
        self.ms = T0 * 1000

    def wall_ms(self) -> int:
        return self.ms

    def mono_ms(self) -> int:
        return self.ms


class NoHistory:
    """A history that keeps nothing."""

    def follow(self, history: object) -> None: ...


class Replica:
    """One replica of a cell of one: the leader and what it stands on."""

    def __init__(self, cell: MemoryCell, log_format: int = c.FORMAT) -> None:
        self.cell = cell
        self.clock = Clocks()
        self.failures: list[BaseException] = []
        history: Any = NoHistory()
        self.applier = StateApplier(history)
        self.log = cell.log("r1", self.applier)
        self.pool = Pool(
            cell="test",
            lease=LeaseTimes(),
            mono_ms=self.clock.mono_ms,
            wall_ms=self.clock.wall_ms,
            on_event=self.hear,
        )
        self.leader = Leader(
            log=self.log,
            applier=self.applier,
            pool=self.pool,
            clock=self.clock,
            settings=LeaderSettings(turn_ms=1, housekeeping_ms=5),
            about=c.Claim("2026b", "0.1.0", log_format),
            on_failure=self.failures.append,
        )
        self.served = serving.Replica(self.leader, self.applier, history, self.clock)

    def hear(self, event: Event) -> None:
        self.leader.on_event(event)

    @property
    def state(self) -> State:
        return self.applier.state

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for it to be so, at most WITHIN_S."""
        async with asyncio.timeout(WITHIN_S):
            while not is_so():
                assert not self.failures, self.failures
                await asyncio.sleep(0.001)

    async def triggered(self, request: str) -> tuple[Result, ...] | None:
        """Trigger the job; None while this replica does not lead."""
        try:
            change = c.Trigger("default/backup", request, "anna")
            return (await self.leader.append(change))[1]
        except NotLeader:
            return None

    async def put(self, *jobs: c.Job) -> None:
        put = c.PutJobs("crontab", self.state.catalog, self.clock.ms // 1000, jobs)
        await self.leader.append(put, changes_jobs=True)


@asynccontextmanager
async def reigning(log_format: int = c.FORMAT) -> AsyncIterator[Replica]:
    cell = MemoryCell()
    replica = Replica(cell, log_format)
    await replica.log.start()
    replica.leader.start()
    await replica.until(lambda: replica.leader.epoch is not None)
    try:
        yield replica
    finally:
        await replica.leader.stop()
        await replica.log.stop()


def joined(executor: str) -> Joined:
    return pool_rig.joined(executor)


async def test_a_leader_term_begins_with_its_claim() -> None:  # R3
    async with reigning() as replica:
        assert replica.state.epoch == replica.leader.epoch
        assert replica.state.tzdata == "2026b"
        assert replica.pool.epoch is not None


async def test_a_change_that_cannot_be_written_is_refused_and_ends_no_term() -> None:
    async with reigning() as replica:
        await replica.put(job())
        epoch = replica.leader.epoch
        wrong = c.Trigger("default/backup", "surrogate", "anna\udc80")
        large = c.Pause(("default/backup",), "", 1 << 70, "anna")
        answers = await asyncio.gather(
            replica.leader.append(wrong),
            replica.leader.append(large),
            replica.leader.append(c.Trigger("default/backup", "good", "anna")),
            return_exceptions=True,
        )
        assert [type(one) for one in answers] == [InvalidInput, InvalidInput, tuple]
        assert "cannot be written" in str(answers[0])
        assert replica.leader.epoch == epoch


async def test_an_instant_is_accounted_when_its_time_has_come() -> None:
    async with reigning() as replica:
        await replica.put(job())
        assert not replica.state.due
        replica.clock.ms = (T0 + 60) * 1000
        await replica.until(lambda: bool(replica.state.due))
        assert list(replica.state.due) == [(1, T0 + 60, 0)]


async def leader_term_again(replica: Replica, away_ms: int) -> list[int]:
    """Let nobody lead for so long; return which seconds since then get a launch of j."""
    await replica.put(job("j", schedule=SECONDS, catchup=Catchup.NONE))
    replica.cell.isolate("r1")
    await replica.until(lambda: replica.leader.epoch is None)
    replica.clock.ms += away_ms
    replica.cell.heal()
    horizon_s = T0 + away_ms // 1000
    await replica.until(lambda: replica.state.jobs["default/j"].horizon_s == horizon_s)
    return sorted(scheduled_s - T0 for _, scheduled_s, _ in replica.state.due)


async def test_what_fell_due_while_nobody_led_is_live_for_five_seconds() -> None:
    async with reigning() as replica:
        assert await leader_term_again(replica, 4_400) == [1, 2, 3, 4]


async def test_what_fell_due_before_that_is_missed_when_a_leader_returns() -> None:
    async with reigning() as replica:
        assert await leader_term_again(replica, 60_000) == [55, 56, 57, 58, 59, 60]


async def test_a_clock_that_is_set_forward_launches_the_newest_of_a_job_of_every_second() -> None:
    async with reigning() as replica:
        await replica.put(job("j", schedule=SECONDS, catchup=Catchup.NONE))
        replica.clock.ms += 1_000
        await replica.until(lambda: (1, T0 + 1, 0) in replica.state.due)
        replica.clock.ms += 60_500
        await replica.until(lambda: replica.state.jobs["default/j"].horizon_s == T0 + 61)
        assert sorted(key[1] - T0 for key in replica.state.due) == [1, 61]


async def test_a_change_that_is_too_big_fails_alone() -> None:
    """What executors had said meanwhile shared its entry and went down with it: one that had just
    joined was never welcomed, an end that was reported once was never recorded."""
    async with reigning() as replica:
        huge = c.Trigger("x" * ENTRY_BYTES_MAX, "q1", "anna")
        replica.leader.on_event(joined("e1"))
        with pytest.raises(LimitExceeded):
            await replica.leader.append(huge)
        await replica.until(lambda: bool(replica.state.executors))
        replica.leader.on_event(joined("e2"))
        await replica.until(lambda: len(replica.state.executors) == 2)


async def test_changes_that_share_an_entry_and_do_not_fit_into_it_both_happen() -> None:
    async with reigning() as replica:
        await replica.put(job())
        request = "x" * (ENTRY_BYTES_MAX * 2 // 3)
        both = [c.Trigger("default/backup", f"{n}{request}", "anna") for n in range(2)]
        answers = await asyncio.gather(*(replica.leader.append(command) for command in both))
        assert [results[0].number for _, results in answers] == [1, 2]


async def test_a_drop_gate_with_a_long_reason_leaves_the_cell_its_leader() -> None:
    """Its text stood in each of twenty thousand skipped rows of one entry: the term ended, the next
    leader planned the same, and the gate could not even be opened."""
    async with reigning() as replica:
        await replica.put(job(schedule=SECONDS, catchup=Catchup.ALL, deadline_s=100_000))
        gate = Gate(0, GateAction.DROP, "x" * NOTE_CHARS_MAX, "anna", 0)
        await replica.leader.append(CloseGate(gate))
        term = replica.state.epoch.term
        replica.clock.ms += 20_000 * 1000
        await replica.until(lambda: replica.state.history.open_rows >= 19_999)
        assert replica.state.epoch.term == term
        await replica.leader.append(LiftGates((1,), "anna"))
        assert not replica.state.gates


async def test_what_a_plan_made_too_big_for_an_entry_is_committed_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the term, and the next leader planned the same."""
    async with reigning() as replica:
        await replica.put(*(job(f"job-{number}") for number in range(200)))
        gate = Gate(0, GateAction.DROP, "a leak", "anna", 0)
        await replica.leader.append(CloseGate(gate))
        term, index = replica.state.epoch.term, replica.state.index
        monkeypatch.setattr("tests.fakes.memory_log.ENTRY_BYTES_MAX", 1_000)
        replica.clock.ms += 60_000
        await replica.until(lambda: replica.state.history.open_rows >= 200)
        assert replica.state.epoch.term == term
        assert replica.state.index > index + 2, "more entries than one of instants, one of skips"


async def test_a_change_whose_append_was_lost_may_have_happened() -> None:
    async with reigning() as replica:
        await replica.put(job())
        replica.cell.lose_next("committed")
        with pytest.raises(OutcomeUnknown):
            await replica.leader.append(c.Trigger("default/backup", "q1", "anna"))
        # The next term finds what came of it; asking again is answered and not repeated (R8).
        replica.clock.ms += 1000
        async with asyncio.timeout(WITHIN_S):
            while (results := await replica.triggered("q1")) is None:
                await replica.until(lambda: replica.leader.epoch is not None)
        assert results[0].verdict is Verdict.ALREADY
        assert len(replica.state.due) == 1


async def test_who_does_not_lead_changes_nothing() -> None:
    async with reigning() as replica:
        await replica.leader.stop()
        assert replica.pool.epoch is None
        with pytest.raises(NotLeader):
            await replica.leader.append(c.Trigger("default/backup", "q1", "anna"))


async def test_a_clock_that_jumps_forward_launches_each_instant_once() -> None:  # R10
    async with reigning() as replica:
        await replica.put(*(job(f"j{n}", deadline_s=7200) for n in range(3)))
        replica.clock.ms += 3_600_000
        await replica.until(lambda: len(replica.state.due) == 3)
        assert {key[1] for key in replica.state.due} == {T0 + 3600}
        replica.clock.ms -= 3_600_000
        before = replica.state.index
        await replica.leader.append(c.Trigger("default/j0", "q1", "anna"))
        assert replica.state.index > before
        assert all(record.horizon_s == T0 + 3600 for record in replica.state.jobs.values())


async def test_applies_in_a_row_do_not_hold_up_the_ticks() -> None:
    """A turn that changes jobs does not plan; a queue of them kept a job silent for seconds."""
    async with reigning() as replica:
        await replica.put(job())
        replica.clock.ms = (T0 + 60) * 1000
        # Each is stale and refused, but takes a turn of its own all the same.
        stale = c.PutJobs("crontab", -1, T0 + 60, ())
        waiting = [
            asyncio.ensure_future(replica.leader.append(stale, changes_jobs=True))
            for _ in range(20)
        ]
        await replica.until(lambda: bool(replica.state.due))
        assert sum(one.done() for one in waiting) < 5
        await asyncio.gather(*waiting)


def greeting(executor: str) -> Greeting:
    return Greeting(executor, "l1", "i", 4, "", 1, "", T0 * 1000, Epoch(), {}, ())


async def test_who_comes_back_in_the_turn_that_gives_it_up_comes_again() -> None:
    """The entry in which it joined let it go: it was welcome, unknown to the log, and got no work
    for as long as its stream lasted."""
    async with reigning() as replica:
        pool, state = replica.pool, replica.state
        first = pool.join(greeting("e1"), "")
        await replica.until(lambda: first.is_welcome)
        assert [record.number for record in state.executors.values()] == [1]
        replica.clock.ms += pool.lease.give_up_ms
        second = pool.join(greeting("e1"), "")
        await replica.until(lambda: second.ended is not None)
        third = pool.join(greeting("e1"), "")
        await replica.until(lambda: third.is_welcome)
        assert [record.number for record in state.executors.values()] == [2]
        assert third.ended is None


async def test_who_is_gone_before_its_joining_is_committed_is_let_go_like_any_other() -> None:
    """It had no lease, so that no lease of it ended: the log kept it for good."""
    async with reigning() as replica:
        pool, state = replica.pool, replica.state
        pool.drop(pool.join(greeting("e1"), ""), End(grpc.StatusCode.OK, "it ended its stream"))
        await replica.until(lambda: bool(state.executors))
        await replica.until(lambda: pool.leases.until(("e1", "l1")) is not None)
        replica.clock.ms += pool.lease.give_up_ms
        await replica.until(lambda: not state.executors)


async def test_who_is_cut_off_while_it_is_drained_is_drained_when_it_comes_back() -> None:
    """The log let go of it at its lease's end, and it got work on a host that was to be empty."""
    async with reigning() as replica:
        pool, state = replica.pool, replica.state
        first = pool.join(greeting("e1"), "")
        await replica.until(lambda: first.is_welcome)
        pool.drop(first, End(grpc.StatusCode.CANCELLED, "the stream broke"))
        await replica.leader.append(Drain("e1", "ada"))
        replica.clock.ms += pool.lease.give_up_ms
        second = pool.join(greeting("e2"), "")
        await replica.until(lambda: second.is_welcome)
        assert [record.executor for record in state.executors.values()] == ["e1", "e2"]
        back = pool.join(greeting("e1"), "")
        await replica.until(lambda: back.ended is not None)
        assert back.ended is not None
        assert back.ended.is_drained
        assert [record.executor for record in state.executors.values()] == ["e2"]


@pytest.mark.parametrize("moments", range(8))
async def test_a_leader_term_that_ends_in_the_moment_in_which_it_wakes_has_ended(
    moments: int,
) -> None:
    """`asyncio.wait_for` loses a cancel that comes just then: the term went on for ever, as a
    second one beside the next, and a replica that was told to stop never did."""
    async with reigning() as one:
        one.leader._settings = LeaderSettings(turn_ms=0, housekeeping_ms=60_000)
        one.leader._wake.set()
        await asyncio.sleep(0.05)  # it rests now
        one.leader._wake.set()
        for _ in range(moments):
            await asyncio.sleep(0)
        stopping = asyncio.create_task(one.leader.stop())
        ended, _ = await asyncio.wait([stopping], timeout=WITHIN_S)
        assert ended


class Awaited(WakeUp):
    """A wake-up that knows how often it was waited for since it was cleared: a leader waits for a
    change while it rests after a turn, and then while it gathers."""

    waits = 0

    def clear(self) -> None:
        self.waits = 0
        super().clear()

    async def wait(self, seconds: float) -> bool:
        self.waits += 1
        return await super().wait(seconds)

    def is_gathering(self) -> bool:
        return self.waits == 2


async def test_a_busy_leader_gathers_reports_unless_somebody_waits() -> None:
    async with reigning() as one:
        hour_ms = 3_600_000
        one.leader._settings = LeaderSettings(turn_ms=1, gather_ms=hour_ms, housekeeping_ms=hour_ms)
        asked = one.leader._asked = Awaited()
        one.hear(joined("e0"))
        await one.until(lambda: bool(one.state.executors))
        one.leader.pace.took(BUSY_ROWS, 1, 1, one.clock.mono_ms())
        one.hear(joined("e1"))
        await one.until(asked.is_gathering)
        one.hear(joined("e2"))
        index = one.state.index
        await one.put(job())  # a change is not kept waiting
        assert one.state.jobs
        assert (one.state.index, len(one.state.executors)) == (index + 1, 3)
        # What comes soon after is gathered from the first one on.
        one.hear(joined("soon"))
        await one.until(asked.is_gathering)
        one.state.holds.put(Hold(1, after=(2,)))
        await one.put(job("b"))
        one.hear(joined("followed"))  # a task waits for what is reported
        await one.until(lambda: len(one.state.executors) == 5)
        one.state.holds.clear()
        one.clock.ms += HALF_MS  # it has appended few rows since
        one.hear(joined("later"))
        await one.until(lambda: len(one.state.executors) == 6)


async def test_a_change_ends_the_rest_of_a_leader_and_shares_the_next_entry() -> None:
    async with reigning() as one:
        hour_ms = 3_600_000
        one.leader._settings = LeaderSettings(turn_ms=hour_ms, housekeeping_ms=hour_ms)
        asked = one.leader._asked = Awaited()
        await one.put(job())  # after this turn it rests for an hour
        await one.until(lambda: asked.waits == 1)
        indexes: list[int] = []

        def applied(index: int, outcome: Outcome) -> None:
            indexes.extend(index for one in outcome.commands if isinstance(one, c.Trigger))

        one.applier.subscribe(applied)
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(one.triggered(f"t{number}") for number in range(20)))
        assert len(indexes) == 20
        assert len(set(indexes)) == 1


async def test_changes_of_several_callers_who_come_again_share_each_entry() -> None:
    async with reigning() as one:
        hour_ms = 3_600_000
        one.leader._settings = LeaderSettings(turn_ms=hour_ms, housekeeping_ms=hour_ms)
        await one.put(job())
        indexes: list[int] = []

        def applied(index: int, outcome: Outcome) -> None:
            one.clock.ms += hour_ms  # as long as an entry takes, changes may gather
            indexes.extend(index for one in outcome.commands if isinstance(one, c.Trigger))

        one.applier.subscribe(applied)

        async def caller(name: str, times: int) -> None:
            for number in range(times):
                await one.triggered(f"{name}{number}")

        async with asyncio.timeout(WITHIN_S):
            await caller("alone", 2)  # nobody else is waited for
            first = asyncio.create_task(caller("a", 5))
            await asyncio.sleep(0)
            await asyncio.gather(first, caller("b", 4))
        assert len(indexes) == 11
        assert len(set(indexes)) == 2 + 5


async def test_a_change_whose_caller_gives_up_before_its_entry_does_not_happen() -> None:
    async with reigning() as one:
        await one.put(job())
        requests: list[str] = []

        def applied(_: int, outcome: Outcome) -> None:
            requests.extend(one.request for one in outcome.commands if isinstance(one, c.Trigger))

        one.applier.subscribe(applied)
        given_up = asyncio.create_task(one.triggered("a"))
        other = asyncio.create_task(one.triggered("b"))
        await asyncio.sleep(0)  # both wait for the next entry
        given_up.cancel()
        async with asyncio.timeout(WITHIN_S):
            await other
        await one.triggered("c")
        assert requests == ["b", "c"]


async def after_a_turn_without_rest(one: Replica, rows_max: int) -> None:
    """Return once all jobs have rows for their first instant. Each entry takes an hour, and a turn
    would be followed by as long a rest."""
    hour_ms = 3_600_000
    await one.put(*(job(f"j{number}") for number in range(ROWS_MIN + 1)))
    one.leader.pace.rows_max = rows_max

    def passed(index: int, _: object) -> None:
        one.clock.ms += hour_ms

    one.applier.subscribe(passed)
    one.leader._settings = LeaderSettings(turn_ms=hour_ms, housekeeping_ms=5)
    one.clock.ms = (T0 + 60) * 1000
    records = one.state.by_number.values()
    await one.until(lambda: all(record.horizon_s > T0 for record in records))


async def test_a_turn_counts_as_rest_if_it_left_jobs_that_are_due() -> None:
    async with reigning() as one:
        await after_a_turn_without_rest(one, ROWS_MIN)  # a portion: one of these jobs is left


async def test_a_long_turn_counts_as_rest_while_launches_wait_for_room() -> None:
    async with reigning() as one:
        await after_a_turn_without_rest(one, ROWS_MAX)
        async with asyncio.timeout(WITHIN_S):
            await one.leader.append(c.Trigger("default/j1", "first", "anna"))


@pytest.mark.parametrize(("is_paused", "portions"), [(True, [200, 300]), (False, [200, 200, 100])])
async def test_an_instant_gets_rows_in_portions(
    is_paused: bool, portions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is small. So are the others if launches wait for room, as they do here unless
    their jobs are paused."""
    monkeypatch.setattr(TurnPace, "took", lambda *_: None)
    async with reigning() as one:
        await one.put(*(job(f"j{number}") for number in range(sum(portions))))
        if is_paused:
            await one.leader.append(c.Pause(tuple(one.state.jobs), "", 0, "anna"))
        one.leader.pace.rows_max = PORTIONS * ROWS_MIN
        await one.until(lambda: one.leader.indexes.due_heap.next_s() != 0)  # it looks at new jobs
        found: list[int] = []

        def applied(_: int, outcome: Outcome) -> None:
            accounts = [one for one in outcome.commands if isinstance(one, c.Account)]
            found.extend(sum(len(line.jobs) for line in one.lines) for one in accounts)

        one.applier.subscribe(applied)
        one.clock.ms = (T0 + 60) * 1000
        await one.until(lambda: sum(found) >= sum(portions))
        assert found == portions
