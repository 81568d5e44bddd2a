"""`limit set --waiting` for tasks: it holds at acceptance, for every way in, and not afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cron.api.groups import CloseGroupRequest
from cron.api.limits import LimitChange
from cron.api.tasks import SubmitRequest, SubmitVerdict, TaskSubmission
from cron.errors import LimitExceeded
from cron.job import Catchup
from cron.launch_state import LaunchState
from cron.state import tasks as t
from cron.state.archive import Stream
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import T0, job
from tests.unit.tasks_rig import TasksRig, task
from tests.unit.test_leader_term import Replica, reigning
from tests.unit.test_service_pauses import service

HANDLER = "mail.send"
MAIL = WorkSpec(argv=(), handler=HANDLER, payload=b"1")


class Shop:
    """A cell without workers, whose queues take tasks for them; and who submits."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.asked = service(replica)

    async def submit(self, *keys: str, **fields: Any) -> list[SubmitVerdict]:
        given = {"handler": HANDLER} | fields
        tasks = [TaskSubmission(key=key, **given) for key in keys]
        report = await self.asked.submit(SubmitRequest(tasks=tasks, by="shop"))
        return list(report.tasks)

    async def taken(self, *keys: str, **fields: Any) -> list[bool]:
        return [verdict.error is None for verdict in await self.submit(*keys, **fields)]


@asynccontextmanager
async def limited(most: int, **scope: Any) -> AsyncIterator[Shop]:
    async with reigning() as replica:
        queues = [
            t.QueueSpec(f"default/{name}", HANDLER, waits_for_handler=True)
            for name in (HANDLER, "other")
        ]
        revision = replica.state.queues_revision
        await replica.leader.append(t.PutQueues("q.toml", revision, tuple(queues)))
        shop = Shop(replica)
        where = scope or {"pool": HANDLER}
        await shop.asked.set_limit(LimitChange(waiting_max=most, by="anna", **where))
        yield shop


async def test_submissions_beyond_the_limit_of_their_handler_are_refused() -> None:
    async with limited(1) as shop:
        assert await shop.taken("a", "b", "c", "d") == [True, False, False, False]
        assert await shop.taken("e") == [False], "and so in a call of its own"


async def test_a_refusal_names_limit_number_and_way_out_and_may_be_tried_again() -> None:
    async with limited(1) as shop:
        await shop.submit("a")
        (refused,) = await shop.submit("b")
        assert refused.error is not None
        assert refused.error.code == "limit_exceeded"
        assert "the waiting limit of pool mail.send is reached" in refused.error.message
        assert "1 launch or task waits, limit 1" in refused.error.message
        assert "`raftcron limit set --waiting N --pool mail.send`" in refused.error.hint
        assert refused.retry_after_ms > 0, "so a library, a relay and an intake wait"


async def test_a_task_that_was_taken_is_answered_again_though_nothing_more_may_wait() -> None:
    async with limited(1) as shop:
        await shop.submit("a")
        (again,) = await shop.submit("a")
        assert (again.error, again.is_new) == (None, False)


async def test_a_task_counts_from_its_acceptance_whenever_its_time_comes() -> None:
    """Or all of them could come at once."""
    async with limited(2) as shop:
        assert await shop.taken("a", "b", delay_ms=3_600_000) == [True, True]
        assert await shop.taken("c", delay_ms=3_600_000) == [False]
        assert await shop.taken("d") == [False]


async def test_what_waits_in_other_queues_of_the_handler_counts_as_well() -> None:
    async with limited(2) as shop:
        assert await shop.taken("a", queue="other") == [True]
        assert await shop.taken("b") == [True]
        assert await shop.taken("c", queue="other") == [False]


@pytest.mark.parametrize(
    ("scope", "other", "is_taken"),
    [
        ({"pool": HANDLER}, {"handler": "mail.other", "queue": "other"}, True),
        ({"pool": HANDLER, "priority": 5}, {"priority": 2}, True),
        ({"pool": HANDLER, "priority": 5}, {"priority": 5}, False),
        ({"tenant": "default"}, {"queue": "other"}, False),
        ({"tenant": "acme"}, {"queue": "other"}, True),
        ({"tenant": "*"}, {"queue": "other"}, False),
        ({"tenant": "default", "pool": HANDLER}, {"queue": "other"}, False),
        ({}, {"queue": "other"}, False),
    ],
)
async def test_each_kind_of_limit_counts_the_tasks_of_its_scope(
    scope: dict[str, Any], other: dict[str, Any], is_taken: bool
) -> None:
    async with limited(1, **(scope or {"pool": ""})) as shop:
        assert await shop.taken("a", priority=5) == [True]
        assert await shop.taken("b", **other) == [is_taken]


