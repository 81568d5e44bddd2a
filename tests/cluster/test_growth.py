"""A cell of one replica: killed, started again, and made a cell of three while it works."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.api import table
from cron.api.members import StatusRow
from cron.dev.child import Child
from cron.endings import REPLACED
from tests.cluster.harness import Cell, wait_until

CRONTAB = "".join(f"#: name=tick-{n}\n@every 1s true\n" for n in range(5))


class GrowingCell(Cell):
    """A cell of which r1 is the only replica, and an executor; r2 and r3 join if they are started.

    `full` is the text of a configuration of r1 that names all three.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.flags = {"r1": "--bootstrap", "r2": "--join", "r3": "--join"}
        self.config = self.members["r1"].config
        self.full = self.config.read_text()
        lines = [line for line in self.full.splitlines() if not line.startswith(("r2", "r3"))]
        self.single = "single = true\n" + "\n".join(lines) + "\n"
        self.config.write_text(self.single)

    def _child(self, name: str) -> Child:
        child = super()._child(name)
        flag = self.flags.get(name, "")
        child._argv = [flag if one == "--bootstrap" else one for one in child._argv]
        return child

    def row(self, name: str) -> StatusRow:
        """What the cell says of a replica."""
        rows = {row.id: row for row in self.status()}
        return rows.get(name, StatusRow(kind="replica", id=name))

    def launches(self) -> int:
        """How many launches have succeeded."""
        return len(self.history(states=["succeeded"]))

    def wait_more(self, count: int = 10) -> None:
        """Return once so many more launches have succeeded."""
        self.wait_launches(self.launches() + count)

    def grow(self, name: str) -> None:
        """Add a replica by the book."""
        said = self.cli("cell", "grow", name).stdout
        assert f"{name} is added to the cell" in said
        assert f"raftcron replica --config {name}.toml --join" in said
        self.start(name)
        said = self.cli("cell", "grow", name, "--wait", "--timeout", "60s").stdout
        assert f"{name} was added before" in said or "already, and votes" in said
        assert self.row(name).member_state == "votes"


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[GrowingCell]:
    with GrowingCell(tmp_path) as one:
        yield one


@pytest.mark.timeout(120)
def test_a_cell_of_one_goes_on_after_its_replica_was_killed(cell: GrowingCell) -> None:
    cell.start("r1", "executor-1")
    cell.wait_connected()
    cell.apply(CRONTAB)
    cell.wait_more()
    before = {launch.launch for launch in cell.history(states=["succeeded"])}
    cell.restart("r1")
    assert cell.leader() == "r1"
    cell.wait_more()
    assert before <= {launch.launch for launch in cell.history(states=["succeeded"])}
    assert [row.id for row in cell.status() if row.kind == "replica"] == ["r1"]
    assert cell.client.ask(table.AUDIT).violations == []


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_cell_of_one_becomes_a_cell_of_three_while_it_works(cell: GrowingCell) -> None:
    cell.start("r1", "executor-1")
    cell.wait_connected()
    cell.apply(CRONTAB)
    cell.wait_more()
    assert "has no replica r2 in `peers`" in cell.cli("cell", "grow", "r2", expect=3).stderr

    cell.config.write_text(cell.full)
    cell.restart("r1")
    assert cell.leader() == "r1"
    cell.wait_more()
    assert "`raftcron cell grow r2` adds it" in cell.row("r2").note

    cell.grow("r2")
    cell.wait_more()
    cell.restart("r1")  # two are needed now, and two are there
    cell.wait_more()
    cell.grow("r3")
    cell.wait_more()

    cell.kill("r1")  # two of three
    cell.leader(but="r1")
    cell.wait_more()
    cell.config.write_text(cell.single)
    cell.start("r1")
    cell.wait_down("r1")
    assert "`peers` of r1 lacks r2, r3" in cell.log("r1")
    assert "Traceback" not in cell.log("r1")
    cell.config.write_text(cell.full)
    cell.start("r1")
    wait_until(lambda: cell.row("r1").role == "follower", 60, "r1 to follow")
    cell.kill("r2")
    cell.wait_more()
    assert cell.client.ask(table.AUDIT).violations == []


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_what_is_started_wrongly_harms_nothing(cell: GrowingCell) -> None:
    """r2 founds no cell beside it, nor does its second disk come in instead of the first."""
    cell.config.write_text(cell.single)
    cell.start("r1", "executor-1")
    cell.leader()
    cell.config.write_text(cell.full)
    cell.restart("r1")
    cell.leader()
    cell.flags["r2"] = "--bootstrap"
    cell.start("r2")
    cell.wait_down("r2")
    assert cell._running["r2"]._process is not None
    assert cell._running["r2"]._process.returncode == REPLACED
    assert "`raftcron cell grow r2`" in cell.log("r2")
    shutil.rmtree(cell.folder / "r2")

    cell.flags["r2"] = "--join"
    cell.start("r2")
    cell.cli("cell", "grow", "r2")
    wait_until(lambda: cell.row("r2").member_state == "votes", 60, "r2 to vote")
    assert "already, and votes" in cell.cli("cell", "grow", "r2").stdout
    cell.cli("cell", "grow", "r3")
    cell.apply(CRONTAB)
    cell.wait_more()  # r3 was added, and nobody waits for it
    assert cell.row("r3").member_state == "open"
    assert cell.cli("replica", "replace", "r2", "--yes", expect=4).stderr
