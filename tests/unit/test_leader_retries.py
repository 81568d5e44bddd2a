"""A launch that rests between two tries, and the others of its job that come meanwhile."""

from __future__ import annotations

from cron.job import Overlap, Retry
from cron.launch_state import LaunchState
from cron.state import commands as c
from launcher.protocol.status import Reason
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.test_scheduler_plan import follow
from tests.unit.tries_rig import fail

HOUR = Retry(3, backoff_ms=100_000, backoff_max_ms=100_000)


def resting(overlap: Overlap) -> StateRig:
    """The launch of 60 has failed once and rests until about 160; that of 120 is due now."""
    rig = with_job(overlap=overlap, retry=HOUR, deadline_s=1_000)
    rig.to(60)
    follow(rig, 1)
    fail(rig)
    return rig.to(120)


def test_it_is_not_over_and_holds_the_slot_of_a_job_that_forbids_overlap() -> None:
    """The next instant began and the other tries were gone without a word."""
    rig = resting(Overlap.FORBID)
    assert follow(rig, 1) == ["account 1 to 120", "skip 1@120 overlap"]
    rig.to(175)
    assert follow(rig) == ["begin 1@60#2 on 1"]


def test_others_of_a_job_that_allows_overlap_pass_it() -> None:
    rig = resting(Overlap.ALLOW)
    assert follow(rig, 1) == ["account 1 to 120", "begin 1@120#1 on 1"]
    rig.to(175)
    assert follow(rig) == ["begin 1@60#2 on 1"]


def test_a_person_who_triggers_such_a_job_is_told_that_it_is_not_over() -> None:
    rig = resting(Overlap.FORBID)
    rig.trigger("q1")
    assert follow(rig, 1) == [
        "account 1 to 120", "skip 1@120+t1 overlap", "skip 1@120 overlap",
    ]  # fmt: skip


def test_what_is_filled_back_goes_first_and_the_tries_go_on() -> None:
    rig = resting(Overlap.FORBID)
    rig.account(to=120, skipped=(c.Instants(T0 + 120, -1, False, Reason.MISSED, 1, T0 + 120),))
    rig.reopen(120, LaunchState.SKIPPED)
    assert follow(rig) == ["begin 1@120#1 on 1"]
    rig.to(175)
    assert follow(rig) == []
    rig.finished(120)
    assert follow(rig) == ["begin 1@60#2 on 1"]


def test_a_try_that_an_executor_refused_is_a_try_still() -> None:
    """While it rested from the refusal the next instant began, and skipped it."""
    rig = QueuesRig(job(overlap=Overlap.FORBID, retry=HOUR, deadline_s=1_000))
    rig.to(60).account(60)
    assert rig.turn() == ["begin 1@60#1"]
    rig.end(60, code=1)
    rig.to(175)
    assert rig.turn() == ["begin 1@60#2"]
    rig.to(179.9).refuse(60, 2)
    rig.to(180).account(180)
    assert rig.turn() == ["skip 1@180 overlap"]
    rig.to(181)
    assert rig.turn() == ["begin 1@60#3"]
