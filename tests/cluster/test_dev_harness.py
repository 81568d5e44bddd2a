"""The harness and the witness on a real cell: what the fault tests stand on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cluster.harness import Cell, is_gone, wait_until
from tests.cluster.witness import read_runs, witnessed

EVERY = {"default/a": 1, "default/b": 2}


def crontab(file: Path) -> str:
    return (
        f"#: name=a\n@every 1s {witnessed(file)}\n"
        f"#: name=b overlap=forbid\n@every 2s {witnessed(file, 'sleep 0.3')}\n"
    )


def test_ledger_and_witness_agree_over_the_death_of_a_leader(cell: Cell, tmp_path: Path) -> None:
    file = tmp_path / "witness"
    first = cell.leader()
    cell.apply(crontab(file))
    cell.wait_launches(3)
    cell.kill(first)
    second = cell.leader(but=first)
    ran = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) >= ran + 3, what="launches of the new leader")
    cell.start(first)
    cell.wait_launches(ran + 4)
    assert second != first
    assert cell.judge(file, every_s=EVERY, forbids=["default/b"]) == []
    epochs = {run.epoch for run in read_runs(file).values()}
    assert len(epochs) >= 2, "two leaders launched"


def test_a_leader_that_stands_still_is_replaced_and_launches_nothing_on_waking(
    cell: Cell, tmp_path: Path
) -> None:
    file = tmp_path / "witness"
    first = cell.leader()
    cell.apply(crontab(file))
    cell.wait_launches(2)
    cell.stop(first)
    cell.leader(but=first)
    cell.wake(first)
    cell.wait_launches(len(read_runs(file)) + 3)
    assert cell.judge(file, every_s=EVERY, forbids=["default/b"]) == []


def test_a_failpoint_ends_one_process_once(make_cell: Callable[..., Cell], tmp_path: Path) -> None:
    cell = make_cell()
    file, once = tmp_path / "witness", tmp_path / "once"
    for name in cell.replicas:
        cell.failpoints[name] = f"after-begin=kill+file:{once}"
    cell.start()
    cell.leader()
    cell.apply(crontab(file))
    wait_until(lambda: any(map(cell.is_down, cell.replicas)), what="a death")
    assert once.exists()
    cell.start()
    cell.wait_launches(3)
    assert [name for name in cell.replicas if cell.is_down(name)] == []
    assert cell.judge(file, every_s=EVERY, forbids=["default/b"]) == []


def test_an_executor_that_dies_after_a_start_loses_it_and_repeats_nothing(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(failpoints={"executor-1": "after-start=kill@3"})
    file = tmp_path / "witness"
    cell.start()
    cell.leader()
    cell.apply(crontab(file))
    cell.wait_down("executor-1")
    cell.failpoints.clear()
    cell.start("executor-1")
    cell.wait_launches(1, state="lost")
    cell.wait_launches(3)
    assert cell.judge(file, every_s=EVERY, forbids=["default/b"]) == []


def test_the_command_line_answers_in_rows(cell: Cell) -> None:
    cell.leader()
    cell.wait_connected()
    rows = cell.rows("status")
    assert {row["id"] for row in rows} == set(cell.members)
    assert {row["pid"] for row in rows} == {cell.pid(name) for name in cell.members}
    cell.apply("#: name=a\n0 0 1 1 * true\n")
    assert [row["job"] for row in cell.rows("jobs")] == ["a"]
    cell.apply("61 * * * * true\n", expect=2)
    assert len(cell.rows("jobs")) == 1


def test_nothing_is_left_when_a_cell_is_closed(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell().start()
    cell.leader()
    pids = [cell.pid(name) for name in cell.members]
    cell.stop("r1")
    cell.terminate("r2")
    cell.close()
    assert all(is_gone(pid) for pid in pids)
