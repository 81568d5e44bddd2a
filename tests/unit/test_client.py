"""launcher.client: submits to a cell of tasks that answers, refuses, hangs and dies as told."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from cron.api.tasks import SubmitVerdict, TaskChange, TaskError, TaskView
from cron.errors import InvalidInput, NoQuorum, NotAllowed, NotLeader, OldDisk
from launcher.client.cell import user_name
from launcher.client.client import Client
from launcher.client.errors import (
    BadTask,
    Denied,
    NotAllSubmitted,
    NotOver,
    OtherContent,
    OutcomeUnknown,
    QueueFull,
    TaskOver,
    Unavailable,
    UnknownHandler,
    UnknownTask,
)
from launcher.http2 import Http2Connection
from launcher.worker.errors import BadPayload
from launcher.worker.registry import Registry
from tests.fakes.client_clock import ClientClock
from tests.fakes.ports import free_address
from tests.fakes.task_cell import NOW_MS, Busy, LostAnswer, TaskCell, task_cell


@pytest.fixture
def cell() -> Iterator[TaskCell]:
    with task_cell() as cell:
        yield cell


@pytest.fixture
def client(cell: TaskCell) -> Iterator[Client]:
    with Client(cell.servers, timeout=60) as client:
        yield client


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ClientClock:
    return ClientClock(monkeypatch.setattr)


class Invoice(msgspec.Struct):
    customer: str
    cents: int = 0


@dataclasses.dataclass
class Mail:
    to: str


def test_changes_are_watched_over_the_death_of_a_replica() -> None:
    with task_cell(2) as cell, Client(cell.servers, timeout=60) as client:
        cell.changes = [
            TaskChange(position="1", task=TaskView(task="default/mail:a", state="due")),
            TaskChange(position="2"),
            TaskChange(position="3", task=TaskView(task="default/mail:b", state="succeeded")),
        ]
        watched = client.watch(queue="mail", position="0")
        first = next(watched)
        assert (first.position, first.task.task) == ("1", "default/mail:a")
        assert next(watched).position == "3"
        cell.stop(0)
        cell.changes.append(
            TaskChange(position="4", task=TaskView(task="default/mail:a", state="succeeded"))
        )
        assert next(watched).task.succeeded
        assert {index for index, _, _ in cell.calls} == {0, 1}
        request = cell.calls[-1][2]
        assert (request.position, request.filter.queue) == ("3", "default/mail")
        assert next(client.watch(position="3")).position == "4"


@pytest.mark.parametrize(("said", "tries"), [({"retries": 0}, 1), ({"retries": 4}, 5)])
def test_retries_come_after_the_first_try(cell, client, said, tries):
    client.submit("mail.send", **said)
    assert cell.submits()[0][0].tries == tries
    for wrong in ({"retries": -1}, {"retries": 1, "tries": 2}):
        with pytest.raises(BadTask, match="retries"):
            client.submit("mail.send", **wrong)


def test_a_task_is_submitted_and_asked_about(cell, client):
    task = client.submit("billing.invoice", Invoice("acme", 7), key="i-7", delay="10m", priority=2)
    assert task.name == "default/billing.invoice:i-7"
    assert (task.is_new, task.state) == (True, "waiting")
    view = task.get()
    assert view.payload == {"customer": "acme", "cents": 7}
    assert (view.at_ms, view.priority) == (NOW_MS + 600_000, 2)
    assert client.get("billing.invoice:i-7") == view
    assert task.cancel().state == "cancelled"
    assert task.wait().state == "cancelled"
    assert client.cancel(task).state == "cancelled"  # as the cell: it is no error


def test_a_change_says_who_asks_for_it(cell, client, monkeypatch):
    for said, known in (("ada", "ada"), ("x" * 201, ""), ("a\nb", "")):
        cell.calls.clear()
        user_name.cache_clear()
        monkeypatch.setenv("LOGNAME", said)
        task = client.submit("h", delay="1h")
        client.reschedule(task, delay="2h")
        client.run_now(task)
        client.cancel(task)
        asked = {method: request.by for _, method, request in cell.calls}
        assert asked == dict.fromkeys(("Submit", "Reschedule", "RunNow", "Cancel"), known)
    user_name.cache_clear()


def test_a_task_that_ended_cannot_be_cancelled(cell, client):
    task = client.submit("h")
    cell.end(task.name)
    with pytest.raises(TaskOver, match="is over: succeeded"):
        client.cancel(task)


def test_a_key_is_drawn_for_each_task_without_one(client):
    first, second = (client.submit("mail.send", Mail("ada")) for _ in range(2))
    assert first.key != second.key
    assert len(first.key) == 32


def test_the_same_key_is_the_same_task_and_with_other_content_refused(client):
    assert client.submit("mail.send", 1, key="k").is_new
    with pytest.raises(OtherContent, match="k is of another task"):
        client.submit("mail.send", 2, key="k")


@pytest.mark.parametrize(
    ("options", "at_ms"),
    [
        ({"delay": 1.5}, NOW_MS + 1_500),
        ({"delay": "10ms"}, NOW_MS + 10),
        ({"delay": timedelta(days=3_000)}, NOW_MS + 3_000 * 86_400_000),
        ({"at": datetime(2027, 1, 1, tzinfo=UTC)}, 1_798_761_600_000),
        ({"at": datetime(2027, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, 1_798_761_600_000),
        ({"at": "2027-01-01T00:00:00.007Z"}, 1_798_761_600_007),
        ({"at": "1969-01-01T00:00:00Z"}, NOW_MS),
        ({}, NOW_MS),
    ],
)
def test_a_task_has_a_time(client, options, at_ms):
    assert client.submit("h", **options).get().at_ms == at_ms


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"at": datetime(2027, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the case
        ({"at": "2027-01-01T00:00:00"}, "no time zone"),
        ({"at": "tomorrow"}, "no ISO 8601"),
        ({"at": 7}, "neither a datetime"),
        ({"delay": -1}, "not between"),
        ({"delay": "soon"}, "not a length"),
        ({"delay": timedelta(days=3_651)}, "not between"),
        ({"delay": 1, "at": "2027-01-01T00:00:00Z"}, "one of them"),
        ({"priority": "high"}, "whole number"),
        ({"tries": True}, "whole number"),
        ({"labels": {"a": 1}}, "texts"),
        ({"queue": 7}, "no text"),
        ({"attempts": 3}, "no such option"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_sent(cell, client, options, problem):
    with pytest.raises(BadTask, match=problem):
        client.submit("h", **options)
    assert cell.calls == []


def test_a_naive_time_is_refused_with_the_way_out(client):
    with pytest.raises(BadTask) as caught:
        client.submit("h", at=datetime(2027, 1, 1))  # noqa: DTZ001
    assert "ZoneInfo" in caught.value.hint


@pytest.mark.parametrize(
    ("payload", "problem"),
    [(object(), "cannot be said"), (b"{", "not JSON"), ("x" * 300_000, "at most 262,144")],
)
def test_a_payload_that_cannot_be_sent_is_refused(cell, client, payload, problem):
    with pytest.raises(BadTask, match=problem):
        client.submit("h", payload)
    assert cell.calls == []


def test_bytes_are_json_already(client):
    assert client.submit("h", b'{"a": [1]}').get().payload == {"a": [1]}


def test_a_handler_is_its_own_front_door(client):
    registry = Registry()

    @registry.handler("billing.invoice")
    def invoice(payload: Invoice) -> str:
        return payload.customer

    assert invoice(Invoice("acme")) == "acme"
    task = invoice.submit(Invoice("acme"), client=client, key="1")
    assert task.name == "default/billing.invoice:1"
    assert client.submit(invoice, {"customer": "b"}).get().payload == {"customer": "b"}
    with pytest.raises(BadPayload, match="cents"):
        invoice.submit({"customer": "acme", "cents": "7"}, client=client)
    with pytest.raises(BadTask, match="is no handler"):
        client.submit(test_bytes_are_json_already)


def test_a_refused_task_raises_what_the_cell_said(cell, client):
    problem = TaskError("unknown_handler", "no worker serves h", "start one")
    cell.judge = lambda one: SubmitVerdict(task=one.name, error=problem)
    with pytest.raises(UnknownHandler, match="no worker serves h") as caught:
        client.submit("h")
    assert caught.value.hint == "start one"


def test_a_code_that_is_not_known_is_kept(cell, client):
    cell.judge = lambda one: SubmitVerdict(task=one.name, error=TaskError("brand_new", "oh"))
    with pytest.raises(Exception, match="oh") as caught:
        client.submit("h")
    assert caught.value.code == "brand_new"


def test_a_call_that_grpc_had_no_room_for_is_tried_again(cell, client):
    """gRPC has the code of a limit for that; only the cell's own refusals are final."""
    busy = [Busy(), Busy()]

    def before(method, request):
        if busy:
            raise busy.pop()

    cell.before = before
    client.submit("h", 1)
    assert len(cell.submits()) == 3


