"""docs/tasks.md as a newcomer types it: each command of its pages runs as it is written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.dev.files import Ports
from tests.cluster.dev_process import DevProcess, first_port
from tests.cluster.harness import wait_until
from tests.style.tree import ROOT

pytestmark = pytest.mark.timeout(240)

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S)
RAFTCRON = [sys.executable, "-P", "-m", "cron.main"]


def commands(block: str) -> Iterator[list[str]]:
    """The commands of a block, without the program's name."""
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "raftcron", line
        yield arguments


def test_every_command_of_the_page_runs_as_written(tmp_path: Path) -> None:
    dev_block, worker_block, *others = BLOCKS
    (dev,) = commands(dev_block)
    (worker,) = commands(worker_block)
    cell = tmp_path / "cell"
    assert dev[-2:] == ["--data", "cell"]
    assert worker[-1] == "../../cell/executor-1/workers.sock"
    port = first_port()
    process = DevProcess(
        [*RAFTCRON, *dev[:-1], str(cell), "--port", str(port), "--no-http"], cwd=ROOT
    )
    environment = os.environ | {"RAFTCRON_SERVER": ",".join(Ports.from_first(port).servers)}
    socket = cell / "executor-1" / "workers.sock"
    serving = None

    def run(arguments: list[str], *, expect: int = 0) -> str:
        done = subprocess.run(
            [*RAFTCRON, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == expect, f"{arguments}\n{done.stdout}{done.stderr}"
        return done.stdout

    try:
        process.read_until(r"leads now")
        serving = subprocess.Popen(
            [*RAFTCRON, *worker[:-1], str(socket)],
            cwd=ROOT / "examples" / "handlers",
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: "shop.invoice" in run(["executors"]), 60, "the worker")
        said = [run(arguments) for block in others for arguments in commands(block)]
        assert len(said) >= 10
        assert "succeeded: 42.00 EUR from acme" in said[0]
        assert "shop.ping:ping-2 cancelled\n" in said
        listed = run(["task", "list"])
        assert re.search(r"shop\.ping:ping-1 +succeeded", listed), listed
        assert re.search(r"shop\.ping:ping-2 +cancelled", listed), listed
        assert re.search(r"shop\.ping:ping-4 +succeeded", listed), listed
        assert re.search(r"import-43 +complete", run(["group", "list"]))
        follower = "shop.reindex:import-42.complete"
        assert any("it follows group import-42, of which 1 task" in text for text in said)
        wait_until(
            lambda: "state      succeeded" in run(["task", "get", follower]), 60, "the follower"
        )
        assert re.search(r"nightly +shop\.reindex", run(["queue", "list"]))
    finally:
        if serving is not None:
            serving.kill()
            serving.wait()
        process.close()
