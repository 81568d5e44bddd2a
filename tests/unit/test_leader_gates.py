"""Gates, limits and workers as the queues go by them, and what the indexes make of entries."""

from __future__ import annotations

from typing import Any

import pytest

from cron.job import Catchup, Job, Overlap
from cron.notes import sentence
from cron.scheduler.candidates import is_exempt, of_row, too_late, turn
from cron.scheduler.gates import FOREVER_MS, Gates, fits, note_of
from cron.scheduler.places import Capacity, Place
from cron.scheduler.views import WaitFor
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import Gate, GateAction, LiftGates, LimitItem, SetLimits
from cron.state.state import LaunchRow
from launcher.launch import LaunchState, Reason
from launcher.pool.events import Offer
from launcher.work import WorkSpec
from tests.batches import begun
from tests.unit.queues_rig import SECONDS
from tests.unit.queues_rig import QueuesRig as Rig
from tests.unit.state_rig import T0, job


def work(name: str = "backup", handler: str = "", **fields: Any) -> Job:
    """A job whose launches may overlap."""
    spec = WorkSpec((), handler=handler) if handler else WorkSpec(("true",))
    return job(name, schedule=SECONDS, deadline_s=10_000, **{"work": spec} | fields)


# ---- gates


def test_what_waits_at_a_gate_begins_when_it_is_opened() -> None:
    rig = Rig(work())
    number = rig.close()
    rig.to(5).account(1, 2)
    assert rig.turn() == []
    rig.append(LiftGates((number,), "anna"))
    assert rig.turn() == ["begin 1@1#1", "begin 1@2#1"]


def test_what_waited_for_room_is_held_by_a_gate_that_is_closed_meanwhile() -> None:
    rig = Rig(work())
    rig.queues.places.drop(1)
    rig.to(5).account(1)
    assert rig.turn() == []
    rig.close()
    rig.queues.places.put(Place(1, {}, (Capacity(4),)))
    assert rig.turn() == []


def test_a_gate_that_opens_by_itself_wakes_the_leader() -> None:
    rig = Rig(work())
    rig.close(until_ms=(T0 + 60) * 1000)
    rig.to(5).account(1)
    assert rig.turn() == []
    assert rig.queues.next_ms() == (T0 + 60) * 1000
    assert rig.to(60).turn() == ["begin 1@1#1"]


def test_of_two_gates_the_one_that_lasts_longer_holds() -> None:
    rig = Rig(work())
    rig.close(until_ms=(T0 + 60) * 1000)
    forever = rig.close()
    rig.to(5).account(1)
    assert rig.turn() == []
    assert rig.to(61).turn() == []
    rig.append(LiftGates((forever,), "anna"))
    assert rig.turn() == ["begin 1@1#1"]


def test_a_gate_that_drops_goes_before_one_that_pauses() -> None:
    rig = Rig(work())
    rig.close()
    rig.close(action=GateAction.DROP, reason="a leak")
    rig.to(5).account(1)
    assert rig.turn() == ["skip 1@1 gated"]
    assert sentence(rig.rig.rows[-1].note).endswith("until it is opened: a leak")


@pytest.mark.parametrize("action", list(GateAction))
def test_a_gate_that_is_closed_until_the_end_of_days_stops_no_leader(action: GateAction) -> None:
    """Its time has no name; the plan failed over it, and so did that of each next leader."""
    rig = Rig(work())
    rig.close(action=action, until_ms=10**18)
    rig.to(5).account(1)
    assert rig.turn() == (["skip 1@1 gated"] if action is GateAction.DROP else [])
    assert "until 9999" in sentence(note_of(rig.state.gates[1]))


