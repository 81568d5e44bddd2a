"""Launches that nothing binds begin by count, as they would have begun one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cron.job import Job, Overlap, Schedule
from cron.launch_state import LaunchState
from cron.scheduler import plan as planning
from cron.scheduler.candidates import of_due
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import View, plan
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Outcome
from cron.state.state import JobRecord
from launcher.protocol.reports import GroupOffer
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.batches import AttemptItem
from tests.places import used
from tests.unit.queues_rig import QueuesRig as Rig
from tests.unit.queues_rig import told
from tests.unit.state_rig import T0, job

SECOND = Schedule("@every 1s", every_s=1)
SLOTS = 30


def jobs(**fields: object) -> tuple[Job, ...]:
    """Some of two tenants, of which one in five must not overlap."""
    usual = [job(f"j{n}", schedule=SECOND, **fields) for n in range(8)]  # type: ignore[arg-type]
    return (*usual, job("alone", schedule=SECOND, overlap=Overlap.FORBID))


class World:
    """A leader with two executors, at every second of which all jobs fall due."""

    def __init__(self, *declared: Job) -> None:
        self.rig = Rig(*declared)
        self.rig.rig.join("e2", "l2")
        for number in (1, 2):
            self.rig.queues.places.put(Place(number, {}, (Capacity(SLOTS // number),)))
        self.candidates = 0

    def turn(self, second: int) -> list[str]:
        rig = self.rig.to(second)
        due = rig.indexes.due_heap.take(rig.now_ms // 1000, limit=100)
        view = View(rig.state, due, rig.queues, late_budget=9, steady_ms=T0 * 1000)
        commands = plan(view, rig.now_ms)
        self.follow(rig.rig.append(*commands))
        return told(commands)

    def follow(self, outcome: Outcome) -> None:
        assert not any(verdict for result in outcome.results for verdict in result.items)
        self.rig.indexes.follow(outcome)

    def end(self, *keys: c.Key) -> None:
        at_ms = self.rig.now_ms
        ends = [
            AttemptItem.of(key, 1, LaunchState.SUCCEEDED, Reason.NONE, 0, at_ms, at_ms)
            for key in keys
        ]
        self.follow(self.rig.rig.append(c.Report(tuple(ends))))

    def counted(self) -> list[object]:
        """What the leader counts: what runs, in which flow and where, and what waits."""
        queues = self.rig.queues
        flows = {key: (flow.open, flow.share.running) for key, flow in queues.fair.flows.items()}
        assert self.rig.agrees()
        return [
            {key: one for key, one in flows.items() if one[0]},
            sum(used(queues.places, number).get("command", 0) for number in (1, 2)),
            len(queues.fair),
        ]


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queues, "unbound", lambda *_: ())


@pytest.fixture
def candidates(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many launches a plan made due one by one."""
    seen = 0

    def counted(scheduled_s: int, record: JobRecord, *, is_late: bool = False) -> LaunchRow:
        nonlocal seen
        seen += 1
        return of_due(scheduled_s, record, is_late=is_late)

    monkeypatch.setattr(planning, "of_due", counted)
    return lambda: seen


def test_no_launch_is_looked_at_that_nothing_binds(candidates: Callable[[], int]) -> None:
    world = World(*jobs()[:8])
    begun = world.turn(1)
    assert sorted(begun) == sorted(f"begin {number}@1#1" for number in range(1, 9))
    assert candidates() == 0


def test_by_count_is_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    by_count, singly = World(*jobs()), World(*jobs())
    begun = []
    for second in range(1, 9):
        begun.append(sorted(by_count.turn(second)))
        with monkeypatch.context() as patch:
            one_by_one(patch)
            assert sorted(singly.turn(second)) == begun[-1]
        assert by_count.counted() == singly.counted()
        ended = sorted(by_count.rig.state.active)[: second % 4]
        for world in (by_count, singly):
            world.end(*ended)
        assert by_count.counted() == singly.counted()
    assert len(begun[0]) == 9
    assert any("skip" in word for words in begun for word in words)
    waiting = len(by_count.rig.queues.fair)
    assert waiting  # at last there was no room for all


@pytest.mark.parametrize(("lead_ms", "ahead_ms"), [(1_000, 0), (0, 1_000)])
def test_what_would_start_too_late_is_not_begun_by_count(
    lead_ms: int, ahead_ms: int, candidates: Callable[[], int]
) -> None:
    world = World(*(job(f"j{n}", schedule=SECOND, deadline_s=1) for n in range(3)))
    rig = world.rig.to(1)
    for number in (1, 2):
        rig.queues.places.set_clock(number, ahead_ms)
    due = rig.indexes.due_heap.take(rig.now_ms // 1000, limit=100)
    view = View(rig.state, due, rig.queues, steady_ms=T0 * 1000, lead_ms=lead_ms)
    assert {word.split()[0] for word in told(plan(view, rig.now_ms))} == {"skip"}
    assert candidates() == 3


def of_handlers(**served: str) -> World:
    """A world whose jobs are for handlers; each executor has its own idea of their groups."""
    declared = [
        job(f"{handler}{n}", schedule=SECOND, work=WorkSpec((), handler=handler))
        for handler in ("h1", "h3")
        for n in range(6)
    ]
    world = World(*declared)
    queues = world.rig.queues
    for number, (group, handlers) in enumerate(served.items(), 1):
        names = tuple(handlers.split())
        queues.serve(number, [GroupOffer(group, 8, names)])
        queues.places.put(Place(number, {}, (Capacity(4), Capacity(8, names))))
    return world


@pytest.mark.parametrize(
    "served", [{"v1": "h1 h2", "v2": "h1 h2 h3"}, {"v2": "h1 h2 h3", "v1": "h1 h2"}]
)
def test_handlers_that_executors_group_differently_share_their_slots_without_an_error(
    served: dict[str, str],
) -> None:
    """As in a rolling upgrade: the names of groups do not tell who shares slots with whom."""
    world = of_handlers(**served)
    begun = [line for line in world.turn(1) if line.startswith("begin")]
    assert 8 < len(begun) <= 12, "the first of both handlers"


def test_handlers_begin_by_count_again_once_all_executors_group_them_alike(
    candidates: Callable[[], int],
) -> None:
    world = of_handlers(v1="h1 h2", v2="h1 h2 h3")
    queues = world.rig.queues
    queues.places.drop(1)
    queues.serve(1, ())  # an upgrade goes on, or its lease is over
    queues.places.put(Place(2, {}, (Capacity(4), Capacity(12, ("h1", "h2", "h3")))))
    assert len(world.turn(1)) == 12
    assert candidates() == 0
