"""Removals of much that waits: what a leader appends for them, and what its queues make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice

import pytest

from cron.api.views import ApplyReport, ApplyRequest, SourceFile
from cron.job import Overlap
from cron.leader import leader as turns
from cron.leader import removing
from cron.leader.removing import leaving, sweep, sweep_before
from cron.scheduler import indexes
from cron.scheduler.why import why_waiting
from cron.service.catalog import Catalog
from cron.service.catalog import _build as build
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.removal import Leave, Sweep
from cron.state.state import Restored
from launcher.launch import LaunchState
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, job
from tests.unit.test_leader_reign import Replica, reigning

A, B = "default/a", "default/b"
PORTION = 4


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removing, "SWEPT_AT_ONCE", PORTION)


def loaded(of_a: int, of_b: int = 0, overlap: Overlap = Overlap.ALLOW) -> QueuesRig:
    """Jobs of which so many launches wait, on an executor that has no room for them."""
    rig = QueuesRig(job("a", overlap=overlap), job("b", overlap=overlap)).to(60)
    rig.limit(("", "", -1), concurrent=1)
    for number, count in ((1, of_a), (2, of_b)):
        if count:
            rig.account(*range(1, count + 1), number=number)
    return rig


def change(rig: QueuesRig, *removed: str) -> list[c.Command]:
    put = c.PutJobs("crontab", rig.state.catalog, 0, (), removed, "anna")
    return build(rig.state, rig.now_ms, put, removed)


def kinds(commands: Sequence[object]) -> list[str]:
    return [type(command).__name__ for command in commands]


def test_what_one_entry_can_end_is_ended_by_the_removal_itself() -> None:
    rig = loaded(2, 1)
    commands = change(rig, A, B)
    assert kinds(commands) == ["Account", "PutJobs"]
    rig.append(*commands)
    assert not rig.state.due
    assert sweep(rig.state) == []


def test_what_is_too_much_for_one_entry_is_ended_in_portions() -> None:
    rig = loaded(7, 2)
    commands = change(rig, A, B)
    assert kinds(commands) == ["Account", "Leave", "PutJobs"]
    rig.append(*commands)
    left = [len(rig.state.due)]
    while portion := sweep(rig.state):
        rig.append(*portion)
        left.append(len(rig.state.due))
    assert left == [11, 7, 3, 0]  # with two that the removal itself accounted for
    assert rig.agrees()


def test_what_counts_is_what_waits_of_all_jobs_that_are_removed() -> None:
    rig = loaded(PORTION - 1, 1)
    assert leaving(rig.state, [A]) == leaving(rig.state, [B]) == ()
    assert leaving(rig.state, [A, B]) == (Leave(),)
    assert leaving(rig.state, [A, "default/nobody"]) == ()


def test_a_portion_names_no_more_jobs_than_it_may_end_launches_of() -> None:
    rig = loaded(PORTION, 1)
    rig.append(*change(rig, A, B))
    assert sweep(rig.state) == [Sweep((1,), PORTION)]


@pytest.mark.parametrize("overlap", list(Overlap))
def test_nothing_of_removed_jobs_begins_and_others_go_on(overlap: Overlap) -> None:
    rig = loaded(6, 0, overlap)
    rig.append(*change(rig, A))
    rig.limit(("", "", -1), concurrent=9)
    rig.account(61, 62, number=2)
    begun = [word for _ in range(3) for word in rig.to(62).turn() if word.startswith("begin")]
    assert begun
    assert all(word.startswith("begin 2@") for word in begun)
    while portion := sweep(rig.state):
        rig.append(*portion)
    assert rig.agrees()


def test_what_waits_of_removed_jobs_is_out_of_the_queues_before_it_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan took each of them out of its turn, for two seconds."""
    monkeypatch.setattr(indexes, "LET_GO_AT_ONCE", 3)
    rig = loaded(7, 1)
    rig.turn()
    before = len(rig.queues.fair)
    rig.append(*change(rig, A))
    told = []
    while not rig.indexes.let_go():
        told.append(before - len(rig.queues.fair))
    assert told == [3, 6]
    assert {key[0] for key in rig.state.due} == {1, 2}
    assert len(rig.queues.fair) == 1  # that of b
    assert rig.indexes.let_go()


@pytest.mark.parametrize("is_removed_again", [False, True])
def test_what_waits_or_runs_of_a_job_that_came_back_stays_in_its_queue(
    is_removed_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "LET_GO_AT_ONCE", 1)
    rig = loaded(5)
    rig.append(*change(rig, A))
    assert not rig.indexes.let_go()
    while portion := sweep_before(rig.state, [A]):
        rig.append(*portion)
    put = c.PutJobs("crontab", rig.state.catalog, 0, (job("a"),), (), "anna")
    rig.append(*build(rig.state, rig.now_ms, put, [A]))
    back = [c.ReopenItem((1, T0 + n, 0), -1, LaunchState.CANCELLED, 0) for n in (2, 3)]
    rig.append(c.Reopen(tuple(back), rig.state.index, "anna"))
    assert rig.turn() == ["begin 1@2#1"]
    if is_removed_again:
        rig.append(*change(rig, A))
    while not rig.indexes.let_go():
        pass
    assert len(rig.queues.fair.running) == 1
    assert rig.queues.position((1, T0 + 3, 0)) == (None if is_removed_again else 0)


