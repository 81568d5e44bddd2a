"""What waits and what runs on the leader: the order, and what a turn costs."""

from __future__ import annotations

import pytest

from cron.job import Catchup, Overlap, Retry
from cron.launch_state import LaunchState
from cron.scheduler import plan as planning
from cron.scheduler import queues as queues_module
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import View, plan
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import LiftGates
from cron.state.state import State
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, BeginItem, begin_of, begun
from tests.unit.queues_rig import SECONDS, queue, shown
from tests.unit.queues_rig import QueuesRig as Rig
from tests.unit.state_rig import T0, job

# ---- overlap=queue: the order of instants, whatever rests or is late


def test_what_is_tried_again_goes_before_what_is_younger() -> None:
    """It came back behind those that waited already, and the first of these began instead."""
    rig = Rig(queue(retry=Retry(3, backoff_ms=1000)))
    rig.to(10).account(1, 2, 3)
    assert rig.turn() == ["begin 1@1#1"]
    rig.end(1, code=1)
    assert rig.turn() == []  # it rests, and those behind it wait for it
    assert rig.to(20).turn() == ["begin 1@1#2"]
    rig.end(1, 2)
    assert rig.turn() == ["begin 1@2#1"]


def test_what_was_refused_goes_before_what_is_younger() -> None:
    rig = Rig(queue())
    rig.to(10).account(1, 2)
    assert rig.turn() == ["begin 1@1#1"]
    rig.refuse(1)
    assert rig.turn() == []
    assert rig.to(11).turn() == ["begin 1@1#2"]


def test_whoever_waited_behind_a_rest_goes_on_when_that_is_called_off() -> None:
    """It had been told to wait for an hour, and nobody told it that there was no reason any more:
    it began an hour later, or not at all, if its deadline was before."""
    hour = Retry(3, backoff_ms=3_600_000)
    rig = Rig(queue(retry=hour))
    rig.to(10).account(1, 2)
    rig.turn()
    rig.end(1, code=1)
    assert rig.turn() == []
    rig.append(c.Cancel((c.CancelItem((1, T0 + 1, 0), Reason.KILLED, "anna"),)))
    assert rig.turn() == ["begin 1@2#1"]


def test_an_older_one_that_is_filled_back_goes_before_what_waits() -> None:
    rig = Rig(queue())
    rig.to(10).account(1, 5)
    assert rig.turn() == ["begin 1@1#1"]
    items = tuple(c.ReopenItem((1, T0 + second, 0), -1, 0, 0) for second in (4, 3))
    rig.append(c.Reopen(items, rig.state.index, "anna"))
    order = ["1@1"]
    for _ in range(3):
        rig.end(int(order[-1][2:]))
        (word,) = rig.turn()
        order.append(word.split()[1].split("#")[0])
    assert order == ["1@1", "1@3", "1@4", "1@5"]


def test_what_is_live_is_not_paced_once_what_was_late_of_its_job_has_begun() -> None:
    rig = Rig(queue(catchup=Catchup.ALL))
    rig.to(10).account(1, late=True)
    rig.account(10)
    assert rig.turn(late_budget=0) == []
    assert rig.turn(late_budget=1) == ["begin 1@1#1"]
    rig.end(1)
    assert rig.turn(late_budget=0) == ["begin 1@10#1"]


def test_a_queue_that_waited_at_a_gate_goes_on_in_order() -> None:
    rig = Rig(queue())
    number = rig.close()
    rig.to(10).account(1, 2, 3)
    assert rig.turn() == []
    rig.append(LiftGates((number,), "anna"))
    assert rig.turn() == ["begin 1@1#1"]
    assert rig.turn() == []


def test_a_queue_whose_gate_opens_by_itself_goes_on_in_order() -> None:
    rig = Rig(queue())
    rig.close(until_ms=(T0 + 20) * 1000)
    rig.to(10).account(1, 2)
    assert rig.turn() == []
    assert rig.queues.next_ms() == (T0 + 20) * 1000
    assert rig.to(20).turn() == ["begin 1@1#1"]
    rig.end(1)
    assert rig.turn() == ["begin 1@2#1"]


def test_a_queue_goes_on_behind_one_that_is_past_its_deadline() -> None:
    rig = Rig(queue(deadline_s=30))
    rig.to(20).account(1, 20)
    rig.queues.places.drop(1)
    assert rig.turn() == []
    rig.queues.places.put(Place(1, {}, (Capacity(4),)))
    assert rig.to(31).turn() == ["skip 1@1 deadline"]
    assert rig.turn() == ["begin 1@20#1"]


def test_a_queue_that_is_made_one_that_overlaps_lets_all_begin() -> None:
    rig = Rig(queue())
    rig.to(3).account(1, 2, 3)
    assert rig.turn() == ["begin 1@1#1"]
    put = c.PutJobs("crontab", rig.state.catalog, T0 + 3, (queue(overlap=Overlap.ALLOW),))
    rig.append(put)
    assert rig.turn() == ["begin 1@2#1", "begin 1@3#1"]


