"""What a person, and a program, is told of a failover."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api.launches import ShowRequest
from cron.api.table import SHOW
from launcher.protocol.names import parse_launch_name
from tests.cluster.failover import FIRST_LAUNCH_S_MAX, JOBS, PATIENT, Kind, Scene, uptime_s
from tests.cluster.harness import Cell, wait_until

pytestmark = pytest.mark.timeout(180)

STORY_JOBS = {"tick": JOBS["tick"], "long": Kind(2, "catchup=all", "echo heard; sleep 5")}
LAUNCH_KEYS = {
    "launch", "job", "tenant", "scheduled_at", "attempt", "state", "reason", "begun_at",
    "launched_at", "started_at", "finished_at", "exit_code", "executor", "term", "lateness_ms",
}  # fmt: skip
STATUS_KEYS = {"kind", "id", "address", "pid", "role", "term", "applied", "digest"}
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Failover:
    """A launch that one leader began and another saw end, and who they were."""

    def __init__(self, cell: Cell, name: str, old: str, new: str) -> None:
        self.cell = cell
        self.name = name
        self.job = parse_launch_name(name).job.partition("/")[2]
        self.at = name.partition("@")[2]
        self.old, self.new = old, new
        self.old_id, self.new_id = old.split(".")[2], new.split(".")[2]
        self.old_term, self.new_term = old.split(".")[1], new.split(".")[1]


@pytest.fixture
def told(make_cell: Callable[..., Cell], tmp_path: Path) -> Failover:
    """The story of the launches that a leader had started when it was killed."""
    cell = make_cell(replica_extra=PATIENT)
    scene = Scene(cell.start(), tmp_path / "witness", STORY_JOBS)
    first = scene.begin()
    old = scene.epoch()
    scene.wait_runs(3)
    running = scene.wait_running("long")["long"]
    wait_until(
        lambda: cell.client.ask(SHOW, ShowRequest(launch=running.launch))[-1].state == "launched",
        FIRST_LAUNCH_S_MAX,
        "log point 2",
    )
    died_s = uptime_s()
    cell.kill(first)
    scene.wait_runs(3, after=died_s, but=[old])
    assert scene.row(running).state == "succeeded"
    new = scene.epoch()
    cell.start(first)
    wait_until(lambda: len(scene.look()) == 3, FIRST_LAUNCH_S_MAX, "the first to come back")
    return Failover(cell, running.launch, old, new)


def test_a_failover_can_be_read_from_every_answer(told: Failover) -> None:
    cell = told.cell
    why = cell.cli("why", told.job, told.at).stdout
    assert why.startswith("it ran on executor-1")
    assert f"the leader changed from {told.old_id} to {told.new_id}" in why.splitlines()[0]
    lines = [line.strip() for line in why.split("\n\n")[0].splitlines()[1:]]
    steps = [
        f"log point 1 committed at index \\d+ by {told.old_id}, leader of term {told.old_term}",
        "started on executor-1, .* late",
        r"log point 2 committed at index \d+: it was started",
        f"{told.new_id} took over from {told.old_id}.* and leads in term {told.new_term}",
        r"succeeded; recorded at index \d+",
    ]
    places = [[n for n, line in enumerate(lines) if re.search(step, line)] for step in steps]
    assert all(len(place) == 1 for place in places), f"{places}\n{why}"
    assert places[0] < places[2] < places[3] < places[4], why

    name = told.name.removeprefix("default/")
    show = cell.cli("show", told.name).stdout
    for words in (
        f"{name}#1", "state", "succeeded", "scheduled", "log point 1", "log point 2", "executor-1",
        told.old, "late by", "exit code", "heard",
    ):  # fmt: skip
        assert words in show, f"{words} is not in\n{show}"
    assert len(re.findall(r"log point [12] .*UTC, index \d+", show)) == 2

    history = cell.cli("history", "long", "--limit", "20").stdout
    assert history.splitlines()[0].split()[:4] == ["LAUNCH", "ATTEMPT", "STATE", "REASON"]
    (line,) = [line for line in history.splitlines() if line.startswith(name)]
    assert re.search(r"\b1\b.*succeeded.*executor-1", line)

    table, _, kept = cell.cli("status").stdout.partition("\n\n")
    status = {line.split()[1]: line for line in table.splitlines()[1:]}
    assert set(status) == set(cell.members)
    assert "leader" in status[told.new_id]
    assert f"took over from {told.old_id}" in status[told.new_id]
    assert f"after term {told.old_term}" in status[told.new_id]
    assert "follower" in status[told.old_id]
    assert kept.startswith(f"kept by {told.new_id}")


def test_a_failover_can_be_read_by_a_program(told: Failover) -> None:
    cell = told.cell
    (shown,) = cell.rows("show", told.name)
    assert set(shown) >= LAUNCH_KEYS
    assert (shown["epoch"], shown["replica"]) == (told.old, told.old_id)
    assert (shown["term"], shown["executor"]) == (int(told.old_term), "executor-1")
    assert 0 < shown["begun_index"] < shown["launched_index"] < shown["ended_index"]
    assert "heard" in shown["output_tail"]
    rows = cell.rows("history", "--limit", "1000")
    assert all(set(row) >= LAUNCH_KEYS for row in rows)
    times = [row["scheduled_at"] for row in rows]
    assert times == sorted(times, reverse=True), "newest first"
    (row,) = [row for row in rows if row["launch"] == told.name]
    assert (row["job"], row["tenant"], row["state"]) == ("long", "default", "succeeded")
    moments = ["scheduled_at", "begun_at", "started_at", "launched_at", "finished_at"]
    assert all(re.fullmatch(TIME, row[key]) for key in moments)
    assert [row[key] for key in moments] == sorted(row[key] for key in moments)
    assert row["lateness_ms"] >= 0
    assert {one["term"] for one in rows if one["term"]} == {int(told.old_term), int(told.new_term)}
    (why,) = cell.rows("why", told.job, told.at)
    assert told.name in {one["launch"] for one in why["launches"]}
    assert any(f"took over from {told.old_id}" in line["text"] for line in why["story"])
    status = cell.rows("status")
    assert all(set(one) >= STATUS_KEYS for one in status)
    roles = {one["id"]: one["role"] for one in status}
    assert roles.pop(told.new_id) == "leader"
    assert sorted(roles.values()) == ["connected", "follower", "follower"]
    replicas = [one for one in status if one["kind"] == "replica"]
    assert {one["pid"] for one in replicas} == {cell.pid(name) for name in cell.replicas}
    assert {one["term"] for one in replicas} == {int(told.new_term)}
    (audit,) = cell.rows("audit")
    assert audit["ok"]
    assert audit["violations"] == []
