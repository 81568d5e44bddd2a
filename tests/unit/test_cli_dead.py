"""dead on the command line: looking at what was given up, launching it again, forgetting it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from cron.api.dead import DEAD_MAX as SERVER_MAX
from cron.api.dead import DeadChange, DeadOutcome, DeadQuery, DeadReport
from cron.api.launches import LaunchView, OutputQuery, OutputView
from cron.cli.dead import DEAD_MAX, LETTERS
from cron.errors import ExecutorAway, NotFound
from tests.unit.api_rig import NOON_S, FakeBackend, launch, run_cli, serving

LAUNCH = "default/mail@2026-11-20T15:00:00Z"
LETTER = LaunchView(
    launch=LAUNCH,
    job="mail",
    tenant="default",
    pool="mail.send",
    attempt=7,
    tries=6,
    state="failed",
    reason="raised",
    ended_at_ms=NOON_S * 1000 + 7,
    exit_code=1,
    detail="KeyError: 'address'",
    executor="e1",
    output_bytes=12,
)


async def cli(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- list, show


async def test_dead_list_shows_why_each_was_given_up():
    backend = FakeBackend(dead=DeadReport(letters=[LETTER], total=1))
    result = await cli(backend, "dead", "list")
    cells = result.stdout.splitlines()[1].split("  ")
    assert [cell.strip() for cell in cells if cell] == [
        "mail@2026-11-20T15:00:00Z", "6", "raised", "1", "2026-11-20 15:00:00", "mail.send",
        "KeyError: 'address'",
    ]  # fmt: skip
    assert result.stderr == ""


async def test_dead_list_asks_for_what_fits_all_filters():
    backend = FakeBackend(dead=DeadReport())
    arguments = (
        "--job billing/* --tenant acme --handler mail.send --reason raised "
        "--since 2026-11-20T00:00:00Z --before 2026-11-21T00:00:00Z --limit 7"
    )
    result = await cli(backend, "dead", "list", *arguments.split())
    assert result.stdout == "no dead letters\n"
    query = DeadQuery(
        jobs="billing/*", tenant="acme", pool="mail.send", reason="raised",
        since_ms=1_795_132_800_000, until_ms=1_795_219_200_000, limit=7,
    )  # fmt: skip
    assert backend.calls == [("dead", (query,))]


async def test_dead_list_may_begin_with_the_newest():
    backend = FakeBackend(dead=DeadReport())
    assert (await cli(backend, "dead", "list", "--newest", "--limit", "3")).exit_code == 0
    assert backend.calls == [("dead", (DeadQuery(limit=3, is_newest=True),))]


async def test_dead_list_says_how_many_it_does_not_show():
    backend = FakeBackend(dead=DeadReport(letters=[LETTER], total=1_234))
    assert "1233 more" in (await cli(backend, "dead", "list")).stderr
    result = await cli(backend, "dead", "list", "-o", "json")
    assert "1233 more" in result.stderr
    (row,) = rows(result)
    assert list(row) == [
        "launch", "job", "tenant", "full_name", "pool", "attempt", "tries", "state", "reason",
        "died_at", "exit_code", "detail", "executor", "output_bytes", "is_gone", "count",
        "first",
    ]  # fmt: skip
    assert (row["launch"], row["job"], row["tenant"]) == (LAUNCH, "mail", "default")


async def test_a_letter_without_reason_or_detail_shows_its_state_and_its_missing_job():
    view = LaunchView(launch=LAUNCH, job="mail", tenant="default", state="failed")
    assert LETTERS.cells(view)[2:] == ["failed", "-", "-", "-", "its job was removed"]


async def test_dead_show_has_the_end_of_the_last_output():
    output = OutputView(content=b"Traceback\n", size=10, ended=True)
    backend = FakeBackend(dead=DeadReport(letters=[LETTER], total=1), output=output)
    result = await cli(backend, "dead", "show", "mail@2026-11-20T15:00:00Z")
    lines = result.stdout.splitlines()
    assert lines[0] == LAUNCH.removeprefix("default/")
    assert ["given", "up", "2026-11-20", "15:00:00.007", "UTC:", "raised"] in map(str.split, lines)
    assert lines[-2:] == ["output, the last 10 of 10 bytes:", "Traceback"]
    (_, (query,)), (_, (asked,)) = backend.calls
    assert query == DeadQuery(launch=LAUNCH, is_newest=True)
    assert asked == OutputQuery(launch=LAUNCH, attempt=7, limit=2_048, tail=True)
    (row,) = rows(await cli(backend, "dead", "show", LAUNCH, "-o", "json"))
    assert row["output_tail"] == "Traceback\n"


async def test_dead_show_without_its_executor_says_why_there_is_no_output():
    away = ExecutorAway("executor e1 is not connected")
    backend = FakeBackend(dead=DeadReport(letters=[LETTER], total=1), output=away)
    result = await cli(backend, "dead", "show", LAUNCH)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "output: executor e1 is not connected"


async def test_dead_show_of_what_is_none_ends_with_three():
    backend = FakeBackend(dead=NotFound(f"launch {LAUNCH} is not a dead letter", "look elsewhere"))
    result = await cli(backend, "dead", "show", LAUNCH)
    assert (result.exit_code, result.stdout) == (3, "")
    result = await cli(FakeBackend(dead=DeadReport()), "dead", "show", "mail")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(
        "raftcron: mail has no dead letter\n  hint: `raftcron dead list`"
    )


# ---- redrive, drop


def test_the_bound_of_a_request_is_that_of_the_server():
    assert DEAD_MAX == SERVER_MAX


def launches(count: int) -> list[str]:
    return [f"default/mail@2026-11-20T15:00:{n:02d}Z" for n in range(count)]


class Letters(FakeBackend):
    """A leader with a number of dead letters, of which it takes `at_once` in one request."""

    def __init__(self, count: int, at_once: int = DEAD_MAX) -> None:
        super().__init__(redrive=self._take, drop_dead=self._take)
        self._names = launches(count)
        self._at_once = at_once

    def _take(self, change: DeadChange) -> DeadOutcome:
        left = max(0, len(self._names) - self._at_once)
        taken = self._names[: self._at_once]
        return DeadOutcome(launches=taken, left=left, is_dry_run=change.is_dry_run)

    @property
    def asked(self) -> list[bool]:
        """Whether each call was a dry run."""
        return [given[0].is_dry_run for _, given in self.calls]


@pytest.mark.parametrize(
    ("verb", "method", "text"),
    [("redrive", "redrive", "due again"), ("drop", "drop_dead", "dropped")],
)
async def test_a_few_are_done_at_once(verb, method, text):
    backend = Letters(10)
    result = await cli(backend, "dead", verb, "--handler", "mail.send")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{text}: {name.removeprefix('default/')}" for name in launches(10)
    ]
    query = DeadQuery(pool="mail.send", limit=DEAD_MAX)
    assert backend.calls == [
        (method, (DeadChange(query=query, is_dry_run=True, by="ada"),)),
        (method, (DeadChange(query=query, by="ada"),)),
    ]


@pytest.mark.parametrize("verb", ["redrive", "drop"])
async def test_more_than_ten_need_a_yes(verb):
    backend = Letters(11)
    result = await cli(backend, "dead", verb, "--all")
    assert result.exit_code == 2
    assert backend.asked == [True]
    assert "11 dead letters need --yes, nothing was" in result.stderr
    assert len(result.stdout.splitlines()) == 11
    backend = Letters(11)
    assert (await cli(backend, "dead", verb, "--all", "--yes")).exit_code == 0
    assert backend.asked == [True, False]
    assert backend.calls[-1][1][0].is_everything


@pytest.mark.parametrize("verb", ["redrive", "drop"])
async def test_a_dry_run_only_shows(verb):
    backend = Letters(12)
    result = await cli(backend, "dead", verb, "--tenant", "acme", "--dry-run")
    assert result.exit_code == 0
    assert backend.asked == [True]
    assert result.stdout.startswith("would be ")
    in_json = rows(await cli(Letters(2), "dead", verb, "--all", "--dry-run", "-o", "json"))
    assert [(row["launch"], row["is_dry_run"]) for row in in_json] == [
        (name, True) for name in launches(2)
    ]


async def test_what_one_request_cannot_take_is_counted():
    backend = Letters(30, at_once=20)
    result = await cli(backend, "dead", "redrive", "--all", "--yes")
    assert len(result.stdout.splitlines()) == 20
    assert result.stderr == "raftcron: 10 are left; repeat it for them\n"


async def test_left_letters_count_for_the_yes_as_well():
    backend = Letters(11, at_once=5)
    result = await cli(backend, "dead", "redrive", "--all")
    assert result.exit_code == 2
    assert "11 dead letters need --yes" in result.stderr


async def test_what_stays_is_told_with_its_reason():
    outcome = DeadOutcome(kept=[f"{LAUNCH}: its job was removed"])
    result = await cli(FakeBackend(redrive=outcome), "dead", "redrive", "--all")
    assert result.exit_code == 3
    name = LAUNCH.removeprefix("default/")
    assert f"raftcron: nothing was launched: {name}: its job was removed\n" in result.stderr
    assert result.stdout == ""


async def test_what_stays_beside_what_is_launched_is_told_with_its_reason():
    outcome = DeadOutcome(launches=["default/a@2026-11-20T15:00:00Z"], kept=[f"{LAUNCH}: it ran"])
    result = await cli(FakeBackend(redrive=outcome), "dead", "redrive", "--all")
    assert result.exit_code == 0
    assert f"stays: {LAUNCH.removeprefix('default/')}: it ran" in result.stderr


@pytest.mark.parametrize(("verb", "method"), [("redrive", "redrive"), ("drop", "drop_dead")])
async def test_a_change_of_no_dead_letter_is_not_found(verb, method):
    backend = FakeBackend(**{method: DeadOutcome()})
    result = await cli(backend, "dead", verb, "--tenant", "a")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no dead letter fits" in result.stderr
    assert len(backend.calls) == 1


async def test_a_cell_that_does_not_know_collections_changes_nothing():
    """A replica of before drops the filter from the query, and would change far more."""
    backend = FakeBackend(drop_dead=DeadOutcome(launches=[LAUNCH]))
    result = await cli(backend, "dead", "drop", "--tenant", "a", "--collection", "nightly")
    assert result.exit_code == 2
    assert "do not know --collection; nothing was changed" in result.stderr
    assert len(backend.calls) == 1


async def test_one_launch_is_named_and_may_leave_out_its_tenant():
    backend = Letters(1)
    await cli(backend, "dead", "redrive", "mail@2026-11-20T15:00:00Z#7")
    assert backend.calls[0][1][0].query == DeadQuery(launch=LAUNCH, limit=DEAD_MAX)


@pytest.mark.parametrize("arguments", ["", "--yes", "--dry-run", "--all --tenant a"])
async def test_nothing_named_is_nothing_done(arguments):
    backend = FakeBackend()
    result = await cli(backend, "dead", "drop", *arguments.split())
    assert result.exit_code == 2
    assert "name a launch, task, job or filter; or --all" in result.stderr
    assert backend.calls == []


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("lost", 1)])
async def test_redrive_with_wait_ends_as_the_launch_does(state, code):
    outcome = DeadOutcome(launches=[LAUNCH], is_dry_run=False)
    views = [launch(launch=LAUNCH, state="due", is_open=True), launch(launch=LAUNCH, state=state)]
    backend = FakeBackend(redrive=outcome, show=lambda _: [views.pop(0)])
    result = await cli(backend, "dead", "redrive", LAUNCH, "--wait")
    assert result.exit_code == code
    assert views == []
    assert result.stdout.splitlines()[-1] == f"{int(not code)} of 1 succeeded"


async def test_a_dry_run_of_redrive_waits_for_nothing():
    outcome = DeadOutcome(launches=[LAUNCH], is_dry_run=True)
    result = await cli(
        FakeBackend(redrive=outcome), "dead", "redrive", LAUNCH, "--wait", "--dry-run"
    )
    assert result.exit_code == 0


async def test_dead_list_says_that_the_cell_itself_has_letters_and_how_to_see_them():
    backend = FakeBackend(dead=DeadReport(letters=[LETTER], total=1, own=2))
    result = await cli(backend, "dead", "list")
    way = "`raftcron dead list --tenant raftcron` lists them"
    assert result.stderr == f"raftcron: 2 dead letters of the cell itself; {way}\n"