def test_an_unknown_task_is_said(client):
    with pytest.raises(UnknownTask, match="there is no task default/h:1"):
        client.get("h:1")


def test_a_task_is_rescheduled(client):
    task = client.submit("h", 1, delay="1h")
    view = client.reschedule(task, delay=5, priority=3, payload={"a": 1})
    assert (view.at_ms, view.priority, view.payload) == (NOW_MS + 5_000, 3, {"a": 1})
    assert client.reschedule(task, delay=0, revision=view.revision).at_ms == NOW_MS
    assert client.run_now(task).state == "due"


def test_the_hint_names_the_options_that_there_are(client):
    with pytest.raises(BadTask) as caught:
        client.submit("h", attempts=3)
    assert "tries" in caught.value.hint
    assert "after_any" in caught.value.hint


# ---- waiting


def test_wait_returns_a_task_that_is_over(cell, client):
    task = client.submit("h")
    timer = threading.Timer(0.1, cell.end, (task.name, "failed"))
    timer.start()
    assert task.wait(timeout=30).state == "failed"
    timer.join()


def test_wait_gives_up(client, monkeypatch):
    monkeypatch.setattr("launcher.client.core.LOOK_S_MIN", 60)
    task = client.submit("h")
    with pytest.raises(NotOver, match=r"is not over after 0\.05 s") as caught:
        client.wait(task, timeout="50ms")
    assert isinstance(caught.value, TimeoutError)


