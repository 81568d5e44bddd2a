"""What a launch waits for, in words, and where it stands in its queue."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api.queues import QueueQuery, QueueView, WaitQuery
from cron.errors import NotLeader, NotNow, Unavailable, UnknownJob, UnknownLaunch
from cron.job import Overlap, Retry
from cron.launch_state import LaunchState
from cron.scheduler.views import Depth, Wait, WaitFor
from cron.scheduler.why import MISSING_MAX, Asked, asked, why_waiting
from cron.service.queues import POSITIONS_MAX
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.pool_people_rig import FakeQueues, World
from tests.unit.state_rig import T0, StateRig, job, with_job

JOB = "default/backup"
CONNECTED = frozenset({1})

LEADER_KNOWS = "its turn, a limit or a free slot: the leader knows which"


def told(rig: StateRig, queues: FakeQueues | None = None, **said: Any) -> tuple[str, int]:
    """Why the launch of second 60 waits, and until when, in seconds after T0."""
    connected = said.pop("connected", CONNECTED)
    why = why_waiting(rig.state, rig.row(60), connected, rig.at_ms, queues)
    return why.text, why.until_ms and why.until_ms // 1000 - T0


def due(**fields: Any) -> StateRig:
    rig = with_job(**fields).to(60)
    assert rig.account(60) is Verdict.ACCEPTED
    return rig


def waiting_for(wait: Wait, lack: str = "") -> FakeQueues:
    queues = FakeQueues()
    queues.waits[60] = wait
    queues.lack = lack
    return queues


# ---- what holds it


def close(rig: StateRig, **fields: Any) -> None:
    usual: dict[str, Any] = {
        "number": 0, "action": GateAction.PAUSE, "reason": "disk full", "by": "ada", "since_ms": 0,
    }  # fmt: skip
    assert rig.answer(CloseGate(Gate(**usual | fields))).verdict is Verdict.ACCEPTED


def test_a_gate_is_named_with_its_reason_its_person_and_its_end() -> None:
    rig = due()
    close(rig, tenant="default", until_ms=(T0 + 90) * 1000)
    text, until = told(rig)
    assert text == "gate 1, closed by ada until 2026-11-20T16:01:30Z: disk full"
    assert until == 90
    rig.to(90)
    assert "gate" not in told(rig)[0]


def test_a_gate_for_others_holds_nothing_here() -> None:
    rig = due()
    for fields in ({"tenant": "acme"}, {"pool": "mail"}, {"priority": 4}, {"jobs": "acme/*"}):
        close(rig, **fields)
    assert told(rig)[0] == LEADER_KNOWS


def test_of_several_gates_the_one_that_lasts_longest_is_named() -> None:
    rig = due()
    close(rig, jobs="*/*", until_ms=(T0 + 90) * 1000)
    close(rig, tenant="default")
    close(rig, priority=5, until_ms=(T0 + 80) * 1000)
    assert told(rig) == ("gate 2, closed by ada until it is opened: disk full", 0)


def test_a_launch_behind_another_of_its_job_names_it() -> None:
    rig = with_job(overlap=Overlap.QUEUE).to(30)
    rig.account(30)
    rig.begin(30)
    rig.to(60).account(60)
    assert told(rig)[0] == "@2026-11-20T16:00:30Z is not over (overlap=queue)"


def failed(rig: StateRig, **fields: Any) -> None:
    rig.begin(60)
    rig.finished(60, **{"state": LaunchState.FAILED, "exit_code": 1} | fields)


def test_a_launch_that_rests_says_until_when_and_how_often_it_has_failed() -> None:
    rig = due(retry=Retry(tries=4, backoff_ms=60_000))
    failed(rig)
    until_ms = rig.row(60).not_before_ms
    text, until = told(rig)
    assert text.startswith("it rests until 2026-11-20T16:0")
    assert text.endswith("1 of 4 tries have failed")
    assert until == until_ms // 1000 - T0
    rig.at_ms = until_ms
    assert told(rig)[0] == LEADER_KNOWS


def test_a_launch_whose_handler_snoozed_says_that_it_was_asked_for() -> None:
    rig = due(work=WorkSpec(argv=(), handler="mail"))
    failed(rig, state=LaunchState.CANCELLED, reason=Reason.SNOOZE, retry_after_ms=30_000)
    assert told(rig) == (
        "it rests until 2026-11-20T16:01:30Z: its handler asked for that, or an attempt was lost",
        90,
    )


# ---- what its queue says


@pytest.mark.parametrize(
    ("wait", "text", "until"),
    [
        (Wait(WaitFor.TURN), "it is not its turn yet: others are before it", 0),
        (Wait(WaitFor.RESERVED), "the slots that are free are reserved for others", 0),
        (Wait(WaitFor.LATE), "catch-up is paced behind live launches", 0),
        (
            Wait(WaitFor.JOB_LIMIT, limit=2),
            "other launches of its job go first: 2 at once (overlap, concurrency)",
            0,
        ),
        (
            Wait(WaitFor.TENANT_LIMIT, ("acme", "", -1), 9),
            "the limit of tenant acme is reached: 9 at once",
            0,
        ),
        (
            Wait(WaitFor.QUEUE_LIMIT, ("", "mail", 3), 9),
            "the limit of queue mail/3 is reached: 9 at once",
            0,
        ),
        (
            Wait(WaitFor.RATE, ("*", "mail", -1), 1_500, (T0 + 61) * 1000),
            "the rate of each tenant in pool mail is used up: 1.5 starts a second",
            61,
        ),
        (Wait(WaitFor.NO_ROOM), "no executor has room for it", 0),
    ],
)
def test_a_launch_says_what_its_queue_says(wait: Wait, text: str, until: int) -> None:
    assert told(due(), waiting_for(wait)) == (text, until)


def test_a_launch_without_room_says_what_no_executor_has() -> None:
    queues = waiting_for(Wait(WaitFor.NO_ROOM), "no executor serves handler mail")
    assert told(due(), queues)[0] == "no executor serves handler mail"


def test_what_holds_a_launch_goes_before_what_its_queue_says() -> None:
    rig = due()
    close(rig, tenant="default")
    assert told(rig, waiting_for(Wait(WaitFor.TURN)))[0].startswith("gate 1")


@pytest.mark.parametrize("queues", [None, FakeQueues(), waiting_for(Wait(WaitFor.HOLD))])
def test_what_no_queue_knows_is_told_by_what_state_knows(queues: FakeQueues | None) -> None:
    assert told(due(), queues, connected=frozenset())[0] == "no executor is connected"
    free = "no executor has a free slot"
    assert told(due(), queues)[0] == (LEADER_KNOWS if queues is None else free)


# ---- queues


def depth(pool: str, priority: int, tenant: str, **fields: Any) -> Depth:
    usual = {"waiting": 5, "running": 2, "oldest_ms": T0 * 1000, "blocked_by": None}
    return Depth(pool, priority, tenant, **usual | fields)


async def test_queues_show_what_waits_and_which_limit_is_reached() -> None:
    w = World(with_job())
    assert w.queues is not None
    w.queues.rows = [
        depth("command", 5, "acme"),
        depth("mail", 0, "acme", blocked_by=("acme", "mail", -1)),
        depth("mail", 0, "blue"),
    ]
    report = await w.service.queues(QueueQuery())
    assert report.now_ms == w.rig.at_ms
    assert report.queues[1] == QueueView(
        pool="mail", priority=0, tenant="acme", waiting=5, running=2, oldest_ms=T0 * 1000,
        blocked_by="tenant acme in pool mail",
    )  # fmt: skip
    assert len(report.queues) == 3
    only = await w.service.queues(QueueQuery(tenant="acme", pool="mail"))
    assert only.queues == [report.queues[1]]


async def test_jobs_behind_are_counted_where_they_wait_with_and_without_launches() -> None:
    w = World(with_job())
    assert w.queues is not None
    w.queues.rows = [depth("mail", 0, "blue")]
    w.jobs_behind = {("mail", 0, "blue"): 7, ("command", 5, "acme"): 9}
    report = await w.service.queues(QueueQuery())
    assert [(one.pool, one.waiting, one.jobs_behind) for one in report.queues] == [
        ("command", 0, 9),
        ("mail", 5, 7),
    ]


async def test_a_leader_without_queues_says_so() -> None:
    w = World(with_job())
    w.queues = None
    with pytest.raises(Unavailable, match="no queues yet"):
        await w.service.queues(QueueQuery())


# ---- one launch, or those of a job


def name(w: World, second: int) -> str:
    return str(w.state.launch_name((1, T0 + second, 0)))


async def test_a_launch_shows_its_position_and_why_it_waits() -> None:
    w = World(due(work=WorkSpec(("x",), priority=2)))
    assert w.queues is not None
    w.queues.waits[60] = Wait(WaitFor.RATE, ("", "command", 2), 2_000, (T0 + 63) * 1000)
    w.queues.ahead[60] = 7
    report = await w.service.waits(WaitQuery(launch=name(w, 60)))
    (view,) = report.waits
    assert (view.ahead, view.priority, view.pool, view.tenant) == (7, 2, "command", "default")
    assert (view.state, view.until_ms) == ("due", (T0 + 63) * 1000)
    assert view.due_at_ms == (T0 + 60) * 1000
    assert view.waiting == "the rate of queue command/2 is used up: 2 starts a second"
    assert view.deadline_at_ms == (T0 + 360) * 1000


async def test_a_launch_that_runs_waits_for_nothing() -> None:
    w = World(due())
    w.rig.begin(60)
    (view,) = (await w.service.waits(WaitQuery(launch=name(w, 60)))).waits
    assert (view.state, view.waiting, view.ahead, view.executor) == ("begun", "", None, "e1")
    assert w.queues is not None
    assert w.queues.asked_positions == 0


async def test_the_open_launches_of_a_job_are_shown_oldest_first_and_only_some_are_placed() -> None:
    """A position costs a look at all that waits."""
    w = World(with_job().to(600))
    seconds = list(range(60, 600, 60))
    w.rig.account(*seconds)
    assert w.queues is not None
    w.queues.ahead = {second: n for n, second in enumerate(seconds)}
    report = await w.service.waits(WaitQuery(job=JOB, limit=7))
    assert [view.launch for view in report.waits] == [name(w, second) for second in seconds[:7]]
    assert [view.ahead for view in report.waits] == [0, 1, 2, 3, 4, None, None]
    assert (report.total, w.queues.asked_positions) == (len(seconds), POSITIONS_MAX)


async def test_the_open_launches_of_a_collection_are_those_of_its_jobs() -> None:
    w = World(StateRig())
    w.rig.put(job("a", collection="nightly"), job("b"), job("c", collection="nightly"))
    for number in (1, 2, 3):
        w.rig.account(60, number=number)
    report = await w.service.waits(WaitQuery(collection="nightly"))
    jobs = [view.launch.partition("@")[0] for view in report.waits]
    assert jobs == ["default/a", "default/c"]
    assert (await w.service.waits(WaitQuery(collection="other"))).waits == []


async def test_the_open_launches_of_a_pattern_are_those_of_the_jobs_that_it_matches() -> None:
    w = World(StateRig())
    w.rig.put(job("mail-a"), job("print"), job("mail-b"))
    for number in (1, 2, 3):
        w.rig.account(60, number=number)
    report = await w.service.waits(WaitQuery(job="default/mail*"))
    jobs = [view.launch.partition("@")[0] for view in report.waits]
    assert jobs == ["default/mail-a", "default/mail-b"]


async def test_what_no_executor_has_is_asked_once_for_each_job() -> None:
    """It is a look at all executors, and all launches of a job ask for the same."""
    w = World(with_job().to(600))
    seconds = list(range(60, 600, 60))
    w.rig.account(*seconds)
    assert w.queues is not None
    w.queues.waits = dict.fromkeys(seconds, Wait(WaitFor.NO_ROOM))
    w.queues.lack = "no executor serves handler mail"
    report = await w.service.waits(WaitQuery(job=JOB))
    assert {view.waiting for view in report.waits} == {w.queues.lack}
    assert w.queues.asked_missing == 1


def test_of_too_many_jobs_the_rest_is_told_without_a_look_at_all_executors() -> None:
    queues = FakeQueues()
    queues.lack = "no executor fits zone=eu"
    request = Asked(queues)
    answers = [request.missing((number, T0, 0)) for number in range(MISSING_MAX + 5)]
    assert answers == [queues.lack] * MISSING_MAX + [""] * 5
    assert request.missing((0, T0 + 60, 0)) == queues.lack
    assert queues.asked_missing == MISSING_MAX
    assert asked(None) is None


async def test_a_job_without_open_launches_waits_for_nothing() -> None:
    w = World(with_job())
    assert (await w.service.waits(WaitQuery(job=JOB))).waits == []


async def test_what_does_not_wait_is_told_apart() -> None:
    w = World(due())
    w.rig.begin(60)
    w.rig.finished(60)
    with pytest.raises(NotNow, match="waits for nothing"):
        await w.service.waits(WaitQuery(launch=name(w, 60)))
    with pytest.raises(UnknownLaunch):
        await w.service.waits(WaitQuery(launch="acme/x@2026-11-20T16:00:00Z"))
    with pytest.raises(UnknownJob):
        await w.service.waits(WaitQuery(job="acme/x"))


async def test_a_replica_that_does_not_lead_knows_no_queues() -> None:
    w = World(due())
    w.epoch = None
    for call in (w.service.queues(QueueQuery()), w.service.waits(WaitQuery(job=JOB))):
        with pytest.raises(NotLeader):
            await call


async def test_a_launch_of_a_job_that_was_removed_is_still_shown() -> None:
    w = World(with_job().to(60))
    w.rig.put(job("other"))
    w.rig.to(120).account(120, number=2)
    w.rig.begin(120, number=2)
    w.rig.put(removed=("default/other",))
    (view,) = (await w.service.waits(WaitQuery(job="default/other"))).waits
    assert (view.state, view.pool) == ("begun", "command")
