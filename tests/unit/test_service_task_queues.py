"""Declared queues of tasks: their files, the change of them, and their list."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api.task_queues import PutQueuesReport, PutQueuesRequest, TaskQueuesQuery
from cron.errors import Conflict, CrontabError, LimitExceeded, NotAllowed
from cron.job import OnLost
from cron.service.queue_file import KEYS, read_queues
from cron.state.tasks import QueueSpec, TaskOptions
from tests.style.tree import ROOT
from tests.unit.tasks_world import HANDLER, TasksWorld

WHOLE = """
[[queue]]
name = "acme/billing"
handler = "billing.invoice"
waiting = 50_000
rate = 100
burst = 200
remember = "2d"
unknown-handler = "wait"
priority = 0
retries = 4
backoff = "10s"
deadline = "1h"
timeout = "5m"
collection = "money"
on-lost = "retry"

[[queue]]
name = "mail"
handler = "mail.send"
"""


@pytest.fixture
def world() -> TasksWorld:
    return TasksWorld()


# ---- files


def test_a_file_declares_queues() -> None:
    assert read_queues(WHOLE, file="queues.toml") == [
        QueueSpec(
            name="acme/billing",
            handler="billing.invoice",
            defaults=TaskOptions(
                priority=0,
                tries=5,
                backoff_ms=10_000,
                deadline_s=3_600,
                timeout_s=300,
                collection="money",
                on_lost=OnLost.RETRY,
            ),
            waiting_max=50_000,
            rate_per_s=100,
            burst=200,
            remember_s=2 * 86_400,
            waits_for_handler=True,
        ),
        QueueSpec("default/mail", "mail.send"),
    ]
    assert all(f"\n{key} = " in WHOLE for key in KEYS)


def test_the_example_can_be_read() -> None:
    text = (ROOT / "examples" / "queues.toml").read_text(encoding="utf-8")
    specs = {spec.name: spec for spec in read_queues(text, file="queues.toml")}
    assert specs["default/shop.invoice"].defaults.tries == 5
    assert specs["default/nightly"].waits_for_handler


def queue(**said: str) -> str:
    given = {"name": '"mail"', "handler": '"h"'} | {
        key.replace("_", "-"): text for key, text in said.items()
    }
    return "[[queue]]\n" + "\n".join(f"{key} = {text}" for key, text in given.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no queue is declared"),
        ("queue = 1", "queue is not a list of tables"),
        ("[[job]]\nname = 'x'", "table 'job' is not known"),
        ("[[queue]\n", "file is not TOML"),
        ("[[queue]]\nhandler = 'h'", "queue number 1: name is not a text"),
        ("[[queue]]\nname = 'mail'", "queue mail: handler is missing"),
        (f"{queue()}\n{queue()}", "queue mail is declared twice"),
        (queue(name="'a:b'"), "'a:b' is not a job name"),
        (queue(handler="'a/b'"), "handler 'a/b' is not a plain word"),
        (queue(handler="'command'"), "handler 'command' is what the pool of commands is called"),
        (queue(colour="'red'"), "key 'colour' is not known"),
        (queue(waiting="0"), "waiting 0 is not in 1 to 11,000,000"),
        (queue(waiting="true"), "waiting is not a whole number"),
        (queue(priority="10"), "priority 10 is not in 0 to 9"),
        (queue(retries="1001"), "retries 1001"),
        (queue(burst="5"), "burst is said without a rate"),
        (queue(remember='"1h"'), "remember 1h is not in 1d to"),
        (queue(deadline='"32d"'), "deadline 32d is not in"),
        (queue(timeout="30"), "timeout is not a text"),
        (queue(on_lost='"maybe"'), "on-lost 'maybe' is not one of skip, retry"),
        (queue(unknown_handler='"maybe"'), "unknown-handler 'maybe' is not one of refuse, wait"),
        ("a.b.c.d.e.f = 1", "dots"),
    ],
)
def test_errors_of_a_file_name_the_queue(text: str, message: str) -> None:
    with pytest.raises(CrontabError) as caught:
        read_queues(text, file="queues.toml")
    assert message in str(caught.value)


def test_all_errors_of_a_file_are_told_at_once() -> None:
    with pytest.raises(CrontabError) as caught:
        read_queues(queue(waiting="0") + "\n" + queue(name="'b'", rate="0"), file="q")
    assert len(caught.value.problems) == 2


def test_a_file_has_no_more_queues_than_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron.service.queue_file.QUEUES_MAX", 1)
    assert read_queues(queue(), file="q")
    with pytest.raises(LimitExceeded, match="declares 2 queues, at most 1"):
        read_queues(queue() + "\n" + queue(name="'b'"), file="q")


# ---- changes


async def put(world: TasksWorld, text: str = WHOLE, **fields: Any) -> PutQueuesReport:
    given = {"source": "queues.toml", "text": text, "by": "ada"} | fields
    report: PutQueuesReport = await world.service.put_queues(PutQueuesRequest(**given))
    return report


def actions(report: PutQueuesReport) -> list[str]:
    return [f"{one.action} {one.queue} {','.join(one.what)}".strip() for one in report.changes]


async def test_an_apply_changes_what_differs(world: TasksWorld) -> None:
    plan = await put(world, is_dry_run=True)
    assert actions(plan) == ["added acme/billing", "added default/mail"]
    assert world.state.queues == {}
    await put(world)
    assert world.state.queues["acme/billing"].source == "queues.toml"
    entries = world.submitted
    again = await put(world)
    assert actions(again) == ["unchanged acme/billing", "unchanged default/mail"]
    assert world.submitted == entries
    other = WHOLE.replace("rate = 100", "rate = 7").replace("retries = 4", "retries = 5")
    assert actions(await put(world, other)) == [
        "changed acme/billing defaults,rate",
        "unchanged default/mail",
    ]
    assert world.state.queues["acme/billing"].rate_per_s == 7


async def test_a_queue_that_a_task_made_may_be_declared(world: TasksWorld) -> None:
    await world.submit_one()
    report = await put(world, queue(name=f'"{HANDLER}"', handler=f'"{HANDLER}"'))
    assert actions(report) == [f"changed default/{HANDLER} source"]


async def test_prune_lets_go_of_queues_that_are_empty(world: TasksWorld) -> None:
    await put(world)
    world.serve("mail.send")
    await world.submit_one("a", handler="", queue="mail")
    only = queue(name='"new"')
    assert actions(await put(world, only)) == ["added default/new"]
    assert actions(await put(world, only, prune=True)) == [
        "removed acme/billing",
        "kept default/mail",
        "unchanged default/new",
    ]
    assert "acme/billing" not in world.state.queues
    assert world.state.queues["default/mail"].source == ""


async def test_a_queue_has_one_source(world: TasksWorld) -> None:
    await put(world)
    with pytest.raises(Conflict, match=r"queue mail is declared by queues\.toml"):
        await put(world, queue(), source="other.toml")


async def test_an_editor_of_a_tenant_changes_its_queues_alone(world: TasksWorld) -> None:
    with pytest.raises(NotAllowed, match="queue mail is not within acme/"):
        await put(world, within=["acme/*"])
    assert world.state.queues == {}
    await put(world, queue(name='"acme/mail"'), within=["acme/*"])
    assert list(world.state.queues) == ["acme/mail"]


# ---- the list


async def test_the_list_counts_what_waits_and_runs(world: TasksWorld) -> None:
    await put(world)
    await world.submit_all("a", "b", handler="", queue="mail")
    report = await world.service.list_queues(TaskQueuesQuery())
    billing, mail = report.queues
    assert (billing.queue, billing.tenant, billing.tries) == ("acme/billing", "acme", 5)
    assert (billing.on_lost, billing.rate_per_s, billing.priority) == ("retry", 100, 0)
    assert billing.notes == ["no worker serves billing.invoice"]
    assert (mail.waiting, mail.running, mail.waiting_max, mail.notes) == (2, 0, 100_000, [])
    for query in (TaskQueuesQuery(tenant="acme"), TaskQueuesQuery(within=["acme/*"])):
        assert [one.queue for one in (await world.service.list_queues(query)).queues] == [
            "acme/billing"
        ]
