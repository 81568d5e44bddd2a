"""bench.flood: its jobs and handlers, whose lateness is whose, and the table."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import fields

from bench import flood
from bench.pump.cell import Moment
from cron.api.launches import LaunchView
from cron.crontab.reader import read_crontab
from cron.keeping_config import SnapshotsConfig
from launcher.config import ExecutorConfig
from launcher.worker.app import load
from tests.unit.dev_fakes import launch

NUMBERS = {5: "five", 10: "ten", 15: "fifteen"}
DUE = Moment(1_000_000, 10_000)


def row(tenant: str, job: str, second: int, late: int | None = 5, **fields: Any) -> LaunchView:
    view = launch(1, lateness_ms=late, **fields)
    return msgspec.structs.replace(view, tenant=tenant, job=job, scheduled_s=second)


def test_small_tenants_launch_everything_each_second_and_the_flood_comes_once() -> None:
    reading = read_crontab(flood.crontab(5, DUE).encode(), file="f")
    assert not reading.problems
    small = [job for job in reading.jobs if not job.name.startswith(flood.HUGE)]
    huge = [job for job in reading.jobs if job.name.startswith(flood.HUGE)]
    assert len(small) == 3 * flood.TENANTS
    assert {job.pool for job in small} == {"flooded", "other", "command"}
    assert {job.pool for job in huge} == {"flooded"}
    assert len(huge) == 5
    assert flood.crontab(5, DUE).count("@every 10000s") == 5


def test_both_handlers_share_a_worker_with_the_default_buffer() -> None:
    [crew] = flood.SHAPE.crews
    registry = load(crew.app)
    assert [one.name for one in registry] == [*flood.HANDLERS]
    registry.check()
    default = next(one for one in fields(ExecutorConfig) if one.name == "worker_buffer").default
    assert flood.SHAPE.buffer == default


def test_the_readme_has_the_default_interval_of_snapshots() -> None:
    minutes = SnapshotsConfig().interval_s // 60
    text = " ".join((flood.ROOT / "bench" / "README.md").read_text().split())
    assert f"The default interval is {NUMBERS[minutes]} minutes." in text


def test_lateness_is_told_apart_by_whose_it_is_and_by_when_it_was_due() -> None:
    rows = [
        row("t1", "flooded", 98, 1), row("t1", "flooded", 99, 3), row("t2", "flooded", 100, 70),
        row("t1", "other", 99, 2), row("t1", "command", 101, 4),
        row(flood.HUGE, "f17", 100, 900), row("t1", "other", 97, 9_000),
        row("t1", "other", 102, 9_000),
    ]  # fmt: skip
    found = flood.compare(rows, 100, 2)
    assert found["flooded"]["before"] == flood.Lateness(2, 1, 3, 3, 3, 0)
    assert found["flooded"]["during"].most == 70
    assert (found["other"]["before"].most, found["other"]["during"].count) == (2, 0)
    assert found["command"]["during"].p50 == 4
    assert found[flood.HUGE]["during"].most == 900
    assert found[flood.HUGE]["before"].count == 0


def test_what_was_not_done_is_bad_and_not_on_time() -> None:
    rows = [
        row("t1", "other", 1, None, state="skipped", count=3),
        row("t1", "other", 1, None, state="due", is_open=True),
        row("t1", "other", 1, 8),
    ]
    assert flood.lateness(rows) == flood.Lateness(5, 8, 8, 8, 8, 4)


def test_the_table_compares_before_with_during() -> None:
    found = flood.compare([row("t1", "other", 99), row("t1", "other", 100, 1_234)], 100, 5)
    run = {
        "variant": "no limits", "flood": 20_000, "seconds": 5,
        "whose": msgspec.to_builtins(found),
    }  # fmt: skip
    lines = flood.table([run]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2:] == [
        "| no limits | small tenants, other handler | before | 1 | 5 | 5 | 5 | 5 | 0 |",
        "| no limits | small tenants, other handler | during | 1 | 1,234 | 1,234 | 1,234 | "
        "1,234 | 0 |",
    ]
    assert "20,000 launches at once" in flood.section([run])


def test_a_number_that_nobody_has_is_a_dash() -> None:
    assert flood.figure(None) == "-"


def test_the_marks_are_in_the_real_file() -> None:
    text = flood.README.read_text()
    assert text.index(flood.BEGIN) < text.index(flood.END)
