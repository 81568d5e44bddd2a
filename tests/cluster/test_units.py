"""What the units of systemd start, started: three replicas, an executor and a worker.

`make install-files` puts units and examples below a folder, as it does on a machine. What differs
here: the interpreter, ports, and the folder. tests/package starts them by systemd itself.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cron.api import table
from cron.api.client import Client
from cron.api.launches import HistoryQuery
from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.harness import WAIT_S, free_ports, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
PROGRAM = "/opt/raftcron/bin/raftcron"


class Host:
    """A folder that has what `make install-files` installs, and the processes of its units."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ports = folder, free_ports()
        command = ["make", "--no-print-directory", "install-files", f"DESTDIR={folder}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        self.units = folder / "usr" / "local" / "lib" / "systemd" / "system"
        self.running: list[subprocess.Popen[bytes]] = []
        self.client = Client(self.ports.servers, timeout_ms=20_000)

    def configure(self, example: str, name: str, changes: dict[str, str]) -> Path:
        """Write /etc/raftcron/NAME from an example, with texts of it replaced."""
        text = (self.folder / "etc" / "raftcron" / example).read_text()
        for old, new in changes.items():
            assert old in text, f"{example} has no {old}"
            text = text.replace(old, new)
        text = text.replace("/var/lib/", f"{self.folder}/var/lib/")
        path = self.folder / "etc" / "raftcron" / name
        path.write_text(text)
        return path

    def start(self, unit: str, changes: dict[str, str]) -> None:
        """Run the command of a unit with its environment, as systemd would."""
        settings = self._settings((self.units / f"{unit}.service").read_text())
        line = settings["ExecStart"]
        for old, new in changes.items():
            line = line.replace(old, new)
        environment = {**os.environ, **self._environment(settings)}
        words = [one for word in shlex.split(line) for one in _expanded(word, environment)]
        assert words[0] == PROGRAM
        with (self.folder / f"{len(self.running)}.log").open("wb") as log:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "cron.main", *words[1:]],
                    env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log,
                )
            )  # fmt: skip

    @staticmethod
    def _settings(text: str) -> dict[str, str]:
        pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#"]
        return {key: value for key, value in pairs}

    def _environment(self, settings: dict[str, str]) -> dict[str, str]:
        """Return what Environment= and EnvironmentFile= of a unit say, below this folder."""
        found = dict([settings.get("Environment", "_=").split("=", 1)])
        if (file := settings.get("EnvironmentFile")) is not None:
            path = self.folder / file.replace("%i", "shop").lstrip("/")
            found |= self._settings(path.read_text())
        return {
            key: text.replace("/var/lib/", f"{self.folder}/var/lib/") for key, text in found.items()
        }

    def ask(self, call: Any, request: Any = None) -> Any:
        """Return the answer of the cell, None while nobody answers."""
        try:
            return self.client.ask(call, request) if request is not None else self.client.ask(call)
        except (Unavailable, OutcomeUnknown):
            return None

    def logs(self) -> str:
        """Return the end of what each process said."""
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """End all processes that were started here."""
        self.client.close()
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _expanded(word: str, environment: dict[str, str]) -> list[str]:
    """Return the arguments of a word: systemd splits the value of $NAME at spaces."""
    if re.fullmatch(r"\$[A-Z_]+", word):
        return environment.get(word[1:], "").split()
    return [word]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        yield host
    finally:
        host.close()
        print(host.logs())


def test_the_commands_of_the_units_make_a_cell_that_launches(host: Host) -> None:
    ports = {
        str(old): str(new)
        for base, news in ((7400, host.ports.client), (7410, host.ports.raft))
        for old, new in zip(range(base, base + 3), news, strict=True)
    }
    for number, port in enumerate(host.ports.http, 1):
        config = host.configure(
            "replica.toml.example", f"r{number}.toml",
            {'id = "r1"': f'id = "r{number}"', "lib/raftcron/replica": f"lib/raftcron/r{number}",
             "7480": str(port), **ports},
        )  # fmt: skip
        host.start("raftcron-replica", {"/etc/raftcron/replica.toml": str(config)})
    clients = {old: new for old, new in ports.items() if old.startswith("740")}
    users = {'# users = ["www-data", "backup"]': 'users = ["root"]'}  # where root runs the tests
    config = host.configure("executor.toml.example", "executor.toml", {**clients, **users})
    host.start("raftcron-executor", {"/etc/raftcron/executor.toml": str(config)})
    handlers = str(ROOT / "examples" / "handlers")
    # examples/worker.env, as the installation has it
    places = {"=/srv/shop:": f"={handlers}:", "=shop_handlers": "=tasks"}
    host.configure("worker.env.example", "worker-shop.env", places)
    host.start("raftcron-worker@", {})
    _launches(host)


def _launches(host: Host) -> None:
    """Apply a command and a handler, and wait for a launch of each."""

    def serves() -> bool:
        report = host.ask(table.EXECUTORS)
        return report is not None and any(row.groups for row in report.executors)

    wait_until(serves, WAIT_S, "the worker's handlers")
    crontab = host.folder / "crontab"
    crontab.write_text("@every 1s  true\n#: name=shop/ping handler=shop.ping\n@every 1s  null\n")
    environment = {**os.environ, "RAFTCRON_SERVER": ",".join(host.ports.servers)}
    command = [sys.executable, "-P", "-m", "cron.main", "apply", str(crontab)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def ran() -> bool:
        rows = host.ask(table.HISTORY, HistoryQuery(states=["succeeded"], limit=100)) or []
        return len({row.job for row in rows}) == 2

    wait_until(ran, WAIT_S, "a launch of a command and one of a handler")
