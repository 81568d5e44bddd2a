"""Chromium for tests, and a console whose cell answers what a test says."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect
from playwright.async_api import Error as PlaywrightError

from consensus.leadership import Freshness, Leadership
from cron.web.console.page_request import Serving
from tests.unit.api_rig import FakeBackend
from tests.unit.web_rig import Site

CHROMIUM = shutil.which("chromium")
IS_CI: Final = os.environ.get("CI") == "true"
"""Whether a server of CI runs the tests: there, none is skipped."""
KEPT: Final = Path(os.environ.get("RAFTCRON_ARTEFACTS", "build/artefacts"))
"""Where the pictures of a test that failed are kept."""
SERIOUS: Final = ("serious", "critical")
PATIENCE_MS: Final = 60_000
"""How long a test waits for what it expects of a page; playwright's own 5 s are soon over on a busy
machine."""
LOOP = "session"
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope=LOOP),
    pytest.mark.skipif(CHROMIUM is None and not IS_CI, reason="Chromium is not installed"),
]


expect.set_options(timeout=PATIENCE_MS)


class Cell:
    """A cell whose answers a test changes, and the console of its replica r1."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.now = Serving("r1", Leadership(3, leads=True, leader="r1"), Freshness(9, 9, 5))
        self.served: Site

    def change(self, **fields: Any) -> None:
        """Let the replica apply one more entry, and stand as the fields say."""
        index = self.now.fresh.applied + 1
        self.now = msgspec.structs.replace(
            self.now, **({"fresh": Freshness(index, index, 5)} | fields)
        )

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.served.port}{path}"


OPEN: Final[list[Page]] = []
"""The pages that a test has opened."""


async def opened(browser: Browser, **how: Any) -> tuple[Page, list[str]]:
    """A new page, and what it complains of."""
    context = await browser.new_context(**how)
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    OPEN.append(page)
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    return page, said


async def faults_of(page: Page) -> list[tuple[str, str]]:
    """What axe finds serious of a page: the rule, and the first element that breaks it."""
    found = await Axe().run(page)
    return [
        (one["id"], one["nodes"][0]["html"])
        for one in found.response["violations"]
        if one["impact"] in SERIOUS
    ]


async def close_all(test: str, *, keeps: bool) -> None:
    """Close the pages that a test left open; with `keeps`, after a picture of each."""
    for number, page in enumerate(OPEN, 1):
        if keeps and not page.is_closed():
            name = re.sub(r"[^\w.-]+", "-", test).strip("-")[:150]
            with contextlib.suppress(PlaywrightError):
                await page.screenshot(path=KEPT / f"{name}-{number}.png", timeout=10_000)
        with contextlib.suppress(PlaywrightError):
            await page.context.close()
    OPEN.clear()
