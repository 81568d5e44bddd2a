"""What a leader does against refusals without end: pauses between them, and new measures."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cron.launch_state import LaunchState
from cron.leader.dispatch import Dispatcher, reports_any
from cron.leader.inbox import REPORTS_PER_ENTRY_MAX, Inbox
from cron.limits import RESULT_BYTES_MAX
from cron.scheduler.indexes import LeaderIndexes
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import View, plan
from cron.scheduler.queues import REFUSED_REST_MS
from cron.state import commands as c
from cron.state.launches import RESULTS
from launcher.pool.events import Event, Joined, Left, Reported
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.protocol.limits import PROTOCOL
from launcher.protocol.reading import parse_hello
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.v1 import pool_pb2
from tests.batches import SAID, AttemptItem, begun, refused_item, said_of
from tests.unit.queues_rig import queues_with
from tests.unit.state_rig import T0
from tests.unit.test_leader_term import reigning
from tests.unit.test_scheduler_plan import with_job

LEDGER = "0f0e0d0c-0b0a-4909-8807-060504030201"
HOUR_MS = 3_600_000


def test_what_was_refused_rests_before_it_begins_again() -> None:  # R7
    rig = with_job(deadline_s=60).to(60)
    rig.account(60)
    indexes = LeaderIndexes(rig.state)
    indexes.queues.places.put(Place(1, {}, (Capacity(4),)))

    def turn() -> bool:
        commands = plan(View(rig.state, [], indexes.queues), rig.at_ms)
        if commands:
            indexes.follow(rig.append(*commands))
        return any(isinstance(one, c.Begin) for one in commands)

    assert turn()
    assert not turn()
    item = refused_item((1, T0 + 60, 0), 1, "no free slot")
    indexes.follow(rig.append(c.Report((item,))))
    assert not turn()
    rig.at_ms += REFUSED_REST_MS
    assert turn()


def an_inbox(refused: list[tuple[str, str]], wake: Callable[[], None] = lambda: None) -> Inbox:
    """An inbox of a leader whose executors are not connected; `refused` gets those that refuse."""
    pool = Pool(
        cell="test",
        lease=LeaseTimes(),
        mono_ms=lambda: 0,
        wall_ms=lambda: 0,
        on_event=lambda _: None,
    )
    return Inbox(
        pool,
        Dispatcher(pool),
        wake=wake,
        beat=lambda: None,
        refused=lambda executor, ledger: refused.append((executor, ledger)),
        mono_ms=lambda: 0,
    )


@pytest.mark.parametrize(("after_ms", "rests"), [(0, [("e1", "l1")]), (1, [])])
def test_an_executor_rests_that_refuses_in_time_and_not_for_lateness(
    after_ms: int, rests: list[tuple[str, str]]
) -> None:
    """The window was over when the order came: the executor is not to blame, and its slots were
    empty for ten seconds while thousands waited."""
    rig = with_job(deadline_s=60).to(60)
    rig.account(60)
    rig.begin(60)
    refused: list[tuple[str, str]] = []
    inbox = an_inbox(refused)
    row = rig.state.active[1, T0 + 60, 0]
    fact = RowReport(row.begun_index, row.row, Status.REFUSED)
    inbox.on_event(Reported("e1", "l1", (fact.as_batch(),)))
    commands = inbox.gather(rig.state, row.not_after_ms + after_ms)
    assert [type(one) for one in commands] == [c.Report]
    assert refused == rests


def test_reports_with_much_text_share_an_entry_with_fewer_others() -> None:
    """5,000 results of 1 KiB are 5 MiB; with the rest of a turn, an entry would be too large."""
    said = BatchReport(9, Status.ENDED, Reason.NONE, 0, [1] * 3_000, detail="x" * RESULT_BYTES_MAX)
    inbox = an_inbox([])
    inbox.on_event(Reported("e1", "l1", (said,)))
    taken = []
    while reports := inbox._take_reports(REPORTS_PER_ENTRY_MAX):
        taken += [len(one.rows) for batches in reports.values() for one in batches]
    assert taken == [1_000] * 3


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (Status.ACCEPTED, Status.REFUSED, LaunchState.LOST),
        (Status.ACCEPTED, Status.FENCED, LaunchState.LOST),
        (Status.REFUSED, Status.ACCEPTED, LaunchState.DUE),
        (Status.ENDED, Status.REFUSED, LaunchState.SUCCEEDED),
        (Status.INTERRUPTED, Status.FENCED, LaunchState.LOST),
    ],
)
def test_of_two_reports_that_contradict_each_other_the_first_is_committed_first(
    first: Status, second: Status, left: LaunchState
) -> None:
    """In one entry, a refused start stayed launched, and a launch that had run was due again."""
    rig = with_job(deadline_s=60).to(60)
    rig.account(60)
    rig.begin(60)
    inbox = an_inbox([])
    row = rig.state.active[1, T0 + 60, 0]
    reports = (
        RowReport(row.begun_index, row.row, status, started_ms=1, detail="why")
        for status in (first, second)
    )
    inbox.on_event(Reported("e1", "l1", tuple(one.as_batch() for one in reports)))
    while commands := inbox.gather(rig.state, rig.at_ms):
        rig.append(*commands)
    assert not rig.state.active
    assert [one.state for one in (*rig.rows, *rig.state.due.values())] == [left]


def test_reports_for_the_next_turn_wake_the_leader_though_this_one_needs_no_entry() -> None:
    rig = with_job(deadline_s=60).to(60)
    woken: list[None] = []
    inbox = an_inbox([], lambda: woken.append(None))
    over = [RowReport(1, row, Status.ENDED).as_batch() for row in range(2)]
    inbox.on_event(Reported("e1", "l1", tuple(over)))
    for is_woken in (True, False):
        woken.clear()
        assert inbox.gather(rig.state, rig.at_ms, rows_max=1) == []
        assert bool(woken) is is_woken


def test_many_reports_of_one_batch_cost_a_turn_no_more_than_their_rows() -> None:
    """Each was compared with all before it: 5,000 took 3 s, and heartbeats waited."""
    rig, inbox = with_job().to(60), an_inbox([])
    status = (Status.ACCEPTED, Status.REFUSED)
    reports = (RowReport(1, row, status[row % 2]).as_batch() for row in range(5_000))
    inbox.on_event(Reported("e1", "l1", tuple(reports)))
    before_s = time.process_time()
    inbox.gather(rig.state, rig.at_ms)
    assert time.process_time() - before_s < 1


def test_failpoints_tell_what_never_ran_from_what_was_started() -> None:
    """Nothing is between its log points that was refused, or whose order never left."""
    key, ran = (1, T0, 0), (LaunchState.LAUNCHED, *RESULTS)
    for state in LaunchState:
        reports = [c.Report(items=(AttemptItem.of(key, 1, state),))]
        if state in SAID:
            reports.append(c.Report(rows=((1, BatchReport(7, *said_of(state), [0])),)))
        assert [reports_any(report, *ran) for report in reports] == [state in ran] * len(reports)
    assert not reports_any(c.Seal(1), *ran)


def test_what_one_executor_refused_begins_on_another_that_has_room() -> None:  # R7
    rig = with_job(deadline_s=60).to(60)
    rig.account(60)
    rig.begin(60)
    rig.refused(60)

    def chosen(slots: dict[int, int]) -> list[int]:
        queues = queues_with(rig.state, slots)
        commands = plan(View(rig.state, [], queues, late_budget=100), rig.state.at_ms)
        return [
            item.executor for one in commands if isinstance(one, c.Begin) for item in begun(one)
        ]

    assert chosen({1: 9, 2: 1}) == [2]
    assert chosen({1: 9, 2: 0}) == [1]
    assert chosen({1: 9}) == [1]


async def test_executors_join_again_when_the_leaders_clock_was_set() -> None:  # R10
    hello = pool_pb2.Hello(
        cell="test", executor="e1", ledger=LEDGER, incarnation="a", slots=4,
        host="h", pid=1, version="1", wall_ms=0, protocol=PROTOCOL,
    )  # fmt: skip
    async with reigning() as replica:
        heard: list[Event] = []
        hear, clock = replica.leader.on_event, replica.clock

        def listen(event: Event) -> None:
            heard.append(event)
            hear(event)

        replica.leader.on_event = listen  # type: ignore[method-assign]
        session = replica.pool.join(parse_hello(hello, "test"), "127.0.0.1:1")
        await replica.until(lambda: session.is_welcome)
        assert session.ended is None
        clock.wall_ms = lambda: clock.ms + HOUR_MS  # type: ignore[method-assign]
        await replica.until(lambda: session.ended is not None)
        assert session.ended is not None
        assert session.ended.reason == "the leader's clock was set; join again"
        assert [type(event) for event in heard] == [Joined, Left]
