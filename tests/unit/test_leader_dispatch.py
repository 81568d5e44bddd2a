"""From an applied Begin to batches on their way, and back where they never left."""

from __future__ import annotations

from typing import Any

from cron.leader.dispatch import Dispatcher, kill_of
from cron.leader.inbox import Inbox
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.state import NO_ROW, Start
from launcher.columns import full
from launcher.launch import LaunchState, Reason
from launcher.pool.events import BatchFacts, Facts, Fate, Unsent
from launcher.pool.lease import LeaseTimes
from launcher.pool.orders import BatchRows, KillOrder, StartBatch
from launcher.work import WorkSpec
from tests.unit.state_rig import T0, StateRig, job, said
from tests.unit.test_scheduler_reports import ended, many


class FakePool:
    """Keeps what is ordered, by executor."""

    lease = LeaseTimes()

    def __init__(self) -> None:
        self.started: dict[str, list[StartBatch]] = {}
        self.acked: list[tuple[str, list[BatchRows]]] = []
        self.killed: list[KillOrder] = []

    def order(self, executor: str, _ledger: str, **orders: list[Any]) -> None:
        self.started.setdefault(executor, []).extend(orders.get("starts", ()))
        if orders.get("acks"):
            self.acked.append((executor, orders["acks"]))
        self.killed += orders.get("kills", ())

    def expired(self, _now_mono: int) -> tuple[()]:
        return ()

    def rows(self, executor: str = "e1") -> list[tuple[int, int, str, int, int]]:
        """(index, row, job, attempt, part) of what an executor was ordered to start."""
        return [
            (batch.index, row, work.job.removeprefix("default/"), attempt, part)
            for batch in self.started.get(executor, [])
            for row, work, attempt, part in zip(
                batch.rows,
                batch.works,
                full(batch.attempts, len(batch.rows), 1),
                full(batch.parts, len(batch.rows), 1),
                strict=True,
            )
        ]


def dispatching() -> tuple[Dispatcher, Any]:
    pool: Any = FakePool()
    return Dispatcher(pool), pool


def begin_item(rig: StateRig, number: int, *executors: int, attempt: int = 1) -> c.BeginItem:
    executor, *others = executors or (1,)
    key = (number, T0 + 60, 0)
    return c.BeginItem(key, attempt, rig.state.catalog, executor, rig.at_ms + 9_000, tuple(others))


def due(*names: str, executors: int = 1, **fields: Any) -> StateRig:
    """Jobs 1, 2, ... that are due, and executors."""
    rig = StateRig()
    rig.put(*(job(name, **fields) for name in names))
    for number in range(1, executors + 1):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60)
    for number in range(1, len(names) + 1):
        rig.account(60, number=number)
    return rig


def test_what_an_entry_begins_on_an_executor_is_one_batch_in_columns() -> None:
    rig, (dispatcher, pool) = due("a", "b", "c", executors=2), dispatching()
    items = [begin_item(rig, 1), begin_item(rig, 2, 2), begin_item(rig, 3)]
    dispatcher.follow(rig.state, rig.append(c.Begin.of(items)))
    index = rig.state.index
    assert pool.rows("e1") == [(index, 0, "a", 1, 1), (index, 1, "c", 1, 1)]
    assert pool.rows("e2") == [(index, 0, "b", 1, 1)]
    (batch,) = pool.started["e1"]
    assert (batch.is_first, list(batch.scheduled_s)) == (True, [T0 + 60, T0 + 60])
    assert list(batch.not_after_ms) == [rig.at_ms + 9_000] * 2


def test_a_row_that_is_refused_is_not_ordered_and_the_others_keep_their_numbers() -> None:
    rig, (dispatcher, pool) = due("a", "b", "c"), dispatching()
    rig.append(c.Begin.of([begin_item(rig, 2)]))
    outcome = rig.append(c.Begin.of([begin_item(rig, number) for number in (1, 2, 3)]))
    assert list(outcome.results[0].items) == [0, Verdict.ALREADY, 0]
    dispatcher.follow(rig.state, outcome)
    index = rig.state.index
    assert pool.rows() == [(index, 0, "a", 1, 1), (index, 2, "c", 1, 1)]


