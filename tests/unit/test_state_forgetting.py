"""What State forgets of jobs and what it keeps: spans, records of removed jobs, their numbers."""

from __future__ import annotations

import msgspec
import pytest

from cron.history.audited import AuditedJob
from cron.job import Overlap, Schedule
from cron.launch_state import LaunchState
from cron.scheduler import forgetting as leader_forgetting
from cron.scheduler.forgetting import LOOK_MS, ROUND_MS, Forgetting, history_from_s
from cron.state import commands as c
from cron.state import forgetting, pool, retries
from cron.state.commands import Forget
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.outcome import Verdict
from cron.state.state import Span
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.test_leader_term import reigning

HOURLY = Schedule("0 * * * *", "0 * * * *")
BACKUP = "default/backup"


def built(number: int, **fields: object) -> c.Job:
    """The job as a build with this number declares it."""
    made = job(**fields)  # type: ignore[arg-type]
    return msgspec.structs.replace(
        made, work=msgspec.structs.replace(made.work, env=(("BUILD", str(number)),))
    )


def spans(rig: StateRig) -> list[tuple[int, int, int]]:
    """The spans of `backup`: revision, and period in seconds after T0 (to 0: it is the current)."""
    return [
        (span.revision, span.from_s - T0, span.to_s - T0 if span.to_s else 0)
        for span in rig.record().spans
    ]


def removed(**fields: object) -> StateRig:
    """A rig whose job is removed at T0 + 60, a minute ago."""
    rig = with_job(**fields)
    rig.to(60).account(60)
    rig.skip(60)
    assert rig.put(removed=(BACKUP,)).verdict is Verdict.ACCEPTED
    return rig.to(120)


def forget(rig: StateRig, before: int, *numbers: int) -> int:
    return rig.answer(Forget(numbers or (1,), T0 + before)).number


# ---- spans


def test_a_job_that_is_applied_again_and_again_has_one_span_while_its_instants_stay() -> None:
    rig = with_job()
    for minute in range(1, 200):
        rig.to(60 * minute).account(60 * minute)
        assert rig.put(built(minute)).verdict is Verdict.ACCEPTED
    assert spans(rig) == [(1, 0, 0)]
    assert rig.record().revision == 200


@pytest.mark.parametrize("change", [{"schedule": HOURLY}, {"overlap": Overlap.FORBID}])
def test_another_schedule_or_overlap_begins_a_span(change: dict[str, object]) -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.put(built(1, **change))
    assert spans(rig) == [(1, 0, 60), (2, 60, 0)]


def test_a_job_that_was_away_for_a_while_has_a_span_for_each_time() -> None:
    rig = removed()
    assert rig.put(job()).verdict is Verdict.ACCEPTED
    assert spans(rig) == [(1, 0, 60), (3, 120, 0)]


def test_the_schedule_of_a_launch_that_is_not_over_is_kept() -> None:
    rig = with_job(deadline_s=4000).to(60)
    rig.account(60)
    rig.put(job(schedule=HOURLY, deadline_s=4000))
    rig.to(600).append()
    assert forget(rig, before=600) == 0
    assert spans(rig) == [(1, 0, 60), (2, 60, 0)], "its row is to be found on it"
    assert Forgetting(rig.state).next(0) == [], "there is nothing to forget"
    rig.skip(60)
    forget(rig, before=600)
    assert spans(rig) == [(2, 60, 0)]


def test_of_too_many_schedules_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "SPANS_KEPT", 3)
    rig = with_job()
    for minute in range(1, 9):
        rig.to(60 * minute).account(60 * minute)
        schedule = Schedule(f"*/{minute} * * * *", f"*/{minute} * * * *")
        rig.put(job(schedule=schedule))
    assert [span.from_s - T0 for span in rig.record().spans] == [360, 420, 480]
    assert rig.record().forgotten_s == T0 + 360