def test_what_overlapped_and_is_made_a_queue_keeps_its_order() -> None:
    rig = Rig(queue(overlap=Overlap.ALLOW))
    rig.to(3).account(1, 2, 3)
    assert rig.turn(rows_max=1) == ["begin 1@1#1"]
    rig.append(c.PutJobs("crontab", rig.state.catalog, T0 + 3, (queue(),)))
    assert rig.turn() == []
    rig.end(1)
    assert rig.turn() == ["begin 1@2#1"]


def test_what_a_plan_could_not_begin_of_a_queue_is_still_the_first() -> None:
    rig = Rig(queue())
    rig.to(3).account(1, 2)
    (begin,) = rig.plan()
    assert isinstance(begin, c.Begin)
    wrong = BeginItem(begun(begin)[0].key, 1, 77, 1, rig.now_ms + 1000)
    assert rig.append(begin_of((wrong,))) == [[Verdict.STALE_REVISION]]
    assert rig.agrees()
    assert rig.turn() == ["begin 1@1#1"]


# ---- what is judged, and what it costs


def test_of_a_thousand_that_wait_only_the_newest_replaces() -> None:
    rig = Rig(queue(overlap=Overlap.REPLACE))
    rig.to(1000).account(*range(1, 1001))
    words = rig.turn()
    assert len(words) == 1000
    assert words[-1] == "begin 1@1000#1"
    assert all(word.startswith("cancel") for word in words[:-1])
    assert rig.agrees()


def ended(key: c.Key, now_ms: int) -> AttemptItem:
    return AttemptItem.of(key, 1, LaunchState.SUCCEEDED, Reason.NONE, 0, now_ms, now_ms)


class Counted(dict[tuple[int, int], object]):
    """The open launches of a job, counting who reads all of them."""

    reads = 0

    def values(self):  # type: ignore[no-untyped-def]
        Counted.reads += 1
        return super().values()


def test_judging_a_launch_does_not_read_all_that_its_job_has_open() -> None:
    """Ten thousand that wait of one job where overlap is forbidden took a minute to judge."""
    rig = Rig(queue(overlap=Overlap.FORBID))
    rig.queues.places.drop(1)
    rig.to(300).account(*range(1, 300))
    record = rig.state.by_number[1]
    Counted.reads = 0
    record.open = Counted(record.open)  # type: ignore[assignment]
    assert rig.turn() == []
    assert Counted.reads == 0


def test_launches_that_are_over_leave_no_deadlines_behind() -> None:
    """Each launch left one until its time came: at a thousand a second, millions of them."""
    rig = Rig(job(schedule=SECONDS, deadline_s=86_400))
    queues = rig.queues
    rig.to(1)
    for second in range(1, 26_000, 1000):
        rig.account(*range(second, second + 1000))
        for key in list(rig.state.due):
            rig.state.due.take(key[1], (key[0],))
        queues.follow([(1, T0 + one, 0) for one in range(second, second + 1000)])
    assert not queues._waiting
    assert len(queues._deadlines) < 12_000


def test_deadlines_hold_whatever_was_forgotten_of_others() -> None:
    rig = Rig(job(schedule=SECONDS, deadline_s=60_000), job("other", deadline_s=20_000))
    rig.queues.places.drop(1)
    rig.to(1).account(1, number=2)
    for second in range(1, 13_000, 1000):
        rig.account(*range(second, second + 1000))
        for one in range(second, second + 1000):
            rig.state.due.take(T0 + one, (1,))
        rig.queues.follow([(1, T0 + one, 0) for one in range(second, second + 1000)])
    assert rig.turn() == []
    assert rig.to(20_001).turn() == ["skip 2@1 deadline"]


# ---- a takeover


def test_what_waits_is_let_in_by_and_by_without_anybody_waking_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing began there was no entry to wake it: it went on half a second later."""
    monkeypatch.setattr(queues_module, "LOADED_AT_ONCE", 100)
    rig = Rig(job(schedule=SECONDS, deadline_s=90_000))
    rig.queues.places.drop(1)
    many = 2 * 100 + 5
    rig.to(many).account(*range(1, many + 1))
    rig.lead()
    rig.queues.places.drop(1)
    turns = 0
    while rig.queues.next_ms() == 0:
        assert rig.turn() == []
        turns += 1
    assert turns == 3
    assert len(rig.queues.fair) == many


def test_what_is_new_of_a_queue_does_not_go_before_what_is_not_let_in_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a takeover the new instant of a job began before those that had waited for hours, since
    these were far behind in what was let in."""
    monkeypatch.setattr(queues_module, "LOADED_AT_ONCE", 100)
    now = 100 + 10
    many = job("many", schedule=SECONDS, deadline_s=90_000)
    rig = Rig(many, queue(name="line", deadline_s=90_000))
    rig.to(now).account(*range(1, now))
    rig.account(5, 6, number=2)
    rig.lead()
    rig.account(now, number=2)
    rig.queues.places.put(Place(1, {}, (Capacity(30),)))
    begun = [word for word in rig.turn() if word.startswith("begin 2@")]
    assert begun == ["begin 2@5#1"]
    rig.end(5, number=2)
    rig.append(c.Report(tuple(ended(key, rig.now_ms) for key in rig.state.active)))
    begun = [word for word in rig.turn() if word.startswith("begin 2@")]
    assert begun == ["begin 2@6#1"]


