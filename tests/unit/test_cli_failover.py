"""Commands while leaders change: what a person sees, and how the command ends."""

from __future__ import annotations

import asyncio

import pytest

from cron.api import client as route
from cron.api.jobs import ApplyReport, PauseReport
from cron.api.launches import OutputView, TriggerRequest
from cron.errors import NoQuorum, NotLeader, OutcomeUnknown
from tests.unit.api_rig import FakeBackend, Follower, asks, closed_address, launch, run_cli, serving

LAUNCH = "default/backup@2026-11-20T15:00:00Z"
SHORT = LAUNCH.removeprefix("default/")


async def test_a_trigger_during_an_election_happens_once_and_is_waited_for():
    """The first leader steps down after it has committed; the second one knows the request."""
    known: dict[str, str] = {}

    def commit_and_step_down(asked: TriggerRequest) -> object:
        known[asked.request_id] = f"{LAUNCH}+t1"
        return OutcomeUnknown("leadership changed meanwhile")

    def look_up(asked: TriggerRequest) -> object:
        return launch(launch=known[asked.request_id], state="launched", is_open=True)

    first = FakeBackend(trigger=commit_and_step_down)
    second = FakeBackend(trigger=look_up, show=[launch(launch=f"{LAUNCH}+t1")])
    async with serving(first) as one, serving(second) as other:
        result = await run_cli("trigger", "--wait", "backup", server=f"{one},{other}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"{SHORT}+t1 succeeded"
    assert len(known) == 1


async def test_a_trigger_that_waits_follows_the_launch_to_the_next_leader():
    first = FakeBackend(trigger=launch(state="due", is_open=True))
    second = FakeBackend(show=[launch()])
    async with serving(second) as other, serving(first) as one:
        first.answers["show"] = NotLeader(other)
        result = await run_cli("trigger", "--wait", "backup", server=one)
    assert result.exit_code == 0, result.stderr
    assert second.calls == [("show", (asks("show", LAUNCH),))]


async def test_logs_go_on_at_the_same_byte_with_the_next_leader():
    second = FakeBackend(output=OutputView(content=b"two", offset=3, size=6, ended=True))
    async with serving(second) as other:
        parts = iter([OutputView(content=b"one", size=3), NotLeader(other)])
        first = FakeBackend(output=lambda _: next(parts))
        async with serving(first) as one:
            result = await run_cli("logs", "-f", LAUNCH, server=one)
    assert result.stdout == "onetwo"
    assert second.calls[0][1][0].offset == 3


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OutcomeUnknown("leadership changed meanwhile", "look first"), 6, "leadership changed"),
        (NoQuorum("two of three replicas are away"), 5, "two of three replicas are away"),
        (NotLeader(None), 5, "no leader within 2 s: the change did not happen"),
    ],
)
async def test_a_change_that_fails_says_whether_it_may_still_happen(error, code, words):
    async with serving(FakeBackend(pause=error)) as server:
        result = await run_cli("pause", "backup", "--timeout", "2s", server=server)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


async def test_an_apply_that_nobody_answers_may_still_happen(tmp_path):
    file = tmp_path / "jobs"
    file.write_text("* * * * * true\n")
    backend = FakeBackend(put_jobs=lambda _: asyncio.sleep(60))
    async with serving(backend) as server:
        result = await run_cli("apply", str(file), "--timeout", "3s", server=server)
    assert result.exit_code == 6
    assert "the change may still happen" in result.stderr
    assert len(backend.calls) == 1


async def test_a_dry_run_that_nobody_answers_did_nothing(tmp_path):
    file = tmp_path / "jobs"
    file.write_text("* * * * * true\n")
    backend = FakeBackend(put_jobs=lambda _: asyncio.sleep(60))
    async with serving(backend) as server:
        result = await run_cli("apply", "--dry-run", str(file), "--timeout", "1s", server=server)
    assert result.exit_code == 5
    assert "may still happen" not in result.stderr


async def test_a_command_finds_the_leader_behind_a_dead_replica_and_a_follower():
    leader = FakeBackend(resume=PauseReport(changed=["default/a"]))
    async with serving(leader) as led, serving(Follower(led)) as follower:
        result = await run_cli("resume", "a", server=f"{closed_address()},{follower}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "a resumed\n"


async def test_every_replica_that_was_tried_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(route, "UNREACHED_MS", 1_000)
    servers = [closed_address(), closed_address()]
    result = await run_cli("jobs", server=",".join(servers))
    assert result.exit_code == 5
    assert all(server in result.stderr for server in servers)
    assert result.stderr.count("connection refused") == 1


async def test_a_large_crontab_arrives_whole(tmp_path):
    file = tmp_path / "jobs"
    file.write_bytes(b"".join(b"#: name=j%d\n? 3 * * * true\n" % n for n in range(100_000)))
    backend = FakeBackend(put_jobs=ApplyReport())
    async with serving(backend) as server:
        result = await run_cli("apply", str(file), server=server)
    assert result.exit_code == 0, result.stderr
    assert backend.calls[0][1][0].files[0].content == file.read_bytes()
