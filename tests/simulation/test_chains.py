"""Chains and groups under faults: with a safeguard switched off, somebody is accused.

That none is accused otherwise is in `test_tasks.py`: its programs draw chains and groups too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import pytest

from cron.errors import InvariantViolated
from cron.scheduler.chains import ChainIndex
from cron.state import chains, following, tasking
from cron.state import tasks as t
from cron.state.chains import Hold, Predecessor
from cron.state.context import Context
from cron.state.groups import GroupClose, GroupRecord
from cron.state.outcome import Verdict
from cron.state.state import State
from tests.simulation.loop import Stuck
from tests.simulation.patching import patched
from tests.simulation.test_tasks import DEPOSED, simulate_tasks

TRIES: Final = 10


def releases_after_a_failure() -> AbstractContextManager[None]:
    """A task runs although one that it follows has failed."""
    sees_none: Callable[..., Predecessor | None] = lambda state, hold: None  # noqa: E731
    return patched(chains, failure_of=sees_none)


def releases_too_early() -> AbstractContextManager[None]:
    """A leader proposes each task at once, and State looks at the first predecessor only."""
    real = chains.waits_for

    def waits_for(state: State, hold: Hold) -> list[Predecessor]:
        return [one for one in real(state, hold) if one == hold.predecessors[0]]

    def plan(self: ChainIndex, now_ms: int, most: int) -> list[Any]:
        holds = self._state.holds
        return [chains.ReleaseTasks(tuple(filter(holds.holds_back, holds)))] if holds else []

    stack = contextlib.ExitStack()
    stack.enter_context(patched(chains, waits_for=waits_for))
    stack.enter_context(patched(ChainIndex, plan=plan))
    return stack


def cancels_no_follower() -> AbstractContextManager[None]:
    """A task whose predecessor has failed is neither cancelled nor released."""
    real = following._release

    def release(context: Context, task: t.TaskRecord) -> Verdict:
        hold = context.state.holds.get(task.number)
        has_failed = hold is not None and chains.failure_of(context.state, hold) is not None
        return Verdict.ACCEPTED if has_failed else real(context, task)

    return patched(following, _release=release)


def forgets_whom_it_promised() -> AbstractContextManager[None]:
    """A new leader does not look at what waited when it took over."""
    real = ChainIndex.__init__

    def init(self: ChainIndex, state: State) -> None:
        real(self, state)
        self._unread.clear()

    return patched(ChainIndex, __init__=init)


def runs_hooks_twice() -> AbstractContextManager[None]:
    """Each close of a group may bring a hook."""
    real = following._close

    def close(context: Context, item: GroupClose, by: str) -> Verdict:
        group = context.state.groups.get(item.name)
        if group is not None and item.hook is not None:
            context.state.groups.changeable(item.name).hook = 0
        return real(context, item, by)

    return patched(following, _close=close)


def completes_too_early() -> AbstractContextManager[None]:
    """A closed group is complete although a task of it runs."""
    is_complete = property(lambda group: group.is_closed and not group.waiting)
    return patched(GroupRecord, is_complete=is_complete)


def takes_tasks_into_closed_groups() -> AbstractContextManager[None]:
    """A task joins a group that is closed."""
    real = tasking._refusal_of_ties

    def refusal_of(state: State, spec: t.TaskSpec) -> Verdict:
        verdict = real(state, spec)
        return Verdict.ACCEPTED if verdict is Verdict.GROUP_CLOSED else verdict

    return patched(tasking, _refusal_of_ties=refusal_of)


@contextlib.contextmanager
def forgets_what_is_followed() -> Iterator[None]:
    """A task that another one follows is forgotten with its end, and taken for failed."""
    real_settle, real_end = tasking.settle, chains.is_over

    def settle(context: Context) -> None:
        real_settle(context)
        tasks = context.state.tasks
        for number in context.over_tasks:
            if number in context.state.holds.followed:
                tasks.drop(tasks.by_number[number])

    def is_over(state: State, one: Predecessor) -> bool:
        is_gone = isinstance(one, int) and one not in state.tasks_by_number
        return is_gone or real_end(state, one)

    def has_succeeded(state: State, one: Predecessor) -> bool:
        if isinstance(one, str):
            return state.groups[one].has_succeeded
        task = state.tasks_by_number.get(one)
        return task is not None and task.state is chains.SUCCEEDED

    def name_of(state: State, one: Predecessor) -> str:
        return str(one)

    def end_of(state: State, one: Predecessor) -> Any:
        return chains.LaunchState.FAILED

    changes = {"is_over": is_over, "has_succeeded": has_succeeded, "name_of": name_of}
    with patched(tasking, settle=settle), patched(chains, end_of=end_of, **changes):
        yield


MUTANTS: Final[dict[str, tuple[Callable[[], AbstractContextManager[None]], dict[str, Any]]]] = {
    "failure": (releases_after_a_failure, {}),
    "early": (releases_too_early, {}),
    "cascade": (cancels_no_follower, {}),
    "takeover": (forgets_whom_it_promised, {"mood": DEPOSED}),
    "hooks": (runs_hooks_twice, {}),
    "complete": (completes_too_early, {}),
    "closed": (takes_tasks_into_closed_groups, {}),
    "forgotten": (forgets_what_is_followed, {}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_safeguard_of_chains_that_is_switched_off_is_missed(name: str) -> None:
    mutant, options = MUTANTS[name]
    for seed in range(TRIES):
        found: list[str] = []
        with mutant(), contextlib.suppress(InvariantViolated, KeyError, Stuck):
            found = simulate_tasks(seed, **options).judge.problems
        if any(one[0] == "t" for one in found):
            assert not simulate_tasks(seed, **options).judge.problems
            return
    pytest.fail(f"nobody misses {name}: {TRIES} seeds are green")
