"""Wall clocks of replicas are set back and forward by an hour."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api import table
from launcher.protocol.names import parse_time
from tests.cluster.failover import JOBS, PATIENT, Property, Scene, uptime_s
from tests.cluster.harness import Cell, wait_until
from tests.fakes.ports import draw

pytestmark = pytest.mark.timeout(180)

HOUR_S = 3_600
SOURCE = Path(__file__).with_name("wallshim.c")
FEW = {name: JOBS[name] for name in ("tick", "brief", "forbid")}


class Clocks:
    """A cell whose processes have wall clocks that a test can set."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.folder = folder
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("no C compiler: the wall clock of a process cannot be set")
        shim = folder / "wallshim.so"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", shim, SOURCE], check=True)
        for name in cell.members:
            self.move(0, name)
            variables = {"LD_PRELOAD": str(shim), "WALLSHIM_FILE": str(folder / f"{name}.clock")}
            cell.variables[name] = variables

    def move(self, seconds: int, *names: str) -> None:
        """Let these processes' clocks be so many seconds off from now on."""
        for name in names:
            aside = self.folder / f"{name}.clock.new"
            aside.write_text(f"{seconds}\n")
            aside.replace(self.folder / f"{name}.clock")


@pytest.fixture
def clocks(make_cell: Callable[..., Cell], tmp_path: Path) -> tuple[Scene, Clocks]:
    """A scene that has begun, with clocks that are right."""
    cell = make_cell(replica_extra=PATIENT)
    hands = Clocks(cell, tmp_path)
    scene = Scene(cell.start(), tmp_path / "witness", FEW)
    scene.begin()
    scene.wait_runs(4)
    return scene, hands


