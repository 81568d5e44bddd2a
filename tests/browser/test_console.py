"""The console in Debian's Chromium: each page, an act, a failover while a page is open.

The pages come from a replica's HTTP server with a cell that answers what a test says. Without
Chromium the tests are skipped; `.ci/run` installs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from consensus.leadership import Leadership
from cron.access import Role
from cron.api.jobs import PauseReport
from cron.api.launches import OutputView
from cron.web.console.events import Events
from tests.browser.rig import LOOP, MARKS, Cell, faults_of, opened
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import launch
from tests.unit.console_rig import HOSTILE
from tests.unit.test_console_pages import PAGES, full
from tests.unit.web_rig import site

pytestmark = MARKS
NARROW = {"width": 360, "height": 740}


@pytest_asyncio.fixture(loop_scope=LOOP)
async def cell() -> AsyncIterator[Cell]:
    made = Cell(full(HOSTILE))
    events = Events(lambda: made.now, period_s=0.1)
    async with site(
        made.backend, has_console=True, events=events, serving=lambda: made.now
    ) as served:
        made.served = served
        yield made


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_each_page_is_sound_in_light_and_dark_and_fits_a_narrow_screen(
    browser: Browser, cell: Cell, scheme: str
) -> None:
    page, said = await opened(browser, color_scheme=scheme)
    wrong: list[str] = []
    for path in PAGES:
        await page.set_viewport_size({"width": 1280, "height": 900})
        answer = await page.goto(cell.url(path))
        assert answer is not None
        assert answer.status == 200
        wrong += [f"{path}: {one}" for one in await faults_of(page)]
        await page.set_viewport_size(NARROW)
        width = await page.evaluate("document.documentElement.scrollWidth")
        wrong += [f"{path} is {width} wide"] if width > NARROW["width"] else []
    assert wrong == []
    assert said == []
    await page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_of_plans_errors_and_old_data_are_sound(
    browser: Browser, cell: Cell, scheme: str
) -> None:
    page, _ = await opened(browser, color_scheme=scheme)
    wrong: dict[str, list[tuple[str, str]]] = {}
    await page.goto(cell.url("/jobs"))
    await page.get_by_label("choose acme/mail").check()
    await page.get_by_role("button", name="Pause …").click()
    await expect(page.get_by_role("heading", name="Pause jobs")).to_be_visible()
    wrong["plan"] = await faults_of(page)
    answer = await page.goto(cell.url("/nowhere"))
    assert answer is not None
    assert answer.status == 404
    wrong["error"] = await faults_of(page)
    cell.change(leadership=Leadership(4, leads=False, leader=None))
    await page.goto(cell.url("/"))
    await expect(page.get_by_text("No leader is known to r1")).to_be_visible()
    wrong["no majority"] = await faults_of(page)
    await expect(page.locator("#live")).to_have_text("kept up to date")
    await page.context.set_offline(True)
    cell.change()
    await expect(page.locator("#stale")).to_contain_text("r1 does not answer")
    wrong["stale"] = await faults_of(page)
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_to_sign_in_is_sound_and_so_is_a_token_that_is_refused(
    browser: Browser, scheme: str
) -> None:
    admission = AccessWorld().admission(is_open=False)
    async with site(full("plain"), has_console=True, admission=admission) as served:
        page, said = await opened(browser, color_scheme=scheme)
        await page.goto(f"http://127.0.0.1:{served.port}/jobs")
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert await faults_of(page) == []
        await page.get_by_label("Token").fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        assert await faults_of(page) == []
        assert [one for one in said if "40" not in one] == [], "but for the refusal itself"


async def test_jobs_are_paused_without_javascript(browser: Browser, cell: Cell) -> None:
    cell.backend.answers["pause"] = PauseReport(changed=["acme/mail"])
    page, _ = await opened(browser, java_script_enabled=False)
    await page.goto(cell.url("/jobs"))
    await page.get_by_label("choose acme/mail").check()
    await page.get_by_role("button", name="Pause …").click()
    await expect(page.get_by_role("heading", name="Pause jobs")).to_be_visible()
    assert [name for name, _ in cell.backend.calls if name == "pause"] == []
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.get_by_text("1 job was paused.")).to_be_visible()
    assert [name for name, _ in cell.backend.calls if name == "pause"] == ["pause"]
    await page.context.close()


async def test_an_open_page_follows_launches_and_a_failover(browser: Browser, cell: Cell) -> None:
    page, said = await opened(browser)
    await page.goto(cell.url("/"))
    await expect(page.locator("#live")).to_have_text("kept up to date")
    cell.backend.answers["history"] = [launch(detail="the new one", state="failed")]
    cell.change()
    await expect(page.locator("#failed").get_by_text("the new one")).to_be_visible()
    cell.change(leadership=Leadership(4, leads=False, leader=None))
    await expect(page.get_by_text("No leader is known to r1")).to_be_visible()
    await expect(page.locator("#live")).to_be_hidden()  # it would say that old data is up to date
    cell.change(leadership=Leadership(5, leads=False, leader="r2"))
    await expect(page.get_by_text("r2 leads in term 5")).to_be_visible()
    await expect(page.get_by_text("No leader is known to r1")).to_have_count(0)
    await expect(page.locator("#live")).to_be_visible()
    assert said == []
    await page.context.close()


async def test_a_page_of_a_launch_that_runs_follows_its_output_and_the_time(
    browser: Browser, cell: Cell
) -> None:
    # What a launch prints is no entry of the log, so that no event tells of it.
    name = "acme/mail@2026-11-20T15:00:00Z"
    running = launch(launch=name, is_open=True, state="launched")
    cell.backend.answers["show"] = [running]
    cell.backend.answers["output"] = OutputView(content=b"one", size=3)
    page, said = await opened(browser)
    await page.goto(cell.url(f"/launches/{name}"))
    await expect(page.get_by_label("output", exact=True)).to_have_text("one")
    cell.backend.answers["output"] = OutputView(content=b"one two", size=7)
    await expect(page.get_by_label("output", exact=True)).to_have_text("one two")
    await page.goto(cell.url("/executors"))
    await page.goto(cell.url("/"))
    since = page.locator("#sums time").first
    first = await since.inner_text()
    await expect(since).not_to_have_text(first)
    assert said == []
    await page.context.close()


async def test_tables_stand_as_rows_on_a_narrow_screen_and_hide_nothing(
    browser: Browser, cell: Cell
) -> None:
    page, _ = await opened(browser, viewport=NARROW)
    await page.goto(cell.url("/dead"))
    wide = page.locator(".wide").first
    assert await wide.evaluate("one => one.scrollWidth <= one.clientWidth + 1")
    tries = page.locator("td[data-l=Tries]").first
    assert await tries.evaluate("one => getComputedStyle(one, '::before').content") == '"Tries: "'
    await page.context.close()


async def test_a_page_is_used_with_the_keyboard_alone(browser: Browser, cell: Cell) -> None:
    page, _ = await opened(browser)
    await page.goto(cell.url("/jobs"))
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_label("Part of a name")).to_be_focused()
    await page.context.close()


async def test_a_page_stands_in_no_frame_of_another(browser: Browser, cell: Cell) -> None:
    page, _ = await opened(browser)
    await page.goto(cell.url("/healthz"))
    async with page.expect_console_message(lambda one: "frame" in one.text.lower()):
        await page.set_content(f'<iframe src="{cell.url("/")}"></iframe>')
    await page.context.close()


async def test_a_link_on_another_site_leads_in_and_leaves_open_pages_as_they_are(
    browser: Browser,
) -> None:
    world = AccessWorld()
    token = world.token(Role.OPERATOR, name="ada")
    cell = Cell(full("plain"))
    cell.backend.answers["pause"] = PauseReport(changed=["acme/mail"])
    admission = world.admission(is_open=False)
    async with site(cell.backend, has_console=True, admission=admission) as served:
        cell.served = served
        first, _ = await opened(browser)
        await first.goto(cell.url("/signin?next=/jobs"))
        await first.get_by_label("Token").fill(token)
        await first.get_by_role("button", name="Sign in").click()
        await first.get_by_label("choose acme/mail").check()
        # Another host of this machine is another site to the browser.
        mail = await first.context.new_page()
        await mail.goto(f"http://localhost:{served.port}/healthz")
        await mail.set_content(f'<a href="{cell.url("/alerts")}">see</a>')
        await mail.get_by_role("link", name="see").click()
        await expect(mail.get_by_role("heading", name="Firing oldest first")).to_be_visible()
        await expect(mail.get_by_text("Sign out")).to_be_visible()
        await first.get_by_role("button", name="Pause …").click()
        await first.get_by_role("button", name="Pause", exact=True).click()
        await expect(first.get_by_text("1 job was paused.")).to_be_visible()
        await first.context.close()