def test_what_the_plan_without_queues_gives_up_is_right_in_them() -> None:
    """While its clock is off a leader says only what is lost; it does not ask its queues."""
    rig = Rig(job(schedule=SECONDS))
    rig.to(1).account(1)
    assert rig.turn() == ["begin 1@1#1"]
    view = View(rig.state, [], Queues(State()), expired=[1])
    rig.append(*plan(view, rig.now_ms))
    assert rig.agrees()
    assert not rig.state.executors
    assert len(rig.queues.fair.running) == 0


def test_of_many_executors_that_fall_silent_together_one_entry_gives_up_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hundred thousand launches on silent executors did not fit into an entry, and the term
    failed. They would now, and `apply` would take seconds for it."""
    monkeypatch.setattr(planning, "LOST_MAX", 100)
    rig = Rig(job(schedule=SECONDS, deadline_s=90_000))
    rig.rig.join("e2", "l2")
    rig.rig.join("e3", "l3")
    each = 100 // 2 + 1
    rig.queues.places.drop(1)
    rig.to(3 * each).account(*range(1, 3 * each + 1))
    keys = list(rig.state.due)
    record = rig.state.by_number[1]
    for number in (1, 2, 3):
        items = tuple(
            BeginItem(key, 1, record.revision, number, rig.now_ms) for key in keys[number - 1 :: 3]
        )
        rig.append(begin_of(items))
    entries = 0
    while rig.state.executors:
        expired = list(rig.state.executors)
        commands = plan(View(rig.state, [], expired=expired, queues=rig.queues), rig.now_ms)
        rig.append(*commands)
        entries += 1
        assert entries < 9
    assert entries == 3
    assert rig.agrees()
    assert not rig.state.active


def test_launches_of_several_parts_that_find_no_room_are_not_asked_again_for_nothing() -> None:
    """Each of them was taken and put back for a tenth of a second, all of them in each plan:
    twenty thousand kept a leader busy for good."""
    rig = Rig(job(schedule=SECONDS, deadline_s=9000, parts=2))
    rig.to(100).account(*range(1, 101))
    assert rig.turn() == []
    assert rig.queues.next_ms() is None
    rig.rig.join("e2", "l2")
    rig.queues.places.put(Place(2, {}, (Capacity(1),)))
    (begin,) = rig.plan()
    assert isinstance(begin, c.Begin)
    assert len(begun(begin)) == 1


def test_a_launch_that_was_taken_and_is_skipped_after_all_leaves_its_start_to_others() -> None:
    rig = Rig(job(schedule=SECONDS))
    rig.limit(("", "command", -1), rate_milli=1_000)
    rig.to(10).account(1, 2)
    rig.queues.begin_plan(rig.now_ms)
    for launch in rig.queues.take_new(1_000):
        declared = rig.queues.job_of(launch.number)
        assert declared is not None
        rig.queues.enqueue(launch, declared, rig.now_ms)
    (first,) = rig.queues.take(rig.now_ms, 9)
    rig.queues.drop(first.key)
    (second,) = rig.queues.take(rig.now_ms, 9)
    assert shown(second.key) == "1@2"
    assert rig.queues.take(rig.now_ms, 9) == []


def test_parts_that_would_take_what_is_reserved_are_not_asked_again_for_nothing() -> None:
    rig = Rig(job(schedule=SECONDS, deadline_s=9000, parts=2))
    rig.limit(("", "command", 2), reserved=4)
    rig.rig.join("e2", "l2")
    rig.queues.places.put(Place(2, {}, (Capacity(1),)))
    rig.to(100).account(*range(1, 101))
    assert rig.turn() == []
    assert rig.queues.next_ms() is None
    rig.limit(("", "command", 2), reserved=3)
    assert rig.turn() == ["begin 1@1#1"]


def test_what_is_taken_and_stopped_does_not_make_a_turn_without_end() -> None:
    """A plan was bounded by what begins; what does not was taken to the last."""
    rig = Rig(job(schedule=SECONDS, deadline_s=10_000))
    rig.to(30).account(*range(1, 31))
    assert rig.turn(rows_max=0) == []
    rig.rig.append(c.Pause(("default/backup",), "", 0, "anna"))  # and the queues are not told
    turns = []
    while words := rig.turn(rows_max=2):
        turns.append(len(words))
    assert turns == [8, 8, 8, 6]


def test_a_launch_that_is_cancelled_before_the_entry_that_begins_it_is_gone() -> None:
    """Or in the same entry: a plan does not see what people ask for beside it. The queue counted
    the end twice, by which the leader's loop failed."""
    rig = Rig(job(schedule=SECONDS, deadline_s=10_000))
    rig.to(10).account(1)
    planned = rig.plan()
    rig.append(c.Cancel((c.CancelItem((1, T0 + 1, 0), Reason.KILLED, "anna"),)))
    assert rig.append(*planned) == [[Verdict.NOT_DUE]]
    rig.account(2)
    assert rig.turn() == ["begin 1@2#1"]
