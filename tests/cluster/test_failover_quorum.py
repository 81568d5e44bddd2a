"""Followers, majorities and whole cells go away and come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cron.api import table
from cron.api.client import Client
from cron.api.jobs import ApplyRequest, SourceFile
from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.failover import JOBS, PATIENT, Property, Scene, uptime_s
from tests.cluster.harness import Cell, wait_until

pytestmark = pytest.mark.timeout(180)

UNAVAILABLE, UNKNOWN = 5, 6
TIMEOUT_S = 2.0
START_S = 20.0
"""What a command may take beyond its own timeout, on a busy machine."""

NEAR = b"#: name=near-a\n0 0 1 1 * true\n#: name=near-b\n0 0 1 1 * true\n"
FAR = "#: name=far-a\n0 0 1 1 * true\n#: name=far-b\n0 0 1 1 * true\n"


def test_a_follower_that_dies_is_not_noticed_by_any_launch(
    make_cell: Callable[..., Cell], tmp_path: Path, record_property: Property
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    scene = Scene(cell.start(), tmp_path / "witness")
    leader = scene.begin()
    scene.wait_runs(3)
    epoch, follower, died_s = scene.epoch(), cell.follower(), uptime_s()
    cell.kill(follower)
    scene.report(record_property, "kill -9 of a follower", died_s, [])
    roles = {row.id: row.role for row in cell.status()}
    assert (roles[leader], roles[follower]) == ("leader", "unreachable")
    scene.wait_runs(8, after=died_s)
    cell.start(follower)
    wait_until(lambda: len(scene.look()) == 3, what="the follower's return")
    scene.wait_runs(6, after=uptime_s())
    assert scene.epoch() == epoch, "the leader stayed"
    assert scene.epochs() == [epoch]
    assert scene.end() == []
    assert scene.lost_or_missed() == []


def test_a_cell_of_which_every_replica_was_killed_goes_on_where_it_stood(
    make_cell: Callable[..., Cell], tmp_path: Path, record_property: Property
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    scene = Scene(cell.start(), tmp_path / "witness")
    scene.begin()
    running = scene.wait_running("long", "forbid")
    old, died_s = scene.epoch(), uptime_s()
    cell.kill(*cell.replicas)
    cell.start()
    scene.report(record_property, "kill -9 of all replicas", died_s, [old])
    for job in scene.jobs:
        scene.wait_runs(1, after=died_s, but=[old], job=job)
    for run in running.values():
        assert scene.row(run).state == "succeeded"
    assert scene.end() == []
    assert scene.lost_or_missed() == []


def test_without_a_majority_commands_say_so_in_time_and_nothing_is_half_done(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    scene = Scene(cell.start(), tmp_path / "witness", {n: JOBS[n] for n in ("tick", "brief")})
    leader = scene.begin()
    scene.wait_runs(3)
    others = [name for name in cell.replicas if name != leader]
    cell.stop(*others)
    servers = [cell.ports.servers[int(leader[1:]) - 1]]  # whoever leads, and not for long
    with (
        Client(servers, timeout_ms=int(TIMEOUT_S * 1000)) as client,
        pytest.raises((OutcomeUnknown, Unavailable)) as caught,
    ):
        client.ask(table.PUT_JOBS, ApplyRequest(files=[SourceFile("near", NEAR)]))
    is_unknown = caught.errisinstance(OutcomeUnknown)
    print(f"a change under way when the majority went: {caught.value}")
    assert ("may still happen" if is_unknown else "did not happen") in str(caught.value)
    cell.kill(*others)
    path = cell.folder / "far"
    path.write_text(FAR)
    commands = [("apply", str(path)), ("pause", "brief"), ("trigger", "tick")]
    with ThreadPoolExecutor(len(commands)) as threads:
        applied, paused, _ = threads.map(lambda words: failed(cell, *words), commands)
    roles = {row["id"]: row["role"] for row in cell.rows("status", expect=1)}
    assert sorted(roles[name] for name in cell.replicas)[1:] == ["unreachable"] * 2
    silent_s = uptime_s()
    cell.start()
    scene.wait_runs(4, after=silent_s)
    jobs = {row["job"]: row for row in cell.rows("jobs")}
    far = sorted(name for name in jobs if name.startswith("far"))
    near = sorted(name for name in jobs if name.startswith("near"))
    assert far in ([], ["far-a", "far-b"]), "an apply is all or nothing"
    assert near in ([], ["near-a", "near-b"]), "an apply is all or nothing"
    assert applied == UNKNOWN or far == []
    assert is_unknown or near == []
    assert paused == UNKNOWN or not jobs["brief"]["paused"]
    assert scene.end() == []


def failed(cell: Cell, *arguments: str) -> int:
    """The exit code of a change that nobody can make now; what it says fits to it."""
    began = time.monotonic()
    done = cell.cli(*arguments, "--timeout", f"{TIMEOUT_S:g}s", expect=None)
    took_s = time.monotonic() - began
    said = done.stderr
    assert took_s < TIMEOUT_S + START_S, f"{arguments} took {took_s} s"
    assert done.returncode in (UNAVAILABLE, UNKNOWN), f"{done.returncode} {said}"
    words = "may still happen" if done.returncode == UNKNOWN else "did not happen"
    assert words in said, said
    print(f"{arguments[0]}: {done.returncode} after {took_s:.1f} s: {said.strip()}")
    return done.returncode
