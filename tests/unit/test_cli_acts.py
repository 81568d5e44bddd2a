from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from cron.api.jobs import JobsRequest, JobView, PauseReport, PauseRequest, PauseView
from cron.api.launches import BackfillReport, BackfillRequest, LaunchView, ShowRequest
from cron.errors import NotNow, OutcomeUnknown, UnknownJob
from tests.unit.api_rig import NOON_S, FakeBackend, asks, launch, run_cli, serving

LAUNCH = "default/backup@2026-11-20T15:00:00Z"
SHORT = LAUNCH.removeprefix("default/")


async def cli(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server)


def rows(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- trigger


async def test_trigger_names_the_launch_and_who_asked():
    backend = FakeBackend(trigger=launch(launch=f"{LAUNCH}+t1", state="launched", is_open=True))
    result = await cli(backend, "trigger", "backup")
    assert result.exit_code == 0
    assert result.stdout == f"triggered {SHORT}+t1\n"
    ((_, (asked,)),) = backend.calls
    assert (asked.job, len(asked.request_id), asked.by) == ("default/backup", 32, "ada")


async def test_each_trigger_is_another_request():
    backend = FakeBackend(trigger=launch())
    await cli(backend, "trigger", "backup")
    await cli(backend, "trigger", "backup")
    first, second = (asked.request_id for _, (asked,) in backend.calls)
    assert first != second


@pytest.mark.parametrize(
    ("state", "code"),
    [("succeeded", 0), ("failed", 1), ("lost", 1), ("cancelled", 1), ("skipped", 1)],
)
async def test_trigger_with_wait_ends_with_the_launch(state, code):
    open_views = iter(["due", "begun", "launched"])

    def show(_: ShowRequest) -> list:
        for one in open_views:
            return [launch(state=one, is_open=True)]
        return [launch(state=state, exit_code=3 if state == "failed" else None)]

    backend = FakeBackend(trigger=launch(state="due", is_open=True), show=show)
    result = await cli(backend, "trigger", "--wait", "backup")
    assert result.exit_code == code
    end = ", exit code 3" if state == "failed" else ""
    assert result.stdout.splitlines() == [f"triggered {SHORT}", f"{SHORT} {state}{end}"]
    assert len(backend.calls) == 5


async def test_trigger_with_wait_says_once_what_the_launch_waits_for_and_ends_with_its_timeout():
    waits = launch(state="due", attempt=0, is_open=True, waiting="no executor is connected")
    backend = FakeBackend(trigger=waits, show=[waits])
    result = await cli(backend, "trigger", "--wait", "backup", "--timeout", "3s")
    assert result.exit_code == 6
    assert result.stdout == f"triggered {SHORT}\n"
    first, second, hint = result.stderr.splitlines()
    assert first == f"raftcron: {SHORT} waits: no executor is connected"
    assert second == f"raftcron: {SHORT} is not over within 3 s: due"
    assert "goes on" in hint


async def test_trigger_says_what_became_of_a_launch_that_is_over_in_a_moment():
    skipped = launch(state="skipped", reason="overlap", attempt=0, exit_code=None)
    triggered = launch(state="due", attempt=0, is_open=True)
    result = await cli(FakeBackend(trigger=triggered, show=[skipped]), "trigger", "backup")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [f"triggered {SHORT}", f"{SHORT} skipped (overlap)"]


async def test_trigger_without_wait_says_what_the_launch_waits_for_and_leaves_it():
    waits = launch(state="due", attempt=0, is_open=True, waiting="no executor is connected")
    result = await cli(FakeBackend(trigger=waits, show=[waits]), "trigger", "backup")
    assert result.exit_code == 0
    assert result.stderr == f"raftcron: {SHORT} waits: no executor is connected\n"


async def test_trigger_with_wait_says_why_it_failed():
    view = launch(state="failed", reason="user", exit_code=126, detail="no such user: eve")
    result = await cli(FakeBackend(trigger=view), "trigger", "--wait", "backup")
    assert result.exit_code == 1
    assert f"{SHORT} failed (user), exit code 126: no such user: eve" in result.stdout


async def test_trigger_as_json_prints_the_launch_once_and_only_that():
    backend = FakeBackend(trigger=launch(state="due", is_open=True), show=[launch()])
    (row,) = rows(await cli(backend, "trigger", "--wait", "backup", "-o", "json"))
    assert row["state"] == "succeeded"


async def test_trigger_of_an_unknown_job_exits_with_three():
    result = await cli(FakeBackend(trigger=UnknownJob("no job default/x")), "trigger", "x")
    assert result.exit_code == 3
    assert result.stderr == "raftcron: no job default/x\n"


# ---- backfill


def plan(count: int) -> list[str]:
    return [f"default/backup@2026-11-20T15:{n:02d}:00Z" for n in range(count)]


def backfill(count: int) -> FakeBackend:
    return FakeBackend(
        backfill=lambda asked: BackfillReport(launches=plan(count), is_dry_run=asked.is_dry_run)
    )


PERIOD = ["--from", "2026-11-20T15:00:00Z", "--to", "2026-11-20T16:00:00.001Z"]


async def test_backfill_of_ten_is_planned_and_then_done():
    backend = backfill(10)
    result = await cli(backend, "backfill", "backup", *PERIOD)
    assert result.exit_code == 0, result.stderr
    asked = BackfillRequest(job="default/backup", from_s=NOON_S, to_s=NOON_S + 3601, by="ada")
    dry = BackfillRequest(
        job="default/backup", from_s=NOON_S, to_s=NOON_S + 3601, by="ada", is_dry_run=True
    )
    assert [given for _, (given,) in backend.calls] == [dry, asked]
    assert result.stdout.count("due again: ") == 10


async def test_backfill_of_eleven_prints_its_plan_and_needs_yes():
    backend = backfill(11)
    result = await cli(backend, "backfill", "backup", *PERIOD)
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        f"would launch: {one.removeprefix('default/')}" for one in plan(11)
    ]
    assert "11 launches needs --yes" in result.stderr
    assert all(given.is_dry_run for _, (given,) in backend.calls)


