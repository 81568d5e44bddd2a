"""What becomes of instants: catch-up, deadlines, pauses, local days (rules R1, R11)."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.calendar.schedule import EveryTicks, Tick, Ticks
from cron.calendar.schedule import compile as compile_schedule
from cron.job import Catchup, Overlap, Schedule
from cron.scheduler.policy import FAILOVER_MS, FRESH_MS, NEVER_MS, Given, account_for, as_lines
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.rows import RowKind
from launcher.protocol.names import parse_time
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, job

Shown = list[tuple[int, str]]


class Rig(StateRig):
    """One job, accounted for by its policy."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        catchup: Catchup = Catchup.LAST,
        deadline_s: int = 300,
        horizon_s: int = T0,
        overlap: Overlap = Overlap.ALLOW,
    ) -> None:
        super().__init__()
        self.at_ms = horizon_s * 1000
        self.steady_ms = NEVER_MS
        self.ticks: Ticks = compile_schedule(schedule)
        self.put(job(schedule=schedule, catchup=catchup, deadline_s=deadline_s, overlap=overlap))

    def account_to(self, now_ms: int) -> c.AccountLine | None:
        """Let the policy account for everything up to then, and the machine accept it."""
        self.at_ms = now_ms
        item = account_for(self.record(), self.ticks, Given(now_ms, self.steady_ms))
        if item is not None:
            lines = as_lines(self.state.catalog, [(item, [1])])
            assert self.item(c.Account(lines)) is Verdict.ACCEPTED
        return item

    def shown(self, now_ms: int) -> Shown:
        """What became of the instants: seconds since the horizon that was, and a word."""
        base = self.record().horizon_s
        item = self.account_to(now_ms)
        if item is None:
            return []
        assert (item.from_s, item.to_s) == (base, now_ms // 1000)
        rows = [(due.scheduled_s - base, "late" if due.is_late else "live") for due in item.due]
        for skip in item.skipped:
            word = skip.reason.label + (f" x{skip.count}" if skip.count > 1 else "")
            rows.append((skip.scheduled_s - base, word))
        return sorted(rows)


def every(seconds: int, **fields: object) -> Rig:
    return Rig(Schedule(f"@every {seconds}s", every_s=seconds), **fields)  # type: ignore[arg-type]


def at(second: float) -> int:
    return round((T0 + second) * 1000)


# ---- one instant


def test_nothing_is_accounted_before_there_is_an_instant() -> None:
    rig = every(60)
    assert rig.shown(at(59.999)) == []
    assert rig.record().horizon_s == T0
    assert rig.shown(at(60)) == [(60, "live")]
    assert rig.shown(at(60.5)) == []
    assert rig.shown(at(60) - 3_600_000) == []  # a clock that went back


@pytest.mark.parametrize("catchup", list(Catchup))
def test_the_newest_instant_stays_live_for_as_long_as_a_failover_takes(catchup: Catchup) -> None:
    assert every(60, catchup=catchup).shown(at(60) + FAILOVER_MS) == [(60, "live")]


@pytest.mark.parametrize(
    ("catchup", "word"),
    [(Catchup.NONE, "missed"), (Catchup.LAST, "late"), (Catchup.ALL, "late")],
)
def test_afterwards_the_policy_decides(catchup: Catchup, word: str) -> None:
    assert every(60, catchup=catchup).shown(at(60) + FAILOVER_MS + 1) == [(60, word)]


@pytest.mark.parametrize("catchup", list(Catchup))
def test_what_falls_due_while_a_leader_is_at_work_is_not_missed(catchup: Catchup) -> None:
    """200,000 launches of one second took eight to get their rows; those that came last were
    called catch-up, and begun at a hundred a second."""
    rig = every(60, catchup=catchup)
    rig.steady_ms = at(60)
    assert rig.shown(at(75)) == [(60, "live")]
    rig = every(60, catchup=catchup)
    rig.steady_ms = at(60) + 1
    assert rig.shown(at(75)) == [(60, "missed" if catchup is Catchup.NONE else "late")]


def test_of_several_that_fell_due_meanwhile_the_newest_alone_is_live() -> None:
    rig = every(5)
    rig.steady_ms = at(0)
    assert rig.shown(at(17)) == [(5, "overload x2"), (15, "live")]


def test_a_leader_that_is_busy_for_some_seconds_skips_nothing() -> None:
    rig = every(1)
    rig.steady_ms = at(0)
    assert rig.shown(at(3) + 900) == [(1, "live"), (2, "live"), (3, "live")]


def test_a_leader_that_is_too_slow_for_all_skips_what_is_older_than_a_failover() -> None:
    rig = every(1)
    rig.steady_ms = at(0)
    shown = rig.shown(at(9))
    assert shown[0] == (1, "overload x3")
    assert shown[1:] == [(second, "live") for second in range(4, 10)]


def test_what_fell_due_in_a_break_of_the_leader_is_missed_as_ever() -> None:
    rig = every(1)
    rig.steady_ms = at(2)
    assert rig.shown(at(4)) == [(1, "missed"), (2, "live"), (3, "live"), (4, "live")]


@pytest.mark.parametrize("catchup", [Catchup.LAST, Catchup.ALL])
def test_nothing_past_its_deadline_is_caught_up(catchup: Catchup) -> None:
    assert every(3600, catchup=catchup).shown(at(3600) + 299_999) == [(3600, "late")]
    assert every(3600, catchup=catchup).shown(at(3600) + 300_000) == [(3600, "missed")]


# ---- several instants


@pytest.mark.parametrize(
    ("catchup", "expected"),
    [
        (Catchup.NONE, [(60, "missed x3"), (240, "live")]),
        (Catchup.LAST, [(60, "missed x3"), (240, "live")]),
        (Catchup.ALL, [(60, "late"), (120, "late"), (180, "late"), (240, "live")]),
    ],
)
def test_an_outage_that_ends_on_an_instant(catchup: Catchup, expected: Shown) -> None:
    assert every(60, catchup=catchup).shown(at(240)) == expected


@pytest.mark.parametrize(
    ("catchup", "expected"),
    [
        (Catchup.NONE, [(60, "missed x3"), (240, "missed")]),
        (Catchup.LAST, [(60, "missed x3"), (240, "late")]),
        (Catchup.ALL, [(60, "late"), (120, "late"), (180, "late"), (240, "late")]),
    ],
)
def test_an_outage_that_ends_between_instants(catchup: Catchup, expected: Shown) -> None:
    assert every(60, catchup=catchup).shown(at(270)) == expected
    queue = every(60, catchup=catchup, overlap=Overlap.QUEUE)
    assert queue.shown(at(270)) == expected


def test_catching_up_all_ends_at_the_deadline() -> None:
    rig = every(60, catchup=Catchup.ALL, deadline_s=150)
    assert rig.shown(at(600)) == [(60, "missed x7"), (480, "late"), (540, "late"), (600, "live")]


def test_a_job_every_second_loses_nothing_to_a_slow_tick() -> None:
    rig = every(1, catchup=Catchup.NONE)
    assert rig.shown(at(2) + FRESH_MS - 1) == [(1, "missed"), (2, "live")]
    assert rig.shown(at(4)) == [(1, "live"), (2, "live")]


@pytest.mark.parametrize("catchup", list(Catchup))
def test_an_outage_of_a_month_of_seconds_is_a_few_rows(catchup: Catchup) -> None:
    month = 30 * 86_400
    rig = every(1, catchup=catchup, deadline_s=60)
    item = rig.account_to(at(month))
    assert item is not None
    assert len(item.skipped) <= 2
    assert sum(skip.count for skip in item.skipped) + len(item.due) == month
    assert len(item.due) == (60 if catchup is Catchup.ALL else 2)
    assert rig.rows[0].kind is RowKind.RANGE


# ---- pause


def test_a_paused_job_gets_rows_that_say_so() -> None:
    rig = every(60)
    rig.append(c.Pause(("default/backup",), "", 0, "anna"))
    assert rig.shown(at(60)) == [(60, "paused")]
    assert rig.shown(at(300)) == [(60, "paused x4")]
    rig.append(c.Resume(("default/backup",), "anna"))
    assert rig.shown(at(360)) == [(60, "live")]


def test_a_pause_ends_by_itself() -> None:
    rig = every(60)
    rig.append(c.Pause(("default/backup",), "", at(120), "anna"))
    assert rig.shown(at(60)) == [(60, "paused")]
    assert rig.shown(at(120)) == [(60, "live")]


@pytest.mark.parametrize("catchup", list(Catchup))
def test_a_pause_that_ended_while_nobody_led_is_kept(catchup: Catchup) -> None:
    """With catchup=all the launches of the whole pause were caught up."""
    rig = every(60, catchup=catchup)
    rig.append(c.Pause(("default/backup",), "", at(180), "anna"))
    words = rig.shown(at(242))
    assert words[0] == (60, "paused x2")  # 60 and 120; at 180 it was over
    assert [second for second, _ in words[1:]] == [180, 240]
    assert words[-1] == (240, "live")


# ---- fixed jobs and local days


DAILY = Schedule("30 2 * * *", "30 2 * * *", zone="Europe/Berlin")


def test_a_fixed_job_carries_its_local_time() -> None:  # R11
    rig = Rig(DAILY, horizon_s=parse_time("2027-07-01T00:00:00Z"))
    item = rig.account_to(parse_time("2027-07-01T00:30:00Z") * 1000)
    assert item is not None
    local = parse_time("2027-07-01T02:30:00Z") // 60
    assert [due.local_min for due in item.due] == [local]
    assert rig.record().local_horizon_min == local


def test_an_interval_job_carries_none() -> None:  # R11
    rig = Rig(Schedule("* * * * *", "* * * * *", zone="Europe/Berlin"))
    item = rig.account_to(at(60))
    assert item is not None
    assert [due.local_min for due in item.due] == [-1]


@pytest.mark.parametrize(
    ("day", "instant"),
    [
        ("2027-03-28", "2027-03-28T01:00:00Z"),  # 02:30 does not exist: after the gap
        ("2027-10-31", "2027-10-31T00:30:00Z"),  # 02:30 happens twice: the first time
    ],
)
def test_a_fixed_job_runs_once_on_a_day_that_changes_its_clock(day: str, instant: str) -> None:
    start, end = parse_time(f"{day}T00:00:00Z"), parse_time(f"{day}T12:00:00Z")
    rig = Rig(DAILY, horizon_s=start)
    due = []
    for now_s in range(start, end, 600):
        item = rig.account_to(now_s * 1000)
        due += list(item.due) if item else []
    assert [item.scheduled_s for item in due] == [parse_time(instant)]
    assert rig.rows == []


class MovedTicks(Ticks):
    """A fixed schedule as other zone data have it: the same local times at other instants."""

    is_fixed = True

    def __init__(self, ticks: list[Tick]) -> None:
        self._ticks = ticks
        self._times = [tick.scheduled_s for tick in ticks]

    def tick_after(self, after_s: int) -> Tick | None:
        place = bisect.bisect_right(self._times, after_s)
        return self._ticks[place] if place < len(self._ticks) else None

    def tick_before(self, before_s: int) -> Tick | None:
        place = bisect.bisect_left(self._times, before_s)
        return self._ticks[place - 1] if place else None

    def count(self, after_s: int, until_s: int) -> int:
        return len([time for time in self._times if after_s < time <= until_s])


def moved(**fields: object) -> Rig:
    """Local minutes 1, 2, 3 were accounted at 60, 120, 180; then the zone moved by two minutes."""
    rig = Rig(DAILY, **fields)  # type: ignore[arg-type]
    rig.ticks = MovedTicks([Tick(T0 + 60 * n, n, n) for n in range(1, 4)])
    for second in (60, 120, 180):
        assert rig.shown(at(second)) == [(second - (second - 60), "live")]
    rig.ticks = MovedTicks([Tick(T0 + 60 * n + 120, n, n) for n in range(1, 9)])
    return rig


def test_a_local_time_that_comes_again_under_new_zone_data_is_no_instant() -> None:  # R11
    rig = moved()
    assert rig.shown(at(240)) == []  # 240 is local minute 2 now
    assert rig.record().horizon_s == T0 + 240
    assert rig.shown(at(300)) == []
    assert rig.shown(at(360)) == [(60, "live")]  # local minute 4, for the first time


@pytest.mark.parametrize("catchup", list(Catchup))
def test_repeated_local_times_do_not_stop_a_job_after_an_outage(catchup: Catchup) -> None:  # R11
    """A run of missed instants that began with repeated ones was refused, again and again."""
    rig = moved(catchup=catchup)
    words = {"missed": 0, "late": 0, "live": 0}
    for _, word in rig.shown(at(1000)):
        kind, _, count = word.partition(" x")
        words[kind] += int(count or 1)
    assert sum(words.values()) == 5  # local minutes 4 to 8, at 360 to 600
    assert words["late"] == {Catchup.NONE: 0, Catchup.LAST: 0, Catchup.ALL: 0}[catchup]
    assert rig.record().local_horizon_min == 8


def test_repeated_local_times_do_not_stop_a_paused_job() -> None:  # R11
    rig = moved()
    rig.append(c.Pause(("default/backup",), "", 0, "anna"))
    assert rig.shown(at(240)) == []
    assert rig.shown(at(300)) == []
    assert rig.shown(at(420)) == [(60, "paused x2")]


# ---- whatever the schedule, the outage and the policy


@given(
    period_s=st.integers(1, 400),
    steps_ms=st.lists(st.integers(1, 900_000), min_size=1, max_size=12),
    catchup=st.sampled_from(Catchup),
    deadline_s=st.integers(1, 600),
)
def test_every_instant_is_accounted_once_and_none_past_its_deadline(
    period_s: int, steps_ms: list[int], catchup: Catchup, deadline_s: int
) -> None:  # R1
    rig = every(period_s, catchup=catchup, deadline_s=deadline_s)
    ticks = EveryTicks(period_s)
    now_ms, accounted, launched = at(0), 0, []
    for step_ms in steps_ms:
        now_ms += step_ms
        before_s = rig.record().horizon_s
        item = rig.account_to(now_ms)
        if item is None:
            assert ticks.count(before_s, now_ms // 1000) == 0
            continue
        for due in item.due:
            assert due.scheduled_s % period_s == 0
            age_ms = now_ms - due.scheduled_s * 1000
            assert due.is_late == (age_ms > FRESH_MS and not is_newest(ticks, due, now_ms))
            assert not due.is_late or age_ms < deadline_s * 1000
            launched.append(due.scheduled_s)
        for skip in item.skipped:
            assert skip.reason is Reason.MISSED
            assert ticks.count(skip.scheduled_s - 1, skip.last_s) == skip.count
        accounted += len(item.due) + sum(skip.count for skip in item.skipped)
    assert accounted == ticks.count(T0, rig.record().horizon_s)
    assert launched == sorted(set(launched))


def is_newest(ticks: Ticks, due: c.Instants, now_ms: int) -> bool:
    """Whether it is its job's newest instant, and as young as a failover."""
    following = ticks.next(due.scheduled_s)
    age_ms = now_ms - due.scheduled_s * 1000
    return (following is None or following > now_ms // 1000) and age_ms <= FAILOVER_MS
