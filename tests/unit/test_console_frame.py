"""The frame of the console: headers, sessions, forms, refusals as pages, and the page Now."""

from __future__ import annotations

import pytest

from consensus.leadership import Freshness, Leadership
from cron.access import Role, token_id
from cron.errors import NotLeader
from cron.state import access as a
from cron.web.console.site import elsewhere
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import launch
from tests.unit.console_rig import FORM, HOSTILE, HTML, Browser, backend, check_sound
from tests.unit.web_rig import site

VISIT = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


async def test_now_shows_sums_the_figure_and_what_failed() -> None:
    failed = launch(state="failed", exit_code=3, launch="acme/report@2026-11-20T15:00:00Z")
    async with site(backend(history=[failed]), has_console=True) as served:
        browser = Browser(served)
        said = await browser.get("/")
    read = check_sound(browser.page)
    assert said.status == 200
    assert "r1 leads in term 3" in read.text
    assert "7 succeeded, 2 did not" in read.text
    assert "acme/report 2026-11-20 15:00:00" in read.text
    assert ("a", {"href": "/launches/acme/report@2026-11-20T15:00:00Z"}) in read.tags


async def test_a_page_may_run_no_script_of_its_own_and_stand_in_no_frame() -> None:
    async with site(backend(), has_console=True) as served:
        said = await served.ask("GET", "/", headers=HTML)
        (script,) = [
            attrs["src"] for tag, attrs in check_sound(said.body.decode()).tags if tag == "script"
        ]
        asset = await served.ask("GET", str(script))
    policy = said.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert said.headers["x-frame-options"] == "DENY"
    assert said.headers["cache-control"] == "no-store"
    assert asset.status == 200
    assert asset.headers["content-type"].startswith("text/javascript")
    assert "immutable" in asset.headers["cache-control"]
    assert said.headers["x-content-type-options"] == "nosniff"


async def test_nothing_that_comes_from_a_job_is_html() -> None:
    strange = launch(detail=HOSTILE, executor=HOSTILE, state="failed", by=HOSTILE, waiting=HOSTILE)
    async with site(backend(history=[strange]), has_console=True) as served:
        browser = Browser(served)
        await browser.get("/")
    read = check_sound(browser.page)
    assert "<script>alert(1)</script>" in read.text
    assert "{{7*7}}" in read.text


async def test_without_a_leader_a_page_says_so_and_shows_what_the_replica_knows() -> None:
    alone, old = Leadership(3, leads=False, leader=None), Freshness(9, 9, 61_000)
    async with site(backend(), has_console=True, leadership=alone, freshness=old) as served:
        browser = Browser(served)
        await browser.get("/")
    text = check_sound(browser.page).text
    assert "No leader is known to r1" in text
    assert "7 succeeded" in text


async def test_a_page_of_a_replica_that_is_cut_off_says_how_old_it_is() -> None:
    led = Leadership(3, leads=False, leader="r2")
    old = Freshness(9, 9, 61_000)
    async with site(backend(), has_console=True, leadership=led, freshness=old) as served:
        browser = Browser(served)
        await browser.get("/")
    assert "This data is 61 s old" in check_sound(browser.page).text


async def test_a_part_that_cannot_be_had_does_not_take_the_page_with_it() -> None:
    async with site(backend(activity=NotLeader(None)), has_console=True) as served:
        browser = Browser(served)
        said = await browser.get("/")
    assert said.status == 200
    assert "Not shown: only the leader knows this" in check_sound(browser.page).text


async def test_what_does_not_exist_is_a_page_for_a_browser_and_a_problem_for_a_program() -> None:
    async with site(backend(), has_console=True) as served:
        page = await served.ask("GET", "/nothing/%3Cscript%3E", headers=HTML)
        problem = await served.ask("GET", "/nothing")
        api = await served.ask("GET", "/v1/nothing", headers=HTML)
    assert page.status == problem.status == api.status == 404
    assert "there is no /nothing/<script>" in check_sound(page.body.decode()).text.lower()
    assert problem.json["code"] == api.json["code"] == "unknown_path"


# ---- sessions


async def test_somebody_signs_in_with_a_token_and_out_again() -> None:
    world = AccessWorld()
    token = world.token(Role.VIEWER, name="ada")
    admission = world.admission(is_open=False)
    async with site(backend(), has_console=True, admission=admission) as served:
        browser = Browser(served)
        first = await browser.get("/?tenant=acme")
        assert first.status == 401
        assert "token create" in check_sound(browser.page).text
        to = {"next": "/?x=1", "token": f" {token} "}
        signed_in = await browser.send("/signin", to)
        cookie = signed_in.headers["set-cookie"]
        seen = await browser.get("/")
        assert (seen.status, "Sign out" in browser.page) == (200, True)
        assert "ada" in check_sound(browser.page).text
        signed_out = await browser.send("/signout", {})
        gone = await browser.get("/")
    assert (signed_in.status, signed_in.headers["location"]) == (303, "/?x=1")
    assert "HttpOnly" in cookie
    # A link in a mail is followed as the person who is signed in; with Strict it would not be, and
    # a new cookie of forms would make the forms of all open pages invalid.
    assert "SameSite=Lax" in cookie
    assert "SameSite=Lax" in first.headers["set-cookie"]
    assert (signed_out.status, gone.status) == (303, 401)


