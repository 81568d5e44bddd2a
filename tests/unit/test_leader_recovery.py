"""A restored cell: what ran is recorded, what may have run is lost, nothing is repeated (R13)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.history.audit import audit
from cron.history.audited import AuditedJob, OpenRow, RevisionSpan
from cron.job import Catchup
from cron.leader.recovery import amend_items, facts_of_open, recover_items
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState, Reason
from launcher.pool.events import Fate
from tests.unit.restored_rig import BASE, RestoredRig, retrying
from tests.unit.state_rig import T0, job


def shown(rows: list[Row]) -> list[tuple[int, str]]:
    """Rows as (seconds after T0, what became of it)."""
    return sorted(
        (row.scheduled_s - T0, row.state.label + (f" x{row.count}" if row.count > 1 else ""))
        for row in rows
    )


def since(rig: RestoredRig) -> list[Row]:
    return [row for row in rig.rows if row.ended_index > BASE]


def test_every_instant_since_the_snapshot_is_lost_where_nobody_remembers_anything() -> None:
    rig = RestoredRig().restore(600)
    assert rig.resolve() == 600
    assert shown(since(rig)) == [(60, "lost x10")]
    assert since(rig)[0].reason is Reason.RESTORED
    assert not rig.state.due


def test_what_an_executor_remembers_is_recorded_as_it_was() -> None:
    rig = RestoredRig().restore(300)
    rig.remember(120, exit_code=0)
    rig.remember(180, executor=2, exit_code=3)
    rig.resolve()
    assert shown(since(rig)) == [
        (60, "lost"), (120, "succeeded"), (180, "failed"), (240, "lost x2"),
    ]  # fmt: skip
    ended = {row.scheduled_s - T0: row for row in since(rig)}
    assert (ended[120].executor, ended[180].executor) == ("e1", "e2")
    assert ended[180].exit_code == 3
    assert ended[120].begun_index == rig.snapshot_index + 10


def test_what_still_runs_is_taken_in_and_holds_its_place() -> None:
    rig = RestoredRig().restore(300)
    rig.remember(120, Fate.ACCEPTED)
    rig.resolve()
    row = rig.row(120)
    assert row.state is LaunchState.LAUNCHED
    assert rig.state.executors[1].open == {row.key: row}
    assert rig.state.executors[1].find(row.begun_index, 0) is row, "its end will be told by row"
    assert rig.finished(120) is Verdict.ACCEPTED
    assert shown(since(rig))[1] == (120, "succeeded")


def test_what_was_interrupted_is_lost_and_what_was_refused_never_ran() -> None:
    rig = RestoredRig().restore(240)
    rig.remember(60, Fate.INTERRUPTED)
    rig.remember(120, Fate.REFUSED)
    rig.remember(180, Fate.FENCED)
    rig.remember(180, Fate.ENDED, executor=2, attempt=2)
    rig.resolve()
    assert shown(since(rig)) == [
        (60, "lost"), (120, "lost"), (180, "succeeded"), (240, "lost"),
    ]  # fmt: skip
    reasons = {row.scheduled_s - T0: row.reason for row in since(rig)}
    assert reasons[60] is Reason.EXECUTOR_LOST
    assert reasons[120] is Reason.RESTORED


def test_a_launch_that_was_due_in_the_snapshot_may_have_run_since() -> None:
    rig = RestoredRig()
    rig.to(120)
    rig.account(60, 120)
    rig.restore(180)
    rig.remember(120, begun=rig.snapshot_index + 1)
    rig.resolve()
    assert shown(since(rig)) == [(60, "lost"), (120, "succeeded"), (180, "lost")]
    assert not rig.state.due


def test_what_history_knows_already_is_not_recorded_again() -> None:
    rig = RestoredRig()
    rig.to(60)
    rig.account(60)
    rig.begin(60)
    begun = rig.row(60).begun_index
    rig.finished(60)
    rig.restore(120)
    rig.remember(60, begun=begun)
    rig.resolve()
    assert shown(since(rig)) == [(120, "lost")]


def test_a_backfill_after_the_snapshot_is_a_further_attempt() -> None:
    rig = RestoredRig()
    rig.to(60)
    rig.account(60)
    rig.begin(60)
    rig.finished(60, state=LaunchState.FAILED, exit_code=1)
    rig.restore(120)
    rig.remember(60, attempt=2)
    rig.resolve()
    assert (60, "succeeded") in shown(since(rig))


def test_manual_launches_of_which_the_snapshot_does_not_know_are_recorded() -> None:
    rig = RestoredRig().restore(120)
    rig.remember(75, trigger=2)
    rig.resolve()
    (row,) = [row for row in since(rig) if row.trigger]
    assert (row.scheduled_s - T0, row.trigger, row.state) == (75, 2, LaunchState.SUCCEEDED)


def test_launches_of_a_job_that_was_made_after_the_snapshot_are_recorded_once() -> None:
    rig = RestoredRig().restore(120)
    rig.remember(60, name="newer")
    rig.remember(120, Fate.ACCEPTED, name="newer")
    rig.resolve()
    newer = [row for row in since(rig) if row.job == "default/newer"]
    assert shown(newer) == [(60, "succeeded"), (120, "lost")]
    assert rig.state.restored is not None
    assert rig.state.restored.strangers == ("default/newer",)


def test_a_job_that_would_rather_run_twice_is_caught_up_by_its_policy() -> None:
    rig = RestoredRig(retrying(job(catchup=Catchup.ALL, deadline_s=10_000)))
    rig.restore(300)
    rig.remember(120)
    rig.resolve()
    assert shown(since(rig)) == [(120, "succeeded")]
    assert [row.scheduled_s - T0 for row in rig.state.due.values()] == [60, 180, 240, 300]


def test_what_died_with_its_executor_is_launched_again_where_the_job_says_so() -> None:
    """As when an executor dies without a restore."""
    rig = RestoredRig(retrying(job(catchup=Catchup.NONE, deadline_s=10_000)))
    rig.restore(300)
    rig.remember(120, Fate.INTERRUPTED)
    rig.remember(180, Fate.INTERRUPTED)
    rig.remember(180, attempt=2, executor=2)
    rig.resolve()
    again = [row for row in rig.state.due.values() if row.attempt]
    assert [(row.scheduled_s - T0, row.attempt) for row in again] == [(120, 1)]
    assert again[0].by == "", "no person asked for it: a pause and its overlap hold"
    assert (120, "lost") in shown(since(rig))
    assert [line for line in shown(since(rig)) if line[0] == 180] == [
        (180, "lost"), (180, "succeeded"),
    ]  # fmt: skip


def test_what_died_with_its_executor_is_lost_where_it_is_too_late_or_nobody_says_so() -> None:
    for backup in (retrying(job(catchup=Catchup.NONE, deadline_s=60)), job(deadline_s=10_000)):
        rig = RestoredRig(backup).restore(300)
        rig.remember(120, Fate.INTERRUPTED)
        rig.resolve()
        assert (1, T0 + 120, 0) not in rig.state.due
        assert (120, "lost") in shown(since(rig))


def test_a_waiting_launch_of_such_a_job_goes_on_waiting() -> None:
    rig = RestoredRig(retrying(job(catchup=Catchup.NONE)))
    rig.to(60)
    rig.account(60)
    rig.restore(120)
    rig.resolve()
    assert (1, T0 + 60, 0) in rig.state.due


def test_the_clock_of_the_leader_before_may_have_been_ahead() -> None:
    rig = RestoredRig().restore(300)
    rig.remember(360)
    assert rig.resolve() == 360
    assert shown(since(rig)) == [(60, "lost x5"), (360, "succeeded")]


def test_nothing_can_be_launched_before_all_is_accounted_for() -> None:
    rig = RestoredRig(job(), job("other"))
    rig.to(60)
    rig.account(60)
    rig.restore(120)
    assert rig.account(120, number=2, to=120) is Verdict.RESOLVING
    assert rig.begin(60) is Verdict.RESOLVING
    assert rig.put(job("third")).verdict is Verdict.RESOLVING
    assert rig.trigger("now").verdict is Verdict.RESOLVING
    assert rig.answer(c.Resolve(T0 + 120)).verdict is Verdict.WRONG_HORIZON
    rig.resolve()
    assert not rig.state.is_resolving
    assert rig.account(180, number=2) is Verdict.ACCEPTED


def test_a_leader_that_died_half_way_has_recorded_nothing_twice() -> None:
    rig = RestoredRig(job(), job("other")).restore(120)
    rig.remember(60)
    items = list(recover_items(rig.state, rig.gathered(), T0 + 120))
    assert rig.items(c.Recover((items[0],))) == [Verdict.ACCEPTED]
    assert rig.items(c.Recover((items[0],))) == [Verdict.ALREADY]
    again = list(recover_items(rig.state, rig.gathered(), T0 + 120))
    assert [item.number for item in again] == [2]
    rig.resolve()
    assert shown(since(rig)) == [(60, "lost x2"), (60, "succeeded"), (120, "lost")]


def test_late_news_after_the_resolution_are_amendments_and_open_nothing() -> None:
    rig = RestoredRig().restore(120)
    rig.resolve()
    rig.remember(60, executor=2)
    rig.remember(120, Fate.ACCEPTED, executor=2)
    items = amend_items(rig.state, 2, rig.memories[2])
    assert rig.items(c.Recover(tuple(items), (2,))) == [Verdict.AMENDED]
    assert rig.rows[-1].kind is RowKind.AMENDMENT
    assert not rig.state.active
    assert rig.finished(120) is Verdict.AMENDED, "what ends later amends as well"


def test_an_ordinary_cell_takes_no_recovery() -> None:
    rig = RestoredRig()
    item = c.RecoverItem(1, rig.record().revision, T0, T0 + 60)
    with rig.unchanged():
        assert rig.item(c.Recover((item,))) is Verdict.WRONG_STATE
        assert rig.answer(c.Resolve(T0)).verdict is Verdict.ALREADY


@pytest.mark.parametrize(
    "item",
    [
        c.RecoverItem(1, 1, T0, T0 + 120, lost=(c.SkipItem(T0, T0 + 60, 2, Reason.RESTORED),)),
        c.RecoverItem(1, 1, T0, T0 + 120, due=(c.DueItem(T0 + 180),)),
        c.RecoverItem(
            1, 1, T0, T0 + 120,
            due=(c.DueItem(T0 + 60),),
            lost=(c.SkipItem(T0 + 60, T0 + 60, 1, Reason.RESTORED),),
        ),
    ],
)  # fmt: skip
def test_an_instant_is_spoken_for_once_and_inside(item: c.RecoverItem) -> None:
    rig = RestoredRig().restore(120)
    with rig.unchanged():
        assert rig.item(c.Recover((item,))) is Verdict.BAD_TIMES


def test_what_was_open_in_the_snapshot_is_settled_by_what_its_executor_remembers() -> None:
    rig = RestoredRig(job())
    rig.to(240)
    rig.account(60, 120, 180, 240)
    for second in (60, 120, 180):
        rig.begin(second)
    rig.launched(60)
    rig.launched(120)
    rig.restore(300)
    rig.remember(60, begun=rig.row(60).begun_index)
    record = rig.state.executors[1]
    seconds = {rig.row(second).begun_index: second for second in (60, 120, 180)}
    facts = {
        seconds[fact.index]: fact.fate
        for fact in facts_of_open(rig.state, record, rig.memories[1], floor=0)
    }
    # A launched one without a row: nobody knows. A begun one: the new epoch keeps its start out.
    assert facts == {60: Fate.ENDED, 120: Fate.INTERRUPTED, 180: Fate.REFUSED}
    forgotten = facts_of_open(rig.state, record, {}, floor=rig.snapshot_index)
    assert {fact.fate for fact in forgotten} == {Fate.INTERRUPTED}


_fates = st.sampled_from([Fate.ENDED, Fate.ACCEPTED, Fate.REFUSED, Fate.INTERRUPTED, Fate.FENCED])
_memories = st.lists(
    st.tuples(st.integers(1, 12), _fates, st.integers(1, 2), st.integers(1, 3)), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(_memories, st.booleans(), st.integers(0, 4), st.sampled_from(list(Catchup)))
def test_every_instant_has_its_row_and_nothing_that_ran_is_due(
    memories: list[tuple[int, Fate, int, int]], retries: bool, due: int, catchup: Catchup
) -> None:
    backup = job(catchup=catchup, deadline_s=100_000)
    rig = RestoredRig(retrying(backup) if retries else backup)
    if due:
        rig.to(60 * due)
        rig.account(*(60 * n for n in range(1, due + 1)))
    rig.restore(600)
    for minute, fate, executor, attempt in memories:
        rig.remember(60 * minute, fate, executor=executor, attempt=attempt)
    to_s = rig.resolve()
    last = {(minute, executor, attempt): fate for minute, fate, executor, attempt in memories}
    ran = {
        60 * minute
        for (minute, _, _), fate in last.items()
        if fate in (Fate.ENDED, Fate.ACCEPTED, Fate.INTERRUPTED)
    }
    in_doubt = {60 * minute for (minute, _, _), fate in last.items() if fate is Fate.INTERRUPTED}
    waiting = {row.scheduled_s - T0 for row in rig.state.due.values()}
    assert not waiting & (ran - in_doubt if retries else ran)
    assert retries or not waiting
    record = rig.record()
    spans = tuple(
        RevisionSpan(one.revision, one.from_s, one.to_s or None, one.schedule, one.overlap)
        for one in record.spans
    )
    found = audit(
        AuditedJob(record.name, spans, record.horizon_s),
        sorted(rig.rows, key=lambda row: row.scheduled_s),
        [
            OpenRow(
                row.scheduled_s, row.trigger, row.attempt, row.state, row.begun_index,
                row.begun_at_ms, row.launched_index, row.started_ms, by=row.by,
            )
            for row in rig.state.open_of(record).values()
        ],
        T0,
        T0 + to_s,
    )  # fmt: skip
    kinds = {finding.kind for finding in found if finding.is_violation}
    # Two executors may both claim to have run an instant here: the drawn facts are not a history.
    assert kinds <= {"attempts-at-once", "log-point", "accounted-twice"}
    assert encode_state(decode_state([encode_state(rig.state)])) == encode_state(rig.state)