async def test_a_trigger_and_an_instant_find_the_places_that_tasks_have_taken() -> None:
    async with limited(2) as shop:
        replica = shop.replica
        await replica.put(job(work=MAIL, catchup=Catchup.NONE, deadline_s=86_400))
        assert await shop.taken("a", "b", delay_ms=3_600_000) == [True, True]
        with pytest.raises(LimitExceeded, match="2 launches and tasks wait, limit 2"):
            await shop.asked.trigger("default/backup", "q1", "anna")
        replica.clock.ms = (T0 + 60) * 1000
        await replica.until(lambda: replica.state.jobs["default/backup"].horizon_s >= T0 + 60)
        await replica.until(lambda: not replica.state.due)
        (row,) = replica.state.history.tails[Stream.RUNS].all_rows()
        assert (row.state, row.reason) == (LaunchState.SKIPPED, Reason.FULL)


async def test_the_task_that_follows_a_group_is_refused_and_the_group_stays_open() -> None:
    async with limited(1) as shop:
        await shop.submit("a", group="g")
        hook = TaskSubmission(key="done", handler=HANDLER)
        with pytest.raises(LimitExceeded, match="the waiting limit"):
            await shop.asked.close_group(CloseGroupRequest(name="default/g", on_complete=hook))
        assert not shop.replica.state.groups["default/g"].is_closed


async def test_what_was_taken_is_never_skipped_for_a_limit() -> None:
    async with limited(3) as shop:
        await shop.submit("a", "b", "c", delay_ms=60_000)
        await shop.asked.set_limit(LimitChange(waiting_max=1, by="anna", pool=HANDLER))
        state = shop.replica.state
        shop.replica.clock.ms += 120_000
        await shop.replica.leader.append(t.ReadyTasks((*state.tasks_by_number,)))
        assert len(state.due) == 3
        assert await shop.taken("late", "later") == [False, False]  # plans have judged them by now
        assert [one.state for one in state.tasks.values()] == [LaunchState.DUE] * 3


async def test_a_place_is_free_again_once_a_task_is_over() -> None:
    async with limited(1) as shop:
        await shop.submit("a")
        await shop.replica.leader.append(t.CancelTasks(("default/mail.send:a",), "anna"))
        assert await shop.taken("b", "c") == [True, False]


async def test_without_limits_nothing_is_counted() -> None:
    async with reigning() as replica:
        spec = t.QueueSpec(f"default/{HANDLER}", HANDLER, waits_for_handler=True)
        await replica.leader.append(t.PutQueues("q.toml", 0, (spec,)))
        assert all(await Shop(replica).taken(*map(str, range(100))))


def test_a_queue_knows_which_of_its_tasks_say_a_handler_or_priority_of_their_own() -> None:
    rig = TasksRig()
    options = t.TaskOptions("mail.other", priority=2)
    rig.submit(task("a"), task("b", options=options), task("c", 5_000, options=options))
    rig.submit(task("d", options=t.TaskOptions("mail.send", priority=9)))

    def counts() -> list[tuple[str, int, int]]:
        queue = rig.state.queues["default/mail"]
        loaded = decode_state([encode_state(rig.state)]).queues["default/mail"]
        assert loaded.apart == queue.apart
        return sorted(one for one in queue.waiting_for() if one[2])

    assert counts() == [("mail.other", 2, 2), ("mail.send", 5, 1), ("mail.send", 9, 1)]
    rig.begun("b")
    assert counts() == [("mail.other", 2, 1), ("mail.send", 5, 1), ("mail.send", 9, 1)]
    rig.append(t.RescheduleTasks((t.RescheduleItem("default/mail:a", priority=9),), "anna"))
    assert counts() == [("mail.other", 2, 1), ("mail.send", 9, 2)]
    rig.append(t.SpillTasks((rig.task("c").number,)))
    assert counts() == [("mail.send", 5, 1), ("mail.send", 9, 2)], "on disk it is as its queue says"
    rig.cancel_tasks("a", "d")
    assert rig.state.queues["default/mail"].apart == {}