async def test_backfill_of_eleven_with_yes_is_done():
    backend = backfill(11)
    result = await cli(backend, "backfill", "backup", *PERIOD, "--yes", "-o", "json")
    done = rows(result)
    assert [row["launch"] for row in done] == plan(11)
    assert not any(row["is_dry_run"] for row in done)


@pytest.mark.parametrize("count", [0, 3, 11])
async def test_a_dry_run_of_backfill_launches_nothing(count):
    backend = backfill(count)
    result = await cli(backend, "backfill", "backup", *PERIOD, "--dry-run")
    assert result.exit_code == 0
    assert [given.is_dry_run for _, (given,) in backend.calls] == [True]


@pytest.mark.parametrize(
    ("more", "code"), [([], 2), (["--dry-run"], 0), (["--yes"], 0), (["--yes", "-o", "json"], 0)]
)
async def test_backfill_says_how_many_launches_are_older_than_the_job(more, code):
    backend = FakeBackend(
        backfill=lambda asked: BackfillReport(
            launches=plan(11), is_dry_run=asked.is_dry_run, before=9, applied_s=NOON_S + 540
        )
    )
    result = await cli(backend, "backfill", "backup", *PERIOD, *more)
    assert result.exit_code == code
    note = (
        "note: 9 of 11 launches are from before 2026-11-20 15:09:00 UTC, when the job was first "
        "applied; a later --from leaves them out"
    )
    assert [line for line in result.stderr.splitlines() if line.startswith("note")] == (
        [] if "json" in more else [note]
    )


