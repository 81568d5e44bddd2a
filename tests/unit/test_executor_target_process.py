"""The process that serves an executor's targets: started, started again, ended with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from launcher.executor import target_process
from launcher.executor.target_process import TargetProcess
from tests.unit.worker_rig import lives
from tests.unit.workers_rig import until

MAIL = '[mail]\nserver = "127.0.0.1:1"\nfrom = "c@example.com"\nrecipients = ["*"]\ntls = "none"\n'


async def seen(process: TargetProcess, other_than: int = 0) -> int:
    """The process id, once it is there and another one."""
    await until(lambda: process.pid not in (0, other_than))
    return process.pid


async def test_a_process_that_dies_is_started_again_and_ends_with_the_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_process, "PAUSE_S_MIN", 0.01)
    path = tmp_path / "targets.toml"
    path.write_text(MAIL)
    one = TargetProcess(path, tmp_path / "workers.sock", "prod")
    running = asyncio.create_task(one.run())
    first = await seen(one)
    os.kill(first, signal.SIGKILL)
    second = await seen(one, first)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await one.stop()
    assert not lives(first)
    assert not lives(second)
    assert one.pid == 0
    await one.stop()  # nothing is left to end


async def test_a_wrong_file_is_read_again_until_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(target_process, "PAUSE_S_MIN", 0.01)
    one = TargetProcess(tmp_path / "missing.toml", tmp_path / "workers.sock", "prod")
    running = asyncio.create_task(one.run())
    first = await seen(one)
    await seen(one, first)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await one.stop()
    said = capfd.readouterr().out
    assert "targets.said" in said
    assert "missing.toml: cannot be read" in said


async def test_it_does_not_outlive_an_executor_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(MAIL)
    program = (
        "import asyncio, pathlib, sys\n"
        "from launcher.executor.target_process import TargetProcess\n"
        "async def main():\n"
        '    one = TargetProcess(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), "prod")\n'
        "    running = asyncio.create_task(one.run())\n"
        "    while not one.pid:\n"
        "        await asyncio.sleep(0.01)\n"
        "    print('pid', one.pid, flush=True)\n"
        "    await running\n"
        "asyncio.run(main())\n"
    )
    executor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), str(tmp_path / "workers.sock"),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert executor.stdout is not None
    while not (line := await executor.stdout.readline()).startswith(b"pid "):
        assert line, "it has ended"
    pid = int(line.split()[1])
    executor.kill()
    await executor.wait()
    await until(lambda: not lives(pid))