def test_a_job_that_leaves_a_gates_reach_goes_on() -> None:
    rig = Rig(work(collection="night"))
    rig.close(collection="night")
    rig.to(5).account(1)
    assert rig.turn() == []
    put = c.PutJobs("crontab", rig.state.catalog, T0 + 5, (work(),))
    record = rig.state.by_number[1]
    item = c.AccountLine((1,), record.revision, record.horizon_s, T0 + 5, ())
    rig.append(c.Account((item,)), put)
    assert rig.state.by_number[1].job == work()
    assert rig.turn() == ["begin 1@1#1"]


def test_only_jobs_that_have_something_waiting_are_compared_with_a_gate() -> None:
    """A hundred thousand jobs and a thousand gates took minutes, each time one was closed."""
    rig = Rig(*(work(f"j{number}") for number in range(50)))
    rig.to(5).account(1, number=7)
    rig.close()
    assert Gates(rig.state).changed([7]) == [7]
    assert len(rig.queues.gates._known) == 1


GATE = Gate(1, GateAction.PAUSE, "", "", 0)


@pytest.mark.parametrize(
    ("named", "fitting"),
    [
        ({}, True),
        ({"tenant": "default"}, True),
        ({"tenant": "acme"}, False),
        ({"jobs": "default/b*"}, True),
        ({"jobs": "backup"}, False),
        ({"jobs": "[z-a]*"}, False),
        ({"pool": "command"}, True),
        ({"pool": "h"}, False),
        ({"collection": "night"}, True),
        ({"collection": "day"}, False),
        ({"priority": 5}, True),
        ({"priority": 0}, False),
        ({"tenant": "default", "priority": 0}, False),
    ],
)
def test_a_gate_is_for_what_fits_all_that_it_names(named: dict[str, Any], fitting: bool) -> None:
    rig = Rig(work(collection="night"))
    record = rig.state.by_number[1]
    gate = Gate(1, GateAction.PAUSE, "", "", 0, **named)
    assert record.job is not None
    assert fits(gate, record, record.job) is fitting


def test_a_gate_says_who_closed_it() -> None:
    assert sentence(note_of(GATE)) == "gate 1, closed by somebody until it is opened"
    assert FOREVER_MS > 10**18


# ---- limits


def test_a_limit_that_is_raised_lets_more_begin_and_one_that_is_taken_away_all() -> None:
    rig = Rig(work())
    scope = ("default", "", -1)
    rig.limit(scope, concurrent=1)
    rig.to(5).account(1, 2, 3, 4)
    assert rig.turn() == ["begin 1@1#1"]
    assert rig.turn() == []
    rig.limit(scope, concurrent=2)
    assert rig.turn() == ["begin 1@2#1"]
    rig.append(SetLimits((LimitItem(scope),), "anna"))
    assert rig.turn() == ["begin 1@3#1", "begin 1@4#1"]


def test_a_new_leader_counts_what_runs_against_the_limits() -> None:
    rig = Rig(work())
    rig.limit(("", "command", -1), concurrent=2)
    rig.to(5).account(1, 2, 3)
    assert len(rig.turn()) == 2
    rig.lead()
    assert rig.turn() == []
    rig.end(1)
    assert rig.turn() == ["begin 1@3#1"]


def test_a_rate_says_when_the_next_may_begin() -> None:
    rig = Rig(work())
    rig.limit(("", "", -1), rate_milli=500)
    rig.to(5).account(1, 2)
    assert rig.turn() == ["begin 1@1#1"]
    assert rig.turn() == []
    assert rig.queues.next_ms() == (T0 + 7) * 1000
    assert rig.to(7).turn() == ["begin 1@2#1"]


def test_what_a_plan_begins_uses_up_what_is_not_reserved() -> None:
    """What is free is counted once in a round: it must follow what the round itself takes."""
    rig = Rig(work(), work("other", work=WorkSpec(("true",), priority=0)))
    rig.limit(("", "command", 0), reserved=3)
    rig.to(5).account(1, 2, 3, number=1)
    rig.account(1, number=2)
    words = rig.turn()
    assert sorted(words) == ["begin 1@1#1", "begin 2@1#1"]
    wait = rig.queues.why((1, T0 + 2, 0))
    assert wait is not None
    assert wait.what is WaitFor.RESERVED


