"""Files of replicas, executors and a store in a directory are their user's alone."""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

import pytest

from tests.cluster.harness import SHORT_TIMES, Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def open_to_others(*folders: Path) -> list[str]:
    """What is below these folders that others may do anything with; sockets have their own."""
    found = []
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            mode = path.lstat().st_mode
            if not stat.S_ISSOCK(mode) and stat.S_IMODE(mode) & 0o077:
                found.append(f"{stat.filemode(mode)} {path.name}")
    return found


def test_nobody_else_may_read_what_a_cell_writes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    kept = f'[object_storage]\nurl = "{store.as_uri()}"\noutput = true\n'
    before = os.umask(0o022)
    try:
        with Cell(tmp_path / "cell", replica_extra=SHORT_TIMES + kept) as cell:
            for name in (*cell.replicas, "executor-1"):  # as an operator may have made it
                (cell.folder / name).mkdir(exist_ok=True)
                (cell.folder / name).chmod(0o755)
            cell.start()
            cell.wait_connected()
            cell.apply("#: name=tick\n@every 1s umask\n")
            cell.wait_launches(1, "tick")
            [newest] = cell.history("tick", states=["succeeded"], limit=1)
            assert "0022" in cell.cli("logs", newest.launch).stdout, "a command has its own umask"
            cell.cli("snapshot", "save")
            wait_until(lambda: list(store.rglob("*.snap")), what="a snapshot in the store")
            data = [cell.folder / name for name in (*cell.replicas, "executor-1")]
            assert open_to_others(*data, *store.iterdir()) == []
    finally:
        os.umask(before)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file to any group")
def test_a_group_of_workers_still_reaches_the_socket(tmp_path: Path) -> None:
    group = grp.getgrnam("daemon")
    with Cell(tmp_path / "cell", executor_extra='workers_group = "daemon"\n') as cell:
        cell.start()
        cell.wait_connected()
        socket = next((cell.folder / "executor-1").rglob("workers.sock"))
        folder = socket.parent
        for _ in range(2):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o710
            assert (folder.stat().st_gid, socket.stat().st_gid) == (group.gr_gid, group.gr_gid)
            assert stat.S_IMODE(socket.stat().st_mode) == 0o660
            cell.restart("executor-1")
            cell.wait_connected()
