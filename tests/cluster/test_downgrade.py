"""A cell goes back to the release before this one: while the log has its format, without a trace;
after it, that release refuses, says so, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.api import table
from cron.api.members import StatusRow
from cron.endings import TOO_OLD
from cron.state.commands import FORMAT
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.previous_release import BEFORE, format_of, install_previous

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

CRONTAB = "".join(f"#: name=tick-{n}\n@every 1s true\n" for n in range(3))
WITHIN_S = 60.0


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Where the release before this one is installed."""
    return install_previous(tmp_path, BEFORE)


@pytest.fixture
def cell(tmp_path: Path, before: Path) -> Iterator[Cell]:
    """A cell of that release, which works."""
    with Cell(tmp_path / "cell", replica_extra=PATIENT) as one:
        for name in one.members:
            one.variables[name] = {"PYTHONPATH": str(before)}
        one.start()
        one.wait_connected()
        one.apply(CRONTAB)
        one.wait_launches(5)
        yield one


def replicas(cell: Cell) -> list[StatusRow]:
    return [row for row in wait_until(cell.status, WITHIN_S, "an answer") if row.kind == "replica"]


def become(cell: Cell, name: str, release: Path | None) -> None:
    """Start a member as another release, None for this one; return once it is level."""
    cell.terminate(name)
    cell.wait_down(name)
    if release is None:
        cell.variables.pop(name, None)
    else:
        cell.variables[name] = {"PYTHONPATH": str(release)}
    cell.start(name)
    if name not in cell.replicas:
        cell.wait_connected(name)
        return
    reached = max(row.applied for row in replicas(cell))

    def is_level() -> bool:
        row = next(row for row in replicas(cell) if row.id == name)
        return row.role in ("leader", "follower") and row.applied >= reached

    wait_until(is_level, WITHIN_S, f"{name} to be level")


def check(cell: Cell) -> None:
    """All replicas have one State, launches go on, and the ledger has each instant once."""
    cell.wait_launches(len(cell.history(states=["succeeded"])) + 3)

    def agree() -> bool:
        rows = replicas(cell)
        first = rows[0]
        return all((row.applied, row.digest) == (first.applied, first.digest) for row in rows)

    wait_until(agree, WITHIN_S, "equal digests")
    assert cell.client.ask(table.AUDIT).violations == []


def test_before_the_format_rose_every_member_goes_back(cell: Cell, before: Path) -> None:
    assert format_of(before) < FORMAT
    _, *others = sorted(cell.replicas)
    for name in others:
        become(cell, name, None)
    become(cell, "executor-1", None)
    check(cell)
    assert sorted(row.format for row in replicas(cell)) == [format_of(before), FORMAT, FORMAT]
    for name in (*others, "executor-1"):
        become(cell, name, before)
    check(cell)
    assert {row.format for row in replicas(cell)} == {format_of(before)}


def test_after_the_format_rose_the_release_before_refuses_and_loses_nothing(
    cell: Cell, before: Path
) -> None:
    for name in cell.replicas:
        become(cell, name, None)
    cell.apply(CRONTAB + "#: name=late\n@every 1s true\n")

    def is_risen() -> bool:
        return not any("format" in row.note for row in replicas(cell))

    wait_until(is_risen, WITHIN_S, "the new format")
    cell.wait_launches(3, "late")
    launches = {row.launch for row in cell.history(states=["succeeded"])}
    leader = cell.leader()
    back = next(name for name in sorted(cell.replicas) if name != leader)
    cell.terminate(back)
    cell.wait_down(back)
    cell.variables[back] = {"PYTHONPATH": str(before)}
    for _ in range(2):  # as systemd does
        cell.start(back)
        cell.wait_down(back, WITHIN_S)
        line = cell.log(back).splitlines()[-1]
        said = json.loads(line)
        assert "format" in said["error"]
        assert "upgrade this replica" in line
        assert "Traceback" not in cell.log(back)
        assert said["code"] == TOO_OLD
    cell.kill(leader)  # what is left has no majority without the one that went back
    become(cell, back, None)
    cell.start(leader)
    check(cell)
    assert launches <= {row.launch for row in cell.history(states=["succeeded"])}
