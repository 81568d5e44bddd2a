"""The page Now: which minutes of the next day are crowded."""

from __future__ import annotations

from cron.api.overview import ActivityReport
from tests.unit.api_rig import NOON_S, FakeBackend
from tests.unit.test_console_pages import full, page_of


async def now_with(counts: list[int]) -> str:
    report = ActivityReport(now_ms=NOON_S * 1000, crowd=counts[:60], crowd_day=counts)
    _, read = await page_of("/", FakeBackend(**full("x").answers | {"activity": report}))
    return read.text


async def test_the_most_crowded_minutes_of_the_next_day_are_named() -> None:
    counts = [1] * 1440
    counts[540], counts[90] = 300, 45
    text = await now_with(counts)
    assert "The next 24 hours" in text
    assert "(300)" in text
    assert "(45)" in text
    assert text.index("(300)") < text.index("(45)")


async def test_of_an_even_day_no_minute_is_named() -> None:
    text = await now_with([3] * 1440)
    assert "The next 24 hours" in text
    assert "Most launches fall due at" not in text


async def test_where_only_the_next_hour_is_known_that_is_shown() -> None:
    text = await now_with([3] * 60)
    assert "The next hour" in text
    assert "The next 24 hours" not in text