def in_turn(**by_launch: list[str]) -> Callable[[ShowRequest], list[LaunchView]]:
    """What `show` answers: each launch in the states that it has from look to look."""

    def show(asked: ShowRequest) -> list[LaunchView]:
        name = asked.launch
        states = by_launch[f"at_{name[-6:-4]}"]
        state = states.pop(0) if len(states) > 1 else states[0]
        return [launch(launch=name, state=state, is_open=state in ("due", "launched"))]

    return show


WAITING = ["backfill", "backup", *PERIOD, "--wait"]


async def test_backfill_with_wait_says_how_many_are_over_and_how_each_bad_one_ended():
    backend = backfill(3)
    backend.answers["show"] = in_turn(
        at_00=["due", "succeeded"], at_01=["failed"], at_02=["due", "launched", "lost"]
    )
    result = await cli(backend, *WAITING)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-3:] == [
        "backup@2026-11-20T15:01:00Z failed",
        "backup@2026-11-20T15:02:00Z lost",
        "1 of 3 succeeded",
    ]
    assert result.stderr.splitlines() == [
        "raftcron: 1 of 3 are over, 1 not well",
        "raftcron: 2 of 3 are over, 1 not well",
    ]


async def test_backfill_with_wait_of_what_went_well_exits_with_0():
    backend = backfill(3)
    backend.answers["show"] = in_turn(at_00=["succeeded"], at_01=["succeeded"], at_02=["succeeded"])
    done = rows(await cli(backend, *WAITING, "-o", "json"))
    assert [row["launch"] for row in done] == plan(3)
    assert {row["state"] for row in done} == {"succeeded"}


async def test_backfill_with_wait_ends_with_its_timeout_which_is_worse_than_a_failure():
    backend = backfill(2)
    backend.answers["show"] = in_turn(at_00=["failed"], at_01=["due"])
    result = await cli(backend, *WAITING, "--timeout", "2s")
    assert result.exit_code == 6
    assert "1 of 2 launches are not over within 2 s" in result.stderr
    assert "backup@2026-11-20T15:00:00Z failed" in result.stdout


async def test_a_dry_run_waits_for_nothing():
    assert (await cli(backfill(2), *WAITING, "--dry-run")).exit_code == 0


async def test_backfill_needs_a_begin_and_a_period():
    backend = backfill(1)
    assert (await cli(backend, "backfill", "backup")).exit_code == 2
    result = await cli(backend, "backfill", "backup", "--from", "1h", "--to", "2h")
    assert result.exit_code == 2
    assert "range is empty" in result.stderr
    assert backend.calls == []


# ---- kill


async def test_kill_says_what_became_of_the_launch():
    backend = FakeBackend(kill=launch(state="cancelled", reason="killed", exit_code=143))
    result = await cli(backend, "kill", "backup@2026-11-20T15:00:00Z")
    assert result.stdout == f"{SHORT} cancelled (killed), exit code 143\n"
    assert backend.calls == [("kill", (asks("kill", LAUNCH, "ada"),))]


async def test_a_kill_that_is_committed_is_not_over_before_the_processes_are():
    backend = FakeBackend(kill=launch(state="launched", reason="killed", is_open=True))
    result = await cli(backend, "kill", LAUNCH)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{SHORT} is being killed")


async def test_kill_of_what_is_over_exits_with_four():
    result = await cli(FakeBackend(kill=NotNow("it is over")), "kill", LAUNCH)
    assert result.exit_code == 4


async def test_kill_of_an_attempt_is_refused():
    backend = FakeBackend(kill=launch())
    assert (await cli(backend, "kill", f"{SHORT}#1")).exit_code == 2
    assert backend.calls == []


async def test_a_kill_of_unknown_outcome_exits_with_six_and_says_where_to_look():
    backend = FakeBackend(kill=OutcomeUnknown("leadership changed meanwhile", "look at history"))
    result = await cli(backend, "kill", LAUNCH)
    assert result.exit_code == 6
    assert result.stderr.splitlines()[1] == "  hint: look at history"


# ---- jobs, pause, resume