@pytest.mark.parametrize("way", [-HOUR_S, HOUR_S], ids=["back", "forward"])
def test_a_leader_whose_clock_is_an_hour_off_hands_over_and_nothing_repeats(
    clocks: tuple[Scene, Clocks], way: int, record_property: Property
) -> None:
    scene, hands = clocks
    cell, first, old, moved_s = scene.cell, scene.cell.leader(), scene.epoch(), uptime_s()
    hands.move(way, first)
    # No question before the first launch: each one would have the leader compare clocks.
    scene.report(record_property, f"clock of the leader moved by {way} s", moved_s, [old])
    second = cell.leader(but=first)
    assert "leader.resigned" in cell.log(first)
    scene.wait_runs(6, after=moved_s, but=[old])
    rows = {row.id: row for row in cell.status()}
    others_s = [abs(rows[name].clock_offset_ms or 0) // 1000 for name in cell.replicas]
    assert max(others_s) >= HOUR_S - 60, "status tells of the clock"
    hands.move(0, first)
    scene.wait_runs(4, after=uptime_s())
    assert cell.leader() == second
    assert scene.end() == []


def test_an_executor_whose_clock_is_an_hour_off_gets_no_work_until_it_is_right(
    clocks: tuple[Scene, Clocks],
) -> None:
    scene, hands = clocks
    cell = scene.cell
    hands.move(HOUR_S, "executor-1")

    def has_noticed() -> bool:
        rows = [row for row in cell.status() if row.kind == "executor"]
        return any("gets no work" in row.note for row in rows)

    wait_until(has_noticed, what="the leader to notice")
    wait_until(
        lambda: any(row.state == "due" for row in scene.ledger()), what="a launch that waits"
    )
    noticed_s, ran = uptime_s(), len(scene.runs())
    hands.move(0, "executor-1")
    scene.wait_runs(4, after=noticed_s)
    assert len(scene.runs()) > ran
    assert scene.end() == []


def test_clocks_that_are_all_set_back_and_right_again_repeat_nothing_and_leave_nothing_out(
    clocks: tuple[Scene, Clocks],
) -> None:
    scene, hands = clocks
    cell, leader = scene.cell, scene.cell.leader()
    hands.move(-HOUR_S, *cell.members)
    wait_until(lambda: "jumped back" in cell.log(leader), what="the leader to notice")
    hands.move(0, *cell.members)
    back_s = uptime_s()
    scene.wait_runs(6, after=back_s)
    assert scene.end() == []


def test_clocks_that_are_all_an_hour_ahead_go_on_from_there_and_repeat_nothing(
    clocks: tuple[Scene, Clocks],
) -> None:
    scene, hands = clocks
    cell, leader = scene.cell, scene.cell.leader()
    hands.move(HOUR_S, *cell.members)
    wait_until(lambda: "jumped forward" in cell.log(leader), what="the leader to notice")
    ahead_s = uptime_s()
    scene.wait_runs(6, after=ahead_s)
    missed = [row for row in scene.ledger() if row.reason == "missed"]
    assert sum(row.count for row in missed) >= HOUR_S - 60, "the hour that never was is missed"
    assert scene.end() == []
    ran = len(scene.runs())
    hands.move(0, *cell.members)
    wait_until(lambda: "jumped back" in cell.log(leader), what="the leader to notice")
    cell.cli("resume", "*")
    assert len(scene.runs()) == ran
    assert scene.end() == []


def test_a_cell_that_was_an_hour_ahead_launches_again_after_a_reset_and_repeats_nothing(
    clocks: tuple[Scene, Clocks],
) -> None:
    scene, hands = clocks
    cell, leader = scene.cell, scene.cell.leader()
    hands.move(HOUR_S, *cell.members)
    wait_until(lambda: "jumped forward" in cell.log(leader), what="the leader to notice")
    scene.wait_runs(6, after=uptime_s())
    hands.move(0, *cell.members)
    wait_until(lambda: "jumped back" in cell.log(leader), what="the leader to notice")

    def planned() -> str:
        said = cell.cli("clock", "reset", expect=None).stderr
        return said if "jobs to be set back" in said else ""  # clocks are compared by and by

    assert "--yes" in wait_until(planned, what="a plan"), "nobody can be asked"
    cell.cli("clock", "reset", "--yes")
    scene.wait_runs(6, after=uptime_s())
    # Rows that the wrong clock wrote for instants that never began are void; the audit knows that.
    assert not [one for one in scene.end() if "row" not in one]
    assert cell.client.ask(table.AUDIT).violations == []
    runs = [run.launch for run in scene.runs()]
    assert len(runs) == len(set(runs)), "no launch is repeated"


def deafen(cell: Cell, name: str) -> None:
    """Have a replica ask nobody for the time: its configuration names wrong client ports."""
    path = cell.members[name].config
    text = path.read_text()
    for other, port in zip(cell.replicas, cell.ports.client, strict=True):
        if other != name:
            text = text.replace(f":{port}", f":{draw()}")
    path.write_text(text)


def test_a_leader_an_hour_ahead_that_compares_clocks_with_nobody_cannot_set_the_cells_time(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    hands = Clocks(cell, tmp_path)
    deafen(cell, "r1")
    cell.start("r1", "r2", "r3")  # the first id founds a cell, and leads it
    assert cell.leader() == "r1"
    cell.apply("#: name=later\n@every 1h true\n")
    hands.move(HOUR_S, "r1")
    cell.cli("trigger", "later", expect=None)
    wait_until(lambda: "leader.elected" in cell.log("r2") + cell.log("r3"), what="another leader")
    assert "not acknowledged by r2, r3" in cell.log("r1")
    asked = ("--server", ",".join(cell.ports.servers[1:]))  # r1 would send on to nobody
    assert "did not acknowledge" in cell.cli("status", *asked).stdout
    done = cell.cli("trigger", "later", *asked)
    found = re.search(r"later@([0-9T:Z-]+)\+t", done.stdout)
    assert found is not None, done.stdout
    assert abs(parse_time(found[1]) - time.time()) < HOUR_S / 2
