"""Changes of jobs, pauses, executors (rules R2, R4)."""

from __future__ import annotations

import pytest

from cron.job import Overlap, Schedule
from cron.limits import DEADLINE_S_MAX
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.launch import Reason
from launcher.names import SCHEDULED_S_MAX
from tests.unit.state_rig import MINUTE, T0, StateRig, job, said, skips, with_job


def names(rig: StateRig) -> list[str]:
    """The jobs that there are."""
    return [record.name for record in rig.state.jobs.values() if record.job is not None]


# ---- PutJobs


def test_a_new_job_has_its_horizon_at_the_effective_time() -> None:  # R2
    rig = StateRig()
    result = rig.put(job(), effective_s=T0 + 7)
    assert (result.verdict, result.number) == (Verdict.ACCEPTED, 1)
    record = rig.record()
    assert (record.number, record.revision, record.horizon_s) == (1, 1, T0 + 7)
    assert [(span.revision, span.from_s, span.to_s) for span in record.spans] == [(1, T0 + 7, 0)]


def test_a_change_against_another_base_is_refused() -> None:  # R2
    rig = with_job()
    for base in (0, 2, -1):
        with rig.unchanged():
            assert rig.put(job("other"), base=base).verdict is Verdict.STALE_REVISION


def test_a_change_is_not_effective_before_any_time_in_the_log() -> None:  # R2
    rig = with_job().to(100)
    rig.append()
    rig.to(50)  # a leader whose clock is behind
    with rig.unchanged():
        assert rig.put(job("other"), effective_s=T0 + 99).verdict is Verdict.BAD_TIMES
    assert rig.put(job("other"), effective_s=T0 + 100).verdict is Verdict.ACCEPTED


def test_a_change_ends_with_the_last_time_that_has_a_name() -> None:
    rig = StateRig()
    with rig.unchanged():
        assert rig.put(job(), effective_s=SCHEDULED_S_MAX + 1).verdict is Verdict.BAD_TIMES


@pytest.mark.parametrize("deadline_s", [-1, 0, DEADLINE_S_MAX + 1])
def test_a_job_with_an_impossible_deadline_is_refused(deadline_s: int) -> None:
    rig = StateRig()
    with rig.unchanged():
        assert rig.put(job(deadline_s=deadline_s)).verdict is Verdict.BAD_TIMES


def test_a_changed_job_must_be_accounted_up_to_the_effective_time() -> None:  # R2
    rig = with_job().to(60)
    with rig.unchanged():
        assert rig.put(job(deadline_s=30)).verdict is Verdict.WRONG_HORIZON
        assert rig.put(removed=("default/backup",)).verdict is Verdict.WRONG_HORIZON
    rig.account(60)
    hourly = Schedule("0 * * * *", "0 * * * *")
    assert rig.put(job(schedule=hourly)).verdict is Verdict.ACCEPTED
    assert rig.record().revision == 2
    spans = [(span.revision, span.from_s, span.to_s) for span in rig.record().spans]
    assert spans == [(1, T0, T0 + 60), (2, T0 + 60, 0)]


def test_a_change_is_all_or_nothing() -> None:  # R2
    rig = with_job()
    with rig.unchanged():
        verdict = rig.put(job("other"), removed=("default/nobody",)).verdict
        assert verdict is Verdict.UNKNOWN_JOB
        verdict = rig.put(job("other"), job(), source="elsewhere").verdict
        assert verdict is Verdict.WRONG_SOURCE
    assert names(rig) == ["default/backup"]


def test_two_jobs_of_one_name_are_refused() -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.put(job("other"), job("other", deadline_s=5)).verdict is Verdict.REPEATED
        assert rig.put(job(), removed=("default/backup",)).verdict is Verdict.REPEATED
        assert rig.put(removed=("default/backup",) * 2).verdict is Verdict.REPEATED


def test_a_job_of_another_source_is_neither_changed_nor_removed() -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.put(job(deadline_s=9), source="b").verdict is Verdict.WRONG_SOURCE
        removed = ("default/backup",)
        assert rig.put(removed=removed, source="b").verdict is Verdict.WRONG_SOURCE


def test_a_removed_job_keeps_its_horizon_and_past() -> None:  # R2
    rig = with_job().to(60)
    rig.account(60)
    assert rig.put(removed=("default/backup",)).verdict is Verdict.ACCEPTED
    record = rig.record()
    assert record.job is None
    assert record.horizon_s == T0 + 60
    assert [(span.from_s, span.to_s) for span in record.spans] == [(T0, T0 + 60)]


