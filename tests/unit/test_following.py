"""Jobs that follow others: what State knows of ends, what it refuses, and when a launch begins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.job import Job, Overlap, Retry, cycle_of
from cron.launch_state import LaunchState
from cron.limits import STEPS_KEPT
from cron.notes import NOT_OVER, sentence
from cron.scheduler.predecessors import in_the_way
from cron.scheduler.why import why_waiting
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.known_ends import NO_ENDS, UNKNOWN
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from tests.unit.queues_rig import SECONDS
from tests.unit.queues_rig import QueuesRig as Rig
from tests.unit.state_rig import T0, StateRig, job, skips

SUCCEEDED, FAILED = LaunchState.SUCCEEDED, LaunchState.FAILED
ENDS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 4), st.integers(4, 8)), max_size=STEPS_KEPT // 3
)


def first(**fields: Any) -> Job:
    """The job that is followed: number 1."""
    return job("first", schedule=SECONDS, deadline_s=10_000, **fields)


def second(*after: str, **fields: Any) -> Job:
    """The job that follows: number 2."""
    names = tuple(f"default/{name}" for name in after or ("first",))
    usual = {"schedule": SECONDS, "deadline_s": 10_000, "after": names}
    return job("second", **usual | fields)


# ---- what is known of ends


@given(ENDS)
def test_ends_are_what_was_last_said_of_each_instant(said: list[tuple[int, int, int]]) -> None:
    ends, naive = NO_ENDS, dict[int, int]()
    for first_s, seconds, state in said:
        ends = ends.with_end(first_s, first_s + seconds, state)
        naive.update(dict.fromkeys(range(first_s, first_s + seconds + 1), state))
    assert {at_s: ends.at(at_s) for at_s in naive} == naive
    assert ends.at(max(naive, default=0) + 1) == UNKNOWN
    assert all(one[1] != two[1] for one, two in zip(ends.steps, ends.steps[1:], strict=False))


def test_of_too_many_changes_the_oldest_are_forgotten() -> None:
    ends = NO_ENDS
    for at_s in range(1000):
        ends = ends.with_end(at_s, at_s, FAILED if at_s % 2 else SUCCEEDED)
    assert len(ends.steps) == STEPS_KEPT
    assert (ends.at(999), ends.at(998), ends.at(1)) == (FAILED, SUCCEEDED, UNKNOWN)


def test_a_job_that_always_succeeds_costs_one_step() -> None:
    ends = NO_ENDS
    for at_s in range(1000):
        ends = ends.with_end(at_s, at_s, SUCCEEDED)
    assert ends.steps == ((0, SUCCEEDED),)


# ---- what State refuses


def test_ends_of_a_wrong_clock_make_room_for_those_that_come_again() -> None:
    ends = NO_ENDS.with_end(1, 9, SUCCEEDED)
    for at_s in range(100, 100 + 2 * STEPS_KEPT):
        ends = ends.with_end(at_s, at_s, FAILED if at_s % 2 else SUCCEEDED)
    assert ends.with_end(10, 10, FAILED).at(10) == UNKNOWN
    back = ends.reset(9, [200, 211])
    assert [back.at(at_s) for at_s in (200, 211, 212)] == [SUCCEEDED, FAILED, UNKNOWN]
    again = back.with_end(10, 10, FAILED).with_end(11, 11, SUCCEEDED)
    assert [again.at(at_s) for at_s in (10, 11, 211)] == [FAILED, SUCCEEDED, FAILED]


def test_a_reset_keeps_the_ends_of_instants_that_do_not_come_again() -> None:
    ends = NO_ENDS.with_end(1, 9, SUCCEEDED).with_end(12, 12, FAILED).with_end(13, 20, SUCCEEDED)
    back = ends.reset(9, [12, 14])
    assert [back.at(at_s) for at_s in (9, 12, 14, 15)] == [SUCCEEDED, FAILED, SUCCEEDED, UNKNOWN]
    many = NO_ENDS
    for at_s in range(STEPS_KEPT):
        many = many.with_end(at_s, at_s, FAILED if at_s % 2 else SUCCEEDED)
    left = many.reset(-1, range(STEPS_KEPT))
    assert left.steps == many.steps[: STEPS_KEPT // 2]
    assert left.newest_s == STEPS_KEPT // 2 - 1


def test_ends_that_history_remembers_are_noted_unless_one_came_since() -> None:
    rig = StateRig()
    rig.put(first())
    rig.join()
    rig.to(1).account(1)
    rig.begin(1)
    rig.finished(1)
    index, horizon_s = rig.state.index, T0 + 1
    read = c.EndsItem("default/first", index, horizon_s, NO_ENDS.with_end(T0 + 1, T0 + 1, FAILED))
    late = msgspec.structs.replace(read, read_at=index - 1)
    assert rig.item(c.NoteEnds((read,))) is Verdict.UNKNOWN_JOB
    assert rig.record("first").ends is None
    rig.put(second())
    assert rig.items(c.NoteEnds((late, read, read))) == [
        Verdict.STALE_REVISION,
        Verdict.ACCEPTED,
        Verdict.ALREADY,
    ]
    ends = rig.record("first").ends
    assert ends is not None
    assert ends.at(T0 + 1) == FAILED
    rig.to(2).account(2)
    assert rig.item(c.NoteEnds((read,))) is Verdict.STALE_REVISION


def test_a_job_follows_only_jobs_that_there_are() -> None:
    rig = StateRig()
    with rig.unchanged():
        assert rig.put(second()).verdict is Verdict.UNKNOWN_PREDECESSOR
    assert rig.put(first(), second()).verdict is Verdict.ACCEPTED
    with rig.unchanged():
        assert rig.put(removed=("default/first",)).verdict is Verdict.FOLLOWED
        replaced = rig.put(second("third"), removed=("default/first",))
        assert replaced.verdict is Verdict.UNKNOWN_PREDECESSOR
    assert rig.put(second(after=()), removed=("default/first",)).verdict is Verdict.ACCEPTED
    assert rig.state.followers == {}


def test_a_followed_job_goes_with_its_followers() -> None:
    rig = StateRig()
    rig.put(first(), second())
    removed = ("default/first", "default/second")
    assert rig.put(removed=removed).verdict is Verdict.ACCEPTED


def test_jobs_cannot_wait_for_each_other_across_applies() -> None:
    rig = StateRig()
    rig.put(first(), second(), job("third", after_any=("default/second",)))
    with rig.unchanged():
        assert rig.put(first(after=("default/third",))).verdict is Verdict.CYCLE
        assert rig.put(first(after_any=("default/first",))).verdict is Verdict.CYCLE


def test_a_cycle_is_named_from_wherever_it_is_found() -> None:
    follows = {"a": ["b"], "b": ["c", "d"], "c": [], "d": ["e"], "e": ["b"]}
    assert cycle_of("a", follows.__getitem__) == ["b", "d", "e", "b"]
    del follows["e"][:]
    assert cycle_of("abcde", follows.__getitem__) == []


def test_a_long_chain_is_no_cycle_and_costs_no_stack() -> None:
    names = [str(number) for number in range(50_000)]
    assert cycle_of(names, lambda name: [str(int(name) + 1)] if int(name) < 49_999 else []) == []


def test_ends_are_known_while_a_job_is_followed_and_are_in_images() -> None:
    rig = StateRig()
    rig.put(first(), second())
    rig.join()
    rig.to(1).account(1)
    rig.begin(1)
    rig.finished(1)
    ends = rig.record("first").ends
    assert ends is not None
    assert ends.at(T0 + 1) == SUCCEEDED
    state = decode_state([encode_state(rig.state)])
    assert state.by_number[1].ends == ends
    assert state.followers == {"default/first": {2: None}}
    rig.account(1, number=2)
    assert rig.put(second(after=())).verdict is Verdict.ACCEPTED
    assert rig.record("first").ends is None


def test_what_is_skipped_when_it_falls_due_has_ended_so() -> None:
    rig = StateRig()
    rig.put(first(), second())
    rig.to(9).account(to=9, skipped=(skips(3, 8, 6),))
    ends = rig.record("first").ends
    assert ends is not None
    assert [ends.at(T0 + at) for at in (2, 3, 8, 9)] == [
        UNKNOWN,
        LaunchState.SKIPPED,
        LaunchState.SKIPPED,
        UNKNOWN,
    ]
    assert [*rig.outcome.following] == [2]


# ---- when a launch begins


def test_a_launch_begins_once_what_it_follows_has_succeeded() -> None:
    rig = Rig(first(), second())
    rig.to(1).account(1)
    rig.account(1, number=2)
    assert rig.turn() == ["begin 1@1#1"]
    assert rig.to(2).turn() == []
    assert rig.queues.next_ms() == (T0 + 61) * 1000
    waits = why_waiting(rig.state, rig.rig.row(1, 2), frozenset({1}), rig.now_ms, rig.queues)
    assert waits.text == "it follows first@2026-11-20T16:00:01Z, which is not over"
    rig.end(1)
    assert rig.queues.next_ms() == 0
    assert rig.turn() == ["begin 2@1#1"]
    assert rig.agrees()


@pytest.mark.parametrize("leads_again", [False, True])
def test_a_launch_is_skipped_if_what_it_follows_has_failed(leads_again: bool) -> None:
    """Also where the leader changes between the end of the one and the skip of the other."""
    rig = Rig(first(), second())
    rig.to(1).account(1)
    rig.account(1, number=2)
    rig.turn()
    rig.end(1, code=1)
    if leads_again:
        rig.lead()
    assert rig.to(2).turn() == ["skip 2@1 predecessor"]
    row = rig.rig.rows[-1]
    assert row.reason is Reason.PREDECESSOR
    assert sentence(row.note) == "first failed"


def test_a_launch_with_after_any_begins_whatever_became_of_the_other() -> None:
    rig = Rig(first(), second(after=(), after_any=("default/first",)))
    rig.to(1).account(1)
    rig.account(1, number=2)
    rig.turn()
    assert rig.turn() == []
    rig.end(1, code=1)
    assert rig.turn() == ["begin 2@1#1"]


def test_a_launch_waits_for_all_tries_of_what_it_follows() -> None:
    rig = Rig(first(retry=Retry(2, backoff_ms=1_000)), second())
    rig.to(1).account(1)
    rig.account(1, number=2)
    rig.turn()
    rig.end(1, code=1)
    assert rig.turn() == []
    assert rig.to(5).turn() == ["begin 1@1#2"]
    rig.end(1, attempt=2)
    assert rig.turn() == ["begin 2@1#1"]


def test_a_launch_follows_the_latest_instant_at_its_own_or_before() -> None:
    rig = Rig(first(overlap=Overlap.ALLOW), second())
    rig.to(3).account(1, 2, 3)
    rig.account(2, number=2)
    assert rig.turn() == ["begin 1@1#1", "begin 1@2#1", "begin 1@3#1"]
    rig.end(1, code=1)
    rig.end(3, code=1)
    assert rig.turn() == []
    rig.end(2)
    assert rig.turn() == ["begin 2@2#1"]


def test_a_launch_waits_for_an_instant_that_has_no_row_yet() -> None:
    rig = Rig(first(), second())
    rig.to(1).account(1, number=2)
    assert rig.turn() == []
    rig.account(1)
    assert rig.turn() == ["begin 1@1#1"]
    rig.end(1)
    assert rig.turn() == ["begin 2@1#1"]


def test_a_launch_that_nothing_precedes_does_not_wait() -> None:
    """The one that it follows is due every minute, and was declared with it."""
    rig = Rig(job("first"), second())
    rig.to(1).account(1, number=2)
    assert rig.turn() == ["skip 2@1 predecessor"]
    told = "first has no launch at that time or before, as far as is known"
    assert sentence(rig.rig.rows[-1].note) == told


def test_at_its_deadline_a_launch_says_what_it_waited_for() -> None:
    rig = Rig(first(), second(deadline_s=60))
    rig.to(1).account(1)
    rig.account(1, number=2)
    rig.turn()
    assert rig.to(70).turn() == ["skip 2@1 deadline"]
    assert sentence(rig.rig.rows[-1].note) == "first was not over"


def test_a_launch_that_somebody_asked_for_does_not_wait() -> None:
    rig = Rig(first(), second())
    rig.to(1).account(1)
    rig.turn()
    rig.account(1, number=2)
    rig.append(c.Trigger("default/second", "request", "anna"))
    (begun,) = rig.turn()
    assert begun.startswith("begin 2@")
    assert "+t1" in begun


def test_of_several_predecessors_one_that_failed_is_enough() -> None:
    rig = Rig(first(), second("first", "third"), job("third", schedule=SECONDS))
    rig.to(1).account(1)
    rig.account(1, number=2)
    rig.account(1, number=3)
    assert rig.turn() == ["begin 1@1#1", "begin 3@1#1"]
    rig.end(1)
    assert rig.turn() == []
    rig.end(1, number=3, code=1)
    assert rig.turn() == ["skip 2@1 predecessor"]


def test_a_lost_predecessor_has_not_succeeded() -> None:
    rig = Rig(first(), second())
    rig.to(1).account(1)
    rig.account(1, number=2)
    rig.turn()
    rig.rig.lost(1)
    rig.indexes.follow(rig.rig.outcome)
    assert rig.turn() == ["skip 2@1 predecessor"]
    assert sentence(rig.rig.rows[-1].note) == "first lost"


def test_a_replaced_schedule_is_that_of_its_time() -> None:
    """The one that is followed was due each second until it was changed."""
    rig = StateRig()
    rig.put(first(), second())
    rig.to(5).account(to=5, skipped=(skips(1, 5, 5),))
    assert rig.put(job("first")).verdict is Verdict.ACCEPTED
    follower = second()
    found = in_the_way(rig.state, follower, T0 + 3)
    assert found is not None
    assert (found.at_s, found.state) == (T0 + 3, LaunchState.SKIPPED)
    found = in_the_way(rig.state, follower, T0 + 60)
    assert found is not None
    assert (found.at_s, found.state) == (T0 + 60, NOT_OVER)
