"""`raftcron.testing.cell`: submitted tasks run in process, synchronously."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from launcher.client.aio import AsyncClient
from launcher.client.client import Client
from launcher.client.errors import (
    BadTask,
    GroupClosed,
    GroupOpen,
    NotAllChanged,
    NotAllSubmitted,
    OtherContent,
    TaskError,
    TaskOver,
    UnknownGroup,
    UnknownHandler,
    UnknownPredecessor,
    UnknownTask,
)
from launcher.worker import testing
from launcher.worker.context import Context
from launcher.worker.outcome import Fatal, Retry, Snooze
from launcher.worker.registry import Registry

registry = Registry()
ran: list[object] = []


@registry.handler("mail.send")
def send(to: str) -> str:
    ran.append(to)
    return f"sent to {to}"


@registry.handler("order.place")
def place(number: int) -> None:
    send.submit(f"{number}@example.com", key=f"mail-{number}")


@registry.handler("flaky")
def flaky(payload: dict[str, int], context: Context) -> None:
    ran.append(context.attempt)
    if context.attempt < payload["ends"]:
        raise Retry("1m", "not yet")


@registry.handler("bug")
def bug(payload: dict[str, int], context: Context) -> None:
    if context.attempt < payload["ends"]:
        raise ValueError("oh")


@registry.handler("slow")
async def slow(payload: str) -> str:
    return payload.upper()


@registry.handler("says")
def says(kind: str) -> None:
    raise {"fatal": Fatal("no"), "bug": ValueError("oh")}[kind]


@registry.handler("snoozes")
def snoozes(payload: None, context: Context) -> None:
    if context.attempt == 1:
        raise Snooze("5m")


@pytest.fixture
def cell():
    ran.clear()
    with testing.cell(registry, datetime(2026, 11, 20, 15, tzinfo=UTC)) as cell:
        yield cell


def test_a_task_that_is_due_is_over_when_submit_returns(cell):
    task = send.submit("ada")
    assert ran == ["ada"]
    assert task.get().result == "sent to ada"
    assert task.wait().succeeded


def test_a_client_that_knows_no_cell_uses_the_one_in_process(cell):
    assert Client("127.0.0.1:1").submit("mail.send", "ada").get().succeeded


def test_a_handler_may_submit_tasks(cell):
    place.submit(7)
    assert cell.tasks["default/mail.send:mail-7"].state == "succeeded"


def test_a_task_waits_for_its_time(cell):
    task = send.submit("ada", delay="10m")
    later = send.submit("bob", at=datetime(2027, 1, 1, tzinfo=UTC))
    cell.advance("9m59s")
    assert task.get().state == "waiting"
    cell.advance(1)
    assert task.get().state == "succeeded"
    cell.run_all()
    assert later.get().succeeded
    assert cell.now == datetime(2027, 1, 1, tzinfo=UTC)


def test_a_task_has_its_tries(cell):
    task = flaky.submit({"ends": 3}, tries=3)
    assert task.get().state == "waiting"
    cell.run_all()
    assert task.get().succeeded
    assert [one.outcome.name for one in cell.runs(task)] == ["RETRY", "RETRY", "OK"]
    out_of_tries = flaky.submit({"ends": 9}, tries=2, backoff=5)
    cell.run_all()
    assert out_of_tries.get().state == "failed"


@pytest.mark.parametrize(("kind", "runs"), [("fatal", 1), ("bug", 2)])
def test_a_task_fails(cell, kind, runs):
    task = says.submit(kind, tries=2)
    cell.run_all()
    view = task.get()
    assert view.state == "failed"
    assert len(cell.runs(task)) == runs


def test_a_snooze_is_no_try(cell):
    task = Client().submit("snoozes")
    cell.advance("5m")
    assert task.get().succeeded


def test_the_same_key_runs_once(cell):
    assert send.submit("ada", key="k").is_new
    assert not send.submit("ada", key="k").is_new
    assert ran == ["ada"]
    with pytest.raises(OtherContent):
        send.submit("bob", key="k")


def test_changes_are_watched_until_nothing_has_changed(cell):
    client = Client()
    assert list(client.watch()) == []
    client.submit("mail.send", "ada", key="a", delay="1m")
    changes = list(client.watch(position="0", queue="mail.send"))
    assert [one.task.state for one in changes] == ["waiting"]
    cell.advance("1m")
    later = list(client.watch(position=changes[-1].position))
    assert [one.task.state for one in later] == ["running", "succeeded"]
    assert list(client.watch(position="0", queue="other")) == []


def test_a_cancelled_task_never_runs(cell):
    task = send.submit("ada", delay=1)
    assert task.cancel().state == "cancelled"
    assert task.cancel().state == "cancelled", "again, as in a cell"
    cell.run_all()
    assert ran == []
    done = send.submit("bea")
    with pytest.raises(TaskOver):
        done.cancel()


def test_a_task_is_rescheduled_and_run_now(cell):
    client = Client()
    task = client.submit("mail.send", "ada", delay="1h")
    client.reschedule(task, delay="2h", payload="bob")
    cell.advance("1h")
    assert ran == []
    client.run_now(task)
    assert ran == ["bob"]


def test_many_tasks_are_changed_as_in_a_cell(cell):
    client = Client()
    names = ["ada", "bob", "eve"]
    a, b, c = client.submit_many(("mail.send", one, {"delay": "1h"}) for one in names)
    client.reschedule_many([(a, {"delay": "2h"}), (b, {"payload": "bea"})])
    cell.advance("1h")
    assert ran == ["bea", "eve"]
    with pytest.raises(NotAllChanged, match="1 of 2 tasks were refused") as caught:
        client.reschedule_many([(a, {"delay": "3h"}), (b, {"delay": "3h"})])
    moved, over = caught.value.outcomes
    assert (moved.state, type(over)) == ("waiting", TaskOver)
    assert [one.state for one in client.run_now_many([a])] == ["succeeded"]
    with pytest.raises(NotAllChanged) as caught:
        client.cancel_many([c, "mail.send:gone"])
    assert [type(one) for one in caught.value.outcomes] == [TaskOver, UnknownTask]
    d = client.submit("mail.send", "dan", delay="1h")
    assert [one.state for one in client.cancel_many([d, d])] == ["cancelled"] * 2


def test_unknown_handlers_and_tasks_are_said(cell):
    with pytest.raises(UnknownHandler, match="nobody"):
        Client().submit("nobody")
    with pytest.raises(UnknownTask):
        Client().get("h:1")


def test_batches_and_many_tasks_run_too(cell):
    client = Client()
    assert len(client.submit_many([("mail.send", "a"), ("mail.send", "b")])) == 2
    with client.batch() as batch:
        batch.submit(send, "c")
        assert ran == ["a", "b"]
    assert ran == ["a", "b", "c"]


async def test_async_handlers_and_clients_run_too(cell):
    async with AsyncClient() as client:
        task = await client.submit(slow, "ada")
        assert (await task.get()).result == "ADA"


def test_tasks_without_end_are_said(cell):
    @registry.handler("endless")
    def endless() -> None:
        endless.submit(delay="1s")

    endless.submit(delay=1)
    with pytest.raises(RecursionError):
        cell.run_all()


# ---- chains and groups


@registry.handler("sum")
def add(number: int, context: Context) -> str:
    ran.append(dict(context.results))
    return str(number + sum(map(int, context.results.values())))


def test_a_task_runs_after_others_and_has_their_results(cell):
    first = add.submit(1, key="a", delay="1m")
    second = add.submit(2, key="b", after=[first])
    third = add.submit(3, key="c", after=["sum:a"], after_any=[second], delay="1h")
    assert (second.get().waits_for, third.get().waits_for) == (1, 2)
    cell.advance("1m")
    assert (second.get().result, second.get().at_ms) == ("3", first.get().at_ms)
    assert (third.get().state, third.get().waits_for) == ("waiting", 0)
    cell.run_all()
    assert third.get().result == "7"
    assert ran[-1] == {"default/sum:a": "1", "default/sum:b": "3"}


def test_what_follows_a_task_that_failed_is_cancelled_or_runs_anyway(cell):
    failed = says.submit("fatal", delay=1)
    never = send.submit("ada", after=[failed])
    nor = send.submit("bob", after=[never])
    anyway = send.submit("eve", after_any=[failed, nor])
    cell.run_all()
    assert [one.get().state for one in (failed, never, nor)] == ["failed", "cancelled", "cancelled"]
    assert never.get().reason == "predecessor"
    assert anyway.get().succeeded
    assert ran == ["eve"]


def test_tasks_of_one_call_stand_in_any_order_and_in_no_circle(cell):
    client = Client()
    last = ("mail.send", "last", {"after": ["mail.send:first"]})
    client.submit_many([last, ("mail.send", "first", {"key": "first"})])
    assert ran == ["first", "last"]
    pairs = (("x", "mail.send:y"), ("y", "mail.send:x"))
    circle = [("mail.send", "", {"key": key, "after": [other]}) for key, other in pairs]
    with pytest.raises(NotAllSubmitted, match="wait for each other"):
        client.submit_many(circle)
    with pytest.raises(UnknownPredecessor):
        client.submit("mail.send", "x", after=["mail.send:none"])


def test_a_group_counts_its_tasks_and_has_a_last_one(cell):
    client = Client()
    with client.group("import", on_complete=("sum", 7)) as group:
        group.submit("mail.send", "ada", delay="1h")
        group.submit("says", "fatal")
        with pytest.raises(GroupOpen):
            client.submit("mail.send", after=["import"])
    view = group.status()
    assert (view.state, view.waiting, view.failed) == ("closed", 1, 1)
    after, anyway = (
        client.submit("mail.send", n, **{n: ["import"]}) for n in ("after", "after_any")
    )
    with pytest.raises(GroupClosed):
        group.submit("mail.send")
    cell.advance("1h")
    view = group.status()
    assert (view.is_complete, view.done, view.failed) == (True, 1, 1)
    assert client.get(view.on_complete).result == "7"
    assert (after.get().state, anyway.get().state) == ("cancelled", "succeeded")
    assert group.close().on_complete == view.on_complete


def test_a_group_is_cancelled(cell):
    group = Client().group("g")
    tasks = [group.submit("mail.send", n, delay=1) for n in range(3)]
    follower = send.submit("eve", after=[tasks[0]])
    assert group.cancel() == 3
    assert group.status().dropped == 3
    assert follower.get().state == "cancelled"
    with pytest.raises(UnknownGroup):
        Client().group("none").status()


def test_tasks_are_listed_and_cancelled_by_a_filter(cell):
    client = Client()
    kept = send.submit("ada", key="x1", delay=1)
    send.submit("bob", key="y1", delay=1, group="g")
    send.submit("eve", key="y2", group="g")
    assert [one.key for one in client.list(prefix="y")] == ["y2", "y1"]
    assert [one.key for one in client.list(group="g", state="waiting")] == ["y1"]
    assert client.cancel_all(queue="mail.send", prefix="y") == 1
    assert kept.get().state == "waiting"


def test_a_task_that_says_nothing_is_tried_until_it_succeeds(cell):
    task = bug.submit({"ends": 4})
    assert (task.get().state, len(cell.runs(task))) == ("waiting", 1)
    cell.advance("3s")
    assert len(cell.runs(task)) == 3, "after 1 s, then after 2 s"
    cell.advance("4s")
    assert task.get().succeeded


def test_a_task_that_never_succeeds_ends_with_its_deadline(cell):
    task = bug.submit({"ends": 99}, deadline="10s")
    cell.run_all()
    assert (task.get().state, len(cell.runs(task))) == ("failed", 4), "at 0, 1, 3 and 7 s"
    forever = bug.submit({"ends": 9_999})
    cell.run_all()
    assert forever.get().state == "failed"
    assert len(cell.runs(forever)) > 31 * 24, "31 days, and then it is over"


def test_a_dead_letter_is_listed_redriven_and_dropped(cell):
    client = Client()
    task = client.submit("bug", {"ends": 3}, tries=1, key="a")
    after = client.submit("mail.send", "x@example.com", after=[task], key="b")
    assert [(one.task, one.state) for one in client.dead()] == [
        ("default/bug:a", "failed"),
        ("default/mail.send:b", "cancelled"),
    ]
    with pytest.raises(TaskOver) as refused:
        client.run_now(task)
    assert "client.redrive(task)" in refused.value.hint
    assert client.redrive(task) == 1
    assert client.dead(queue="bug")[0].tries == 1  # it has failed again, and is a letter again
    assert client.redrive(queue="bug", reason="failed") == 1
    assert client.get(task).succeeded
    assert client.drop(after) == 1
    assert client.dead() == []
    with pytest.raises(TaskError, match="is not a dead letter"):
        client.redrive(task)
    with pytest.raises(BadTask, match="every dead letter"):
        client.drop()
