from __future__ import annotations

from itertools import pairwise

import pytest

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.limits import PREDECESSORS_MAX
from cron.state import commands as c
from cron.state import following, tasking
from cron.state import tasks as t
from cron.state.access import CameFrom
from cron.state.chains import ReleaseTasks, names_of, waits_for
from cron.state.groups import REMEMBER_MS, CloseGroups, ForgetGroups, GroupClose
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.outcome import Verdict
from cron.state.pool import DropDead, Redrive
from cron.state.state import Restored
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import TasksRig, name, task

ACCEPTED = Verdict.ACCEPTED
G = "default/g"
FAILED = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "exit_code": 1}
DAY_S = 86_400


@pytest.fixture
def rig() -> TasksRig:
    return TasksRig()


def after(*keys: str) -> tuple[str, ...]:
    return tuple(name(key) for key in keys)


# ---- chains


def test_a_task_that_follows_another_is_not_due_before_that_is_over(rig: TasksRig) -> None:
    assert rig.submit(task("a"), task("b", after=after("a"))) == [ACCEPTED, ACCEPTED]
    assert rig.to(5).ready("b") == [Verdict.NOT_DUE]
    assert rig.release("b") == [Verdict.NOT_DUE]
    rig.ended("a")
    assert rig.task("b").is_waiting, "the end of a predecessor changes nothing by itself"
    assert rig.ready("b") == [Verdict.NOT_DUE]
    assert rig.to(7).release("b") == [ACCEPTED]
    assert rig.task("b").at_ms == (T0 + 7) * 1000, "it waits from its release on"
    assert rig.release("b") == [Verdict.ALREADY]
    assert rig.ready("b") == [ACCEPTED]
    assert not rig.state.holds
    assert not rig.state.holds.followed


def test_a_released_task_still_waits_for_its_own_time(rig: TasksRig) -> None:
    rig.submit(task("a"), task("b", 60_000, after=after("a")))
    rig.ended("a")
    assert rig.release("b") == [ACCEPTED]
    assert rig.task("b").at_ms == (T0 + 60) * 1000
    assert rig.ready("b") == [Verdict.NOT_DUE]
    assert rig.to(60).ready("b") == [ACCEPTED]


def test_a_task_is_cancelled_as_soon_as_one_of_its_predecessors_has_not_succeeded(
    rig: TasksRig,
) -> None:
    rig.submit(task("a"), task("b", 9_000), task("c", after=after("b", "a")))
    rig.ended("a", **FAILED)
    assert rig.release("c") == [ACCEPTED]
    over = rig.task("c")
    assert (over.state, over.reason) == (LaunchState.CANCELLED, Reason.PREDECESSOR)
    row = rig.outcome.rows[0]
    assert row.note is not None
    assert row.note.args == ("mail:a", LaunchState.FAILED)
    assert not rig.state.holds.followed


def test_after_any_does_not_care_how_its_predecessor_ended(rig: TasksRig) -> None:
    rig.submit(task("a"), task("b", 5_000), task("c", after_any=after("a", "b")))
    rig.ended("a", **FAILED)
    assert rig.release("c") == [Verdict.NOT_DUE]
    rig.cancel_tasks("b")
    assert rig.release("c") == [ACCEPTED]
    assert rig.task("c").is_waiting


def test_a_chain_is_cancelled_link_by_link(rig: TasksRig) -> None:
    keys = [f"k{n:02}" for n in range(20)]
    rig.submit(task("k00", 5_000), *(task(b, after=after(a)) for a, b in pairwise(keys)))
    rig.cancel_tasks("k00")
    for key in keys[1:]:
        assert rig.release(key) == [ACCEPTED]
        assert rig.task(key).reason is Reason.PREDECESSOR