async def test_a_session_ends_with_its_token() -> None:
    world = AccessWorld()
    token = world.token(Role.VIEWER)
    admission = world.admission(is_open=False)
    async with site(backend(), has_console=True, admission=admission) as served:
        browser = Browser(served)
        await browser.get("/signin")
        await browser.send("/signin", {"token": token})
        before = await browser.get("/")
        world.rig.append(a.RevokeTokens((token_id(token),), "root"))
        after = await browser.get("/")
    assert (before.status, after.status) == (200, 401)
    assert "was revoked" in check_sound(browser.page).text


async def test_a_session_does_not_open_the_api() -> None:
    # The API has no tokens of forms: a page of another site could use the cookie there.
    world = AccessWorld()
    token = world.token(Role.ADMIN)
    admission = world.admission(is_open=False)
    async with site(backend(), has_console=True, admission=admission) as served:
        said = await served.ask("GET", "/v1/jobs", headers={"cookie": f"raftcron-session={token}"})
    assert said.status == 401


@pytest.mark.parametrize("token", ["", "x", "rc1_0123456789ab_" + "0" * 64, HOSTILE])
async def test_a_wrong_token_begins_no_session(token: str) -> None:
    admission = AccessWorld().admission(is_open=False)
    async with site(backend(), has_console=True, admission=admission) as served:
        browser = Browser(served)
        await browser.get("/signin")
        said = await browser.send("/signin", {"token": token})
    assert said.status == 401
    assert "set-cookie" not in said.headers
    check_sound(browser.page)


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "", "javascript:alert(1)",
           "/\r\nset-cookie: x=1", "/ü"],
)  # fmt: skip
async def test_a_sign_in_leads_to_this_site_only(to: str) -> None:
    world = AccessWorld()
    token = world.token(Role.VIEWER)
    admission = world.admission(is_open=False)
    async with site(backend(), has_console=True, admission=admission) as served:
        browser = Browser(served)
        await browser.get("/signin")
        said = await browser.send("/signin", {"token": token, "next": to})
    assert (said.status, said.headers["location"]) == (303, "/")


# ---- forms


async def test_a_form_without_its_token_is_refused() -> None:
    world = AccessWorld()
    token = world.token(Role.VIEWER)
    admission = world.admission(is_open=False)
    async with site(backend(), has_console=True, admission=admission) as served:
        browser, other = Browser(served), Browser(served)
        await browser.get("/signin")
        await other.get("/signin")
        theirs = other.page
        bare = await browser.send("/signin", {"token": token, "csrf": ""})
        browser.page = theirs
        stolen = await browser.send("/signin", {"token": token})
        as_json = await served.ask("POST", "/signin", {"token": token}, HTML)
    assert (bare.status, stolen.status, as_json.status) == (403, 403, 415)
    assert "set-cookie" not in bare.headers


async def test_a_form_that_another_site_sends_is_refused() -> None:
    async with site(backend(), has_console=True) as served:
        browser = Browser(served)
        await browser.get("/signin")
        said = await browser.send("/signin", {"token": "x"}, origin="http://evil.example")
    assert said.status == 403


async def test_a_link_on_another_site_leads_to_a_page_but_nothing_else_may_be_read() -> None:
    async with site(backend(), has_console=True) as served:
        followed = await served.ask("GET", "/", headers={**HTML, **VISIT})
        framed = await served.ask("GET", "/", headers={**HTML, **VISIT, "sec-fetch-dest": "iframe"})
        read = await served.ask("GET", "/", headers={**HTML, "sec-fetch-site": "cross-site"})
        api = await served.ask("GET", "/v1/jobs", headers={**HTML, **VISIT})
        posted = await served.ask(
            "POST", "/signin", b"x=1", {**HTML, **VISIT, "content-type": FORM}
        )
    assert followed.status == 200
    assert [one.status for one in (framed, read, api, posted)] == [403] * 4


def test_a_page_links_to_the_consoles_of_the_other_replicas() -> None:
    others = {"r3": ("0.0.0.0:7482", "10.0.0.3:7402"), "r2": ("10.0.0.2:7481", "10.0.0.2:7401")}
    assert elsewhere(others, is_secure=True) == {
        "r2": "https://10.0.0.2:7481",
        "r3": "https://10.0.0.3:7482",
    }
    assert elsewhere({"r2": ("[::]:1", "[fd00::2]:2")}, is_secure=False) == {
        "r2": "http://[fd00::2]:1"
    }