def test_a_further_attempt_and_a_manual_launch_are_rows_as_the_others() -> None:
    rig, (dispatcher, pool) = due("a", "b"), dispatching()
    rig.append(c.Begin.of([begin_item(rig, 1)]))
    rig.refused(60)
    second = rig.trigger("q1", "b").scheduled_s
    manual = c.BeginItem((2, second, 1), 1, rig.state.catalog, 1, rig.at_ms + 9_000)
    items = [begin_item(rig, 1, attempt=2), manual, begin_item(rig, 2)]
    dispatcher.follow(rig.state, rig.append(c.Begin.of(items)))
    index = rig.state.index
    assert sorted(pool.rows()) == [
        (index, 0, "a", 2, 1),
        (index, 1, "b", 1, 1),
        (index, 2, "b", 1, 1),
    ]
    triggers = {
        row: trigger
        for batch in pool.started["e1"]
        for row, trigger in zip(batch.rows, full(batch.triggers, len(batch.rows)), strict=True)
    }
    assert triggers == {0: 0, 1: 1, 2: 0}


def test_a_part_is_ordered_where_it_is_a_row() -> None:
    rig, (dispatcher, pool) = due("a", executors=2, parts=2), dispatching()
    dispatcher.follow(rig.state, rig.append(c.Begin.of([begin_item(rig, 1, 1, 2)])))
    index = rig.state.index
    assert pool.rows("e1") == [(index, 0, "a", 1, 1)]
    assert pool.rows("e2") == [(index, 0, "a", 1, 2)]


def test_work_stays_the_same_one_until_its_job_changes() -> None:
    """A stream is sent anew what is another one."""
    rig, (dispatcher, pool) = due("a", "b"), dispatching()

    def begun(second: int) -> list[Any]:
        rig.to(second)
        items = []
        for number in (1, 2):
            rig.account(second, number=number)
            key = (number, T0 + second, 0)
            items.append(c.BeginItem(key, 1, rig.state.catalog, 1, rig.at_ms + 9_000))
        pool.started.clear()
        dispatcher.follow(rig.state, rig.append(c.Begin.of(items)))
        return [work for batch in pool.started["e1"] for work in batch.works]

    first, again = begun(120), begun(180)
    assert [one is other for one, other in zip(first, again, strict=True)] == [True, True]
    put = c.PutJobs("crontab", rig.state.catalog, T0 + 180, (job("b", work=WorkSpec(("true",))),))
    dispatcher.follow(rig.state, rig.append(put))
    assert [one is other for one, other in zip(first, begun(240), strict=True)] == [True, False]


def test_launches_that_catch_up_are_counted_once() -> None:
    rig = StateRig()
    rig.put(job("a"), job("b", parts=2))
    for number in (1, 2):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60)
    for number in (1, 2):
        rig.account(60, number=number, due=(c.DueItem(T0 + 60, is_late=True),), to=60)
    outcome = rig.append(c.Begin.of([begin_item(rig, 1), begin_item(rig, 2, 1, 2)]))
    dispatcher, _ = dispatching()
    assert dispatcher.follow(rig.state, outcome) == 2


def test_what_nobody_knows_the_row_of_is_not_ordered_to_end() -> None:
    rig = many(1)
    rig.cancel(60)
    launch = rig.row(60)
    kills = [kill_of(launch, Start(1, 1, launch.state, row)) for row in (NO_ROW - 1, NO_ROW, 0)]
    assert kills == [None, None, KillOrder(rig.state.index - 1, 0, Reason.KILLED)]


# ---- orders that never left


def inbox_of(pool: Any, dispatcher: Dispatcher) -> Inbox:
    return Inbox(
        pool,
        dispatcher,
        wake=lambda: None,
        beat=lambda: None,
        refused=lambda *_: None,
        mono_ms=lambda: 0,
    )


