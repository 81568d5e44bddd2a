"""A cell that is lost again before it knows what ran before it was lost first (rule R13)."""

from __future__ import annotations

from cron.launch_state import LaunchState
from cron.leader.recovery import amend_items, recover_items
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.storage.new_generation import NewGeneration, begin_generation
from launcher.protocol.status import Status
from launcher.protocol.work import Epoch
from tests.unit.restored_rig import RestoredRig
from tests.unit.state_rig import T0, job


def lost_again(rig: RestoredRig, second: int) -> RestoredRig:
    """What `raftcron restore --from-data` does to the State of the second life."""
    rig.to(second)
    position = begin_generation(rig.state, NewGeneration(3, rig.at_ms, "ada"))
    rig.base = position.index
    rig.epoch = Epoch(3, 9, "r1")
    rig.append(c.Claim("2026b", "0.1.0", c.FORMAT))
    return rig


def of(rig: RestoredRig, name: str) -> list[tuple[int, int, int, LaunchState]]:
    return sorted(
        (row.scheduled_s - T0, row.trigger, row.count, row.state)
        for row in rig.rows
        if row.job == f"default/{name}" and row.ended_index > 10**12
    )


def test_what_ran_in_the_first_life_is_recorded_in_the_third() -> None:
    rig = RestoredRig(job()).restore(120)
    rig.remember(60)
    rig.remember(75, trigger=1)
    rig.remember(80, name="newer")
    rig.remember(100, Status.ACCEPTED, trigger=2)
    snapshot_index = rig.snapshot_index
    lost_again(rig, 180)
    assert rig.state.restored is not None
    assert rig.state.restored.index == snapshot_index
    rig.resolve()
    ended, lost = LaunchState.SUCCEEDED, LaunchState.LOST
    assert of(rig, "backup") == [(60, 0, 1, ended), (75, 1, 1, ended), (120, 0, 2, lost)]
    assert of(rig, "newer") == [(80, 0, 1, ended)]
    assert rig.row(100, trigger=2).state is LaunchState.LAUNCHED


def test_what_the_second_life_has_recorded_is_not_recorded_again() -> None:
    rig = RestoredRig(job(), job("other")).restore(120)
    rig.remember(60)
    rig.remember(75, trigger=1)
    rig.remember(60, name="other")
    rig.remember(80, name="newer")
    items = list(recover_items(rig.state, rig.gathered(), T0 + 120))
    first = [item for item in items if item.number == 1 or item.name]
    assert set(rig.items(c.Recover(tuple(first)))) == {Verdict.ACCEPTED}
    before = of(rig, "backup"), of(rig, "newer")
    lost_again(rig, 180)
    rig.resolve()
    after = of(rig, "backup"), of(rig, "newer")
    assert after[1] == before[1]
    assert after[0] == [*before[0], (180, 0, 1, LaunchState.LOST)]
    assert (60, 0, 1, LaunchState.SUCCEEDED) in of(rig, "other")


def test_a_life_that_has_resolved_is_known_up_to_its_end() -> None:
    rig = RestoredRig(job()).restore(120)
    rig.remember(75, trigger=1)
    rig.resolve()
    rows, index = len(rig.rows), rig.state.index
    lost_again(rig, 180)
    assert rig.state.restored is not None
    assert rig.state.restored.index == index
    assert rig.state.restored.strangers == ()
    rig.resolve()
    assert len(rig.rows) == rows + 1, "the instant since"


def lost_on_e1(rig: RestoredRig) -> RestoredRig:
    """A launch that was lost on e1 before the snapshot: a late report of e1 may amend it."""
    rig.to(60).account(60)
    rig.begin(60)
    rig.launched(60)
    rig.lost(60)
    return rig


def test_an_executor_that_comes_late_amends_no_launch_that_another_lost() -> None:
    # Rule R9: an executor reports what it ran itself, also by what its journal remembers.
    rig = lost_on_e1(RestoredRig()).restore(120)
    rig.resolve()
    rows = len(rig.rows)
    rig.remember(60, executor=2)
    assert amend_items(rig.state, 2, rig.memories[2]) == []
    assert ((1, T0 + 60, 0), 1) in rig.state.lost, "e1 can still tell what became of it"
    assert len(rig.rows) == rows
    rig.remember(60, executor=1)
    items = amend_items(rig.state, 1, rig.memories[1])
    assert rig.items(c.Recover(tuple(items), (1,))) == [Verdict.AMENDED]
    assert rig.rows[-1].executor == "e1"


def test_an_executor_that_answers_in_time_ends_no_launch_that_another_lost() -> None:
    rig = lost_on_e1(RestoredRig()).restore(120)
    rig.remember(60, executor=2)
    rows = len(rig.rows)
    rig.resolve()
    assert [row.executor for row in rig.rows[rows:]] == [""], "only the instant since"
    assert ((1, T0 + 60, 0), 1) in rig.state.lost


def test_a_part_that_nobody_remembered_is_amended_by_whoever_ran_it() -> None:
    rig = RestoredRig(job(parts=2)).restore(120)
    rig.remember(60, executor=1)
    rig.resolve()
    rig.remember(60, executor=2, part=2)
    items = amend_items(rig.state, 2, rig.memories[2])
    assert [one.parts[0].number for item in items for one in item.ran] == [2]
