"""Every act of the console, clicked through in Debian's Chromium: form, plan, result."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from cron.web.console.acts import ACTS
from tests.browser.rig import MARKS, Cell, opened
from tests.unit.console_acts import CASES, Case, cell_for
from tests.unit.web_rig import site

pytestmark = MARKS


async def fill_in(page: Page, case: Case) -> None:
    if case.opened:
        await page.get_by_text(case.opened, exact=True).click()
    for label, value in case.labels.items():
        form = page.locator("details[open]") if case.opened else page
        field = form.get_by_label(label, exact=True)
        if value is True:
            await field.check()
        elif await field.evaluate("one => one.tagName") == "SELECT":
            await field.select_option(label=value)
        else:
            await field.fill(value)


@pytest.mark.nightly
@pytest.mark.parametrize("act", ACTS)
async def test_each_act_works_without_javascript(browser: Browser, act: str) -> None:
    await do(browser, act, java_script_enabled=False)


@pytest.mark.parametrize("act", ACTS)
async def test_each_act_is_planned_confirmed_and_done(browser: Browser, act: str) -> None:
    await do(browser, act)


async def do(browser: Browser, act: str, **how: Any) -> None:
    """Click through an act, from its form to what it did."""
    case = CASES[act]
    cell = Cell(cell_for(case))
    async with site(cell.backend, has_console=True) as served:
        cell.served = served
        page, said = await opened(browser, **how)
        await page.goto(cell.url(case.page))
        await fill_in(page, case)
        place = page.locator("details[open]") if case.opened else page
        await place.get_by_role("button", name=case.button, exact=True).click()
        await expect(page.get_by_role("heading", name=case.title, exact=True)).to_be_visible()
        await expect(page.get_by_text(case.shown).first).to_be_visible()
        await page.get_by_role("button", name=case.confirm, exact=True).click()
        await expect(page.get_by_role("status").get_by_text(case.said)).to_be_visible()
        await page.context.close()
    assert said == []
    made = [one for name, (one,) in cell.backend.calls if name == case.call][-1]
    assert {name: getattr(made, name) for name in case.asks} == case.asks
