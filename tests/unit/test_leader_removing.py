"""Removals of much that waits: what a leader appends for them, and what its queues make of it."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from cron.api.jobs import ApplyReport, ApplyRequest, SourceFile
from cron.job import Overlap
from cron.scheduler import plan as planning
from cron.scheduler.why import why_waiting
from cron.service import catalog
from cron.service.catalog import _build as build
from cron.state import commands as c
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import job, said
from tests.unit.test_leader_term import Replica, reigning

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


def test_what_is_cancelled_and_what_begins_share_the_rows_of_a_turn() -> None:
    rig = QueuesRig(job("a"), job("b")).to(60)
    rig.account(1, 2, 3)
    rig.account(1, 2, 3, number=2)
    rig.append(*change(rig, A))
    assert rig.indexes.let_go()
    words = Counter(line.split()[0] for line in rig.turn(rows_max=PORTION + 2))
    assert words == {"cancel": 3, "begin": 3}


def test_a_removal_leaves_a_slow_leader_rows_for_other_launches() -> None:
    rig = QueuesRig(job("a"), job("b")).to(60)
    rig.account(*range(1, 30))
    rig.account(1, 2, 3, number=2)
    rig.append(*change(rig, A))
    assert rig.indexes.let_go()
    words = Counter(line.split()[0] for line in rig.turn(rows_max=PORTION))
    assert words == {"cancel": PORTION // 2, "begin": PORTION // 2}


async def applied(replica: Replica, *names: str) -> ApplyReport:
    """Have the source declare these jobs and no others."""
    content = "".join(f"#: name={name} overlap=allow\n@every 1s true\n" for name in names)
    request = ApplyRequest(files=[SourceFile("tab", content.encode())], prune=True, by="anna")
    return await catalog.put(replica.served, request)


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
