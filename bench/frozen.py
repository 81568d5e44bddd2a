"""How long is nothing launched when the leader is frozen (SIGSTOP)?

`python -m bench.frozen [--root DIR] [--rounds 5]` runs `raftcron dev` of the tree in DIR with ten
jobs, each due every second, freezes the leader for 12 s, wakes it, and prints a JSON row: of each
round the longest gap between two starts, in seconds; and how many instants nobody started, or
somebody twice. A gap of 1 s is that of an undisturbed cell.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.consensus_cells import free_ports

JOBS: Final = 10
FROZEN_S: Final = 12.0
CALM_S: Final = 6.0
PHASE_S: Final = 0.6
"""When in a second the leader is frozen: what was due in it has started."""
_UP_S: Final = 60.0


class Dev:
    """A cell of `raftcron dev`, whose jobs write down their starts."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.starts = folder / "starts"
        crontab = folder / "crontab"
        line = f'@every 1s echo "$RAFTCRON_LAUNCH $(date +\\%s.\\%N)" >> {self.starts}'
        jobs = (f"#: name=j{number} catchup=all\n{line}\n" for number in range(JOBS))
        crontab.write_text("".join(jobs), encoding="utf-8")
        port = free_ports(1)[0] % 50_000 + 10_000
        self._servers = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
        self._main = [sys.executable, "-P", "-m", "cron.main"]
        self._environment = os.environ | {"PYTHONPATH": str(root)}
        command = [*self._main, "dev", str(crontab), "--port", str(port)]
        with (folder / "dev.out").open("wb") as out:
            self._process = subprocess.Popen(
                [*command, "--data", str(folder / "data")],
                env=self._environment,
                stdout=out,
                stderr=out,
                cwd=root,
            )

    def leader(self) -> int:
        """Return the process id of the leader, once there is one."""
        until_s = time.monotonic() + _UP_S
        while time.monotonic() < until_s:
            answer = subprocess.run(
                [*self._main, "status", "-o", "json", "--server", self._servers],
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
            )
            for line in answer.stdout.splitlines():
                row = json.loads(line)
                if row.get("role") == "leader" and row.get("pid"):
                    return int(row["pid"])
            time.sleep(0.2)
        raise TimeoutError("no leader")

    def seen(self) -> list[tuple[str, float]]:
        """Return all starts: name of the launch and when, in order of time."""
        if not self.starts.exists():
            return []
        lines = self.starts.read_text(encoding="ascii").splitlines()
        found = [(name, float(at)) for name, at in (line.split() for line in lines)]
        return sorted(found, key=lambda start: start[1])

    def await_starts(self) -> None:
        """Return when all jobs run."""
        until_s = time.monotonic() + _UP_S
        while len(self.seen()) < 3 * JOBS:
            if time.monotonic() > until_s:
                raise TimeoutError("nothing was started")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)


def freeze(root: Path) -> tuple[float, int, int]:
    """Return the longest gap in seconds, and how many instants nobody started, or somebody twice,
    while a leader was frozen."""
    with tempfile.TemporaryDirectory(prefix="raftcron-frozen-") as folder:
        cell = Dev(root, Path(folder))
        try:
            cell.await_starts()
            leader = cell.leader()
            time.sleep(CALM_S)
            time.sleep((PHASE_S - time.time()) % 1.0)
            began_s = time.time()
            os.kill(leader, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            os.kill(leader, signal.SIGCONT)
            time.sleep(CALM_S)
            found = cell.seen()
        finally:
            cell.stop()
    times = [at for _, at in found if began_s - 2 <= at <= began_s + FROZEN_S + CALM_S]
    gap_s = max(after - before for before, after in itertools.pairwise(times))
    counts = collections.Counter(name for name, _ in found)
    twice = sum(count - 1 for count in counts.values())
    expected = JOBS * int(CALM_S / 2 + FROZEN_S)
    around = [name for name, at in found if began_s - CALM_S / 2 <= at]
    return gap_s, max(0, expected - len(set(around))), twice


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Freeze a leader `rounds` times, each in a cell of its own."""
    found = [freeze(root) for _ in range(rounds)]
    gaps = [round(gap_s, 2) for gap_s, _, _ in found]
    return {
        "gap_s": gaps,
        "median_s": round(statistics.median(gaps), 2),
        "missing": sum(missing for _, missing, _ in found),
        "twice": sum(twice for _, _, twice in found),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.frozen")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the tree to run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measure(options.root.resolve(), options.rounds)))


if __name__ == "__main__":
    main()
