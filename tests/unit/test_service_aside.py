"""Requests that compute: beside the loop, within a time, and with an honest answer at its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cron.clock import Clock
from cron.errors import LimitExceeded
from cron.job import Schedule
from cron.service import jobs as pauses
from cron.service.jobs import ASIDE_MS_MAX, Aside, Patience
from tests.unit.state_rig import job
from tests.unit.test_leader_term import reigning
from tests.unit.test_service_pauses import service

LEAP = Schedule("0 0 29 2 *", "0 0 29 2 *", "America/New_York")
MINUTELY = Schedule("* * * * *", "* * * * *", "UTC")


class Fleeting:
    """A clock that goes on by itself each time that it is read."""

    def __init__(self, step_ms: int) -> None:
        self.now_ms = 0
        self.step_ms = step_ms

    def wall_ms(self) -> int:
        return self.mono_ms()

    def mono_ms(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


async def test_the_loop_goes_on_while_many_times_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    compute = pauses.next_times

    def slowly(*arguments, **named):  # type: ignore[no-untyped-def]
        begun.set()
        assert go_on.wait(60), "the loop went on meanwhile"
        return compute(*arguments, **named)

    monkeypatch.setattr(pauses, "next_times", slowly)
    async with reigning() as replica:
        await replica.put(job("backup", schedule=LEAP))
        asked = asyncio.create_task(service(replica).next("default/backup", None, 10_000))
        await asyncio.to_thread(begun.wait, 30)
        go_on.set()  # only a loop that is free comes here
        found = await asked
    assert len(found.times_s) > 10
    assert found.times_s == sorted(set(found.times_s))


async def test_a_request_that_takes_too_long_is_told_how_far_it_came() -> None:
    aside = Aside(Fleeting(ASIDE_MS_MAX // 4))

    def work(patience: Patience) -> int:
        for _ in range(10_000):
            patience.spend()
        return patience.rows

    with pytest.raises(LimitExceeded, match=r"after 2 s only \d+ were found") as caught:
        await aside.run(work, "ask for fewer")
    assert caught.value.hint == "ask for fewer"
    assert await Aside(Fleeting(0)).run(work, "") == 10_000


async def test_times_of_a_job_that_take_too_long_are_refused_and_not_cut_short() -> None:
    async with reigning() as replica:
        await replica.put(job("backup", schedule=MINUTELY))
        asked = service(replica)
        assert len((await asked.next("default/backup", None, 300)).times_s) == 300
        asked = service(replica, clock=Fleeting(ASIDE_MS_MAX))
        with pytest.raises(LimitExceeded) as caught:
            await asked.next("default/backup", None, 300)
        assert "fewer times" in caught.value.hint


async def test_only_a_few_requests_compute_at_once() -> None:
    clock: Clock = Fleeting(0)
    aside, running, most = Aside(clock), 0, 0
    lock = threading.Lock()

    def work(_: Patience) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    await asyncio.gather(*(aside.run(work, "") for _ in range(50)))
    assert 1 <= most <= 2
