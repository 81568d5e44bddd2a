"""`raftcron replica`: what it starts, and `replace` with its questions, refusals and waiting."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from cron import endings
from cron.api.members import (
    GrowReport,
    GrowRequest,
    JoinProgress,
    ReplaceReport,
    ReplaceRequest,
    StatusRow,
)
from cron.cli import options, replica
from cron.errors import NotNow, OutcomeUnknown, StillAlive, Unavailable, UnknownReplica
from tests.unit.api_rig import FakeBackend, run_cli, serving

REPORT = ReplaceReport(
    replica="r2",
    incarnation=2,
    member_state="open",
    raft="127.0.0.1:7411",
    client="127.0.0.1:7401",
)
ALIVE = StillAlive("r2 is connected to the leader; its disk would be shut out for good", "--yes")


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    programs: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, program: programs.append(program[1:]))
    return programs


# ---- running one


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([], []),
        (["--join", "--data", "a b"], ["--data", "a b", "--join"]),
        (["--bootstrap", "--die-with-parent"], ["--bootstrap", "--die-with-parent"]),
    ],
)
async def test_what_an_empty_directory_means_reaches_the_daemon(became, given, passed):
    await run_cli("replica", "--config", "r2.toml", *given)
    assert became == [["-m", "cron.daemon", "--config", "r2.toml", *passed]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--bootstrap", "--join"], "one or the other"),
        (["--joyn"], "No such option"),
        (["replace", "r2"], "--config is of no use to replace"),
        (["restart"], "there is no command"),
    ],
)
async def test_what_cannot_be_meant_starts_nothing(became, given, says):
    result = await run_cli("replica", "--config", "r2.toml", *given)
    assert result.exit_code == 2
    assert says in result.stderr
    assert became == []


async def test_help_lists_the_exit_codes_of_a_replica():
    result = await run_cli("replica", "--help")
    for code, meaning in endings.MEANINGS.items():
        assert f"{code}  {meaning}" in result.stdout
    assert "replace" in result.stdout
    assert "--die-with-parent" not in result.stdout


# ---- replacing one


async def replace(backend: FakeBackend, *arguments: str, stdin: bytes | None = None) -> Any:
    async with serving(backend) as server:
        return await run_cli("replica", "replace", *arguments, server=server, stdin=stdin)


async def test_a_replaced_replica_is_told_with_the_command_that_comes_next():
    backend = FakeBackend(replace=REPORT)
    result = await replace(backend, "r2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "r2 is open for a new disk (incarnation 2); its old one is out",
        "next, on its machine, with an empty data directory:",
        "  raftcron join          (as root, where the package's unit runs it)",
        "  raftcron replica --config r2.toml --join",
        "the others expect it at raft 127.0.0.1:7411 and client 127.0.0.1:7401",
    ]
    assert backend.calls == [("replace", (ReplaceRequest(replica="r2", by="ada"),))]


async def test_all_that_is_given_reaches_the_leader():
    backend = FakeBackend(replace=REPORT)
    await replace(backend, "r2", "--raft", "[::1]:1", "--client", "[::1]:2", "--yes")
    (_, (request,)) = backend.calls[0]
    assert request == ReplaceRequest(
        replica="r2", raft="[::1]:1", client="[::1]:2", is_confirmed=True, by="ada"
    )


async def test_what_was_open_already_is_told_so():
    result = await replace(
        FakeBackend(replace=ReplaceReport(replica="r2", incarnation=3, was_open=True)), "r2"
    )
    assert result.stdout.startswith("r2 waits for a new disk already (incarnation 3)\n")


async def test_json_is_one_object_with_the_command():
    result = await replace(FakeBackend(replace=REPORT), "r2", "-o", "json")
    assert json.loads(result.stdout) == {
        "replica": "r2",
        "incarnation": 2,
        "member_state": "open",
        "raft": "127.0.0.1:7411",
        "client": "127.0.0.1:7401",
        "was_open": False,
        "command": "raftcron replica --config r2.toml --join",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ALIVE, 4),
        (NotNow("a change is under way"), 4),
        (UnknownReplica("replica r2 does not exist", "the cell has r1, r3, r4"), 3),
        (OutcomeUnknown("no answer: r2 may still be replaced"), 6),
    ],
)
async def test_a_refusal_is_told_with_its_exit_code(error, code):
    backend = FakeBackend(replace=error)
    result = await replace(backend, "r2")
    assert result.exit_code == code
    assert result.stderr.startswith(f"raftcron: {error}")
    assert result.stdout == ""
    assert len(backend.calls) == 1


async def test_where_nobody_knows_the_hint_says_what_to_look_at():
    result = await replace(FakeBackend(replace=OutcomeUnknown("no answer", "whatever")), "r2")
    assert "hint: `raftcron status` shows whether r2 is open; then it was done" in result.stderr


async def test_an_address_that_is_none_is_refused():
    result = await replace(FakeBackend(), "r2", "--raft", "7411")
    assert result.exit_code == 2
    assert "raft address '7411' is not host:port" in result.stderr


@pytest.mark.parametrize(("answer", "code", "asked"), [(True, 0, 2), (False, 4, 1)])
async def test_a_person_is_asked_before_one_that_is_well_is_shut_out(
    monkeypatch, answer, code, asked
):
    questions: list[str] = []

    def confirm(text: str, **_: Any) -> bool:
        questions.append(text)
        return answer

    monkeypatch.setattr(options.click, "confirm", confirm)
    monkeypatch.setattr(options, "can_ask", lambda: True)
    backend = FakeBackend(replace=lambda request: REPORT if request.is_confirmed else ALIVE)
    result = await replace(backend, "r2")
    assert questions == [f"{ALIVE}. Go on?"]
    assert result.exit_code == code
    assert len(backend.calls) == asked
    assert ("nothing was changed" in result.stderr) is not answer


# ---- waiting for the new one


def row(**fields: Any) -> StatusRow:
    return StatusRow(
        kind="replica", id="r2", **{"incarnation": 2, "member_state": "joining"} | fields
    )


class Stages:
    """A status that changes with every look; the last one stays."""

    def __init__(self, *looks: list[StatusRow] | Exception) -> None:
        self._looks = list(looks)

    def __call__(self, _: object) -> list[StatusRow] | Exception:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "_LOOK_S", 0.01)


VOTES = row(member_state="votes")


async def test_with_wait_each_stage_is_told_once_until_it_votes():
    looks = Stages(
        [row(incarnation=1, member_state="votes")],  # of a follower that does not know yet
        [row(member_state="open")],
        [row(member_state="open")],
        [row(joining=JoinProgress("dump", 40_000_000, 100_000_000))],
        [],
        [row(joining=JoinProgress("log", 120_000, 130_000))],
        [VOTES],
    )
    result = await replace(FakeBackend(replace=REPORT, status=looks), "r2", "--wait")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[5:] == [
        "r2 waits for a new disk",
        "r2 receives the state: 40 of 100 MB",
        "r2 receives the log: 120,000 of 130,000 entries",
        "r2 votes from now on (incarnation 2)",
    ]


async def test_with_wait_a_refusal_is_told_once_it_stands():
    over = row(
        member_state="open", joining=JoinProgress("waiting", text="r1: it has a disk already")
    )
    stands = row(member_state="open", joining=JoinProgress("waiting", text="r1: another cell"))
    looks = Stages([over], [stands], [stands], [stands], [VOTES])
    result = await replace(FakeBackend(replace=REPORT, status=looks), "r2", "--wait")
    assert result.stdout.splitlines()[5:] == [
        "r2 waits to be taken in: r1: another cell",
        "r2 votes from now on (incarnation 2)",
    ]


async def test_with_wait_a_cell_that_is_away_for_a_moment_is_asked_again():
    looks = Stages(Unavailable("stopping"), [VOTES])
    result = await replace(FakeBackend(replace=REPORT, status=looks), "r2", "--wait")
    assert result.exit_code == 0, result.stderr


async def test_with_wait_and_json_there_is_one_object_and_progress_on_stderr():
    looks = Stages([row(member_state="open")], [VOTES])
    backend = FakeBackend(replace=REPORT, status=looks)
    result = await replace(backend, "r2", "--wait", "-o", "json")
    assert json.loads(result.stdout)["member_state"] == "votes"
    assert result.stderr.splitlines() == [
        "r2 waits for a new disk",
        "r2 votes from now on (incarnation 2)",
    ]


async def test_a_wait_ends_with_six_after_its_timeout():
    backend = FakeBackend(replace=REPORT, status=[row()])
    result = await replace(backend, "r2", "--wait", "--timeout", "3s")
    assert result.exit_code == 6
    assert "r2 does not vote within 3 s" in result.stderr


async def test_a_wait_ends_when_the_id_is_replaced_once_more():
    backend = FakeBackend(replace=REPORT, status=[row(incarnation=3, member_state="open")])
    result = await replace(backend, "r2", "--wait")
    assert result.exit_code == 4
    assert "r2 was replaced once more: incarnation 3" in result.stderr


# ---- adding one


ADDED = GrowReport(
    replica="r2",
    incarnation=1,
    member_state="open",
    raft="127.0.0.1:7411",
    client="127.0.0.1:7401",
)


async def grow(backend: FakeBackend, *arguments: str) -> Any:
    async with serving(backend) as server:
        return await run_cli("cell", "grow", *arguments, server=server)


async def test_an_added_replica_is_told_with_the_command_that_comes_next():
    backend = FakeBackend(grow=ADDED)
    result = await grow(backend, "r2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "r2 is added to the cell",
        "next, on its machine, with an empty data directory:",
        "  raftcron join          (as root, where the package's unit runs it)",
        "  raftcron replica --config r2.toml --join",
        "the others expect it at raft 127.0.0.1:7411 and client 127.0.0.1:7401",
    ]
    assert backend.calls == [("grow", (GrowRequest(replica="r2", by="ada"),))]


async def test_a_replica_that_is_there_is_told_so():
    there = GrowReport(replica="r2", incarnation=1, member_state="votes", was_there=True)
    result = await grow(FakeBackend(grow=there), "r2", "--wait")
    assert result.stdout == "r2 is a replica of the cell already, and votes\n"
    waiting = GrowReport(replica="r2", incarnation=1, member_state="open", was_there=True)
    result = await grow(FakeBackend(grow=waiting), "r2")
    assert result.stdout.startswith("r2 was added before\n")


async def test_growth_as_json_is_one_object_with_the_command():
    result = await grow(FakeBackend(grow=ADDED), "r2", "-o", "json")
    assert json.loads(result.stdout) == {
        "replica": "r2",
        "incarnation": 1,
        "member_state": "open",
        "raft": "127.0.0.1:7411",
        "client": "127.0.0.1:7401",
        "was_there": False,
        "command": "raftcron replica --config r2.toml --join",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotNow("r2 does not vote yet; replicas are added one by one"), 4),
        (UnknownReplica("r1 has no replica r2 in `peers`", "write it there"), 3),
        (OutcomeUnknown("no answer: r2 may still be added"), 6),
    ],
)
async def test_a_refused_addition_is_told_with_its_exit_code(error, code):
    result = await grow(FakeBackend(grow=error), "r2")
    assert result.exit_code == code
    assert str(error) in result.stderr
