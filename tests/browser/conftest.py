"""One browser for all tests of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.rig import CHROMIUM, LOOP, PATIENCE_MS, close_all

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest_asyncio.fixture(loop_scope=LOOP, autouse=True)
async def pictures(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Keep a picture of each page of a test that failed."""
    yield
    item: pytest.Item = request.node
    await close_all(item.name, keeps=item.stash.get(FAILED, False))


@pytest_asyncio.fixture(loop_scope=LOOP, scope=LOOP)
async def browser() -> AsyncIterator[Browser]:
    assert CHROMIUM is not None, "CI runs these tests: install chromium"
    async with async_playwright() as started:
        found = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield found
        await found.close()
