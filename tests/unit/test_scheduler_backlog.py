"""Who has turns in the backlog: pools and priorities, then tenants, then jobs."""

from __future__ import annotations

from cron.scheduler.backlog import BEHIND_S, SHARE, Backlog, Line, LineKey, Rates
from launcher.launch import Reason

FLOOD = LineKey("command", 5, "flood")
CALM = LineKey("command", 5, "calm")
OTHER = LineKey("app.mail", 5, "flood")


def backlog_of(**counts: int) -> Backlog:
    """Jobs 100 and on of FLOOD, 200 and on of CALM, 300 and on of OTHER; since second 0."""
    backlog = Backlog()
    flows = {"flood": (FLOOD, 100), "calm": (CALM, 200), "other": (OTHER, 300)}
    for name, count in counts.items():
        flow, first = flows[name]
        backlog.put(flow, range(first, first + count), 0)
    return backlog


def taken(backlog: Backlog, limit: int, now_s: int = 0, **fields: object) -> list[int]:
    asked = {"room": None, "is_waiting": None} | fields
    return [number for _, number in backlog.take(limit, now_s, **asked)]  # type: ignore[arg-type]


def test_a_pool_has_its_turn_however_many_wait_in_another() -> None:
    backlog = backlog_of(flood=90, calm=90, other=2)
    numbers = taken(backlog, 3 * SHARE)
    assert [number // 100 for number in numbers].count(3) == 2
    assert {number // 100 for number in numbers} == {1, 2, 3}


def test_a_line_without_room_is_passed_over_and_keeps_its_jobs() -> None:
    def room(line: Line) -> int:
        return 0 if line.key == FLOOD else 3

    backlog = backlog_of(flood=9, calm=9)
    assert taken(backlog, 50, room=room) == [200, 201, 202]
    assert [len(line.numbers) for line in backlog] == [9, 6]


def test_a_job_of_which_a_launch_waits_is_passed_over_where_its_line_is_behind() -> None:
    backlog = backlog_of(flood=4)
    assert taken(backlog, 1, 0, is_waiting=lambda number: number == 100) == [100]
    assert taken(backlog, 2, BEHIND_S, is_waiting=lambda number: number == 101) == [102, 103]
    assert taken(backlog, 2, BEHIND_S, is_waiting=lambda number: False) == [101]
    assert len(backlog) == 0


def test_a_line_is_behind_for_lack_of_executors_once_none_was_there_for_a_while() -> None:
    (line,) = backlog_of(flood=4)
    served = {"now": True}

    def why(now_s: int) -> Reason:
        return line.why_behind(now_s, lambda key: served["now"])

    assert why(BEHIND_S - 1) is Reason.NONE
    assert why(BEHIND_S) is Reason.OVERLOAD
    served["now"] = False  # all rest for a moment
    assert why(2 * BEHIND_S - 1) is Reason.OVERLOAD
    assert why(2 * BEHIND_S) is Reason.NO_EXECUTOR
    served["now"] = True
    assert why(2 * BEHIND_S + 1) is Reason.OVERLOAD


def test_jobs_that_are_passed_over_go_to_the_end_and_hold_up_nobody() -> None:
    backlog = backlog_of(flood=90)
    found = [taken(backlog, 1, BEHIND_S, is_waiting=lambda number: number < 180) for _ in range(3)]
    assert found == [[], [], [180]]


def test_a_job_that_is_not_due_leaves_its_line_and_takes_no_room() -> None:
    backlog = backlog_of(flood=9)
    assert taken(backlog, 9, room=lambda line: 2, is_due=lambda number: number > 105) == [106, 107]
    (line,) = backlog
    assert list(line.numbers) == [108]


def test_jobs_that_come_back_stand_in_front_and_their_line_is_as_old_as_it_was() -> None:
    backlog = backlog_of(flood=2)
    assert taken(backlog, 9) == [100, 101]
    backlog.put(FLOOD, [102], 7)
    for number in (101, 100):
        backlog.put_back(FLOOD, number, 0)
    (line,) = backlog
    assert (list(line.numbers), line.since_s) == ([100, 101, 102], 0)


def test_a_rate_is_that_of_the_fuller_of_two_seconds_and_ends_with_them() -> None:
    rates = Rates()
    for second in (10, 10, 10, 11):
        rates.began(FLOOD, second)
    assert rates.per_second(FLOOD, 11) == 3
    assert rates.per_second(FLOOD, 12) == 1
    assert rates.per_second(FLOOD, 13) == rates.per_second(CALM, 11) == 0
    assert rates.per_second(FLOOD._replace(is_patient=True), 11) == 3


def test_all_are_taken_at_once_where_no_turns_are_needed() -> None:
    backlog = Backlog()
    backlog.put(FLOOD, range(40), 0)
    backlog.put(CALM, range(40, 43), 0)
    assert backlog.take_all(42, 0, None) == []
    assert backlog.take_all(100, 0, lambda line: 40 - (line.key == CALM) * 38) == []
    assert backlog.take_all(100, BEHIND_S, None) == []
    assert len(backlog) == 2
    lines = backlog.take_all(43, 0, lambda line: 40)
    assert {line.key: list(line.numbers) for line in lines} == {
        FLOOD: list(range(40)),
        CALM: [40, 41, 42],
    }
    assert not len(backlog)
    backlog.put(CALM, (1,), 9)
    assert taken(backlog, 9, 9) == [1]
