"""Stale reads over real connections: which replica answers, and the age that it reports."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api import client, table
from cron.api.client import Client
from cron.api.reading import Behind, current
from cron.clock import SystemClock
from cron.errors import NoQuorum, NotLeader
from tests.unit.api_rig import FakeBackend, call, in_thread, launch, run_cli, serving

BEHIND = Behind("r2", 41, 44, 360)


class Clock(SystemClock):
    """A client's clock. It goes on by a minute, and nobody waits, where a replica has no leader to
    name."""

    passed_ms = 0

    def mono_ms(self) -> int:
        return super().mono_ms() + self.passed_ms


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SystemClock", Clock)
    monkeypatch.setattr(Clock, "passed_ms", 0)


def nobody_leads() -> NotLeader:
    """The answer of a replica that knows no leader; whoever asked waits in vain."""
    Clock.passed_ms += 60_000
    return NotLeader(None)


def on_a_follower(answer: Any, behind: Behind = BEHIND) -> Any:
    """Answer what may be stale; send everybody else to a leader that is not there."""

    def answered(*_: object) -> Any:
        if not current().is_stale:
            return nobody_leads()
        current().behind = behind
        return answer

    return answered


async def test_a_stale_read_is_answered_by_any_replica_and_says_how_old_it_is() -> None:
    backend = FakeBackend(jobs=on_a_follower([]), history=on_a_follower([launch()]))
    backend.answers["next"] = backend.answers["limits"] = NotLeader(None)
    async with serving(backend) as server:
        told: list[Behind] = []

        def ask() -> None:
            with Client([server], 60_000, on_behind=told.append) as asking:
                assert asking.ask(table.JOBS) == []

        await in_thread(ask)
        assert told == [BEHIND]


async def test_a_read_without_stale_is_for_the_leader_and_the_error_names_the_way_out() -> None:
    async with serving(FakeBackend(jobs=on_a_follower([]))) as server:

        def ask() -> None:
            with Client([server], 60_000) as asking, pytest.raises(NoQuorum) as caught:
                asking.ask(table.JOBS)
            assert "--stale" in caught.value.hint

        await in_thread(ask)


async def test_a_change_is_never_stale() -> None:
    seen: list[bool] = []

    def resumed(*_: object) -> NotLeader:
        seen.append(current().is_stale)
        return nobody_leads()

    async with serving(FakeBackend(resume=resumed)) as server:

        def ask() -> None:
            ask_all = Client([server], 60_000, on_behind=lambda _: None)
            with ask_all as asking, pytest.raises(NoQuorum):
                call(asking, "resume", "*/*", "ada")

        await in_thread(ask)
    assert seen
    assert not any(seen)


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        (BEHIND, "stale: from r2, 0.4 s behind the leader (index 41, 3 entries are still to be"),
        (Behind("r3", 7, 7, None), "stale: from r3, which has not heard from a leader since its"),
    ],
)
async def test_the_command_line_tells_the_age_on_stderr(behind: Behind, said: str) -> None:
    async with serving(FakeBackend(jobs=on_a_follower([], behind))) as server:
        done = await run_cli("jobs", "--stale", "-o", "json", server=server)
        assert done.exit_code == 0, done.output
        assert said in done.stderr
        assert done.stdout == ""
        done = await run_cli("jobs", "--timeout", "1m", server=server)
        assert done.exit_code == 5
        assert "--stale" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("jobs",), ("history",), ("show", "x@2026-11-20T15:00:00Z"), ("why", "x", "5m"),
        ("audit",), ("next", "x"), ("limit", "list"), ("gate", "list"), ("dead", "list"),
    ],
)  # fmt: skip
async def test_every_read_of_what_all_replicas_have_takes_stale(command: tuple[str, ...]) -> None:
    done = await run_cli(*command, "--help")
    assert "--stale" in done.output