def test_a_job_runs_no_more_at_once_than_it_says() -> None:
    rig = Rig(work(concurrency=2))
    rig.to(5).account(1, 2, 3)
    assert rig.turn() == ["begin 1@1#1", "begin 1@2#1"]
    rig.lead()
    assert rig.turn() == []
    rig.end(2)
    assert rig.turn() == ["begin 1@3#1"]


# ---- workers


def offer(rig: Rig, group: str, slots: int, *handlers: str) -> None:
    """Executor 1 has these workers from now on."""
    rig.queues.places.put(Place(1, {}, (Capacity(4), Capacity(slots, handlers))))
    rig.queues.serve([Offer(group, slots, handlers)])


def test_what_waits_for_a_handler_begins_when_workers_serve_it() -> None:
    rig = Rig(work(handler="h"))
    rig.to(5).account(1, 2)
    assert rig.turn() == []
    assert rig.queues.lacking((1, T0 + 1, 0))
    offer(rig, "g", 1, "h")
    assert rig.turn() == ["begin 1@1#1"]
    rig.queues.places.put(Place(1, {}, (Capacity(4),)))  # the workers are gone
    rig.end(1)
    assert rig.turn() == []
    offer(rig, "other", 1, "h")
    assert rig.turn() == ["begin 1@2#1"]
    assert rig.agrees()


def test_handlers_of_one_group_share_its_slots() -> None:
    rig = Rig(work("a", handler="a"), work("b", handler="b"))
    offer(rig, "g", 1, "a", "b")
    rig.to(5).account(1)
    rig.account(2, number=2)
    assert rig.turn() == ["begin 1@1#1"]
    rig.end(1)
    assert rig.turn() == ["begin 2@2#1"]


def test_a_handler_that_other_groups_serve_elsewhere_has_nothing_judged_anew() -> None:
    """Two versions of a worker ran beside each other, each change of what one of them offered moved
    the handler to its group, and all that waited went through the plan again."""
    rig = Rig(work(handler="h"))
    offer(rig, "old", 1, "h")
    rig.to(9).account(*range(1, 9))
    assert rig.turn() == ["begin 1@1#1"]
    for group in ("new", "old", "new"):
        rig.queues.serve([Offer(group, 1, ("h",))])
        rig.queues.begin_plan(rig.now_ms)
        assert rig.queues.take_new(1_000) == []
    rig.end(1)
    assert rig.turn() == ["begin 1@2#1"]
    assert rig.agrees()


def test_what_runs_on_workers_that_went_still_counts_when_they_are_back() -> None:
    rig = Rig(work(handler="h"))
    offer(rig, "g", 1, "h")
    rig.to(5).account(1, 2)
    assert rig.turn() == ["begin 1@1#1"]
    rig.queues.places.drop(1)
    offer(rig, "g", 1, "h")
    assert rig.turn() == []
    rig.end(1)
    assert rig.turn() == ["begin 1@2#1"]


# ---- what an entry did not accept


def begins(rig: Rig, **wrong: Any) -> c.Begin:
    """The plan's Begin, with something wrong in each of its items."""
    (begin,) = rig.plan()
    assert isinstance(begin, c.Begin)
    return c.Begin.of(
        tuple(
            c.BeginItem(
                wrong.get("key", item.key),
                wrong.get("attempt", item.attempt),
                wrong.get("catalog", item.catalog),
                wrong.get("executor", item.executor),
                wrong.get("not_after_ms", item.not_after_ms),
            )
            for item in begun(begin)
        )
    )


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        ({"catalog": 9}, Verdict.STALE_REVISION),
        ({"attempt": 5}, Verdict.WRONG_ATTEMPT),
        ({"executor": 77}, Verdict.UNKNOWN_EXECUTOR),
        ({"not_after_ms": 1}, Verdict.BAD_TIMES),
    ],
)
def test_what_was_refused_to_begin_waits_again(wrong: dict[str, int], verdict: Verdict) -> None:
    rig = Rig(work())
    rig.to(5).account(1, 2)
    assert rig.append(begins(rig, **wrong)) == [[verdict, verdict]]
    assert rig.agrees()
    assert rig.turn() == ["begin 1@1#1", "begin 1@2#1"]