@pytest.mark.parametrize("is_restored", [False, True])
def test_the_next_leader_goes_on_with_it(is_restored: bool) -> None:
    rig = loaded(6)
    rig.append(*change(rig, A))
    rig.append(*sweep(rig.state))
    if is_restored:
        rig.rig.machine.state = rig.state = decode_state([encode_state(rig.state)])
    rig.lead()
    rig.turn()
    assert sweep(rig.state) == [Sweep((1,), PORTION)]
    rig.append(*sweep(rig.state))
    assert not rig.state.due
    assert not rig.state.leaving
    assert rig.agrees()


def test_a_restored_cell_ends_nothing_before_it_knows_what_ran() -> None:  # R13
    rig = loaded(6)
    rig.append(*change(rig, A))
    rig.state.restored = Restored(2, 1, 0, 0)
    assert sweep(rig.state) == []


def test_jobs_that_come_back_are_swept_first() -> None:
    rig = loaded(6, 6)
    rig.append(*change(rig, A, B))
    assert sweep_before(rig.state, ["default/c"]) == []
    assert sweep_before(rig.state, ["default/c", B]) == [Sweep((2,), PORTION)]
    while portion := sweep_before(rig.state, [B]):
        rig.append(*portion)
    assert {key[0] for key in rig.state.due} == {1}
    assert sweep_before(rig.state, [B]) == []


def test_what_waits_of_a_removed_job_says_so() -> None:
    rig = loaded(6)
    rig.append(*change(rig, A))
    row = next(iter(rig.state.due.values()))
    told = why_waiting(rig.state, row, frozenset({1}), rig.now_ms, rig.queues)
    assert told.text == "its job was removed: it is about to be cancelled"


def test_a_large_removal_costs_each_entry_no_more_than_a_portion() -> None:
    rig = loaded(200, 200)
    rig.append(*change(rig, A, B))
    portions = iter(lambda: rig.rig.append(*sweep(rig.state)), None)
    ends = [len(outcome.rows) for outcome in islice(portions, 101)]
    assert set(ends[:-1]) == {PORTION}
    assert not rig.state.due


async def applied(replica: Replica, *names: str) -> ApplyReport:
    """Have the source declare these jobs and no others."""
    content = "".join(f"#: name={name} overlap=allow\n@every 1s true\n" for name in names)
    request = ApplyRequest(files=[SourceFile("tab", content.encode())], prune=True, by="anna")
    catalog = Catalog(replica.leader, "UTC")
    return await catalog.put(request, replica.state, replica.clock.ms // 1000)


async def pile_up(replica: Replica, seconds: int) -> None:
    """Let instants of all jobs come up; no executor takes them."""
    for _ in range(seconds):
        replica.clock.ms += 1000
        await replica.until(partial(is_level, replica))


def is_level(replica: Replica) -> bool:
    live = [record for record in replica.state.jobs.values() if record.job is not None]
    return all(record.horizon_s == replica.clock.ms // 1000 for record in live)


def waiting(replica: Replica) -> dict[str, int]:
    """How many launches of each job wait."""
    return dict(Counter(replica.state.by_number[key[0]].name for key in replica.state.due))


async def test_a_leader_ends_what_waits_of_removed_jobs_by_and_by() -> None:
    async with reigning() as replica:
        await applied(replica, "a", "b")
        await pile_up(replica, 6)
        assert waiting(replica) == {A: 6, B: 6}
        ends: list[int] = []
        replica.applier.subscribe(lambda _index, outcome: ends.append(len(outcome.rows)))
        await applied(replica, "b")
        assert replica.state.jobs[A].job is None
        await replica.until(lambda: not replica.state.leaving)
        assert waiting(replica) == {B: 6}
        assert [count for count in ends if count] == [PORTION, 2]


async def test_a_leader_takes_what_waits_of_removed_jobs_out_of_its_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "sweep", lambda state: [])
    monkeypatch.setattr(indexes, "LET_GO_AT_ONCE", 2)
    async with reigning() as replica:
        await applied(replica, "a", "b")
        await pile_up(replica, 6)
        await applied(replica, "b")
        await replica.until(lambda: len(replica.leader.indexes.queues.fair) == 6)
        assert waiting(replica) == {A: 6, B: 6}


async def test_who_declares_removed_jobs_again_waits_until_what_waited_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "sweep", lambda state: [])  # the leader has not come to it yet
    async with reigning() as replica:
        await applied(replica, "a", "b")
        await pile_up(replica, 30)
        await applied(replica, "b")
        assert waiting(replica) == {A: 30, B: 30}
        report = await applied(replica, "a", "b")
        told = [(one.job, one.action) for one in report.changes]
        assert told == [(A, "added"), (B, "unchanged")]
        assert replica.state.jobs[A].job is not None
        assert waiting(replica) == {B: 30}
        assert not replica.state.leaving
