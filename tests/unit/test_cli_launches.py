from __future__ import annotations

import json
import re

import pytest
from click.testing import Result

from cron.api.launches import (
    HistoryQuery,
    LaunchView,
    OutputQuery,
    OutputView,
    StoryLine,
    WhyReport,
)
from cron.cli.rows import LAUNCHES
from cron.errors import ExecutorAway, NotNow, UnknownLaunch
from tests.unit.api_rig import FakeBackend, asks, launch, run_cli, serving

LAUNCH = "default/backup@2026-11-20T15:00:00Z"
PROMISED = """
launch job tenant scheduled_at attempt state reason begun_at launched_at started_at finished_at
exit_code executor term lateness_ms
"""
KEYS = PROMISED.split()


async def cli(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server)


def rows(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


ROW_KEYS = (
    "kind", "is_amended", "amends", "ended_index", "number", "cpu_ms", "memory_peak_bytes",
)  # fmt: skip


async def test_a_launch_as_json_begins_with_the_keys_that_were_promised():
    result = await cli(FakeBackend(history=[launch()]), "history", "-o", "json")
    (row,) = rows(result)
    assert list(row) == [*KEYS, "full_name", "output_bytes", *ROW_KEYS]
    assert row == {
        "launch": LAUNCH,
        "job": "backup",
        "tenant": "default",
        "scheduled_at": "2026-11-20T15:00:00.000Z",
        "attempt": 1,
        "state": "succeeded",
        "reason": None,
        "begun_at": "2026-11-20T15:00:00.003Z",
        "launched_at": "2026-11-20T15:00:00.009Z",
        "started_at": "2026-11-20T15:00:00.007Z",
        "finished_at": "2026-11-20T15:00:01.507Z",
        "exit_code": 0,
        "executor": "e1",
        "term": 4,
        "lateness_ms": 7,
        "full_name": "default/backup",
        "output_bytes": None,
        "kind": "launch",
        "is_amended": False,
        "amends": None,
        "ended_index": 90,
        "number": None,
        "cpu_ms": None,
        "memory_peak_bytes": None,
    }


async def test_what_never_was_is_null():
    view = LaunchView(
        launch=LAUNCH, job="default/backup", tenant="default", scheduled_s=0, state="skipped"
    )
    (row,) = rows(await cli(FakeBackend(history=[view]), "-o", "json", "history"))
    never = ["begun_at", "launched_at", "started_at", "finished_at", "exit_code", "executor"]
    assert [row[key] for key in [*never, "term", "lateness_ms"]] == [None] * 8
    assert row["job"] == "backup"


async def test_a_run_of_skipped_instants_says_where_it_ends():
    view = launch(state="skipped", reason="missed", count=3, last_s=1_795_186_920)
    backend = FakeBackend(history=[view])
    (row,) = rows(await cli(backend, "history", "-o", "json"))
    assert row["count"] == 3
    assert row["last_scheduled_at"] == "2026-11-20T15:02:00.000Z"
    assert "and 2 more" in (await cli(backend, "history")).stdout


async def test_history_asks_for_what_was_asked():
    backend = FakeBackend(history=[])
    result = await cli(
        backend, "history", "acme/b", "--state", "failed,lost", "--state", "due",
        "--since", "2026-11-20T15:00:00Z", "--until", "2026-11-20T16:00:00Z", "--limit", "7",
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout == "no launches\n"
    query = HistoryQuery(
        job="acme/b",
        states=["due", "failed", "lost"],
        since_ms=1_795_186_800_000,
        until_ms=1_795_190_400_000,
        limit=8,
    )
    assert backend.calls == [("history", (query,))]


async def test_history_asks_for_fifty_in_every_state_by_default():
    backend = FakeBackend(history=[])
    await cli(backend, "history")
    assert backend.calls == [("history", (HistoryQuery(limit=51),))]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--state", "sleeping"],
        ["--limit", "0"],
        ["--limit", "1000000000"],
        ["--since", "yesterday"],
        ["--since", "2026-11-20T25:00:00"],
        ["a b"],
        ["x" * 10_000],
    ],
)
async def test_history_refuses_what_cannot_be_meant(arguments):
    backend = FakeBackend(history=[])
    result = await cli(backend, "history", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert backend.calls == []


async def test_a_history_in_a_pipe_has_all_columns_and_the_zone_once():
    result = await cli(FakeBackend(history=[launch()]), "history")
    head, line = result.stdout.splitlines()
    assert re.split(r"  +", head) == [column.upper() for column in LAUNCHES.columns]
    assert line.startswith("backup@2026-11-20T15:00:00Z  1 ")
    assert line.split()[-6:] == ["2026-11-20", "15:00:00", "7ms", "1.5s", "0", "e1"]


async def test_show_has_both_log_points_the_epoch_and_the_tail_of_the_output():
    output = OutputView(content=b"one\ntwo \xff\n", size=9)
    backend = FakeBackend(show=[launch(by="ada")], output=output)
    result = await cli(backend, "show", "backup@2026-11-20T15:00:00Z")
    assert result.exit_code == 0, result.stderr
    for part in (
        "index 88",
        "index 89",
        "index 90",
        "0.4.r1",
        "e1",
        "7ms",
        "ada",
        "one\ntwo \\xff\n",
    ):
        assert part in result.stdout
    query = OutputQuery(launch=LAUNCH, attempt=1, limit=2_048, tail=True)
    assert backend.calls == [("show", (asks("show", LAUNCH),)), ("output", (query,))]


async def test_show_as_json_begins_with_the_keys_of_a_launch():
    views = [launch(state="lost"), launch(attempt=2)]
    backend = FakeBackend(show=views, output=OutputView(content=b"hi"))
    first, second = rows(await cli(backend, "show", LAUNCH, "-o", "json"))
    assert list(first)[: len(KEYS)] == KEYS
    assert (first["output_tail"], second["output_tail"]) == (None, "hi")
    assert (second["begun_index"], second["launched_index"]) == (88, 89)


async def test_show_of_an_attempt_shows_that_attempt():
    backend = FakeBackend(show=[launch(), launch(attempt=2)], output=OutputView())
    (row,) = rows(await cli(backend, "show", f"{LAUNCH}#1", "-o", "json"))
    assert row["attempt"] == 1
    result = await cli(backend, "show", f"{LAUNCH}#3")
    assert result.exit_code == 3
    assert "no attempt 3" in result.stderr


async def test_show_without_its_executor_shows_the_rest():
    backend = FakeBackend(show=[launch()], output=ExecutorAway("e1 is not connected"))
    result = await cli(backend, "show", LAUNCH)
    assert result.exit_code == 0
    assert "output: e1 is not connected" in result.stdout


async def test_an_unknown_launch_exits_with_three():
    result = await cli(
        FakeBackend(show=UnknownLaunch("no such launch", "see history")), "show", LAUNCH
    )
    assert result.exit_code == 3
    assert result.stderr == "raftcron: no such launch\n  hint: see history\n"


async def test_logs_escapes_controls_and_raw_prints_the_bytes_in_as_many_parts_as_it_takes():
    parts = {0: b"\x1b[1m\xff", 5: b"end"}

    def output(query: OutputQuery) -> OutputView:
        return OutputView(content=parts[query.offset], offset=query.offset, size=8)

    result = await cli(FakeBackend(output=output), "logs", f"{LAUNCH}#2")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"\\x1b[1m\\xffend"
    result = await cli(FakeBackend(output=output), "logs", f"{LAUNCH}#2", "--raw")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"\x1b[1m\xffend"


@pytest.mark.parametrize("arguments", [[], ["-o", "json"]])
async def test_logs_prints_all_that_is_kept_of_an_output_whose_begin_was_dropped(arguments):
    kept, dropped = b"0123456789", 7

    def output(query: OutputQuery) -> OutputView:
        offset = max(query.offset, dropped)
        part = kept[offset - dropped :][:4]
        return OutputView(content=part, offset=offset, size=len(kept), dropped=dropped)

    result = await cli(FakeBackend(output=output), "logs", LAUNCH, *arguments)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    texts = [json.loads(line)["text"] for line in lines] if arguments else lines
    assert "".join(texts) == kept.decode()


async def test_show_counts_what_was_written_and_says_what_is_kept_of_it():
    output = OutputView(content=b"end", offset=97, size=10, dropped=90)
    result = await cli(FakeBackend(show=[launch()], output=output), "show", LAUNCH)
    assert "output, the last 3 of 100 bytes, of which the last 10 are kept:" in result.stdout


async def test_logs_says_how_much_was_not_kept():
    backend = FakeBackend(output=OutputView(content=b"x", size=1, ended=True, dropped=99))
    result = await cli(backend, "logs", LAUNCH)
    assert result.stdout == "x"
    assert "99 bytes" in result.stderr


async def test_logs_of_an_executor_that_is_away_says_so_at_once_and_exits_with_five():
    backend = FakeBackend(output=ExecutorAway("executor e1 is not connected", "see status"))
    result = await cli(backend, "logs", LAUNCH)
    assert result.exit_code == 5
    assert result.stderr == "raftcron: executor e1 is not connected\n  hint: see status\n"
    assert len(backend.calls) == 1  # it is not asked for again until the time is over


async def test_logs_follows_from_before_the_begin_to_the_end():
    answers = iter(
        [
            NotNow("it has not begun"),
            OutputView(content=b"", size=0),
            OutputView(content=b"one\n", offset=0, size=4),
            OutputView(content=b"", offset=4, size=4),
            OutputView(content=b"two\n", offset=4, size=8, ended=True),
        ]
    )
    backend = FakeBackend(output=lambda _: next(answers), show=[launch(state="due", is_open=True)])
    result = await cli(backend, "logs", "-f", LAUNCH)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "one\ntwo\n"
    offsets = [given[0].offset for method, given in backend.calls if method == "output"]
    assert offsets == [0, 0, 0, 4, 4]


async def test_logs_does_not_follow_what_never_begins():
    backend = FakeBackend(output=NotNow("it never began"), show=[launch(state="skipped")])
    result = await cli(backend, "logs", "-f", LAUNCH)
    assert result.exit_code == 4


async def test_logs_as_json_has_the_place_of_each_part():
    backend = FakeBackend(output=OutputView(content=b"a\xff", size=2, ended=True))
    (row,) = rows(await cli(backend, "logs", LAUNCH, "-o", "json"))
    assert row == {"launch": LAUNCH, "offset": 0, "text": "a\ufffd"}


async def test_why_tells_the_verdict_first_and_then_the_story():
    report = WhyReport(
        job="default/backup",
        at_s=1_795_186_800,
        verdict="skipped: it was paused",
        story=[StoryLine(1_795_186_800_000, "paused by ada"), StoryLine(0, "catch-up is none")],
        launches=[launch(state="skipped", reason="paused")],
    )
    backend = FakeBackend(why=report)
    result = await cli(backend, "why", "backup", "2026-11-20T15:00:00Z")
    lines = result.stdout.splitlines()
    assert lines[0] == "skipped: it was paused"
    assert lines[1] == "  2026-11-20 15:00:00.000 UTC  paused by ada"
    assert lines[2].strip() == "catch-up is none"
    assert backend.calls == [("why", (asks("why", "default/backup", 1_795_186_800, False),))]
    (row,) = rows(await cli(backend, "why", "backup", "5m", "-o", "json"))
    assert row["verdict"] == "skipped: it was paused"
    assert row["story"][0] == {"at": "2026-11-20T15:00:00.000Z", "text": "paused by ada"}


async def test_why_of_an_age_asks_about_then_and_says_when_that_was():
    report = WhyReport(job="default/backup", at_s=1_795_186_800, verdict="it ran")
    backend = FakeBackend(why=report)
    result = await cli(backend, "why", "backup", "5m")
    assert result.stdout.splitlines() == ["at 2026-11-20 15:00:00 UTC:", "it ran"]
    ((_, (asked,)),) = backend.calls
    assert asked.is_nearest is True


@pytest.mark.parametrize("named", ["@2026-11-20T15:00:00Z", "@2026-11-20T15:00:00Z#2"])
async def test_why_takes_the_name_of_a_launch_as_history_prints_it(named):
    report = WhyReport(job="default/backup", at_s=1_795_186_800, verdict="it ran")
    backend = FakeBackend(why=report)
    result = await cli(backend, "why", f"backup{named}")
    assert result.stdout.splitlines() == ["it ran"]
    assert backend.calls == [("why", (asks("why", "default/backup", 1_795_186_800, False),))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["backup@2026-11-20T15:00:00Z", "5m"], "a launch says its time itself: leave TIME out"),
        (["backup@noon"], "is not a launch name"),
    ],
)
async def test_why_says_what_it_lacks(arguments, said):
    result = await cli(FakeBackend(), "why", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