def test_rows_that_never_left_are_taken_back_and_their_neighbours_are_not() -> None:
    rig, (dispatcher, pool) = many(), dispatching()
    inbox, index = inbox_of(pool, dispatcher), rig.state.index
    rig.launched(60, number=2)  # it had left after all, before the leader of now led
    rig.cancel(60, number=3)  # an odd row
    inbox.on_event(Unsent("e1", "l1", ((index, [1, 2, 3]),)))
    (command,) = inbox.gather(rig.state, rig.at_ms)
    assert isinstance(command, c.Refused)
    assert [(one.begun_index, one.executor, one.rows) for one in command.rows] == [
        (index, 1, (2, 1))
    ]
    rig.append(command)
    assert said(rig.row(60, 4)) == "its order never left: the executor did not answer"
    assert {row.number for row in rig.state.active.values()} == {1, 2}
    assert inbox.gather(rig.state, rig.at_ms) == []
    assert not dispatcher.unsent


def test_what_was_let_go_of_meanwhile_is_not_taken_back() -> None:
    rig, (dispatcher, pool) = many(), dispatching()
    inbox, index = inbox_of(pool, dispatcher), rig.state.index
    inbox.on_event(Unsent("e9", "l9", ((index, [0]),)))
    inbox.on_event(Unsent("e1", "l1", ((index + 5, [0]),)))
    assert inbox.gather(rig.state, rig.at_ms) == []
    assert not dispatcher.unsent


# ---- acknowledgements


def test_ends_are_acknowledged_by_rows_once_they_are_committed() -> None:
    rig, (dispatcher, pool) = many(), dispatching()
    inbox, index = inbox_of(pool, dispatcher), rig.state.index
    rig.lost(60, number=2)  # the end of row 1 is late news, and an item beside the columns
    batch: BatchFacts = ended(index, [0, 1, 2, 3])
    inbox.on_event(Facts("e1", "l1", (batch,)))
    (command,) = inbox.gather(rig.state, rig.at_ms)
    assert isinstance(command, c.Finished)
    assert pool.acked == []
    outcome = rig.append(command)
    inbox.follow(rig.state, command, outcome.results[0])
    ((executor, rows),) = pool.acked
    assert (executor, [(at, sorted(some)) for at, some in rows]) == ("e1", [(index, [0, 1, 2, 3])])


def test_refusals_are_acknowledged_by_rows_and_what_never_left_is_not() -> None:
    rig, (dispatcher, pool) = many(), dispatching()
    inbox, index = inbox_of(pool, dispatcher), rig.state.index
    batch = ended(index, [0, 2], Fate.REFUSED, detail="full")
    inbox.on_event(Facts("e1", "l1", (batch,)))
    inbox.on_event(Unsent("e1", "l1", ((index, [1]),)))
    told, unsent = inbox.gather(rig.state, rig.at_ms)
    for command in (told, unsent):
        assert isinstance(command, c.Refused)
        assert not command.items
        inbox.follow(rig.state, command, rig.append(command).results[0])
    assert pool.acked == [("e1", [(index, [0, 2])])]
    assert not rig.state.active.keys() & {(number, T0 + 60, 0) for number in (1, 2, 3)}


def test_reports_that_are_too_many_for_an_entry_wait_for_the_next_one() -> None:
    rig, (dispatcher, pool) = many(), dispatching()
    inbox, index = inbox_of(pool, dispatcher), rig.state.index
    inbox.on_event(Facts("e1", "l1", (ended(index, [0, 1, 2, 3], Fate.ACCEPTED),)))
    seen = []
    for _ in range(2):
        (command,) = inbox.gather(rig.state, rig.at_ms, facts_max=3)
        assert isinstance(command, c.Launched)
        seen.append([len(one.rows) for one in command.starts])
        rig.append(command)
    assert seen == [[3], [1]]
    states = {row.state for row in rig.state.active.values()}
    assert states == {LaunchState.LAUNCHED}
