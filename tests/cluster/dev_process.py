"""`dev` as a process of its own, in a process group of its own, read line by line."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

from tests.cluster.harness import free_ports


class DevProcess:
    """A process that runs a local cell and says what it does on its standard output."""

    def __init__(self, argv: list[str], cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=cwd,
        )
        self.output = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """Return the match of a pattern in all that was said, once it is there."""
        assert self.process.stdout is not None
        while not (found := re.search(pattern, self.output)):
            line = self.process.stdout.readline()
            assert line, f"no {pattern!r} in:\n{self.output}"
            self.output += line
        return found

    def pids(self) -> dict[str, int]:
        """The process ids of its children when it started, by their ids."""
        text = self.read_until(r"cell in .*\n")[0]
        return {name: int(pid) for name, pid in re.findall(r"(\S+) pid (\d+)", text)}

    def interrupt(self) -> None:
        """Ctrl-C to this process alone."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for its end and return its exit code."""
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.output += self.process.stdout.read()
        return self.process.wait(60)

    def close(self) -> None:
        """End it in any case; the kernel ends its children."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def first_port(port: int = 0) -> int:
    """Return `port`, or the first of six free ones."""
    return port or free_ports().client[0]