def test_what_somebody_cancelled_in_the_same_entry_is_gone() -> None:
    rig = Rig(work())
    rig.to(5).account(1, 2)
    cancel = c.Cancel((c.CancelItem((1, T0 + 1, 0), Reason.KILLED, "anna"),))
    begin = begins(rig)
    assert rig.append(cancel, begin)[1] == [Verdict.NOT_DUE, Verdict.ACCEPTED]
    assert rig.agrees()
    assert rig.turn() == []


def test_a_skip_that_came_too_late_changes_nothing() -> None:
    rig = Rig(work())
    rig.to(5).account(1)
    rig.turn()
    skip = c.Skip((c.SkippedItem((1, T0 + 1, 0), Reason.DEADLINE),))
    assert rig.append(skip) == [[Verdict.NOT_DUE]]
    assert rig.agrees()


def test_a_job_that_is_removed_takes_what_waits_along() -> None:
    rig = Rig(work())
    rig.queues.places.drop(1)
    rig.to(5).account(1, 5)
    assert rig.turn() == []
    rig.append(c.PutJobs("crontab", rig.state.catalog, T0 + 5, (), ("default/backup",)))
    assert rig.indexes.let_go()
    assert rig.agrees()
    assert len(rig.queues.fair) == 0
    assert len(rig.turn()) == 2  # cancels
    assert rig.turn() == []
    assert not rig.state.due


# ---- candidates


def row(**fields: Any) -> LaunchRow:
    usual = {"number": 1, "scheduled_s": T0 + 1, "trigger": 0, "state": LaunchState.DUE}
    return LaunchRow(deadline_ms=(T0 + 60) * 1000, **usual | fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, Reason.DEADLINE),
        ({"is_late": True}, Reason.MISSED),
        ({"is_late": True, "attempt": 1}, Reason.DEADLINE),
        ({"attempt": 1, "detail": "busy", "executor": 3}, Reason.FENCED),
    ],
)
def test_why_a_launch_is_past_its_deadline(fields: dict[str, Any], reason: Reason) -> None:
    record = Rig(work()).state.by_number[1]
    assert too_late(of_row(row(**fields), record)) is reason


def test_what_a_person_asked_for_is_not_scheduled() -> None:
    record = Rig(work()).state.by_number[1]
    assert of_row(row(), record).is_scheduled
    assert not of_row(row(trigger=1), record).is_scheduled
    assert not of_row(row(by="anna"), record).is_scheduled


def test_what_is_exempt_where_overlap_is_forbidden() -> None:
    every, last = (
        work(overlap=Overlap.FORBID, catchup=catchup) for catchup in (Catchup.ALL, Catchup.LAST)
    )
    record = Rig(every).state.by_number[1]
    late, live = of_row(row(is_late=True), record), of_row(row(), record)
    assert (is_exempt(late, every), is_exempt(late, last)) == (True, False)
    assert not is_exempt(live, every)
    assert is_exempt(of_row(row(by="anna"), record), last)


def test_the_executor_that_refused_is_known_only_while_it_was_the_last() -> None:
    record = Rig(work()).state.by_number[1]
    assert of_row(row(executor=3, detail="busy", attempt=1), record).refused_by == 3
    assert of_row(row(executor=3, attempt=1), record).refused_by == 0


def test_what_is_live_is_judged_before_what_is_late() -> None:
    record = Rig(work()).state.by_number[1]
    late = of_row(row(is_late=True), record)
    live = of_row(row(scheduled_s=T0 + 9), record)
    assert sorted([late, live], key=turn) == [live, late]