def test_a_removed_job_can_come_back_from_any_source_but_not_into_its_past() -> None:  # R2
    rig = with_job(overlap=Overlap.FORBID).to(60)
    rig.account(60)
    rig.begin(60)
    rig.put(removed=("default/backup",))
    # A horizon that lies ahead (a wrong clock) stays there too.
    rig.record().horizon_s = T0 + 200
    with rig.unchanged():
        assert rig.put(job(), effective_s=T0 + 199).verdict is Verdict.WRONG_HORIZON
    back = job(overlap=Overlap.FORBID)
    assert rig.put(back, effective_s=T0 + 200, source="b").verdict is Verdict.ACCEPTED
    record = rig.record()
    assert (record.number, record.source, record.horizon_s) == (1, "b", T0 + 200)
    rig.account(260)
    with rig.unchanged():  # what ran when it was removed still holds its slot
        assert rig.begin(260) is Verdict.OVERLAP


def test_a_removed_job_is_not_removed_twice() -> None:
    rig = with_job()
    rig.put(removed=("default/backup",))
    with rig.unchanged():
        assert rig.put(removed=("default/backup",)).verdict is Verdict.UNKNOWN_JOB


# ---- a change in parts


def part(
    rig: StateRig, number: int, *jobs: c.Job, parts: int = 3, change: str = "x", **fields: object
) -> Verdict:
    return rig.put(*jobs, part=number, parts=parts, change=change, **fields).verdict


def test_a_change_in_parts_happens_with_the_last_one() -> None:
    rig = StateRig()
    assert part(rig, 1, job("a")) is Verdict.ACCEPTED
    assert part(rig, 2, job("b")) is Verdict.ACCEPTED
    assert names(rig) == []
    assert rig.state.catalog == 0
    assert part(rig, 3, job("c")) is Verdict.ACCEPTED
    assert names(rig) == ["default/a", "default/b", "default/c"]
    assert rig.state.catalog == 1
    assert not rig.state.staged


@pytest.mark.parametrize("order", [(2, 3), (1, 3), (1, 1, 3), (1, 2, 2, 3), (3,), (0, 3), (1, 4)])
def test_a_change_with_a_part_missing_or_repeated_does_not_happen(order: tuple[int, ...]) -> None:
    rig = StateRig()
    verdicts = [part(rig, number, job(f"j{number}")) for number in order]
    assert verdicts[-1] is Verdict.INCOMPLETE
    assert names(rig) == []


def test_a_refused_change_in_parts_leaves_nothing_behind() -> None:
    rig = StateRig()
    with rig.unchanged():
        part(rig, 1, job("a"), parts=2)
        assert part(rig, 2, job("b"), parts=2, base=7) is Verdict.STALE_REVISION


def test_a_newer_change_in_parts_takes_the_place_of_an_unfinished_one() -> None:
    rig = StateRig()
    part(rig, 1, job("a"), parts=2)
    part(rig, 1, job("b"), parts=2, change="y")
    assert part(rig, 2, job("c"), parts=2) is Verdict.INCOMPLETE
    assert part(rig, 2, job("c"), parts=2, change="y") is Verdict.ACCEPTED
    assert names(rig) == ["default/b", "default/c"]


def test_a_new_leader_forgets_parts_of_the_old_one() -> None:
    rig = StateRig()
    part(rig, 1, job("a"), parts=2)
    rig.epoch = c.Epoch(1, 2, "r2")
    rig.append(c.Claim(format=c.FORMAT))
    assert part(rig, 2, job("b"), parts=2) is Verdict.INCOMPLETE


# ---- Pause, Resume


def test_a_pause_says_who_why_and_until_when() -> None:
    rig = with_job()
    pause = c.Pause(("default/backup", "default/nobody"), "disk full", 5, "anna")
    assert rig.items(pause) == [Verdict.ACCEPTED, Verdict.UNKNOWN_JOB]
    paused = rig.record().paused
    assert paused is not None
    assert (paused.reason, paused.by, paused.since_ms, paused.until_ms) == (
        "disk full",
        "anna",
        rig.at_ms,
        5,
    )
    resume = c.Resume(("default/backup",), "bert")
    assert rig.item(resume) is Verdict.ACCEPTED
    assert rig.record().paused is None
    with rig.unchanged():
        assert rig.item(resume) is Verdict.ALREADY


def test_a_job_that_comes_back_is_not_paused() -> None:
    rig = with_job()
    rig.append(c.Pause(("default/backup",), "", 0, "anna"))
    rig.put(removed=("default/backup",))
    rig.put(job(schedule=MINUTE))
    assert rig.record().paused is None