def test_only_what_is_known_can_be_followed(rig: TasksRig) -> None:
    unknown, group = task("b", after=after("a")), task("b", after_any=("default/g",))
    assert rig.submit(unknown, group) == [Verdict.UNKNOWN_PREDECESSOR] * 2
    assert rig.submit(unknown, task("a")) == [Verdict.UNKNOWN_PREDECESSOR, ACCEPTED]
    many = tuple(f"default/q:{n}" for n in range(PREDECESSORS_MAX + 1))
    twice = task("b", after=after("a"), after_any=after("a"))
    assert rig.submit(task("b", after=many), twice) == [Verdict.BAD_TASK] * 2
    assert not rig.state.holds


def test_holds_are_bounded_together(rig: TasksRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasking, "PREDECESSORS_KEPT", 3)
    rig.submit(task("a"), task("b"))
    follows = [task(key, 5_000, after=after("a", "b")) for key in ("c", "d")]
    assert rig.submit(*follows) == [ACCEPTED, Verdict.TOO_MANY]
    rig.cancel_tasks("c")
    assert rig.submit(follows[1]) == [ACCEPTED]


def test_cancel_reschedule_and_run_now_keep_what_a_task_waits_for(rig: TasksRig) -> None:
    rig.submit(task("a", 9_000), task("b", 60_000, after=after("a")))
    move = t.RescheduleItem(name("b"), at_ms=(T0 + 30) * 1000, priority=1, payload=b"2")
    assert rig.items(t.RescheduleTasks((move,))) == [ACCEPTED]
    assert rig.items(t.RunTasks((name("b"),))) == [ACCEPTED]
    assert rig.to(40).ready("b") == [Verdict.NOT_DUE]
    hold = rig.state.holds[2]
    assert names_of(rig.state, waits_for(rig.state, hold)) == [name("a")]
    assert rig.cancel_tasks("b") == [ACCEPTED]
    assert rig.task("b").reason is Reason.CANCELLED


