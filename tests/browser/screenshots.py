"""`make screenshots`: each page of the console, taken in Chromium from a real local cell.

The cell lives for some minutes first, and has launches of every kind: some fail, one becomes a dead
letter, instants are missed while no replica leads, one tenant has more work than may begin, a gate
is closed, a job is changed, tasks wait for others, alerts fire, are mailed, muted and resolved, and
the leader is killed. Each page is taken in light and dark, wide and narrow; at the end one is
taken as somebody sees it who may only look, and one of a replica that has no majority.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from playwright.async_api import Browser, Page, async_playwright

from cron.api import table
from cron.api.alerts import AlertsQuery
from cron.api.client import Client
from cron.api.launches import HistoryQuery, LaunchView
from cron.dev.files import HTTP_OFFSET, Ports, write_cell
from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.dev_process import DevProcess, first_port
from tests.cluster.harness import wait_until
from tests.fakes.smtp_server import smtp_server
from tests.style.tree import ROOT

RAFTCRON: Final = [sys.executable, "-P", "-m", "cron.main"]
WIDTHS: Final = {"wide": 1_240, "narrow": 390}
HEIGHT_MAX: Final = 1_600
SCHEMES: Final = ("light", "dark")
EXECUTORS: Final = 2
PERSON: Final = {"LOGNAME": "ada", "USER": "ada"}
OUTSIDE: Final = """host = "build-1.example"
slots = 24

[labels]
zone = "a"
"""
"""What the configuration of the executors says, so that pictures do not show this machine."""

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
#: name=shop/refresh-prices deadline=1s catchup=none
@every 2s sleep 0.3; echo "refreshed 240 prices"
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
ALERTS: Final = """
[[channel]]
name = "ops"
kind = "mail"
to = ["ops@example.com"]

[[channel]]
name = "shop"
kind = "mail"
to = ["ada@example.com", "shop@example.com"]

[[rule]]
name = "failed-twice"
when = "failed:2"
to = ["ops"]

[[rule]]
name = "prices"
when = "no-success:1m"
jobs = ["shop/publish-prices"]
to = ["shop", "ops"]

[[rule]]
name = "dead-letters"
when = "dead"
to = ["shop"]

[[rule]]
name = "missed"
when = "missed"
jobs = ["shop/*"]
to = ["shop"]

[[rule]]
name = "spiders"
when = "missed"
jobs = ["spider/site-00*"]
to = ["ops"]