async def test_jobs_shows_where_a_question_mark_was_placed_and_who_paused():
    view = JobView(
        name="acme/b",
        schedule="? 3 * * *",
        resolved="17 3 * * *",
        next_s=[NOON_S],
        paused=True,
        pause_reason="migration",
        paused_by="ada",
        paused_until_ms=NOON_S * 1000,
        last=launch(state="failed"),
    )
    backend = FakeBackend(jobs=[view])
    result = await cli(backend, "jobs", "acme/*")
    assert backend.calls == [("jobs", (JobsRequest(pattern="acme/*"),))]
    line = result.stdout.splitlines()[1]
    for part in ("acme/b", "? 3 * * * = 17 3 * * *", "failed", "  paused  "):
        assert part in line
    assert line.endswith("  paused by ada until 2026-11-20 15:00:00 UTC: migration")
    (row,) = rows(await cli(backend, "jobs", "-o", "json"))
    assert (row["job"], row["tenant"], row["paused"]) == ("b", "acme", True)
    assert row["next"] == ["2026-11-20T15:00:00.000Z"]
    assert row["last"]["state"] == "failed"


async def test_a_cell_without_jobs_says_so():
    assert (await cli(FakeBackend(jobs=[]), "jobs")).stdout == "no jobs\n"


async def test_pause_says_which_jobs_and_until_when():
    report = PauseReport(changed=["default/a"], unchanged=["acme/b"])
    backend = FakeBackend(pause=report)
    result = await cli(
        backend, "pause", "*", "--reason", "migration", "--until", "9000-01-01T00:00:00Z"
    )
    assert result.stdout.splitlines() == [
        "a paused until 9000-01-01 00:00:00 UTC",
        "acme/b was paused already",
    ]
    until_ms = 221_845_392_000_000
    asked = PauseRequest(
        pattern="*/*", reason="migration", until_ms=until_ms, by="ada", is_portion=True
    )
    assert backend.calls == [("pause", (asked,))]


async def test_pause_next_says_until_when_each_job_is_paused():
    pauses = [PauseView(job="default/a", until_ms=NOON_S * 1000 + 1)]
    report = PauseReport(changed=["default/a"], unchanged=["acme/b"], pauses=pauses)
    backend = FakeBackend(pause=report)
    result = await cli(backend, "pause", "*", "--next")
    assert result.stdout.splitlines() == [
        "a paused until 2026-11-20 15:00:00 UTC",
        "acme/b was paused already",
    ]
    ((_, (asked,)),) = backend.calls
    assert (asked.is_next, asked.until_ms) == (True, 0)
    assert (await cli(backend, "pause", "a", "--next", "--for", "1h")).exit_code == 2


async def test_pause_for_a_time_ends_after_now():
    backend = FakeBackend(pause=PauseReport())
    assert (await cli(backend, "pause", "a", "--for", "1h")).exit_code == 0
    ((_, (asked,)),) = backend.calls
    assert asked.until_ms > NOON_S * 1000 - 86_400_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["a", "--until", "5m"],
        ["a", "--until", "9000-01-01T00:00:00Z", "--for", "5m"],
        ["a", "--for", "x"],
        ["a", "--reason", "x" * 501],
        ["a", "--reason", "two\nlines"],
        ["a b"],
        [""],
        [],
    ],
)
async def test_a_pause_that_cannot_be_meant_is_refused(arguments):
    backend = FakeBackend(pause=PauseReport())
    assert (await cli(backend, "pause", *arguments)).exit_code == 2
    assert backend.calls == []


async def test_resume_as_json_tells_what_changed():
    report = PauseReport(changed=["default/a"], unchanged=["acme/b"])
    backend = FakeBackend(resume=report)
    assert rows(await cli(backend, "resume", "*/*", "-o", "json")) == [
        {"job": "a", "tenant": "default", "action": "resumed", "changed": True},
        {"job": "b", "tenant": "acme", "action": "resumed", "changed": False},
    ]
    assert backend.calls == [("resume", (asks("resume", "*/*", "ada", "", True),))]
