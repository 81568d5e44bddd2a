"""Tasks under faults: each one that was acknowledged has its end or waits, none runs twice, none
runs before its time or after it was cancelled.

`SIM_SEED=1000 SIM_SEEDS=500 pytest <this file>` tries others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec
import pytest

from cron.errors import InvariantViolated
from cron.leader import recovery as leader_recovery
from cron.scheduler import tasks as scheduler
from cron.scheduler.tasks import TaskIndex
from cron.state import launches, recovery, tasking
from cron.state import tasks as t
from cron.state.context import Context
from cron.state.outcome import Verdict
from tests.drawn import TASK_SEEDS, nightly_but
from tests.simulation.disaster import Disaster
from tests.simulation.loop import Stuck
from tests.simulation.nemesis import Mood
from tests.simulation.patching import patched
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import World, simulate

FIRST: Final = int(os.environ.get("SIM_SEED", "0"))
SEEDS: Final = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "40")))
CRONTAB: Final = "#: name=tick deadline=20s\n@every 10s run 1\n"
DEPOSED: Final = Mood(8.0, {"depose": 1})
DYING: Final = Mood(8.0, {"crash_executor": 1})
ALL_FORGET: Final = Disaster(40.0, 30.0, 5.0, 1.0, stray=False)
TRIES: Final = 10


def simulate_tasks(seed: int, **options: Any) -> World:
    return simulate(seed, has_tasks=True, crontab=CRONTAB, chaos_s=90.0, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:TASK_SEEDS].__contains__))
def test_no_task_is_lost_or_doubled_under_faults(seed: int) -> None:
    world = simulate_tasks(seed)
    expect_sound(world)
    assert world.programs is not None
    assert world.programs.acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:1].__contains__))
def test_no_task_runs_again_after_a_restore(seed: int) -> None:
    world = simulate_tasks(seed, is_lost=True)
    expect_sound(world)
    assert not world.judge.machine.state.is_resolving


def cancels_nothing() -> AbstractContextManager[None]:
    """Whoever cancels a task that waits is told that it is cancelled."""
    real = tasking._cancel

    def cancel(context: Context, task: t.TaskRecord, by: str) -> Verdict:
        return Verdict.ACCEPTED if task.is_waiting else real(context, task, by)

    return patched(tasking, _cancel=cancel)


@contextlib.contextmanager
def readies_twice() -> Iterator[None]:
    """A leader makes a task ready in two entries, and State lets it."""
    real_plan, real_ready = TaskIndex.plan, tasking._ready
    newest: dict[int, tuple[int, ...]] = {}  # by leader's index

    def plan(self: TaskIndex, *args: Any) -> list[Any]:
        commands = real_plan(self, *args)
        for place, command in enumerate(commands):
            if isinstance(command, t.ReadyTasks):
                again = newest.get(id(self), ())
                newest[id(self)] = command.numbers
                commands[place] = t.ReadyTasks((*again, *command.numbers))
        return commands

    def ready(context: Context, task: t.TaskRecord) -> Verdict:
        known = msgspec.structs.replace(task, job=0) if not task.is_over else task
        if task.job and not task.is_over:
            record = context.state.by_number[task.job]
            work = record.job.work if record.job is not None else None
            known = msgspec.structs.replace(known, payload=work.payload if work else b"")
        return real_ready(context, known)

    with patched(TaskIndex, plan=plan), patched(tasking, _ready=ready):
        yield


@contextlib.contextmanager
def forgets_at_once() -> Iterator[None]:
    """The key of a task is forgotten with its end."""
    real = tasking._forget

    def forget(context: Context, task: t.TaskRecord) -> Verdict:
        if task.job or not task.is_over:
            return real(context, task)
        context.state.tasks.drop(task)
        context.moved_tasks[task.number] = None
        return Verdict.ACCEPTED

    def find(self: TaskIndex) -> tuple[int, ...]:
        tasks = self._state.tasks_by_number.values()
        return tuple(task.number for task in tasks if task.is_over and not task.job)

    with patched(tasking, _forget=forget), patched(scheduler.TaskIndex, _forget=find):
        yield


@contextlib.contextmanager
def comes_too_early() -> Iterator[None]:
    """Tasks become ready some seconds before their time, and State does not mind."""
    real_plan, real_ready = TaskIndex.plan, tasking._ready

    def plan(self: TaskIndex, now_ms: int, *args: Any) -> list[Any]:
        return real_plan(self, now_ms + 4_000, *args)

    def ready(context: Context, task: t.TaskRecord) -> Verdict:
        at_ms = context.at_ms
        context.at_ms += 4_000
        try:
            return real_ready(context, task)
        finally:
            context.at_ms = at_ms

    with patched(TaskIndex, plan=plan), patched(tasking, _ready=ready):
        yield


@contextlib.contextmanager
def trusts_the_snapshot() -> Iterator[None]:
    """What waited in the snapshot is taken for never begun (rule R13)."""
    doubts_nothing: Callable[..., bool] = lambda *_: False  # noqa: E731
    with (
        patched(recovery, is_doubtful=doubts_nothing),
        patched(leader_recovery, is_doubtful=doubts_nothing),
    ):
        yield


@contextlib.contextmanager
def loses_for_good() -> Iterator[None]:
    """What is lost is not begun again, whatever its queue says."""
    with patched(launches, after_loss=lambda *_: None):
        yield


@contextlib.contextmanager
def says_nothing_of_queues() -> Iterator[None]:
    """The leader leaves the defaults of new queues out of the log."""
    with patched(t, defaults_in=lambda _: None):
        yield


MUTANTS: Final[dict[str, tuple[Callable[[], AbstractContextManager[None]], dict[str, Any]]]] = {
    "cancel": (cancels_nothing, {"mood": DEPOSED}),
    "ready": (readies_twice, {"mood": DEPOSED}),
    "keys": (forgets_at_once, {"mood": DEPOSED}),
    "times": (comes_too_early, {"mood": DEPOSED}),
    "losses": (loses_for_good, {"mood": DYING}),
    "defaults": (says_nothing_of_queues, {"mood": DYING}),
    "snapshot": (trusts_the_snapshot, {"mood": DEPOSED, "disaster": ALL_FORGET}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_safeguard_of_tasks_that_is_switched_off_is_missed(name: str) -> None:
    mutant, options = MUTANTS[name]
    for seed in range(TRIES):
        found: list[str] = []
        with mutant(), contextlib.suppress(InvariantViolated, KeyError, Stuck):
            found = simulate_tasks(seed, **options).judge.problems
        if any(one[0] in "at" for one in found):
            assert not simulate_tasks(seed, **options).judge.problems
            return
    pytest.fail(f"nobody misses {name}: {TRIES} seeds are green")