[[rule]]
name = "replicas"
when = "replica-away:10s"
to = ["ops"]
"""
TARGETS: Final = """[mail]
server = "127.0.0.1:{port}"
from = "raftcron <cron@example.com>"
recipients = ["*@example.com"]
tls = "none"
"""
SPIDERS: Final = 300
"""Jobs of one tenant that fall due faster than they may begin: an overload."""
GROUP: Final = "import-2026-11"
PLAN: Final = "plan"
ALONE: Final = "alone"
VIEWER: Final = "viewer"
"""What the pictures of a plan, of a replica without a majority, and of a page as somebody sees it
who may only look, are called."""
LIFE_S: Final = 450
STILL_S: Final = 12
"""How long the cell lives, and how long it stands still at the end."""
CUT_OFF: Final = re.compile("No leader is known to r1|r1 does not hear r[23]")
"""What the page of a replica without a majority says: it may have heard of a leader before."""
INVOICE: Final = ["--handler", "shop.invoice", "--payload", '{"customer": "acme", "cents": 4200}']
TASKS: Final = [
    *([*INVOICE, "--key", f"order-{number}"] for number in range(1_040, 1_044)),
    [*INVOICE, "--key", "order-1044", "--delay", "20m"],
    ["--handler", "shop.invoice", "--key", "no-customer", "--payload", "{}", "--tries", "1"],
    *(
        ["--queue", "nightly", "--handler", "shop.reindex", "--key", key, "--delay", "2h"]
        for key in ("books", "records", "toys")
    ),
    *(
        ["--queue", "nightly", "--handler", "shop.reindex", "--key", f"part-{number:02}",
         "--group", GROUP, "--delay", f"{number % 5 + 1}h"]
        for number in range(40)
    ),
    *(
        ["--queue", "nightly", "--handler", "shop.reindex", "--key", key,
         "--after", f"nightly:{to}"]
        for key, to in (("publish", "books"), ("announce", "publish"), ("archive", "publish"))
    ),
]  # fmt: skip


class Cell:
    """A local cell with a client."""

    def __init__(self, folder: Path, smtp_port: int) -> None:
        spiders = [
            f"#: name=spider/site-{number:03} deadline=20s\n@every 5s sleep 2\n"
            for number in range(SPIDERS)
        ]
        self.crontab = "".join([CRONTAB, *spiders])
        (folder / "crontab").write_text(self.crontab)
        (folder / "alerts.toml").write_text(ALERTS)
        targets = folder / "targets.toml"
        targets.write_text(TARGETS.format(port=smtp_port))
        port = first_port()
        self.folder, self.ports = folder, Ports.from_first(port)
        write_cell(
            folder / "cell", self.ports, executors=EXECUTORS, executor_extra=OUTSIDE, http=True
        )
        where = ["--executors", str(EXECUTORS), "--data", str(folder / "cell"), "--port", str(port)]
        where += ["--targets", str(targets)]
        os.environ.update(PERSON)  # who applies the crontab
        self.dev = DevProcess([*RAFTCRON, "dev", *where, str(folder / "crontab")])
        self.url = f"http://127.0.0.1:{port + HTTP_OFFSET}"
        self.client = Client(self.ports.servers, timeout_ms=20_000)
        self.began_s = time.monotonic()
        self.stopped: list[int] = []

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
        limited = ["--pool", "command", "--tenant", "spider"]
        self.run("limit", "set", *limited, "--concurrent", "2")
        self.run("alerts", "apply", str(self.folder / "alerts.toml"))
        self.run("queue", "apply", str(ROOT / "examples" / "queues.toml"))
        for task in TASKS:
            self.run("task", "submit", *task)
        on_complete = ["--on-complete-handler", "shop.reindex", "--on-complete-queue", "nightly"]
        self.run("group", "close", GROUP, *on_complete)
        self.await_launches(12)
        self.kill_leader()
        self.await_launches(60)
        (self.folder / "crontab").write_text(self.crontab.replace("sleep 0.3;", "sleep 0.6;"))
        self.run("apply", str(self.folder / "crontab"))
        self.await_launches(1, job="shop/publish-prices", states=["failed"])
        self.await_launches(1, job="shop/update-rates", states=["failed"])
        self.await_launches(3, states=["skipped"])
        wait_until(self.is_overloaded, 120, "an overload")
        self.run(
            "alerts", "mute", "spider/*", "--for", "2h", "--reason", "its sites are slow today"
        )
        wait_until(lambda: "shop/publish-prices" in self.run("alerts", "list"), 120, "an alert")
        wait_until(self.is_over, 240, "an alert that is over")
        wait_until(lambda: time.monotonic() - self.began_s > LIFE_S, LIFE_S, "a life")
        self.stand_still()
        self.await_launches(1, job="shop/refresh-prices", states=["skipped"])
        wait_until(self.is_whole, 120, "one leader and two followers")

    def stand_still(self) -> None:
        """Let no replica do anything for some seconds: what falls due meanwhile is missed."""
        pids = self.replicas().values()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        until_s = time.monotonic() + STILL_S
        wait_until(lambda: time.monotonic() > until_s, 2 * STILL_S, "missed instants")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def replicas(self) -> dict[str, int]:
        """Return the processes of the replicas by id, as they say it: one was started anew."""
        rows = self.client.ask(table.STATUS).rows
        return {row.id: row.pid for row in rows if row.kind == "replica"}

    def kill_leader(self) -> None:
        """Kill the replica that leads; `dev` starts it anew."""
        os.kill(self.dev.pids()[self.leader()], signal.SIGKILL)

    def is_over(self) -> bool:
        try:
            return bool(self.client.ask(table.ALERTS, AlertsQuery()).closed)
        except (Unavailable, OutcomeUnknown):
            return False

    def without_majority(self) -> str:
        """Stop two replicas for good; the address of the third."""
        pids = self.replicas()
        first, *others = sorted(pids)
        for name in others:
            os.kill(pids[name], signal.SIGSTOP)
        self.stopped = [pids[name] for name in others]
        return self.url if first == "r1" else ""

    def go_on(self) -> None:
        """Let the stopped replicas go on, so that they can end."""
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)

    def is_whole(self) -> bool:
        try:
            rows = self.client.ask(table.STATUS).rows
        except (Unavailable, OutcomeUnknown):
            return False
        roles = sorted(row.role for row in rows if row.kind == "replica")
        return roles == ["follower", "follower", "leader"]

    def is_overloaded(self) -> bool:
        try:
            return any(row.overload for row in self.client.ask(table.STATUS).rows)
        except (Unavailable, OutcomeUnknown):
            return False

    def addresses(self) -> dict[str, str]:
        """Return the path of each page by its name."""
        dead = self.client.ask(table.HISTORY, HistoryQuery(job="shop/publish-prices", limit=1))
        return {
            "now": "/",
            "jobs": "/jobs",
            "job": "/jobs/shop/refresh-prices",
            "launch": f"/launches/{dead[0].launch}",
            "queues": "/queues",
            "executors": "/executors",
            "executor": "/executors/executor-1",
            "dead": "/dead",
            "alerts": "/alerts",
            "tasks": "/tasks",
            "task": "/tasks/default/nightly:publish",
            "group": f"/groups/default/{GROUP}",
            "cell": "/cell",
            "signin": "/signin",
        }


async def take(browser: Browser, cell: Cell, into: Path) -> None:
    """Take the pictures of a cell: each page, and the plan of an act."""
    ways = [(scheme, width) for scheme in SCHEMES for width in WIDTHS]
    addresses = cell.addresses()
    for page_name, (scheme, width) in itertools.product([*addresses, PLAN], ways):
        page = await browser.new_page(
            viewport={"width": WIDTHS[width], "height": 700},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        answer = await page.goto(cell.url + addresses.get(page_name, "/jobs"))
        assert answer is not None
        assert answer.ok, f"{page_name}: {answer.status}"
        if page_name == PLAN:
            now = datetime.now(UTC)
            for label, at in (("from", now - timedelta(minutes=3)), ("to", now)):
                field = page.get_by_label(re.compile(f"^backfill {label}"))
                await field.fill(at.strftime("%Y-%m-%dT%H:%M"))
            await page.get_by_label("choose shop/refresh-prices", exact=True).check()
            await page.get_by_role("button", name="Backfill …").click()
            await page.get_by_role("heading", name="Backfill", exact=True).wait_for()
        await keep(page, into / f"console-{page_name}-{scheme}-{width}.png", WIDTHS[width])


async def take_viewer(browser: Browser, cell: Cell, into: Path) -> None:
    """Take the page of a launch as somebody sees it who may only look."""
    said = await asyncio.to_thread(cell.run, "token", "create", "eve", "--role", "viewer")
    (token,) = re.findall(r"\brc1_\w+", said)
    path = cell.addresses()["launch"]
    for scheme, width in itertools.product(SCHEMES, WIDTHS):
        page = await browser.new_page(
            viewport={"width": WIDTHS[width], "height": 700},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        await page.goto(f"{cell.url}/signin?next={quote(path)}")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_text("You may look, and change nothing").first.wait_for()
        await keep(page, into / f"console-{VIEWER}-{scheme}-{width}.png", WIDTHS[width])


async def take_alone(browser: Browser, cell: Cell, into: Path) -> None:
    """Take the page Now of a replica that has no majority."""
    url = await asyncio.to_thread(cell.without_majority)
    for scheme, width in itertools.product(SCHEMES, WIDTHS):
        page = await browser.new_page(
            viewport={"width": WIDTHS[width], "height": 700},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        while True:
            await page.goto(url)
            if await page.get_by_text(CUT_OFF).count():
                break
            await page.wait_for_timeout(1_000)
        await keep(page, into / f"console-{ALONE}-{scheme}-{width}.png", WIDTHS[width])


async def keep(page: Page, path: Path, width: int) -> None:
    """Keep the picture of a page, and close it."""
    height = await page.evaluate("document.documentElement.scrollHeight")
    size = {"width": width, "height": min(height, HEIGHT_MAX)}
    await page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, **size})
    await page.close()


async def browse(cell: Cell, into: Path) -> None:
    """Take the pictures in a browser of our own."""
    async with async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        await take(browser, cell, into)
        await take_viewer(browser, cell, into)
        await take_alone(browser, cell, into)
        await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="take pictures of the console")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, smtp_server() as mail:
        cell = Cell(Path(folder), mail.port)
        try:
            cell.dev.read_until(r"leads now")
            # `dev` waits where nobody reads what it says.
            said = cell.dev.process.stdout
            assert said is not None
            threading.Thread(target=said.read, daemon=True).start()
            with cell.worker():
                cell.live()
                asyncio.run(browse(cell, options.into))
        finally:
            cell.go_on()
            cell.close()
    taken = sorted(re.sub(r"^console-|\.png$", "", one.name) for one in options.into.glob("*.png"))
    print(f"{len(taken)} pictures in {options.into}: {', '.join(taken)}")


if __name__ == "__main__":
    main()