def test_wait_outlives_a_cell_without_a_leader_and_ends_in_time(cell, client, clock):
    refusals = iter(range(2))

    def refuse(method: str, request: object) -> None:
        for _ in refusals:
            clock.skip(21)  # more than one call may take
            raise NotLeader(None)

    task = client.submit("h")
    cell.end(task.name)
    cell.before = refuse
    hasty = client.with_timeout(20)
    assert hasty.wait(task, timeout=600).succeeded
    assert next(refusals, None) is None
    refusals = iter([0])
    with pytest.raises(Unavailable):
        hasty.wait(task, timeout=15)


def test_a_read_without_an_answer_changed_nothing(cell, client, clock):
    def lose(method: str, request: object) -> None:
        clock.skip()
        raise LostAnswer

    task = client.submit("h")
    cell.after = lose
    with pytest.raises(Unavailable):
        client.get(task)


# ---- the cell's faults


def test_the_leader_is_found_and_remembered():
    with task_cell(3) as cell, Client(cell.servers) as client:
        cell.leader = 2
        client.submit("h")
        client.submit("h")
        assert [index for index, _, _ in cell.calls] == [0, 2, 2]


def test_a_client_that_knows_one_replica_learns_of_the_others():
    with task_cell(2) as cell:
        cell.leader = 1
        with Client(f"127.0.0.1:{cell.ports[0]}") as client:
            client.submit("h")
            cell.stop(0)
            client.submit("h")
        assert len(cell.tasks) == 2


def test_a_client_goes_on_after_the_death_of_the_leader():
    with task_cell(3) as cell, Client(cell.servers, timeout=30) as client:
        client.submit("h")
        cell.leader = -1
        cell.stop(0)
        timer = threading.Timer(0.3, lambda: setattr(cell, "leader", 1))
        timer.start()
        assert client.submit("h").is_new
        timer.join()


def test_a_lost_answer_is_asked_for_again_with_the_same_key(cell, client):
    answers = iter([LostAnswer(), LostAnswer()])

    def lose(method: str, request: object) -> None:
        for error in answers:
            raise error

    cell.after = lose
    task = client.submit("h", {"a": 1}, delay="1m")
    first, second, third = cell.submits()
    assert first == second == third
    assert list(cell.tasks) == [task.name]


