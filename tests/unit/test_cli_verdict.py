"""The last line of `status`: the verdict about the whole cell, and the exit code of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cron.api.members import StatusRow
from cron.api.snapshots import KeepingView
from cron.cli.verdict import verdict_of
from tests.unit.api_rig import FakeBackend, run_cli, serving

EXECUTOR = StatusRow(kind="executor", id="e1", role="connected")


def replica(name: str, role: str = "follower", **more: Any) -> StatusRow:
    fields: dict[str, Any] = {"incarnation": 1, "member_state": "votes"} | more
    return StatusRow(kind="replica", id=name, role=role, **fields)


def three(*roles: str) -> list[StatusRow]:
    return [replica(f"r{n}", role) for n, role in enumerate(roles, 1)]


WELL = [*three("leader", "follower", "follower"), EXECUTOR]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (WELL, "well: r1 leads, 3 of 3 replicas and 1 executor"),
        (
            [replica("r1", "leader"), EXECUTOR],
            "well: r1 leads, 1 of 1 replica and 1 executor",
        ),
        (
            [*three("leader", "follower", "unreachable"), EXECUTOR],
            "works, with faults: r1 leads; r3 does not answer; the loss of one more replica stops"
            " it",
        ),
        (
            three("leader", "follower", "follower"),
            "works, with faults: r1 leads; no executor is connected, so nothing is launched",
        ),
        (
            [*WELL, StatusRow(kind="executor", id="e2", role="lost")],
            "works, with faults: r1 leads; 1 of 2 executors away: e2",
        ),
        (
            [*WELL, StatusRow(kind="executor", id="e2", role="connected", refuses_commands=True)],
            "works, with faults: r1 leads; 1 of 2 executors refuses commands: e2",
        ),
        (
            [*WELL[:2], replica("r3", "learner", member_state="joining", incarnation=2), EXECUTOR],
            "works, with faults: r1 leads; r3 does not vote yet; the loss of one more replica stops"
            " it",
        ),
        (
            [replica("r1", "leader"), replica("r2", "learner", member_state="joining"), EXECUTOR],
            "works, with faults: r1 leads; r2 does not vote yet",
        ),
        (
            [replica("r1", "leader", keeping=KeepingView(failing="s3: away")), *WELL[1:]],
            "works, with faults: r1 leads; the backup fails",
        ),
    ],
    ids=["well", "one", "away", "alone", "lost", "refuses", "replaced", "grows", "backup"],
)
def test_a_cell_with_a_leader_works_and_its_faults_are_named(
    rows: list[StatusRow], text: str
) -> None:
    assert (verdict_of(rows).works, verdict_of(rows).text) == (True, text)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            three("follower", "unreachable", "unreachable"),
            "no leader: 1 of 3 replicas answers, 2 are needed; nothing is launched",
        ),
        (
            three("follower", "follower", "unreachable"),
            "no leader yet: 2 of 3 replicas answer, and elect one; nothing is launched",
        ),
        (
            [StatusRow(kind="replica", id="r2", role="waiting", note="waits for room on its disk")],
            "no leader: 0 of 1 replica answer, 1 are needed; r2 waits for room on its disk; nothing"
            " is launched",
        ),
        ([], "no leader: 0 of 0 replicas answer, 1 are needed; nothing is launched"),
        (
            [replica("r1", "outdated", note="the disk of r1 is old"), *three("follower")],
            "no leader: the disk of r1 is old; nothing is launched",
        ),
    ],
    ids=["minority", "election", "full", "nobody", "old"],
)
def test_a_cell_without_a_leader_launches_nothing(rows: list[StatusRow], text: str) -> None:
    assert (verdict_of(rows).works, verdict_of(rows).text) == (False, text)


@pytest.mark.parametrize("output", ["table", "json"])
async def test_status_exits_with_one_without_a_majority(output: str) -> None:
    backend = FakeBackend(status=three("follower", "unreachable", "unreachable"))
    async with serving(backend) as server:
        told = await run_cli("status", "-o", output, server=server)
        backend.answers["status"] = WELL
        well = await run_cli("status", "-o", output, server=server)
    assert (told.exit_code, well.exit_code) == (1, 0)
    if output == "table":
        assert told.stdout.splitlines()[-1].startswith("no leader: 1 of 3 replicas answers")
        assert well.stdout.splitlines()[-1] == "well: r1 leads, 3 of 3 replicas and 1 executor"
    else:  # one kind of object a line, as before
        rows = [json.loads(line) for line in well.stdout.splitlines()]
        assert [row["kind"] for row in rows] == ["replica"] * 3 + ["executor"]
