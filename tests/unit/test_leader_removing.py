"""Removals of much that waits: what a leader appends for them, and what its queues make of it."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from cron.api.jobs import ApplyReport, ApplyRequest, SourceFile
from cron.job import Overlap
from cron.scheduler import indexes
from cron.scheduler import plan as planning
from cron.scheduler.why import why_waiting
from cron.service import catalog
from cron.service.catalog import Catalog, waiting_of_removed
from cron.service.catalog import _build as build
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from launcher.launch import LaunchState
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, job, said
from tests.unit.test_leader_reign import Replica, reigning

A, B = "default/a", "default/b"
PORTION = 4


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (planning, catalog):
        monkeypatch.setattr(module, "REMOVED_MAX", PORTION)


def loaded(of_a: int, of_b: int = 0, overlap: Overlap = Overlap.ALLOW) -> QueuesRig:
    """Jobs of which so many launches wait, on an executor that has no room for them."""
    rig = QueuesRig(job("a", overlap=overlap), job("b", overlap=overlap)).to(60)
    rig.limit(("", "", -1), concurrent=1)
    for number, count in ((1, of_a), (2, of_b)):
        if count:
            rig.account(*range(1, count + 1), number=number)
    return rig


def cancel_all(rig: QueuesRig, name: str) -> None:
    """Cancel what waits of a removed job as the catalog does before it comes back."""
    while items := waiting_of_removed(rig.state, [name]):
        rig.append(c.Cancel(items))


def change(rig: QueuesRig, *removed: str) -> list[c.Command]:
    put = c.PutJobs("crontab", rig.state.catalog, 0, (), removed, "anna")
    return build(rig.state, rig.now_ms, put, removed)


def test_what_waits_of_removed_jobs_is_cancelled_in_portions() -> None:
    rig = loaded(7, 2)
    rig.append(*change(rig, A, B))
    left = [len(rig.state.due)]
    while rig.state.due:
        assert rig.indexes.let_go()
        rig.turn()
        left.append(len(rig.state.due))
    assert left == [11, 7, 3, 0]  # with two that the change itself accounted for
    assert rig.agrees()
    assert {(row.by, said(row)) for row in rig.rig.rows} == {("anna", "the job was removed")}


@pytest.mark.parametrize("overlap", list(Overlap))
def test_nothing_of_removed_jobs_begins_and_others_go_on(overlap: Overlap) -> None:
    rig = loaded(6, 0, overlap)
    rig.append(*change(rig, A))
    rig.limit(("", "", -1), concurrent=9)
    rig.account(61, 62, number=2)
    assert rig.indexes.let_go()
    begun = [word for _ in range(3) for word in rig.to(62).turn() if word.startswith("begin")]
    assert begun
    assert all(word.startswith("begin 2@") for word in begun)
    assert not any(key[0] == 1 for key in rig.state.due)
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


def test_nothing_is_remembered_of_removed_jobs() -> None:
    """A job of a fresh name for each build would fill the leader's memory."""
    rig = loaded(2, 2)
    rig.turn()
    rig.append(*change(rig, A))
    while rig.state.due.of_jobs([1]):
        assert rig.indexes.let_go()
        rig.turn()
    assert set(rig.queues._needs) == {2}


@pytest.mark.parametrize("is_removed_again", [False, True])
def test_what_waits_or_runs_of_a_job_that_came_back_stays_in_its_queue(
    is_removed_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "LET_GO_AT_ONCE", 1)
    rig = loaded(5)
    rig.append(*change(rig, A))
    assert not rig.indexes.let_go()
    cancel_all(rig, A)
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
    assert rig.indexes.let_go()
    rig.turn()
    if is_restored:
        rig.rig.machine.state = rig.state = decode_state([encode_state(rig.state)])
    rig.lead()
    assert len(rig.turn()) == 3  # with one that the change itself accounted for
    assert not rig.state.due
    assert rig.agrees()


def test_jobs_that_come_back_have_their_launches_cancelled_first() -> None:
    rig = loaded(6, 6)
    rig.append(*change(rig, A, B))
    assert waiting_of_removed(rig.state, ["default/c"]) == ()
    first = waiting_of_removed(rig.state, ["default/c", B])
    assert [item.key[0] for item in first] == [2] * PORTION
    cancel_all(rig, B)
    assert {key[0] for key in rig.state.due} == {1}
    assert rig.agrees()


def test_what_waits_of_a_removed_job_says_so() -> None:
    rig = loaded(6)
    rig.append(*change(rig, A))
    row = next(iter(rig.state.due.values()))
    told = why_waiting(rig.state, row, frozenset({1}), rig.now_ms, rig.queues)
    assert told.text == "its job was removed: it is about to be cancelled"


def test_a_large_removal_costs_each_entry_no_more_than_a_portion() -> None:
    rig = loaded(200, 200)
    rig.append(*change(rig, A, B))
    assert rig.indexes.let_go()
    portions = [len(rig.turn()) for _ in range(101)]
    assert set(portions[:-1]) == {PORTION}
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
        await replica.until(lambda: waiting(replica) == {B: 6})
        assert [count for count in ends if count] == [PORTION, 2]


async def test_who_declares_removed_jobs_again_waits_until_what_waited_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "REMOVED_MAX", 0)  # the leader has not come to it yet
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
