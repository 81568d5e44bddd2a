"""kill --wait: until a launch is really over, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cron.api.launches import LaunchView, ShowRequest
from cron.cli import waiting
from cron.cli.options import Settings
from cron.errors import NoQuorum, NotNow, OutcomeUnknown, ReplicaFault, UnknownLaunch
from tests.unit.api_rig import FakeBackend, launch, run_cli, serving

LAUNCH = "default/backup@2026-11-20T15:00:00Z"
SHORT = LAUNCH.removeprefix("default/")
KILLING = launch(state="launched", reason="killed", is_open=True)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_POLL_S", 0.001)


async def kill(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli("kill", LAUNCH, "--wait", *arguments, server=server)


def looks(*views: LaunchView | Exception) -> Callable[[str], Any]:
    """Answers of a leader, one after the other; the last for ever."""
    left = list(views)

    def show(_: ShowRequest) -> Any:
        one = left.pop(0) if len(left) > 1 else left[0]
        return one if isinstance(one, Exception) else [one]

    return show


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ({"state": "cancelled", "reason": "killed", "exit_code": 143}, ", exit code 143"),
        ({"state": "succeeded"}, ""),
        ({"state": "failed", "exit_code": 3}, ", exit code 3"),
    ],
)
async def test_a_kill_waits_until_the_launch_is_over_and_says_how_it_ended(
    end: dict[str, Any], told: str
) -> None:
    """One that was faster than the kill is over as well, which is what was asked for."""
    over = launch(**end)
    backend = FakeBackend(kill=KILLING, show=looks(KILLING, KILLING, over))
    result = await kill(backend)
    assert result.exit_code == 0, result.stderr
    reason = " (killed)" if over.reason else ""
    assert result.stdout.splitlines() == [
        f"{SHORT} is being killed",
        f"{SHORT} {over.state}{reason}{told}",
    ]
    assert [method for method, _ in backend.calls] == ["kill", "show", "show", "show"]


async def test_one_that_had_not_begun_is_over_at_once() -> None:
    backend = FakeBackend(kill=launch(state="cancelled", reason="killed", exit_code=None))
    result = await kill(backend)
    assert (result.exit_code, result.stdout) == (0, f"{SHORT} cancelled (killed)\n")
    assert [method for method, _ in backend.calls] == ["kill"]


async def test_one_that_was_over_before_is_as_wanted() -> None:
    """Who repeats a kill whose wait was cut short does not fail for it."""
    over = launch(state="cancelled", reason="killed", exit_code=143)
    backend = FakeBackend(kill=NotNow("it is over"), show=[over])
    result = await kill(backend)
    assert (result.exit_code, result.stdout) == (0, f"{SHORT} cancelled (killed), exit code 143\n")


async def test_one_that_is_open_again_although_it_was_over_is_a_conflict() -> None:
    """Somebody filled it back between the two looks: that attempt nobody asked to end."""
    backend = FakeBackend(kill=NotNow("it is over"), show=[launch(state="due", is_open=True)])
    result = await kill(backend)
    assert (result.exit_code, result.stderr) == (4, "raftcron: it is over\n")


async def test_an_unknown_launch_ends_with_three() -> None:
    assert (await kill(FakeBackend(kill=UnknownLaunch("no such launch")))).exit_code == 3


async def test_a_wait_has_its_bound_and_the_kill_goes_on() -> None:
    backend = FakeBackend(kill=KILLING, show=looks(KILLING))
    result = await kill(backend, "--timeout", "2s")
    assert result.exit_code == 6
    assert result.stdout == f"{SHORT} is being killed\n"
    assert result.stderr.startswith(f"raftcron: {SHORT} is not over within 2 s: launched\n")


async def test_a_launch_whose_executor_is_away_says_so_once_and_is_not_over_when_it_is_lost() -> (
    None
):
    away = launch(state="launched", reason="killed", is_open=True, in_doubt=True)
    lost = launch(state="lost", exit_code=None)
    result = await kill(FakeBackend(kill=KILLING, show=looks(away, away, lost)))
    assert result.exit_code == 6
    assert result.stdout.splitlines()[-1] == f"{SHORT} lost"
    first, second, hint = result.stderr.splitlines()
    assert first.startswith(f"raftcron: {SHORT} waits: executor e1 is not connected; it is over")
    assert second == f"raftcron: {SHORT} is lost: nobody saw all its processes end"
    assert "guarded" in hint


async def test_a_launch_of_several_parts_is_lost_where_one_of_them_is() -> None:
    parts = [
        LaunchView(part=1, executor="e1", state="cancelled"),
        LaunchView(part=2, executor="e2", state="lost"),
    ]
    backend = FakeBackend(kill=KILLING, show=[launch(state="cancelled", parts=parts)])
    assert (await kill(backend)).exit_code == 6


class Away:
    """A client of a cell that has no leader for a while."""

    def __init__(self, *answers: LaunchView | Exception) -> None:
        self._show = looks(*answers)

    def ask(self, _rpc: Any, request: ShowRequest) -> list[LaunchView]:
        answer = self._show(request)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


def test_a_cell_without_a_leader_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The kill is committed, and the launch ends whoever looks: to say 5, nothing changed, would be
    wrong."""
    over = launch(state="cancelled", reason="killed", exit_code=143)
    nobody = NoQuorum("no majority of replicas answers")
    client: Any = Away(nobody, nobody, OutcomeUnknown("the leader died"), over)
    assert waiting.until_over(Settings(), client, KILLING) == over
    assert capsys.readouterr().err.splitlines() == [
        f"raftcron: {SHORT} waits: no majority of replicas answers",
        f"raftcron: {SHORT} waits: the leader died",
    ]


def test_a_cell_that_has_a_bug_is_not_asked_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """Replicas that answer INTERNAL were asked again for as long as somebody looked on."""
    bug = ReplicaFault("127.0.0.1:7400: a bug ended the request")
    client: Any = Away(bug, bug, NoQuorum("no leader"), *[bug] * waiting.FAULTS_MAX, KILLING)
    with pytest.raises(OutcomeUnknown, match=r"nobody can say whether it is over: .* a bug"):
        waiting.until_over(Settings(), client, KILLING)
    assert capsys.readouterr().err.count("a bug ended the request") == 2  # news, and news again


def test_launches_of_a_cell_that_has_a_bug_are_not_asked_for_ever() -> None:
    client: Any = Away(ReplicaFault("a bug ended the request"))
    with pytest.raises(OutcomeUnknown, match="nobody can say whether it is over"):
        waiting.wait_for_all(Settings(), client, [LAUNCH])


def test_a_trigger_that_is_committed_has_not_failed_where_nobody_tells_how_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended with 5, nothing changed: whoever tried again then triggered twice."""
    monkeypatch.setattr(waiting, "_MOMENT_MS", 30)
    client: Any = Away(NoQuorum("no majority of replicas answers"))
    due = launch(state="due", attempt=0, is_open=True)
    assert waiting.until_known(Settings(), client, due) == due


async def test_for_programs_it_prints_the_launch_once_as_it_ended() -> None:
    over = launch(state="cancelled", reason="killed", exit_code=143)
    result = await kill(FakeBackend(kill=KILLING, show=looks(KILLING, over)), "-o", "json")
    (row,) = (json.loads(line) for line in result.stdout.splitlines())
    assert (row["state"], row["exit_code"]) == ("cancelled", 143)
