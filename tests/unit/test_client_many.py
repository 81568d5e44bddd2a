"""The library's changes of many tasks by name, before the service itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from launcher.client import batching, many
from launcher.client.aio import AsyncClient
from launcher.client.client import Client
from launcher.client.errors import (
    BadTask,
    Denied,
    NotAllChanged,
    OutcomeUnknown,
    TaskError,
    TaskOver,
    UnknownTask,
)
from launcher.client.messages import TaskView
from launcher.client.options import name_of
from tests.unit.service_cell import ServiceCell
from tests.unit.tasks_world import HANDLER


@pytest.fixture
def cell() -> ServiceCell:
    return ServiceCell()


@pytest.fixture
def client(cell: ServiceCell) -> Client:
    return Client(cell=cell, timeout=60)


def wait_for_a_day(client: Client, keys: str) -> list[Any]:
    return client.submit_many((HANDLER, None, {"key": key, "delay": "1d"}) for key in keys)


def outcomes(change: Callable[[], list[TaskView]]) -> list[Any]:
    with pytest.raises(NotAllChanged) as caught:
        change()
    return caught.value.outcomes


def test_tasks_are_cancelled_in_calls_of_a_thousand(
    cell: ServiceCell, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "TASKS_MAX", 2)
    tasks = wait_for_a_day(client, "abcde")
    cell.calls.clear()
    views = client.cancel_many([tasks[0], tasks[1].get(), *(one.name for one in tasks[2:])])
    assert [(one.key, one.state) for one in views] == [(key, "cancelled") for key in "abcde"]
    assert cell.calls == ["Get", "Cancel", "Cancel", "Cancel"]
    again = client.cancel_many(tasks)
    assert [one.revision for one in again] == [one.revision for one in views], "no error, as alone"


def test_each_task_of_a_change_has_an_outcome_of_its_own(cell: ServiceCell, client: Client) -> None:
    a, b, c = wait_for_a_day(client, "abc")
    client.cancel(b)
    gone = f"{HANDLER}:gone"
    due, over, unknown, other = outcomes(lambda: client.run_now_many([a, b, gone, c]))
    assert (due.state, other.key) == ("due", "c")
    assert isinstance(over, TaskOver)
    assert isinstance(unknown, UnknownTask)
    (alone,) = outcomes(lambda: client.run_now_many([b]))
    assert isinstance(alone, TaskOver)
    assert client.run_now_many([]) == []


def test_tasks_are_rescheduled_each_with_its_own_changes(cell: ServiceCell, client: Client) -> None:
    a, b, c = wait_for_a_day(client, "abc")
    cell.calls.clear()
    views = client.reschedule_many(
        [(a, {"delay": "2d"}), (b, {"priority": 1, "payload": [7]}), (c, {"at": a.scheduled_at})]
    )
    assert cell.calls == ["RescheduleMany"]
    assert views[0].at_ms == b.get().at_ms + 86_400_000
    assert (views[1].priority, b.get().payload) == (1, [7])
    assert views[2].at_ms == b.get().at_ms
    newest = b.get().revision
    asked = [(a, {"priority": 0, "revision": 1}), (b, {"priority": 2, "revision": newest})]
    stale, moved = outcomes(lambda: client.reschedule_many(asked))
    assert stale.code == "revision_conflict"
    assert moved.priority == 2


def test_a_task_that_is_named_twice_is_changed_twice_in_that_order(
    cell: ServiceCell, client: Client
) -> None:
    a, b = wait_for_a_day(client, "ab")
    cell.calls.clear()
    short = name_of(a).removeprefix("default/")
    views = client.reschedule_many(
        [(a, {"priority": 1}), (b, {"priority": 2}), (short, {"priority": 3})]
    )
    assert [one.priority for one in views] == [1, 2, 3]
    assert cell.calls == ["RescheduleMany"] * 2


def test_a_call_has_no_more_payloads_than_a_submit(
    cell: ServiceCell, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert many.CALL_BYTES_MAX == batching.CALL_BYTES_MAX
    monkeypatch.setattr(many, "CALL_BYTES_MAX", 25)
    tasks = wait_for_a_day(client, "abc")
    cell.calls.clear()
    assert len(client.reschedule_many((one, {"payload": "x" * 10}) for one in tasks)) == 3
    assert cell.calls == ["RescheduleMany"] * 2


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer in time"), Denied("not you")])
def test_a_call_that_fails_is_the_outcome_of_its_tasks_and_of_no_others(
    cell: ServiceCell, client: Client, monkeypatch: pytest.MonkeyPatch, error: TaskError
) -> None:
    monkeypatch.setattr(many, "TASKS_MAX", 2)
    tasks = wait_for_a_day(client, "abc")
    asked: list[bool] = []
    call = cell.call

    def fails_first(*said: Any, is_repeatable: bool = True) -> bytes:
        asked.append(is_repeatable)
        if len(asked) == 1:
            raise error
        return call(*said, is_repeatable=is_repeatable)

    monkeypatch.setattr(cell, "call", fails_first)
    first, second, third = outcomes(
        lambda: client.reschedule_many((one, {"priority": 1}) for one in tasks)
    )
    assert (first, second, third.priority) == (error, error, 1)
    assert asked == [False, False], "a changed time must not be changed once more by a lost answer"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (f"{HANDLER}:a", "is not .task, changes."),
        ((f"{HANDLER}:a", "1h"), "is not .task, changes."),
        ((f"{HANDLER}:a", {}), "nothing is to change"),
        ((f"{HANDLER}:a", {"queue": "b"}), "queue: cannot be changed"),
        (("no-key", {"priority": 1}), "is not a task name"),
        ((7, {"priority": 1}), "is no task"),
    ],
)
def test_what_is_no_change_is_refused_before_a_call(
    cell: ServiceCell, client: Client, change: Any, why: str
) -> None:
    with pytest.raises(BadTask, match=why):
        client.reschedule_many([change])
    assert cell.calls == []


def test_many_tasks_are_changed_with_await(cell: ServiceCell) -> None:
    async def work() -> None:
        async with AsyncClient(cell=cell, timeout=60) as client:
            tasks = await client.submit_many((HANDLER, None, {"key": key}) for key in "ab")
            moved = await client.reschedule_many((one, {"delay": "1h"}) for one in tasks)
            assert [one.state for one in moved] == ["waiting"] * 2
            assert [one.state for one in await client.run_now_many(tasks)] == ["due"] * 2
            assert [one.state for one in await client.cancel_many(tasks)] == ["cancelled"] * 2

    asyncio.run(work())
