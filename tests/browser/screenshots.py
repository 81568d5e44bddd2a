"""`make screenshots`: each page of the console, taken in Chromium from a real local cell.

The cell has launches of every kind first: some fail, one becomes a dead letter, instants are
skipped, a gate is closed, tasks wait, and the leader is killed once. The documentation shows
`KEPT`; `--all` takes each page in light and dark, wide and narrow.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright

from cron.api import table
from cron.api.client import Client
from cron.api.launches import HistoryQuery, LaunchView
from cron.dev.files import HTTP_OFFSET, Ports
from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.dev_process import DevProcess, first_port
from tests.cluster.harness import wait_until
from tests.style.tree import ROOT

RAFTCRON: Final = [sys.executable, "-P", "-m", "cron.main"]
WIDTHS: Final = {"wide": 1_240, "narrow": 390}
HEIGHT_MAX: Final = 1_800
SCHEMES: Final = ("light", "dark")
KEPT: Final = {
    (page, "light", "wide")
    for page in ("now", "jobs", "job", "launch", "queues", "executors", "dead", "tasks", "cell")
} | {("now", "dark", "wide"), ("job", "dark", "narrow")}

CRONTAB: Final = r"""
#: name=shop/import-orders
@every 5s sleep 0.4; echo "imported orders of the last five seconds"
#: name=shop/send-mails overlap=forbid deadline=10s
@every 3s sleep 4
#: name=shop/check-stock
@every 10s echo "17 articles are below their minimum"; sleep 1
#: name=shop/update-rates timeout=2s
@every 20s sleep 60
#: name=shop/publish-prices retries=1 backoff=2s fatal-on=2
@every 40s echo "prices.csv: no such file" >&2; exit 2
#: name=ops/rotate-logs
@every 15s sleep 0.2
#: name=ops/check-disks
@every 30s echo "/ 41 \%"; exit $(( $(date +\%s) / 30 \% 3 == 0 ))
#: name=ops/compact collection=maintenance
@every 20s sleep 1
#: name=ops/vacuum
? ?(2-5) * * * echo vacuum
CRON_TZ=Europe/Berlin
#: name=shop/close-of-day
30 17 * * 1-5 echo closed
"""
INVOICE: Final = ["--handler", "shop.invoice", "--payload", '{"customer": "acme", "cents": 4200}']
TASKS: Final = [
    *([*INVOICE, "--key", f"order-{number}"] for number in range(1_040, 1_044)),
    [*INVOICE, "--key", "order-1044", "--delay", "20m"],
    ["--handler", "shop.invoice", "--key", "no-customer", "--payload", "{}", "--tries", "1"],
    *(
        ["--queue", "nightly", "--handler", "shop.reindex", "--key", key, "--delay", "2h"]
        for key in ("books", "records", "toys")
    ),
]


class Cell:
    """A local cell with a client."""

    def __init__(self, folder: Path) -> None:
        (folder / "crontab").write_text(CRONTAB)
        port = first_port()
        self.folder, self.ports = folder, Ports.from_first(port)
        where = ["--data", str(folder / "cell"), "--port", str(port)]
        self.dev = DevProcess([*RAFTCRON, "dev", *where, str(folder / "crontab")])
        self.url = f"http://127.0.0.1:{port + HTTP_OFFSET}"
        self.client = Client(self.ports.servers, timeout_ms=20_000)

    def close(self) -> None:
        self.client.close()
        self.dev.close()

    def run(self, *arguments: str) -> str:
        """Return what a command printed."""
        environment = os.environ | {"RAFTCRON_SERVER": ",".join(self.ports.servers)}
        return subprocess.run(
            [*RAFTCRON, *arguments], env=environment, check=True, capture_output=True, text=True
        ).stdout

    def history(self, **filters: object) -> list[LaunchView]:
        try:
            return self.client.ask(table.HISTORY, HistoryQuery(**filters))  # type: ignore[arg-type]
        except (Unavailable, OutcomeUnknown):
            return []

    def await_launches(self, many: int, **filters: object) -> list[LaunchView]:
        def found() -> list[LaunchView]:
            rows = self.history(limit=1_000, **filters)
            return rows if len(rows) >= many else []

        rows: list[LaunchView] = wait_until(found, 240, f"{many} launches {filters}")
        return rows

    def leader(self) -> str:
        def leading() -> str:
            try:
                rows = self.client.ask(table.STATUS).rows
            except (Unavailable, OutcomeUnknown):
                return ""
            return next((row.id for row in rows if row.role == "leader"), "")

        return str(wait_until(leading, 60, "a leader"))

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Serve the handlers of examples/handlers."""
        line = next(
            line
            for line in (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8").splitlines()
            if line.startswith("raftcron worker")
        )
        arguments = line.split()[1:-1]
        serving = subprocess.Popen(
            [*RAFTCRON, *arguments, str(self.folder / "cell" / "executor-1" / "workers.sock")],
            cwd=ROOT / "examples" / "handlers",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: "shop.invoice" in self.run("executors"), 60, "the worker")
            yield
        finally:
            serving.terminate()
            serving.wait(30)

    def live(self) -> None:
        """Let the cell have launches of every kind, and a failover."""
        self.run("gate", "close", "--collection", "maintenance", "--reason", "the disk is replaced")
        self.run("queue", "apply", str(ROOT / "examples" / "queues.toml"))
        for task in TASKS:
            self.run("task", "submit", *task)
        self.await_launches(12)
        os.kill(self.dev.pids()[self.leader()], signal.SIGKILL)
        self.await_launches(60)
        self.await_launches(1, job="shop/publish-prices", states=["failed"])
        self.await_launches(1, job="shop/update-rates", states=["failed"])
        self.await_launches(3, states=["skipped"])

    def addresses(self) -> dict[str, str]:
        """Return the path of each page by its name."""
        dead = self.client.ask(table.HISTORY, HistoryQuery(job="shop/publish-prices", limit=1))
        return {
            "now": "/",
            "jobs": "/jobs",
            "job": "/jobs/shop/import-orders",
            "launch": f"/launches/{dead[0].launch}",
            "queues": "/queues",
            "executors": "/executors",
            "dead": "/dead",
            "tasks": "/tasks",
            "cell": "/cell",
        }


async def take(browser: Browser, cell: Cell, into: Path, wanted: set[tuple[str, str, str]]) -> None:
    """Take the wanted pictures of a cell."""
    addresses = cell.addresses()
    for page_name, scheme, width in sorted(wanted):
        page = await browser.new_page(
            viewport={"width": WIDTHS[width], "height": 700},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        answer = await page.goto(cell.url + addresses[page_name])
        assert answer is not None
        assert answer.ok, f"{page_name}: {answer.status}"
        height = await page.evaluate("document.documentElement.scrollHeight")
        size = {"width": WIDTHS[width], "height": min(height, HEIGHT_MAX)}
        path = into / f"console-{page_name}-{scheme}-{width}.png"
        await page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, **size})
        await page.close()


async def browse(cell: Cell, into: Path, wanted: set[tuple[str, str, str]]) -> None:
    """Take the pictures in a browser of our own."""
    async with async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        await take(browser, cell, into, wanted)
        await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="take pictures of the console")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--all", action="store_true", help="light and dark, wide and narrow")
    options = parser.parse_args()
    pages = {page for page, _, _ in KEPT}
    every = {(page, scheme, width) for page in pages for scheme in SCHEMES for width in WIDTHS}
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cell = Cell(Path(folder))
        try:
            cell.dev.read_until(r"leads now")
            with cell.worker():
                cell.live()
                asyncio.run(browse(cell, options.into, every if options.all else KEPT))
        finally:
            cell.close()
    taken = sorted(re.sub(r"^console-|\.png$", "", one.name) for one in options.into.glob("*.png"))
    print(f"{len(taken)} pictures in {options.into}: {', '.join(taken)}")


if __name__ == "__main__":
    main()
