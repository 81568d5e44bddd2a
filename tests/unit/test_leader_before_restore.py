"""What may still run from before a restore: the plan waits for it, and says so."""

from __future__ import annotations

import msgspec
import pytest

from cron.history.story import sentence_of
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.leader.recovery import recover_items, resolve_to
from cron.notes import sentence
from cron.scheduler import plan as planning
from cron.scheduler.plan import plan
from cron.scheduler.policy import before_restore
from cron.service.launches import of_open
from cron.state import commands as c
from launcher.protocol.status import Reason
from tests.unit.restored_rig import RestoredRig, retrying
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.test_scheduler_plan import follow, told, view_of


def until_text(second: int) -> str:
    state = RestoredRig().restore(120).state
    return sentence(before_restore(state, (T0 + second) * 1000, T0 * 1000))


def held(overlap: Overlap, *, retries: bool = False) -> RestoredRig:
    """Restored at 120; what may run on an executor that nobody knows is over by 190."""
    declared = job(overlap=overlap)
    rig = RestoredRig(retrying(declared) if retries else declared).restore(120)
    gathered = rig.gathered()
    to_s = resolve_to(gathered, rig.at_ms // 1000)
    items = tuple(recover_items(rig.state, gathered, to_s, (T0 + 190) * 1000))
    rig.items(c.Recover(items, (1, 2)))
    rig.answer(c.Resolve(to_s))
    return rig


def waiting(rig: StateRig, second: int) -> str:
    (row,) = [row for row in rig.state.open_rows() if row.scheduled_s == T0 + second]
    return of_open(rig.state, row, frozenset({1}), rig.at_ms).waiting


def test_what_is_skipped_for_it_says_so_and_until_when() -> None:
    rig = held(Overlap.FORBID)
    rig.to(180)
    assert follow(rig, 1) == ["account 1 to 180", "skip 1@180 overlap"]
    skipped = rig.rows[-1]
    assert sentence(skipped.note) == until_text(190)
    assert sentence_of(skipped) == f"skipped: {until_text(190)}, and the job forbids overlap"
    rig.to(240)
    assert "begin 1@240#1 on 1" in follow(rig, 1)


def test_a_launch_that_is_known_to_run_is_still_the_reason() -> None:
    rig = held(Overlap.FORBID)
    rig.to(240)
    follow(rig, 1)
    rig.record().held_until_ms = (T0 + 400) * 1000
    rig.to(300)
    assert "skip 1@300 overlap" in follow(rig, 1)
    assert "an earlier launch of the job was not over" in sentence_of(rig.rows[-1])


def test_an_ordinary_cell_never_speaks_of_a_restore() -> None:
    rig = with_job(overlap=Overlap.FORBID).to(60)
    rig.record().held_until_ms = (T0 + 90) * 1000
    assert follow(rig, 1) == ["account 1 to 60", "skip 1@60 overlap"]
    assert rig.rows[-1].detail == ""


def test_what_waits_for_it_says_so_and_until_when() -> None:
    rig = held(Overlap.QUEUE)
    rig.to(180)
    assert follow(rig, 1) == ["account 1 to 180"]
    assert waiting(rig, 180) == until_text(190)
    rig.to(190)
    assert waiting(rig, 180) == "its turn, a limit or a free slot: the leader knows which"


def test_a_retry_that_waits_says_so_whatever_its_overlap() -> None:
    rig = held(Overlap.ALLOW, retries=True)
    assert told(rig) == []
    assert waiting(rig, 120) == until_text(190)


def test_of_very_many_as_many_are_told_as_fit_and_the_others_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "SKIPPED_MAX", 2)
    rig = held(Overlap.QUEUE)
    record = rig.record()
    record.held_until_ms = (T0 + 400) * 1000
    for second in (180, 240, 300):
        rig.to(second)
        follow(rig, 1)
    assert record.job is not None
    record.job = msgspec.structs.replace(record.job, overlap=Overlap.FORBID)
    (first,) = plan(view_of(rig), rig.at_ms)
    assert isinstance(first, c.Skip)
    assert len(first.items) == 2
    rig.append(first)
    assert len(rig.state.due) == 1
    assert all(row.reason is Reason.OVERLAP for row in rig.rows[-2:])
    assert all(row.state is LaunchState.SKIPPED for row in rig.rows[-2:])
