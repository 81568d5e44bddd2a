"""What a restored cell records of launches of several parts (R13)."""

from __future__ import annotations

import msgspec

from cron.job import Overlap
from cron.leader.recovery import amend_items, recover_items
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.rows import Row
from launcher.launch import LaunchState, Reason
from launcher.names import AttemptName
from launcher.pool.events import Fate
from launcher.work import Epoch
from tests.unit.restored_rig import BASE, RestoredRig
from tests.unit.state_rig import T0, job, said


def restored(parts: int = 2) -> RestoredRig:
    return RestoredRig(job(parts=parts)).restore(120)


def remember(
    rig: RestoredRig, part: int, *, executor: int, fate: Fate = Fate.ENDED, exit_code: int = 0
) -> None:
    """Let an executor remember a part of the first attempt of the first instant."""
    before, rig.memories[executor] = rig.memories[executor], {}
    rig.remember(60, fate, executor=executor, exit_code=exit_code)
    (recalled,) = rig.memories[executor].values()
    name = AttemptName(recalled.name.launch, 1, part)
    recalled = msgspec.structs.replace(recalled, name=name)
    rig.memories[executor] = {**before, str(name): recalled}


def recorded(rig: RestoredRig) -> Row:
    (row,) = [row for row in rig.rows if row.ended_index > BASE and row.attempt]
    return row


def test_a_launch_all_of_whose_parts_succeeded_did() -> None:
    rig = restored()
    remember(rig, 1, executor=1)
    remember(rig, 2, executor=2)
    rig.resolve()
    assert recorded(rig).state is LaunchState.SUCCEEDED


def test_a_launch_of_which_a_part_failed_did() -> None:
    rig = restored()
    remember(rig, 1, executor=1)
    remember(rig, 2, executor=2, exit_code=7)
    rig.resolve()
    assert (recorded(rig).state, recorded(rig).exit_code) == (LaunchState.FAILED, 7)


def test_a_launch_is_lost_of_whose_other_part_nobody_knows() -> None:
    rig = restored()
    remember(rig, 1, executor=1)
    rig.resolve()
    row = recorded(rig)
    assert (row.state, row.reason) == (LaunchState.LOST, Reason.RESTORED)
    assert said(row) == "part 1 succeeded, part 2 lost"
    assert [part.executor for part in row.parts] == ["e1", ""]


def test_a_launch_of_which_a_part_runs_goes_on_and_ends_as_its_parts_do() -> None:
    rig = restored(parts=3)
    remember(rig, 1, executor=1)
    remember(rig, 2, executor=2, fate=Fate.ACCEPTED)
    rig.resolve()
    key = (1, T0 + 60, 0)
    assert [start.part for start in rig.state.active[key].starts()] == [2]
    assert key in rig.state.executors[2].open
    assert key not in rig.state.executors[1].open
    ended = c.FinishedItem(key, 1, LaunchState.SUCCEEDED, Reason.NONE, 0, 1, 2, part=2)
    assert rig.item(c.Finished((ended,))) is Verdict.ACCEPTED
    row = recorded(rig)
    assert row.state is LaunchState.LOST, "nobody remembers the third part"
    states = [LaunchState.SUCCEEDED, LaunchState.SUCCEEDED, LaunchState.LOST]
    assert [part.state for part in row.parts] == states


def test_a_part_that_nobody_remembers_may_be_running_for_a_while() -> None:
    rig = RestoredRig(job(parts=2, overlap=Overlap.FORBID)).restore(120)
    remember(rig, 1, executor=1)
    gathered = rig.gathered()
    until_ms = rig.at_ms + 30_000
    items = tuple(recover_items(rig.state, gathered, T0 + 120, until_ms))
    assert set(rig.items(c.Recover(items, (1, 2)))) == {Verdict.ACCEPTED}
    assert rig.state.by_number[1].held_until_ms == until_ms


def test_who_tells_late_is_believed_only_of_what_it_ran_before_the_restore() -> None:
    rig = restored(parts=1)
    rig.resolve()
    rig.remember(60, executor=2)
    (name, recalled), *_ = rig.memories[2].items()
    rig.memories[2][name] = msgspec.structs.replace(recalled, epoch=str(Epoch(2, 7, "r2")))
    assert amend_items(rig.state, 2, rig.memories[2]) == []


def test_late_news_of_a_part_says_of_which() -> None:
    rig = restored()
    rig.resolve()
    remember(rig, 2, executor=2)
    items = amend_items(rig.state, 2, rig.memories[2])
    assert rig.items(c.Recover(tuple(items), (2,))) == [Verdict.AMENDED]
    assert said(rig.rows[-1]) == "part 2 succeeded"