def test_without_an_answer_in_time_the_outcome_is_unknown_and_repeating_is_safe(
    cell, client, clock
):
    def lose(method: str, request: object) -> None:
        clock.skip()
        raise LostAnswer

    cell.after = lose
    with pytest.raises(OutcomeUnknown) as caught:
        client.submit("h", key="k")
    assert "same key" in caught.value.hint
    cell.after = lambda method, request: None
    client.submit("h", key="k")
    assert len(cell.tasks) == 1


def test_without_a_cell_nothing_happened(clock):
    clock.skip_at_a_failure()
    with Client(free_address()) as client:
        with pytest.raises(Unavailable, match="connection refused"):
            client.submit("h")
        with pytest.raises(Unavailable):
            client.get("h:1")


@pytest.mark.parametrize("error", [NoQuorum("no majority"), OldDisk("the disk of r1 is old")])
def test_without_a_leader_that_acts_nothing_happened(cell, client, clock, error):
    def refuse(method: str, request: object) -> None:
        clock.skip()
        raise error

    cell.before = refuse
    with pytest.raises(Unavailable, match=str(error)):
        client.submit("h")


def test_a_replica_that_hangs_does_not_use_up_the_time(monkeypatch):
    patience_ms: list[int] = []
    let_go = threading.Event()
    call = Http2Connection.call

    def briefly(self, path, request, metadata, timeout_ms):
        patience_ms.append(timeout_ms)
        return call(self, path, request, metadata, 300 if cell.before is hang else timeout_ms)

    def hang(method: str, request: object) -> None:
        cell.before = lambda method, request: None
        let_go.wait(60)

    monkeypatch.setattr(Http2Connection, "call", briefly)
    with task_cell(2) as cell:
        cell.leader = 1
        with Client(cell.servers, timeout=60) as client:
            client.submit("h")  # at 1, which is asked first from now on
            cell.before = hang
            patience_ms.clear()
            client.submit("h", key="k")
            let_go.set()
    assert max(patience_ms) <= 20_000
    assert len(patience_ms) > 1


def test_a_refusal_of_the_caller_is_not_tried_again(cell, client):
    def refuse(method: str, request: object) -> None:
        raise NotAllowed("ada may not submit")

    cell.before = refuse
    with pytest.raises(Denied, match="ada may not"):
        client.submit("h")
    assert len(cell.calls) == 1


def test_a_token_is_shown(cell, monkeypatch):
    monkeypatch.setenv("RAFTCRON_TOKEN", "secret\n")
    monkeypatch.setenv("RAFTCRON_SERVER", cell.servers)
    with Client() as client:
        client.submit("h")
    assert cell.metadata["authorization"] == "Bearer secret"


def test_an_address_beyond_loopback_needs_certificates():
    with pytest.raises(BadTask, match="beyond loopback"):
        Client("10.0.0.1:7400")


def test_a_client_may_have_another_timeout_for_some_calls(cell, client, clock):
    refusals = iter(range(2))

    def refuse(method: str, request: object) -> None:
        for _ in refusals:
            clock.skip(25)
            raise NotLeader(None)

    hasty = client.with_timeout("20s")
    cell.before = refuse
    with pytest.raises(Unavailable, match="no replica could act"):
        hasty.submit("h")
    client.submit("h")
    assert next(refusals, None) is None
    hasty.submit("h")
    assert len(cell.tasks) == 2
    with pytest.raises(BadTask):
        client.with_timeout("soon")


def test_a_closed_client_says_so(cell):
    client = Client(cell.servers)
    client.submit("h")
    client.close()
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.submit("h")


# ---- a full queue


def full() -> TaskError:
    return TaskError("queue_full", "queue h has 10 waiting tasks")


def test_a_full_queue_is_waited_for_as_the_cell_says(cell, client):
    refusals = iter(range(2))

    def judge(one):
        for _ in refusals:
            return SubmitVerdict(task=one.name, error=full(), retry_after_ms=50)
        return None

    cell.judge = judge
    start_s = time.monotonic()
    assert client.submit("h").is_new
    assert time.monotonic() - start_s >= 0.1
    assert len(cell.submits()) == 3


def test_a_queue_that_stays_full_for_longer_than_there_is_time_is_reported_at_once(cell):
    cell.judge = lambda one: SubmitVerdict(task=one.name, error=full(), retry_after_ms=60_000)
    with Client(cell.servers, timeout=40) as client, pytest.raises(QueueFull, match="10 waiting"):
        client.submit("h")
    assert len(cell.submits()) == 1


