"""bench.scrape and bench.console: what their tables say."""

from __future__ import annotations

from bench import console, scrape
from bench.scrape import Window, order


def test_windows_alternate_so_that_a_trend_adds_to_both() -> None:
    assert order(3) == [False, True, True, False, False, True]


def test_medians_are_compared_by_launch() -> None:
    off = [Window(is_scraped=False, cpu_us=us, launches=1_000, seconds=10) for us in (1, 2, 9)]
    on = [Window(is_scraped=True, cpu_us=us, launches=1_000, seconds=10) for us in (1, 3, 5)]
    written = scrape.table([*off, *on])
    assert written.splitlines()[-1] == (
        "Medians: 0.002 µs without and 0.003 µs with scraping: +50.00 %."
    )
    assert written.count("| each second |") == 3


def test_a_page_is_a_row_with_its_size_and_times() -> None:
    page = console.PageTime("Now", 17_100, 400.0, 20.5, 31.0, 12.0)
    assert console.table([page]).splitlines()[-1] == "| Now | 17.1 | 400 | 20.5 | 31 | 12 |"
