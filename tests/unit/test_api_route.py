"""What a client says when its time is over, on a clock of its own."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api import client as route
from cron.api.client import Client
from cron.api.launches import KillRequest, ShowRequest
from cron.api.link import Refused
from cron.api.table import JOBS, KILL, QUEUES, SHOW
from cron.errors import NoQuorum, NotLeader, Unavailable
from launcher.http2 import NoAnswer

LAUNCH = "default/a@2026-11-20T15:00:00Z"


class Cell:
    """One replica without a leader, which from `slow_from_ms` on answers nothing in time."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, slow_from_ms: int, timeout_ms: int = 3_000
    ) -> None:
        self.now_ms = 0
        self.slow_from_ms = slow_from_ms
        self.asked_ms: list[int] = []
        monkeypatch.setattr(route, "Link", lambda *_: self)
        monkeypatch.setattr(route.time, "sleep", self.sleep)
        self.client = Client(["127.0.0.1:1"], timeout_ms)
        self.client._clock = self

    def mono_ms(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.now_ms += max(1, round(seconds * 1000))

    def call(self, *_: Any, timeout_ms: int, **__: Any) -> list[Any]:
        self.asked_ms.append(self.now_ms)
        self.now_ms += min(timeout_ms, 10)
        if self.now_ms > self.slow_from_ms:
            self.now_ms += timeout_ms
            raise NoAnswer(f"no answer within {timeout_ms} ms")
        raise Refused(NotLeader(None), [])


@pytest.mark.parametrize("is_change", [False, True])
def test_nobody_is_asked_again_in_less_time_than_a_slow_replica_needs(monkeypatch, is_change):
    cell = Cell(monkeypatch, slow_from_ms=2_600)
    request = KillRequest(launch=LAUNCH) if is_change else ShowRequest(launch=LAUNCH)
    with pytest.raises(NoQuorum, match="no leader within 3 s"):
        cell.client.ask(KILL if is_change else SHOW, request)
    assert len(cell.asked_ms) > 3
    assert max(cell.asked_ms) <= 3_000 - 500


def test_a_last_try_that_time_cut_short_does_not_hide_that_there_is_no_leader(monkeypatch):
    cell = Cell(monkeypatch, slow_from_ms=1_500)
    with pytest.raises(NoQuorum, match="no leader within 3 s"):
        cell.client.ask(JOBS)


def test_a_replica_that_had_its_time_and_did_not_answer_is_named(monkeypatch):
    cell = Cell(monkeypatch, slow_from_ms=0, timeout_ms=10_000)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: no answer within 2000 ms") as caught:
        cell.client.ask(JOBS)
    assert "--timeout" in caught.value.hint


def test_a_read_that_no_replica_answers_in_time_is_told_of_stale_answers(monkeypatch):
    cell = Cell(monkeypatch, slow_from_ms=0, timeout_ms=10_000)
    with pytest.raises(Unavailable) as caught:
        cell.client.ask(JOBS)
    assert "--stale" in caught.value.hint
    with pytest.raises(Unavailable) as caught:
        cell.client.ask(QUEUES)
    assert "--stale" not in caught.value.hint