def test_what_others_follow_is_not_forgotten(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit(task("a", 5_000), task("b", 5_000), task("f", after_any=after("a", "b")))
    rig.cancel_tasks("a")
    rig.to(2 * DAY_S)
    assert rig.forget(1) == [Verdict.STILL_OPEN]
    rig.cancel_tasks("f")
    assert rig.forget(1) == [ACCEPTED]


def test_of_too_many_that_are_over_those_go_first_that_nobody_follows(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasking, "TASKS_REMEMBERED_MAX", 2)
    rig.submit(*(task(key, 5_000) for key in "abcdez"))
    rig.submit(task("f", after=after("a", "z")), task("g", after=after("b", "z")))
    for key in "abcd":
        rig.cancel_tasks(key)
    assert sorted(rig.state.queues["default/mail"].tasks) == ["a", "b", "e", "f", "g", "z"]
    other = decode_state(Imaging.begin(rig.state).pieces())
    rig.cancel_tasks("g", "f")  # nobody follows a and b any more: both are older than these
    assert sorted(rig.state.queues["default/mail"].tasks) == ["e", "f", "g", "z"]
    rig.machine.state, mine = other, rig.state
    rig.at_ms, index = rig.at_ms, mine.index
    rig.machine.apply(1, index, rig.log[-1])
    assert encode_state(rig.state) == encode_state(mine), "what an image gives goes on alike"


def test_a_task_gets_the_results_of_what_it_follows(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit(task("a"), task("b"), task("c"), task("d", after=after("a"), after_any=after("b")))
    rig.ended("a", detail="4 rows")
    rig.ended("b", **FAILED, detail="no such file")
    assert (rig.task("a").result, rig.task("b").result) == ("4 rows", "")
    assert rig.release("d") == [ACCEPTED]
    rig.ready("d")
    job = rig.job("d").job
    assert job is not None
    assert job.work.results == ((name("a"), "4 rows"),)
    monkeypatch.setattr(tasking, "RESULTS_BYTES_MAX", 20)
    rig.ended("c", detail="too long by far for half of it")
    assert rig.task("c").result == ""


def test_a_late_report_brings_the_result_that_a_released_task_gets(rig: TasksRig) -> None:
    rig.submit(task("a"), task("b", after_any=after("a")))
    rig.begun("a")
    assert rig.lost(0, number=rig.job("a").number) is ACCEPTED
    assert rig.release("b") == [ACCEPTED]
    rig.finished(0, 1, rig.job("a").number, detail="late")
    assert (rig.task("a").state, rig.task("a").result) == (LaunchState.SUCCEEDED, "late")


# ---- changes that people made


def test_closes_that_people_ask_for_are_changes_and_share_a_row(rig: TasksRig) -> None:
    rig.submit(task("a", group=G), task("b", group="default/h"), task("c", group="default/i"))
    came = CameFrom("ipv4:127.0.0.1:1", 1)
    rig.append(came, CloseGroups((GroupClose(G, task("hook")),), "anna"))
    rig.append(came, CloseGroups((GroupClose("default/h"),), "anna"))
    rig.append(came, CloseGroups((GroupClose("default/h"),), "anna"))
    rig.append(CloseGroups((GroupClose("default/i"),)))  # the leader's own
    (row,) = rig.state.revisions
    assert (row.by, row.command, row.count) == ("anna", "close-groups", 2)
    assert [(one.name, one.before, one.after) for one in row.changed] == [
        (G, "open", "closed, then mail:hook"),
        ("default/h", "open", "closed"),
    ]


# ---- clocks


def test_a_clock_reset_moves_times_that_the_wrong_clock_made(rig: TasksRig) -> None:
    hour_ms, right_ms = 3_600_000, rig.at_ms
    rig.submit(task("before", 9 * hour_ms, is_delay=True), task("named", 9 * hour_ms))
    rig.submit(task("a", 9 * hour_ms), task("b", after_any=after("a")), task("run", 9 * hour_ms))
    rig.to(3_600)  # a clock that is an hour ahead
    rig.cancel_tasks("a")
    assert rig.release("b") == [ACCEPTED]
    rig.items(t.RunTasks((name("run"),)))
    move = t.RescheduleItem(name("moved"), at_ms=right_ms + 2 * hour_ms, is_delay=True)
    rig.submit(task("delay", hour_ms + 600_000, is_delay=True), task("moved", 9 * hour_ms))
    rig.items(t.RescheduleTasks((move,)))
    rig.submit(task("g", 9 * hour_ms, group=G))
    rig.close()
    rig.cancel_tasks("g")
    rig.to(3_900)
    rig.append(c.ResetClock(right_ms + 300_000, "anna"))
    at_ms = {key: rig.task(key).at_ms - right_ms for key in ("b", "run", "delay", "moved", "named")}
    assert at_ms == {
        "b": 300_000,
        "run": 300_000,
        "delay": 300_000 + 300_000,
        "moved": 300_000 + hour_ms - 300_000,
        "named": 9 * hour_ms,
    }
    assert rig.task("before").at_ms - right_ms == 9 * hour_ms
    assert rig.group().completed_ms == right_ms + 300_000
    assert rig.group().changed_ms == right_ms + 300_000


# ---- payloads


def test_a_tenant_has_half_of_the_payloads_and_its_dead_letters_count(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasking, "TENANT_PAYLOADS_BYTES_MAX", 30)
    retried = t.TaskOptions("mail.send", tries=2, backoff_ms=1)
    rig.submit(task("a", options=retried), task("b", options=retried))
    rig.ended("a", **FAILED), rig.ended("b", **FAILED)
    assert len(rig.state.dead) == 2
    other = task("c", queue="acme/mail")
    assert rig.submit(task("c"), other) == [Verdict.TOO_MANY, ACCEPTED]
    change = t.RescheduleItem("acme/mail:c", payload=bytes(31))
    assert rig.items(t.RescheduleTasks((change,))) == [Verdict.TOO_MANY]
    rig.append(DropDead((next(iter(rig.state.dead)),)))
    rig.append(DropDead(()))
    assert rig.submit(task("c")) == [ACCEPTED]


# ---- groups


def test_a_group_counts_its_tasks_of_all_queues(rig: TasksRig) -> None:
    rig.submit(*(task(key, group=G) for key in "abc"), task("d", 9_000, "default/other", group=G))
    assert (rig.group().by, rig.group().state, rig.group().waiting) == ("shop", "open", 4)
    rig.ended("a"), rig.ended("b", **FAILED), rig.begun("c")
    rig.items(t.CancelTasks((name("d", "default/other"),)))
    group = rig.group()
    counts = (group.waiting, group.running, group.done, group.failed, group.dropped)
    assert counts == (0, 1, 1, 1, 1)
    assert G in rig.outcome.moved_groups


def test_a_closed_group_takes_no_task_and_is_complete_once_all_are_over(rig: TasksRig) -> None:
    rig.submit(task("a", group=G))
    assert rig.close() is ACCEPTED
    assert rig.close() is Verdict.ALREADY
    assert rig.close("default/none") is Verdict.UNKNOWN_GROUP
    assert rig.submit(task("a", group=G), task("b", group=G)) == [
        Verdict.ALREADY,
        Verdict.GROUP_CLOSED,
    ]
    assert rig.group().state == "closed"
    rig.to(3).ended("a")
    assert (rig.group().state, rig.group().completed_ms) == ("complete", (T0 + 3) * 1000)
    assert rig.group().has_succeeded


def test_only_a_closed_group_can_be_followed(rig: TasksRig) -> None:
    rig.submit(task("a", group=G))
    follower = task("b", after=(G,))
    assert rig.submit(follower) == [Verdict.GROUP_OPEN]
    rig.close()
    assert rig.submit(follower) == [ACCEPTED]
    assert rig.release("b") == [Verdict.NOT_DUE]
    rig.ended("a", **FAILED)
    assert rig.release("b") == [ACCEPTED]
    note = rig.outcome.rows[0].note
    assert note is not None
    assert note.args == ("g", LaunchState.FAILED)


def test_a_hook_comes_with_the_close_and_runs_once_all_are_over(rig: TasksRig) -> None:
    hook = task("done")
    rig.submit(task("a", group=G), task("b", group=G))
    assert rig.close(hook=hook) is ACCEPTED
    assert rig.group().hook == rig.number("done")
    rig.ended("a", **FAILED)
    assert rig.release("done") == [Verdict.NOT_DUE]
    rig.ended("b")
    assert rig.release("done") == [ACCEPTED]
    assert rig.ready("done") == [ACCEPTED]
    with rig.unchanged():
        assert rig.close(hook=hook) is Verdict.ALREADY
        assert rig.close(hook=task("done", payload=b"2")) is Verdict.OTHER_CONTENT
        assert rig.close(hook=task("more")) is Verdict.OTHER_CONTENT


def test_a_refused_hook_leaves_its_group_open(rig: TasksRig) -> None:
    rig.submit(task("a", group=G), task("taken"))
    refused = {
        Verdict.UNKNOWN_QUEUE: task("x", queue="default/none", options=t.NO_OPTIONS),
        Verdict.OTHER_CONTENT: task("taken", payload=b"2"),
        Verdict.GROUP_CLOSED: task("x", group=G),
        Verdict.UNKNOWN_PREDECESSOR: task("x", after=after("nobody")),
    }
    for verdict, hook in refused.items():
        assert rig.close(hook=hook) is verdict
        assert (rig.group().is_closed, rig.group().hook) == (False, 0)
    assert rig.submit(task("b", group=G)) == [ACCEPTED]


def test_a_group_that_was_closed_without_a_hook_may_get_one(rig: TasksRig) -> None:
    rig.submit(task("a", group=G))
    rig.close()
    assert rig.close(hook=task("done")) is ACCEPTED
    assert rig.group().hook == rig.number("done")


def test_a_task_that_runs_again_makes_its_group_incomplete(rig: TasksRig) -> None:
    dead = t.TaskOptions("mail.send", tries=2, backoff_ms=1)
    rig.submit(task("a", group=G, options=dead))
    rig.close()
    rig.ended("a", **FAILED)
    assert rig.group().state == "complete"
    record = rig.job("a")
    assert rig.items(Redrive(((record.number, T0, 0),), "anna")) == [ACCEPTED]
    assert (rig.group().state, rig.group().completed_ms) == ("closed", 0)


def test_a_complete_group_is_forgotten_a_day_later_if_nobody_needs_it(rig: TasksRig) -> None:
    rig.submit(task("a", group=G))
    rig.close(hook=task("done", 5 * DAY_S * 1000))
    forget = ForgetGroups((G, "default/none"))
    assert rig.items(forget) == [Verdict.STILL_OPEN, Verdict.UNKNOWN_GROUP]
    rig.ended("a")
    rig.to(REMEMBER_MS // 1000)
    assert rig.items(forget)[0] is Verdict.STILL_OPEN, "its task is remembered"
    assert rig.forget(1) == [ACCEPTED]
    assert rig.items(forget)[0] is Verdict.STILL_OPEN, "its hook follows it"
    rig.cancel_tasks("done")
    assert rig.items(forget)[0] is ACCEPTED
    assert not rig.state.groups
    assert rig.submit(task("again", group=G)) == [ACCEPTED]


def test_groups_are_bounded(rig: TasksRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasking, "GROUPS_MAX", 1)
    tasks = [task("a", group=G), task("b", group="default/h"), task("c", group=G)]
    assert rig.submit(*tasks) == [ACCEPTED, Verdict.TOO_MANY, ACCEPTED]
    assert rig.submit(task("d", group="no group")) == [Verdict.BAD_TASK]


def test_an_image_has_groups_as_they_were_when_it_began(rig: TasksRig) -> None:
    rig.submit(task("a", group=G), task("b", after=after("a")))
    imaging = Imaging.begin(rig.state)
    image = encode_state(rig.state)
    rig.ended("a")
    rig.close()
    rig.release("b")
    assert b"".join(imaging.pieces()) == image


def test_a_restored_cell_neither_closes_nor_releases_until_it_knows_what_ran(
    rig: TasksRig,
) -> None:
    rig.submit(task("a", group=G), task("b", after=after("a")))
    rig.ended("a")
    rig.state.restored = Restored(2, 1, 1, 1)
    assert rig.close() is Verdict.RESOLVING
    assert rig.items(ReleaseTasks((2,))) == [Verdict.RESOLVING]
    assert rig.state.holds.holds_back(2)
    assert rig.state.groups[G].state == "open"


def test_a_retried_predecessor_is_not_over(rig: TasksRig) -> None:
    again = t.TaskOptions("mail.send", on_lost=OnLost.RETRY)
    rig.submit(task("a", options=again), task("b", after=after("a")))
    rig.begun("a")
    assert rig.lost(0, number=rig.job("a").number) is ACCEPTED
    assert rig.release("b") == [Verdict.NOT_DUE]
    assert following.release(rig_context(rig), ReleaseTasks((99,))).items == (Verdict.UNKNOWN_TASK,)


def rig_context(rig: TasksRig) -> following.Context:
    return following.Context(rig.state, rig.state.epoch, rig.state.at_ms, rig.state.index)


def test_an_item_of_many_closes_is_each_by_itself(rig: TasksRig) -> None:
    rig.submit(task("a", group=G), task("b", group="default/h"))
    items = (GroupClose("default/none"), GroupClose("default/h"))
    assert rig.items(CloseGroups(items)) == [Verdict.UNKNOWN_GROUP, ACCEPTED]
    assert [one.is_closed for one in rig.state.groups.values()] == [False, True]
