from __future__ import annotations

import json

import pytest

from cron.api.jobs import NextTimes
from cron.errors import UnknownJob
from tests.unit.api_rig import NOON_S, FakeBackend, run_cli, serving

NOON = "2026-11-20T15:00:00Z"


async def offline(*arguments: str) -> list[dict]:
    result = await run_cli("next", *arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_an_expression_needs_no_cluster():
    rows = await offline("*/5 * * * *", "--after", NOON, "-n", "2")
    assert [row["scheduled_at"] for row in rows] == [
        "2026-11-20T15:05:00.000Z",
        "2026-11-20T15:10:00.000Z",
    ]


async def test_after_is_exclusive():
    (row,) = await offline("0 15 * * *", "--after", NOON, "-n", "1")
    assert row["scheduled_at"] == "2026-11-21T15:00:00.000Z"


async def test_a_zone_is_that_of_the_schedule():
    (row,) = await offline("0 3 * * *", "--tz", "Europe/Berlin", "--after", NOON, "-n", "1")
    assert row == {
        "scheduled_at": "2026-11-21T02:00:00.000Z",
        "job": None,
        "tenant": None,
        "local_time": "2026-11-21T03:00:00+01:00",
        "zone": "Europe/Berlin",
        "schedule": "0 3 * * *",
        "resolved": "0 3 * * *",
        "paused": False,
        "follows": [],
    }


async def test_a_period_has_seconds():
    rows = await offline("@every 90s", "--after", NOON, "-n", "2")
    assert [row["scheduled_at"][11:19] for row in rows] == ["15:01:30", "15:03:00"]


async def test_a_question_mark_shows_what_it_became():
    result = await run_cli("next", "? 3 * * *", "--after", NOON, "-n", "1")
    assert result.exit_code == 0
    first, head, line = result.stdout.splitlines()
    schedule, _, resolved = first.partition(" = ")
    assert schedule == "? 3 * * *"
    minute = int(resolved.split()[0])
    assert head == "SCHEDULED UTC"
    assert line == f"2026-11-21 03:{minute:02d}:00"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("61 * * * *", "61"),
        ("0 0 30 2 *", "never"),
        ("* * * * * *", "6 fields"),
        ("* * * *", "4 fields"),
        ("@sometimes", "@sometimes"),
        ("@reboot", "@reboot"),
        ("@", "known"),
        ("* * * * \x00", "U+0000"),
        ("*,*,* " + "1," * 5_000 + "1 * * *", "256"),
    ],
)
async def test_a_bad_expression_exits_with_two_and_says_why(expression, message):
    result = await run_cli("next", expression)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


async def test_an_unknown_zone_is_refused():
    result = await run_cli("next", "* * * * *", "--tz", "Europe/Berln")
    assert result.exit_code == 2
    assert "Europe/Berlin" in result.stderr


@pytest.mark.parametrize("count", ["0", "-1", "10001", "x"])
async def test_a_count_out_of_bounds_is_a_usage_error(count):
    assert (await run_cli("next", "* * * * *", "-n", count)).exit_code == 2


async def test_a_file_shows_the_times_of_each_of_its_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").write_text("#: name=a\n0 3 * * * x\n#: name=acme/b\n? 3 * * * y\n")
    rows = await offline("jobs", "--after", NOON, "-n", "2")
    assert [(row["tenant"], row["job"]) for row in rows] == [("default", "a")] * 2 + [
        ("acme", "b")
    ] * 2
    assert rows[2]["schedule"] == "? 3 * * *"
    assert rows[2]["resolved"] not in (None, "0 3 * * *")


async def test_a_file_with_an_error_shows_all_errors_and_exits_with_two(tmp_path):
    file = tmp_path / "bad"
    file.write_text("61 * * * * x\n62 * * * * x\n")
    result = await run_cli("next", str(file))
    assert result.exit_code == 2
    assert "line 1" in result.stderr
    assert "line 2" in result.stderr


async def test_anything_else_is_a_job_of_the_cell():
    answer = NextTimes(
        job="acme/b", schedule="? 3 * * *", resolved="7 3 * * *", zone="UTC", times_s=[NOON_S]
    )
    backend = FakeBackend(next=answer)
    async with serving(backend) as server:
        result = await run_cli("next", "acme/b", "-n", "3", "-o", "json", server=server)
        assert result.exit_code == 0, result.stderr
        (row,) = [json.loads(line) for line in result.stdout.splitlines()]
        await run_cli("next", "acme/b", "--after", NOON, server=server)
        shown = await run_cli("next", "acme/b", "--tz", "Asia/Kolkata", server=server)
    assert (row["scheduled_at"], row["job"]) == ("2026-11-20T15:00:00.000Z", "b")
    assert "2026-11-20 20:30:00+05:30" in shown.stdout
    assert [(asked.job, asked.after_s, asked.count) for _, (asked,) in backend.calls] == [
        ("acme/b", None, 3),
        ("acme/b", NOON_S, 5),
        ("acme/b", None, 5),
    ]


async def test_an_unknown_job_exits_with_three():
    async with serving(FakeBackend(next=UnknownJob("no job default/x"))) as server:
        assert (await run_cli("next", "x", server=server)).exit_code == 3


async def test_the_times_of_a_paused_job_are_marked_and_the_pause_is_told():
    answer = NextTimes(
        job="default/backup", schedule="0 * * * *", times_s=[NOON_S, NOON_S + 3_600],
        paused=True, pause_reason="upgrade", paused_until_ms=(NOON_S + 60) * 1000,
    )  # fmt: skip
    async with serving(FakeBackend(next=answer)) as server:
        result = await run_cli("next", "backup", server=server)
        rows = await run_cli("next", "backup", "-o", "json", server=server)
    told = "backup is paused until 2026-11-20 15:01:00 UTC (upgrade): "
    assert result.stdout.startswith(told + "what is due meanwhile is skipped\n")
    assert [json.loads(line)["paused"] for line in rows.stdout.splitlines()] == [True, False]
