"""The console of a real cell: a page stays open while one leader after the other is killed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from cron.access import TOKEN_BYTES, token_digest, token_id, token_text
from cron.api import table
from cron.api.access import TokenCreation, TokenRevocation
from cron.api.jobs import ApplyRequest, SourceFile
from tests.browser.rig import MARKS, opened
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell
from tests.cluster.secured_cell import Secured

pytestmark = MARKS
CRONTAB = b"#: name=tick\n@every 1s echo tick\n"
TOKEN = token_text(bytes(range(TOKEN_BYTES)))
OLD = re.compile(
    r"What you see is (what r\d knew )?\d+ s (old|ago)|"
    r"This data is \d+ s old: r\d does not hear r\d"
)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Cell]:
    """Three replicas with certificates and an executor; nothing is started yet."""
    with Secured(tmp_path, "root", http=True).cell as cell:
        yield cell


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Cell]:
    """As `secured`, and a busy machine brings no other leader."""
    with Secured(tmp_path, "root", http=True, replica_extra=PATIENT).cell as cell:
        yield cell


def url(cell: Cell, replica: str, path: str = "/") -> str:
    return f"https://127.0.0.1:{cell.ports.http[int(replica[1:]) - 1]}{path}"


def begin(cell: Cell) -> tuple[str, list[str]]:
    """Start the cell with a job and a token; the leader, and the others."""
    cell.start()
    leader = cell.leader()
    cell.client.ask(table.PUT_JOBS, ApplyRequest(files=[SourceFile("crontab", CRONTAB)]))
    made = TokenCreation(name="ada", role="admin", id=token_id(TOKEN), digest=token_digest(TOKEN))
    cell.client.ask(table.CREATE_TOKEN, made)
    return leader, [name for name in cell.replicas if name != leader]


async def sign_in(page: Page, cell: Cell, replica: str) -> None:
    await page.goto(url(cell, replica, "/signin?next=/jobs"))
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("link", name="tick", exact=True)).to_be_visible()
    await expect(page.locator("#live")).to_have_text("kept up to date")


async def test_a_page_stays_open_while_one_leader_after_the_other_is_killed(
    browser: Browser, secured: Cell
) -> None:
    cell = secured
    leader, others = await asyncio.to_thread(begin, cell)
    how = {"ignore_https_errors": True}
    at_leader, _ = await opened(browser, **how)
    at_other, said = await opened(browser, **how)
    await sign_in(at_leader, cell, leader)
    await sign_in(at_other, cell, others[0])
    await at_other.goto(url(cell, others[0]))
    await at_leader.goto(url(cell, leader, "/cell"))
    await expect(
        at_leader.get_by_text(re.compile(r"certificate of r\d ends in 10 d"))
    ).to_have_count(3)
    await expect(at_leader.locator("#live")).to_have_text("kept up to date")
    await asyncio.to_thread(cell.kill, leader)
    # The page of a replica that is gone says how old it is, and where to go on.
    stale = at_leader.locator("#stale")
    await expect(stale).to_contain_text(f"{leader} does not answer.")
    await expect(stale).to_contain_text(OLD)
    await stale.get_by_role("link", name=others[0], exact=True).click()
    await expect(at_leader).to_have_url(url(cell, others[0], "/cell"))
    await expect(at_leader.get_by_role("heading", name="Certificates")).to_be_visible()
    # The page of another replica goes on by itself.
    second = await asyncio.to_thread(cell.leader, leader)
    leads = at_other.get_by_text(re.compile(rf"{second} leads in term \d+"))
    await expect(leads).to_be_visible()
    jobs_of_second, _ = await opened(browser, **how)
    third = next(name for name in others if name != second)
    await sign_in(jobs_of_second, cell, third)
    # Without a majority a replica still shows what it knows, and says how old that is.
    await asyncio.to_thread(cell.kill, second)
    alone = jobs_of_second.locator("#serving .warning:visible")
    await expect(alone).to_contain_text(OLD)
    for path in ("/", "/jobs", "/jobs/default/tick", "/queues", "/dead", "/tasks", "/cell"):
        answer = await jobs_of_second.goto(url(cell, third, path))
        assert answer is not None
        assert answer.status == 200, path
        await expect(jobs_of_second.locator("#serving .warning:visible")).to_contain_text(third)
    assert [one for one in said if "net::ERR" not in one] == []
    # A session ends with its token, at every replica.
    await asyncio.to_thread(cell.start, second)
    await asyncio.to_thread(cell.leader)
    revoked = TokenRevocation(names=["ada"])
    await asyncio.to_thread(cell.client.ask, table.REVOKE_TOKENS, revoked)
    signed_out = jobs_of_second.get_by_role("heading", name="Sign in")
    await expect(signed_out).to_be_visible()
    for page in (at_leader, at_other, jobs_of_second):
        await page.context.close()


@pytest.mark.nightly
async def test_a_job_of_a_real_cell_is_paused_resumed_and_launched_without_javascript(
    browser: Browser, patient: Cell
) -> None:
    _, others = await asyncio.to_thread(begin, patient)
    page, _ = await opened(browser, ignore_https_errors=True, java_script_enabled=False)
    at, other = others  # neither leads: both forward changes
    await page.goto(url(patient, at, "/signin?next=/jobs"))
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_label(re.compile(r"choose (default/)?tick")).check()
    await planned(page, "Pause …", "Pause", "1 job was paused.")
    # The session holds at every replica: the cookie is the token.
    answer = await page.goto(url(patient, other, "/jobs/default/tick"))
    assert answer is not None
    assert answer.status == 200
    await expect(page.locator("main .warning").first).to_contain_text("until somebody resumes it")
    await planned(page, "Resume …", "Resume", "1 job was resumed.")
    await planned(page, "Launch now …", "Launch", "1 job was launched.")
    await expect(page.get_by_role("heading", name=re.compile("^tick@"))).to_be_visible()


async def planned(page: Page, button: str, confirm: str, said: str) -> None:
    """Click a button, confirm the plan that it shows, and see what was done."""
    await page.get_by_role("button", name=button, exact=True).first.click()
    await page.get_by_role("button", name=confirm, exact=True).click()
    await expect(page.get_by_role("status").get_by_text(said)).to_be_visible()