def test_a_full_queue_is_reported_too_where_the_leader_is_gone_by_the_deadline(cell, client, clock):
    def leave(method: str, request: object) -> None:
        clock.skip()
        raise NotLeader(None)

    def judge(one):
        cell.before = leave
        return SubmitVerdict(task=one.name, error=full(), retry_after_ms=50)

    cell.judge = judge
    with pytest.raises(QueueFull):
        client.submit("h")
    assert len(cell.calls) == 2


# ---- many tasks


def test_tasks_of_concurrent_threads_share_calls(cell, client):
    entered, let_go = threading.Event(), threading.Event()

    def hold(method: str, request: object) -> None:
        if not entered.is_set():
            entered.set()
            let_go.wait(30)

    cell.before = hold
    threads = [threading.Thread(target=client.submit, args=("h", n)) for n in range(40)]
    threads[0].start()
    assert entered.wait(30)  # the first one goes alone, at once
    for thread in threads[1:]:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    let_go.set()
    threads[0].join()
    assert len(cell.tasks) == 40
    sizes = [len(one) for one in cell.submits()]
    assert sizes[0] == 1
    assert len(sizes) < 30


def test_many_tasks_go_in_calls_of_a_thousand(cell, client):
    tasks = client.submit_many(("h", n, {"key": f"k{n}"}) for n in range(2_500))
    assert [one.key for one in tasks] == [f"k{n}" for n in range(2_500)]
    assert max(len(one) for one in cell.submits()) <= 1_000
    assert len(cell.submits()) <= 4
    assert len(cell.tasks) == 2_500


def test_of_many_tasks_each_has_its_own_verdict(cell, client):
    problem = TaskError("unknown_handler", "nobody serves bad")
    cell.judge = lambda one: (
        SubmitVerdict(task=one.name, error=problem) if one.handler == "bad" else None
    )
    with pytest.raises(NotAllSubmitted, match="1 of 3 tasks were refused") as caught:
        client.submit_many([("h", 1), ("bad", 2), ("h", 3)])
    first, second, third = caught.value.outcomes
    assert isinstance(second, UnknownHandler)
    assert first.is_new
    assert third.is_new


@pytest.mark.parametrize("item", ["h", ("h",), ("h", 1, {}, 2), ("h", 1, "key")])
def test_an_item_that_is_no_task_is_refused(client, item):
    with pytest.raises(BadTask, match="is not"):
        client.submit_many([item])


def test_a_batch_is_sent_at_its_end(cell, client):
    with client.batch() as batch:
        tasks = [batch.submit("h", n) for n in range(3)]
        assert cell.calls == []
    assert all(one.is_new for one in tasks)
    assert len(cell.submits()) == 1


def test_a_batch_that_fails_sends_nothing(cell, client):
    def fail() -> None:
        with client.batch() as batch:
            batch.submit("h", 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert cell.calls == []


def test_a_call_that_is_refused_whole_fails_only_whose_fault_it_is(cell, client):
    """The tasks of two threads are in one call, and the cell refuses the call for one of them."""
    entered, let_go = threading.Event(), threading.Event()

    def hold(method: str, request: object) -> None:
        keys = {one.key for one in request.tasks}
        if keys == {"first"}:
            entered.set()
            let_go.wait(30)
        elif "bad" in keys:
            raise InvalidInput("bad is malformed")

    cell.before = hold
    with Client(cell.servers, calls_max=1) as client:
        ends: dict[str, object] = {}

        def submit(key: str) -> None:
            try:
                ends[key] = client.submit("h", key=key).is_new
            except BadTask as error:
                ends[key] = str(error)

        threads = [threading.Thread(target=submit, args=(key,)) for key in ("first", "bad", "good")]
        threads[0].start()
        assert entered.wait(30)
        threads[1].start()
        threads[2].start()
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s and len(client._core.batcher._ready) < 2:
            time.sleep(0.01)
        let_go.set()
        for thread in threads:
            thread.join()
    assert ends == {"first": True, "good": True, "bad": "bad is malformed"}


# ---- forks


def test_a_child_process_has_connections_and_threads_of_its_own(cell, client):
    client.submit("h", key="parent")
    child = os.fork()
    if child == 0:
        try:
            client.submit("h", key="child")
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    client.submit("h", key="parent-again")
    assert {one.key for one in cell.tasks.values()} == {"parent", "child", "parent-again"}
