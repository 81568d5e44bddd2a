"""A cell of one grows to three while its leader is killed at every step, and again at the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cron.api import table
from tests.cluster.harness import wait_until
from tests.cluster.test_growth import CRONTAB, GrowingCell

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]

WITHIN_S = 90.0


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[GrowingCell]:
    """A cell of one that works, whose configuration names three from its next start on."""
    with GrowingCell(tmp_path) as one:
        one.start("r1", "executor-1")
        one.wait_connected()
        one.apply(CRONTAB)
        one.wait_more(3)
        one.config.write_text(one.full)
        yield one


def die(cell: GrowingCell) -> None:
    """Kill who leads, at once, and start it again on its disk."""
    leaders = [row.id for row in cell.status() if row.role == "leader"]
    victim = leaders[0] if leaders else "r1"
    cell.kill(victim)
    cell.start(victim)


def until_done(cell: GrowingCell, *words: str, done: Callable[[], bool]) -> None:
    """Repeat a command, as a person does whose command failed, until it has happened."""

    def tried() -> bool:
        cell.cli(*words, "--timeout", "5s", expect=None)
        return done()

    wait_until(tried, WITHIN_S, " ".join(words))


def is_voter(cell: GrowingCell, name: str) -> bool:
    return cell.row(name).member_state == "votes"


def grow(cell: GrowingCell, name: str) -> None:
    """Add a replica, and kill who leads at each step."""
    until_done(cell, "cell", "grow", name, done=lambda: bool(cell.row(name).member_state))
    die(cell)  # the replica is added, and there is none yet
    cell.start(name)
    die(cell)  # it begins to ask
    wait_until(lambda: cell.row(name).role == "learner" or is_voter(cell, name), WITHIN_S)
    die(cell)  # it copies, or was about to vote
    wait_until(lambda: is_voter(cell, name), WITHIN_S, f"{name} to vote")
    die(cell)  # it has just begun to vote
    cell.leader()
    until_done(cell, "cell", "grow", name, done=lambda: is_voter(cell, name))
    cell.wait_connected()
    cell.wait_more(3)


def test_the_leader_dies_at_every_step_and_the_cell_has_three_in_the_end(
    cell: GrowingCell,
) -> None:
    die(cell)
    for name in ("r2", "r3"):
        grow(cell, name)
    assert sorted(row.id for row in cell.status() if row.member_state == "votes") == [
        "r1", "r2", "r3",
    ]  # fmt: skip
    added = [row["object"] for row in cell.rows("changes") if row["action"] == "grow"]
    assert sorted(added) == ["replica r2", "replica r3"], "who added which is kept once"
    cell.kill(cell.leader())  # two of three
    cell.wait_more(3)
    assert cell.client.ask(table.AUDIT).violations == []