def test_what_a_pause_skipped_says_by_whom_and_why_when_it_is_long_resumed() -> None:
    rig = with_job()
    rig.append(c.Pause(("default/backup",), "disk full", (T0 + 3600) * 1000, "anna"))
    paused = c.SkipItem(T0 + 60, T0 + 180, 3, Reason.PAUSED)
    missed = skips(240, 240, 1)
    assert rig.account(300, to=300, skipped=(paused, missed)) is Verdict.ACCEPTED
    assert rig.skip(300, Reason.PAUSED) is Verdict.ACCEPTED
    told = "paused by anna until 2026-11-20T17:00:00Z: disk full"
    assert [said(row) for row in rig.rows] == [told, "", told]
    assert [row.by for row in rig.rows] == ["", "", ""]  # nobody asked for these launches


@pytest.mark.parametrize("until_ms", [-(1 << 62), -1, 0, (1 << 62)])
def test_a_pause_with_an_absurd_end_is_told_like_any_other(until_ms: int) -> None:
    rig = with_job()
    rig.append(c.Pause(("default/backup",), "", until_ms, ""))
    rig.account(60)
    assert rig.skip(60, Reason.PAUSED) is Verdict.ACCEPTED
    assert said(rig.rows[-1]).startswith("paused by somebody until ")
    assert ("resumes it" in said(rig.rows[-1])) is (until_ms == 0)


# ---- executors


def test_an_executor_with_its_ledger_has_one_number() -> None:  # R4
    rig = StateRig()
    assert rig.join("e1", "l1") == 1
    assert rig.join("e2", "l2") == 2
    again = rig.answer(c.ExecutorJoined("e1", "l1", 9, "host"))
    assert (again.verdict, again.number) == (Verdict.ALREADY, 1)
    assert (rig.state.executors[1].slots, rig.state.executors[1].host) == (9, "host")


def test_an_executor_with_another_ledger_is_another() -> None:  # R4
    rig = StateRig()
    assert [rig.join("e1", "l1"), rig.join("e1", "l2")] == [1, 2]
    assert sorted(rig.state.executors) == [1, 2]


def test_an_executor_leaves_when_nothing_is_open_on_it() -> None:
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    with rig.unchanged():
        assert rig.answer(c.ExecutorLeft(1)).verdict is Verdict.STILL_OPEN
        assert rig.answer(c.ExecutorLeft(2)).verdict is Verdict.UNKNOWN_EXECUTOR
    rig.lost(60)
    assert rig.answer(c.ExecutorLeft(1)).verdict is Verdict.ACCEPTED
    assert not rig.state.executors


def test_a_number_is_never_given_again() -> None:  # R4
    rig = StateRig()
    rig.join()
    rig.answer(c.ExecutorLeft(1))
    assert rig.join() == 2


def test_lost_and_left_in_one_entry_is_fine() -> None:
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    lost = c.Lost((c.LostItem((1, T0 + 60, 0), 1),))
    outcome = rig.append(lost, c.ExecutorLeft(1))
    assert [result.verdict for result in outcome.results] == [Verdict.ACCEPTED] * 2
    assert outcome.rows[0].reason is Reason.EXECUTOR_LOST
    assert outcome.rows[0].executor == "e1"


def test_a_pause_never_shortens_a_longer_one() -> None:
    """`pause '*' --for 2s` set a job going that somebody had stopped for good."""
    rig = with_job()
    name = ("default/backup",)
    assert rig.item(c.Pause(name, "disk", 0, "anna")) is Verdict.ACCEPTED
    soon_ms = rig.at_ms + 2_000
    assert rig.item(c.Pause(name, "all", soon_ms, "bert")) is Verdict.ALREADY
    paused = rig.record().paused
    assert paused is not None
    assert (paused.reason, paused.by, paused.until_ms) == ("disk", "anna", 0)


def test_a_longer_pause_takes_the_place_of_a_shorter_one() -> None:
    rig = with_job()
    name = ("default/backup",)
    rig.item(c.Pause(name, "", rig.at_ms + 2_000, "anna"))
    assert rig.item(c.Pause(name, "", rig.at_ms + 9_000, "bert")) is Verdict.ACCEPTED
    assert rig.item(c.Pause(name, "", rig.at_ms + 3_000, "carl")) is Verdict.ALREADY
    assert rig.to(10).item(c.Pause(name, "", rig.at_ms + 3_000, "carl")) is Verdict.ACCEPTED
    assert rig.item(c.Pause(name, "", 0, "dora")) is Verdict.ACCEPTED
