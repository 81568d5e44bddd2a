"""cron.dev.launches and feed: the live list of launches, and what dev says of an apply."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import click
import pytest

from cron.api.jobs import ApplyReport, JobChange, SourceFile
from cron.api.members import StatusRow
from cron.api.rpc import Asks
from cron.clock import SystemClock
from cron.dev.feed import Feed, format_report
from cron.dev.launches import Leaders, LiveList, format_launch, refuse_strangers
from cron.errors import ConfigError, InvariantViolated, NoQuorum, NotNow, Problem
from cron.launch_state import LaunchState
from tests.unit.dev_fakes import START_MS, FakeCell, launch


def look_nowhere(_: object, __: int) -> None:
    """Ask nobody who leads."""


def live(cell: FakeCell) -> tuple[LiveList, list[str]]:
    lines: list[str] = []
    return LiveList(cell, lambda line: lines.append(click.unstyle(line)), START_MS), lines


def test_each_launch_is_shown_once_oldest_first() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    cell.rows = [launch(2), launch(1)]
    assert shown.run_once(START_MS) == 2
    cell.rows = [launch(3), launch(2), launch(1)]
    assert shown.run_once(START_MS) == 1
    assert [line.split()[1] for line in lines] == ["a@1", "a@2", "a@3"]


def test_a_line_has_time_launch_state_lateness_and_executor() -> None:
    line = click.unstyle(format_launch(launch(1)))
    assert line.split("  ")[0] == "08:00:01.020Z"
    assert line.split()[1:] == ["a@1", "succeeded", "+12", "ms", "executor-1"]


def test_a_line_says_what_went_wrong() -> None:
    row = launch(1, state="failed", reason="timeout", exit_code=143, attempt=2, detail="sent TERM")
    line = click.unstyle(format_launch(row))
    assert line.endswith("a@1#2  failed     +12 ms  executor-1  timeout  exit code 143  sent TERM")


def test_a_run_of_skipped_instants_is_one_line() -> None:
    row = launch(
        1, state="skipped", reason="missed", count=61, last_s=START_MS // 1000 + 61,
        lateness_ms=None, started_at_ms=0, finished_at_ms=0, executor="", kind="range",
    )  # fmt: skip
    line = click.unstyle(format_launch(row))
    place = "08:00:01.030Z  a@1 and 60 more until 08:01:01Z"
    assert line == f"{place}  skipped    missed"


def test_what_ended_before_dev_started_is_not_shown() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    cell.rows = [launch(1), launch(-1)]
    shown.run_once(START_MS)
    assert len(lines) == 1


def test_a_long_launch_is_shown_while_it_runs_and_when_it_is_over() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    running = launch(1, state="launched", is_open=True, finished_at_ms=0, ended_at_ms=0)
    cell.rows = [running]
    assert shown.run_once(running.started_at_ms + 1_999) == 0
    assert shown.run_once(running.started_at_ms + 2_000) == 1
    assert shown.run_once(running.started_at_ms + 9_000) == 0
    cell.rows = [launch(1)]
    assert shown.run_once(running.started_at_ms + 9_500) == 1
    assert [line.split()[2] for line in lines] == ["launched", "succeeded"]


def test_a_launch_that_waits_is_not_shown() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    cell.rows = [launch(1, state="due", is_open=True, started_at_ms=0, ended_at_ms=0)]
    shown.run_once(START_MS + 60_000)
    assert lines == []


def test_above_twenty_launches_a_second_one_line_a_second_sums_them_up() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    for look in range(1, 41):  # 50 launches a second, for twenty seconds
        ended = [launch(second) for second in range(25 * look, 25 * (look - 1), -1)]
        cell.rows = [*ended, *cell.rows]
        shown.run_once(START_MS + 500 * look)
    summed = [line for line in lines if "launches:" in line]
    counted = sum(int(line.split()[1]) for line in summed)
    assert len(lines) - len(summed) + counted == 25 * 40, "each was counted or shown, once"
    assert len(summed) <= 20
    assert len(lines) < 100
    assert summed[-1].endswith("  50 launches: 50 succeeded; +12 ms median, +12 ms at most")


def test_a_burst_of_sixty_is_shown_launch_by_launch_and_calm_brings_the_lines_back() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    cell.rows = [launch(second) for second in range(60, 0, -1)]
    shown.run_once(START_MS)
    assert len(lines) == 60
    cell.rows = [launch(second) for second in range(90, 60, -1)]
    shown.run_once(START_MS + 1_000)
    assert len(lines) == 61
    cell.rows = [launch(second) for second in range(95, 90, -1)]
    shown.run_once(START_MS + 1_500)  # within the second of the summary
    assert len(lines) == 61
    shown.run_once(START_MS + 2_000)
    assert [line.split()[1] for line in lines[61:]] == [f"a@{n}" for n in range(91, 96)]


def test_a_summary_counts_states_and_says_if_there_were_more() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    failed = [launch(second, state="failed", lateness_ms=900) for second in range(2_000, 1_700, -1)]
    cell.rows = [*failed, *(launch(second) for second in range(1_700, 0, -1))]
    shown.run_once(START_MS)
    [line] = lines
    assert line.endswith(
        "more than 1,000 launches: 700 succeeded, 300 failed; +12 ms median, +900 ms at most"
    )
    assert [query.limit for query in cell.queries] == [1_000]
    cell.rows = [launch(second) for second in range(4_000, 2_000, -1)]
    shown.run_once(START_MS + 1_000)  # each row costs the leader, which is busy
    assert lines[-1].endswith(
        "more than 100 launches: 100 succeeded; +12 ms median, +12 ms at most"
    )
    assert [query.limit for query in cell.queries] == [1_000, 100]


def test_a_summary_of_what_was_never_started_says_nothing_of_lateness() -> None:
    cell = FakeCell()
    shown, lines = live(cell)
    cell.rows = [
        launch(second, state="skipped", reason="overload", lateness_ms=None)
        for second in range(70, 0, -1)
    ]
    shown.run_once(START_MS)
    assert lines[-1].endswith("  70 launches: 70 skipped")


def replica(name: str, term: int, since_ms: int, role: str = "leader", **more: Any) -> StatusRow:
    return StatusRow(kind="replica", id=name, role=role, term=term, since_ms=since_ms, **more)


def test_a_new_leader_is_told_with_the_time_since_the_old_one_died() -> None:
    cell, lines, died = FakeCell(), [], {"r1": START_MS + 4_000}
    leaders = Leaders(lines.append, lambda name: died.get(name, 0))

    def look(second: int, *rows: StatusRow) -> None:
        cell.replicas = list(rows)
        leaders.look(cell, START_MS + second * 1_000)

    look(1, replica("r1", 0, 0, "follower"))
    look(2, replica("r1", 1, START_MS + 500), replica("r2", 1, 0, "follower"))
    look(3, replica("r1", 1, START_MS + 500))
    look(5, replica("r2", 2, START_MS + 4_500))
    look(6, replica("r2", 2, START_MS + 4_500))
    look(7, replica("r3", 3, START_MS + 6_800))  # it was handed over: nobody died
    look(9, replica("r3", 5, START_MS + 8_000))
    assert lines == [
        "r1 leads now, term 1",
        "r2 leads now, term 2, 0.5 s after r1",
        "r3 leads now, term 3; r2 led before",
        "r3 leads now, term 5",
    ]


@pytest.mark.parametrize("off_ms", [-3_600_000, 0, 3_600_000])
def test_the_time_without_a_leader_is_told_by_our_own_clock(off_ms: int) -> None:
    """The clocks of the cell may be an hour off; how long one leads, it knows all the same."""
    cell, lines, died = FakeCell(), [], {"r1": START_MS + 4_000}
    now_ms = START_MS
    leaders = Leaders(lines.append, lambda name: died.get(name, 0), lambda: now_ms)

    def look(second: int, name: str, term: int, led_ms: int) -> None:
        nonlocal now_ms
        now_ms = START_MS + second * 1_000
        wall_ms = now_ms + off_ms
        cell.replicas = [replica(name, term, wall_ms - led_ms, wall_ms=wall_ms)]
        leaders.look(cell, now_ms - 20)  # the answer took 20 ms

    look(2, "r1", 1, 1_500)
    look(5, "r2", 2, 300)
    assert lines[1:] == ["r2 leads now, term 2, 0.7 s after r1"]


def test_who_leads_is_asked_once_a_second_at_most() -> None:
    cell, lines = FakeCell(), []
    leaders = Leaders(lines.append, lambda _: 0)
    leaders.look(cell, START_MS)
    cell.replicas = [replica("r1", 1, START_MS)]
    leaders.look(cell, START_MS + 500)
    assert lines == []
    leaders.look(cell, START_MS + 1_000)
    assert lines == ["r1 leads now, term 1"]


def test_a_crontab_is_not_applied_to_another_cell() -> None:
    """It was, where another cell had the ports of this one."""
    cell = FakeCell()
    ours = replica("r1", 1, START_MS, pid=7, address="127.0.0.1:7400")
    cell.replicas = [ours, replica("r2", 1, 0, "follower", pid=8, address="127.0.0.1:7401")]
    ended = threading.Event()
    check = partial(refuse_strangers, is_ours=lambda pid: pid == 7)
    files = [SourceFile("crontab", b"@daily a\n")]
    feed = Feed(files, SystemClock(), lambda _: None, look_nowhere, check)
    feed.start(cell.connect(["a", "b", "c"]), ended.set)
    assert ended.wait(60)
    assert isinstance(feed.failure, ConfigError)
    assert "127.0.0.1:7401: r2 of another cell (pid 8) answers there" in str(feed.failure)
    assert "--port" in feed.failure.hint
    assert cell.applied == []


def test_a_replica_that_a_person_starts_later_is_no_other_cell() -> None:
    """`raftcron replica --join` takes the place of one that was replaced, as soon as the crontab is
    applied: the cell ended if that was before a leader had been seen."""
    cell, applied, looked = FakeCell(), threading.Event(), threading.Event()
    cell.replicas = [replica("r1", 1, START_MS, pid=7)]

    def look(asked: Asks, now_ms: int) -> None:
        if applied.is_set():
            looked.set()

    check = partial(refuse_strangers, is_ours=lambda pid: pid == 7)
    files = [SourceFile("crontab", b"@daily a\n")]

    def said(_: str) -> None:
        cell.replicas = [replica("r2", 2, START_MS + 5_000, pid=8)]
        applied.set()

    feed = Feed(files, SystemClock(), said, look, check)
    feed.start(cell.connect(["a", "b", "c"]), looked.set)
    try:
        assert looked.wait(60)
        assert applied.is_set()
        assert feed.failure is None
    finally:
        feed.stop()


def test_every_state_has_a_line() -> None:
    for state in LaunchState:
        assert state.label in click.unstyle(format_launch(launch(1, state=state.label)))


def run_feed(cell: FakeCell, files: list[SourceFile], until: str) -> tuple[Feed, list[str]]:
    lines: list[str] = []
    reached = threading.Event()

    def say(line: str) -> None:
        lines.append(click.unstyle(line))
        if until in line:
            reached.set()

    feed = Feed(files, SystemClock(), say, look_nowhere)
    feed.start(cell.connect(["a", "b", "c"]), reached.set)
    assert reached.wait(60)
    feed.stop()
    return feed, lines


def test_the_feed_waits_for_a_leader_applies_with_prune_and_shows_launches() -> None:
    cell = FakeCell()
    waits = NotNow("the cell was restored: waits for executors to come")
    cell.failures = [NoQuorum("no leader"), waits, NoQuorum("no leader")]
    cell.rows = [launch(1, ended_at_ms=SystemClock().wall_ms() + 60_000)]
    feed, lines = run_feed(cell, [SourceFile("crontab", b"x")], "  a@1")
    assert feed.failure is None
    assert lines[0] == "applied crontab: 1 added; default zone UTC"
    (request,) = cell.applied
    assert request.prune
    assert request.by
    assert request.source is None, "the file's name is the source"


def test_without_a_crontab_nothing_is_applied() -> None:
    cell = FakeCell()
    cell.rows = [launch(1, ended_at_ms=SystemClock().wall_ms() + 60_000)]
    _, lines = run_feed(cell, [], "  a@1")
    assert len(lines) == 1
    assert cell.applied == []


@pytest.mark.parametrize("files", [[], [SourceFile("crontab", b"x")]])
def test_the_cell_works_once_it_has_a_leader_and_the_crontab(files: list[SourceFile]) -> None:
    cell = FakeCell()
    cell.failures = [NoQuorum("no leader")]
    works, failures_left = threading.Event(), []
    feed = Feed(files, SystemClock(), lambda _: None, look_nowhere)

    def note() -> None:
        failures_left.append(len(cell.failures))
        works.set()

    feed.start(cell.connect(["a", "b", "c"]), works.set, note)
    assert works.wait(60)
    feed.stop()
    assert failures_left[0] == 0
    assert len(cell.applied) == len(files)


def test_a_moment_without_a_leader_does_not_end_the_list() -> None:
    cell = FakeCell()
    cell.failures = [NoQuorum("no leader")]
    cell.rows = [launch(1, ended_at_ms=SystemClock().wall_ms() + 60_000)]
    feed, _ = run_feed(cell, [], "  a@1")
    assert feed.failure is None


@pytest.mark.parametrize("error", [ConfigError("no"), InvariantViolated("never")])
def test_what_it_cannot_live_with_ends_the_feed_and_is_kept(error: Exception) -> None:
    cell = FakeCell()
    cell.failures = [error]  # type: ignore[list-item]
    feed, _ = run_feed(cell, [SourceFile("crontab", b"x")], "never said")
    assert feed.failure is error


def test_a_report_counts_the_changes_and_repeats_the_warnings() -> None:
    changes = [
        JobChange(action=action, job="default/a") for action in ("added", "removed", "added")
    ]
    warning = Problem("tab", 3, 0, "MAILTO is ignored", "use logs", is_warning=True)
    report = ApplyReport(zone="Europe/Berlin", changes=changes, problems=[warning])
    assert format_report(report, "tab").splitlines() == [
        "tab line 3: warning: MAILTO is ignored",
        "applied tab: 2 added, 1 removed; default zone Europe/Berlin",
    ]
    assert "no jobs" in format_report(ApplyReport(), "tab")