def test_the_policy_of_a_revision_is_that_of_the_span_that_it_fell_into() -> None:
    span = Span(3, T0, T0 + 60, HOURLY, Overlap.FORBID)
    later = Span(7, T0 + 60, 0, HOURLY, Overlap.ALLOW)
    audited = AuditedJob(BACKUP, (span, later), T0 + 90)
    assert audited.overlap_of(5, T0 + 90) is Overlap.FORBID
    assert audited.overlap_of(9, T0 + 30) is Overlap.ALLOW
    assert audited.overlap_of(0, T0 + 30) is Overlap.FORBID, "the revision is not known"


# ---- records of removed jobs


def test_a_removed_job_is_forgotten_when_history_has_nothing_of_its_time() -> None:
    rig = removed()
    assert forget(rig, before=59) == 0
    assert forget(rig, before=60) == 1
    assert not rig.state.jobs
    assert not rig.state.by_number
    assert rig.state.forgotten_s == T0 + 60


def test_a_job_that_is_made_again_has_a_new_number_and_repeats_nothing() -> None:
    rig = removed()
    forget(rig, before=60)
    assert rig.put(job(), effective_s=T0 + 60).verdict is Verdict.BAD_TIMES
    assert rig.put(job()).verdict is Verdict.ACCEPTED
    assert rig.record().number == 2
    assert rig.record().horizon_s == T0 + 120
    assert rig.put(job("other")).verdict is Verdict.ACCEPTED
    assert rig.record("other").number == 3
    assert decode_state([encode_state(rig.state)]).job_numbers == 3


def test_a_record_whose_horizon_is_not_behind_the_log_stays() -> None:
    rig = with_job()
    rig.account(60, to=90)
    rig.skip(60)
    assert rig.put(removed=(BACKUP,), effective_s=T0 + 90).verdict is Verdict.ACCEPTED
    assert forget(rig.to(90), before=90) == 0, "an instant of this second is accounted"
    assert forget(rig.to(91), before=90) == 1


def test_a_record_of_which_something_runs_stays_until_it_is_over() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    rig.put(removed=(BACKUP,))
    assert forget(rig.to(200), before=200) == 0
    rig.finished(60)
    assert forget(rig, before=200) == 1


def test_a_record_with_a_dead_letter_stays_until_that_is_dropped() -> None:
    rig = with_job(retry=retries.Retry(tries=2))
    rig.to(60).account(60)
    rig.begin(60)
    rig.finished(60, state=LaunchState.FAILED, reason=Reason.FATAL, exit_code=1)
    rig.put(removed=(BACKUP,))
    assert forget(rig.to(200), before=200) == 0
    rig.append(pool.DropDead(((1, T0 + 60, 0),)))
    assert forget(rig, before=200) == 1


def test_a_record_with_a_lost_launch_stays_for_its_late_report() -> None:  # R9
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    rig.lost(60)
    rig.put(removed=(BACKUP,))
    assert forget(rig.to(200), before=200) == 0
    assert rig.finished(60) is Verdict.AMENDED
    assert forget(rig, before=200) == 1


def test_a_live_job_is_never_forgotten() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.skip(60)
    rig.put(job(schedule=HOURLY))
    assert rig.answer(Forget((1,), T0 + 9_000, (1,))).number == 0
    assert [span.from_s for span in rig.record().spans] == [T0 + 60]
    assert rig.record().forgotten_s == T0 + 60


def test_an_image_under_way_still_has_what_is_forgotten_meanwhile() -> None:
    rig = removed()
    rig.put(job("other"))
    expected = encode_state(rig.state)
    imaging = Imaging.begin(rig.state)
    assert forget(rig, before=60) == 1
    rig.put(job("third"))
    assert b"".join(imaging.pieces()) == expected
    image = encode_state(rig.state)
    again = decode_state([image])
    assert list(again.by_number) == [2, 3]
    assert encode_state(again) == image


