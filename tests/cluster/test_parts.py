"""A launch of three parts, and a leader that dies when only one of them has been started."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api import table
from cron.api.launches import LaunchView, ShowRequest, TriggerRequest
from tests.cluster.failover import ELECTION, asked
from tests.cluster.harness import Cell, wait_until

pytestmark = pytest.mark.timeout(180)


def leases(self_kill_ms: int) -> str:
    """Leases, and times to start in, of about that length."""
    return (
        f"{ELECTION}[lease]\nheartbeat_ms = 300\nself_kill_ms = {self_kill_ms}\n"
        f"give_up_ms = {self_kill_ms * 4 // 3}\n[limits]\nstart_window_ms = {self_kill_ms}\n"
    )


def parts_job(folder: Path, body: str = ":") -> str:
    """A job of three parts, each of which writes itself down as it begins and as it ends."""
    who = "$RAFTCRON_LAUNCH#$RAFTCRON_ATTEMPT/$RAFTCRON_PART"
    line = f'echo "{who} start" >>{folder}/ran; {body}; echo "{who} end" >>{folder}/ran'
    return f"#: name=rebuild parts=3 deadline=1h overlap=forbid\n@yearly {line}\n"


def said(folder: Path) -> list[str]:
    """What the parts have written so far."""
    file = folder / "ran"
    return file.read_text().splitlines() if file.exists() else []


def shown(cell: Cell, name: str) -> LaunchView:
    """The launch as it is, from whoever leads once somebody does."""
    view = asked(lambda: cell.client.ask(table.SHOW, ShowRequest(launch=name)))[-1]
    assert isinstance(view, LaunchView)
    return view


def whole(cell: Cell, name: str) -> LaunchView:
    """The launch once it is over."""

    def over() -> LaunchView | None:
        view = shown(cell, name)
        return None if view.is_open else view

    return wait_until(over, 60, f"the end of {name}")


def begun_while_stopped(cell: Cell, folder: Path, stopped: list[str]) -> str:
    """A launch of which one part ran while the executors of the others are stopped. On a slow
    machine these may be known to be silent before it begins: then it is tried again."""
    for number in range(20):
        cell.stop(*stopped)
        name = cell.client.ask(
            table.TRIGGER,
            TriggerRequest(job="default/rebuild", request_id=f"try-{number}", by="test"),
        ).launch
        end = time.monotonic() + 3
        while (waits := shown(cell, name).state == "due") and time.monotonic() < end:
            time.sleep(0.05)
        if not waits:
            wait_until(lambda name=name: "\n".join(said(folder)).count(name) >= 2, 60, name)
            return name
        cell.wake(*stopped)
        whole(cell, name)
    raise AssertionError("no launch began while executors were stopped")


def test_each_part_runs_once_though_the_leader_died_after_the_first(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with make_cell(executors=3, replica_extra=leases(60_000)) as cell:
        leader = cell.start().leader()
        cell.wait_connected()
        cell.apply(parts_job(tmp_path))
        first, *others = cell.executors
        name = begun_while_stopped(cell, tmp_path, others)
        cell.kill(leader)
        cell.wake(*others)
        view = whole(cell, name)
        assert view.state == "succeeded", view
        states = {part.executor: part.state for part in view.parts}
        assert states == dict.fromkeys((first, *others), "succeeded")
        runs = Counter(line for line in said(tmp_path) if line.startswith(f"{name}#"))
        expected = {f"{name}#1/{part} {word}" for part in (1, 2, 3) for word in ("start", "end")}
        assert set(runs) == expected
        assert set(runs.values()) == {1}
        cell.cli("audit", "--since", "1h")


def test_the_part_of_an_executor_that_is_lost_makes_the_launch_lost_and_the_others_run_on(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with make_cell(executors=3, replica_extra=leases(6_000)) as cell:
        cell.start().leader()
        cell.wait_connected()
        gate = tmp_path / "gate"
        cell.apply(parts_job(tmp_path, f"while [ ! -e {gate} ]; do sleep 0.1; done"))
        (row,) = cell.rows("trigger", "rebuild")
        wait_until(lambda: len(said(tmp_path)) >= 3, 60, "all parts to begin")
        lost = cell.executors[1]
        cell.kill(lost)
        wait_until(
            lambda: "lost" in [part.state for part in shown(cell, row["launch"]).parts],
            60,
            "the loss of a part",
        )
        assert shown(cell, row["launch"]).is_open
        gate.touch()
        view = whole(cell, row["launch"])
        states = {part.executor: part.state for part in view.parts}
        assert states == {name: "succeeded" for name in cell.executors} | {lost: "lost"}
        assert (view.state, view.reason) == ("lost", "executor-lost")
        assert cell.cli("show", row["launch"]).stdout.count("succeeded on executor-") == 2


def test_a_launch_of_more_parts_than_there_are_executors_waits_and_says_why(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with make_cell(executors=2) as cell:
        cell.start().leader()
        cell.wait_connected()
        cell.apply(parts_job(tmp_path))
        (row,) = cell.rows("trigger", "rebuild")
        waits = wait_until(lambda: cell.rows("queue", row["launch"]), 60, "the queue")
        assert "3" in waits[0]["waiting"], waits
        assert said(tmp_path) == []
