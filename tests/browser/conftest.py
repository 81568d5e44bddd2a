"""One browser for all tests of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.rig import CHROMIUM, LOOP, PATIENCE_MS


@pytest_asyncio.fixture(loop_scope=LOOP, scope=LOOP)
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as started:
        found = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield found
        await found.close()
