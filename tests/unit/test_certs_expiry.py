"""cron.certs.expiry: a certificate's end is told of in time, and once a day."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from cron.certs import expiry
from cron.certs.expiry import days_left, watch_expiry
from cron.certs.making import DAY_S
from tests.unit.certs_rig import REPLICA, Certs
from tests.unit.pool_rig import until


class DayByDay:
    """A clock that is a day later at each reading."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def wall_ms(self) -> int:
        self.at_ms += DAY_S * 1000
        return self.at_ms

    def mono_ms(self) -> int:
        return self.at_ms


async def test_a_month_before_its_end_the_log_begins_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = Certs(tmp_path).credentials(*REPLICA)
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0)
    clock = DayByDay((credentials.not_after_s - 33 * DAY_S) * 1000)
    with structlog.testing.capture_logs() as lines:
        task = asyncio.create_task(watch_expiry(lambda: credentials, clock))
        await until(lambda: len(lines) >= 31)
        task.cancel()
    assert [line["days_left"] for line in lines[:31]] == [*range(29, -2, -1)]
    assert lines[0]["event"] == "certificate.ends"
    assert lines[0]["file"] == credentials.files.cert


def test_whole_days_are_left(tmp_path: Path) -> None:
    credentials = Certs(tmp_path).credentials(*REPLICA)
    end_ms = credentials.not_after_s * 1000
    assert days_left(credentials, end_ms) == 0
    assert days_left(credentials, end_ms - DAY_S * 1000) == 1
    assert days_left(credentials, end_ms + 1000) == -1