# ---- what the leader asks for


def test_history_reaches_back_to_its_oldest_row() -> None:
    rig = with_job()
    assert history_from_s(rig.state.history, T0) == T0
    rig.to(120).account(60, 120)
    rig.skip(120)
    assert history_from_s(rig.state.history, T0 + 120) == T0 + 120
    rig.append(c.Seal(1))
    rig.skip(60)
    assert history_from_s(rig.state.history, T0 + 120) == T0 + 60
    rig.append(c.Seal(2))
    rig.append(c.Retire((), ((1, 2, 0),)))
    assert history_from_s(rig.state.history, T0 + 120) == T0 + 120


def test_of_too_many_removed_jobs_those_that_went_first_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_forgetting, "REMOVED_KEPT", 3)
    rig = with_job()
    rig.to(60).account(60)
    rig.skip(60)  # a row of that time, so that history needs all of them
    for number in range(8):
        rig.to(61 + number).put(job(f"j{number}"))
    for when, number in enumerate((5, 1, 7, 3, 0)):
        name = f"j{number}"
        second = rig.to(100 + when).at_ms // 1000
        record = rig.record(name)
        item = c.AccountLine((record.number,), record.revision, record.horizon_s, second)
        rig.item(c.Account((item,)))
        assert rig.put(removed=(f"default/{name}",)).verdict is Verdict.ACCEPTED
    rig.to(200).append(c.Seal(1))
    way = Forgetting(rig.state)
    for turn in range(3):
        for command in way.next(turn * LOOK_MS):
            rig.append(command)
    left = [name for name, record in rig.state.jobs.items() if record.job is None]
    assert sorted(left) == ["default/j0", "default/j3", "default/j7"]


async def test_a_leader_has_state_forget_a_removed_job() -> None:
    async with reigning() as replica:
        await replica.put(job())
        replica.clock.ms += 1_000
        state, now_s = replica.state, replica.clock.ms // 1000
        record = state.jobs[BACKUP]
        account = c.Account((c.AccountLine((1,), record.revision, record.horizon_s, now_s),))
        put = c.PutJobs("crontab", state.catalog, now_s, (), (BACKUP,))
        await replica.leader.submit(lambda *_: [account, put], changes_jobs=True)
        assert state.jobs[BACKUP].job is None
        for _ in range(3):
            replica.clock.ms += ROUND_MS
            await replica.until(lambda: True)
        await replica.until(lambda: not state.by_number)
        assert not replica.failures
        await replica.put(job())
        assert state.jobs[BACKUP].number == 2


def test_tenants_in_debt_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BUDGETS_KEPT", 3)
    rig = StateRig()
    tenants = [f"t{number}" for number in range(6)]
    retry = retries.Retry(tries=3)
    jobs = [msgspec.structs.replace(job(retry=retry), name=f"{one}/backup") for one in tenants]
    rig.put(*jobs)
    rig.append(pool.SetLimits((pool.LimitItem(("*", "", -1), pool.Limits(retry_budget=5)),)))
    rig.join()
    rig.to(60)
    for number in range(1, 7):
        rig.account(60, number=number)
        rig.begin(60, number=number)
        rig.finished(60, number=number, state=LaunchState.FAILED, exit_code=1)
    assert list(rig.state.budgets) == ["t3", "t4", "t5"]


def test_nothing_is_kept_of_a_forgotten_job_that_has_had_a_lost_launch() -> None:
    rig = with_job(overlap=Overlap.FORBID).to(60)
    rig.account(60)
    rig.begin(60)
    rig.lost(60, held_until=80)
    assert rig.finished(60) is Verdict.AMENDED
    assert rig.put(removed=(BACKUP,)).verdict is Verdict.ACCEPTED
    assert forget(rig.to(600), before=600) == 1
    state = rig.state
    assert not any((state.by_number, state.doubtful, state.limited, state.delays_s, state.running))
