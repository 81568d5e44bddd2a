"""What the console changes: plans before acts, and what is offered to whom."""

from __future__ import annotations

from typing import Any

import pytest

from cron.access import Role
from cron.api.dead import DeadOutcome
from cron.api.jobs import PauseReport
from cron.api.launches import BackfillReport
from cron.web.console.acts import ACTS
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import NOON_S, FakeBackend, launch
from tests.unit.console_acts import CASES, Case, cell_for
from tests.unit.console_rig import HOSTILE, Browser, check_sound
from tests.unit.test_console_pages import full, page_of
from tests.unit.web_rig import WALL_MS, Said, site


async def acted(
    act: str, fields: dict[str, Any], of: FakeBackend, *, is_confirmed: bool = True
) -> tuple[Said, Browser]:
    """Send a form, and the form of its plan where that is to be confirmed."""
    async with site(of, has_console=True) as served:
        browser = Browser(served)
        await browser.get("/signin")
        said = await browser.send(f"/acts/{act}", fields)
        if is_confirmed:
            read = check_sound(browser.page)
            again: dict[str, list[str]] = {}
            for tag, attrs in read.tags:
                if tag == "input" and attrs.get("name") != "csrf":
                    again.setdefault(str(attrs["name"]), []).append(str(attrs["value"]))
            said = await browser.send(f"/acts/{act}", again)
    return said, browser


def calls(of: FakeBackend, *methods: str) -> list[Any]:
    return [request for method, (request,) in of.calls if method in methods]


async def test_nothing_is_changed_before_the_plan_is_confirmed() -> None:
    of = full("plain")
    fields = {"job": ["acme/a", "acme/b"], "reason": HOSTILE, "back": "/jobs?text=x"}
    said, browser = await acted("pause", fields, of, is_confirmed=False)
    read = check_sound(browser.page)
    assert said.status == 200
    assert "acme/a acme/b" in read.text
    assert "<script>alert(1)</script>" in read.text
    assert calls(of, "pause") == []


async def test_jobs_are_paused_and_the_page_says_so() -> None:
    of = full("plain")
    of.answers["pause"] = PauseReport(changed=["acme/a"])
    fields = {"job": ["acme/a", "acme/b"], "reason": "disk", "hours": "2", "back": "/jobs?text=x"}
    said, _ = await acted("pause", fields, of)
    assert (said.status, said.headers["location"]) == (303, "/jobs?text=x&done=pause&count=2")
    asked = calls(of, "pause")
    assert [(one.pattern, one.reason, one.until_ms) for one in asked] == [
        ("acme/a", "disk", WALL_MS + 7_200_000),
        ("acme/b", "disk", WALL_MS + 7_200_000),
    ]
    _, read = await page_of("/jobs?text=x&done=pause&count=2", of)
    assert "2 jobs were paused." in read.text


@pytest.mark.parametrize("query", ["done=pause&count=<b>", "done=<b>&count=1", "done=pause"])
async def test_a_link_cannot_make_a_page_say_what_it_likes(query: str) -> None:
    said, read = await page_of(f"/jobs?{query.replace('<', '%3C')}", full("plain"))
    assert said.status == 200
    assert "paused." not in read.text


async def test_a_form_that_is_sent_twice_launches_once() -> None:
    of = full("plain")
    of.answers["trigger"] = launch(launch="acme/a@2026-11-20T15:00:00Z+t1")
    async with site(of, has_console=True) as served:
        browser = Browser(served)
        await browser.get("/signin")
        await browser.send("/acts/trigger", {"job": "acme/a"})
        read = check_sound(browser.page)
        again = {
            str(attrs["name"]): str(attrs["value"])
            for tag, attrs in read.tags
            if tag == "input" and attrs.get("name") != "csrf"
        }
        said = await browser.send("/acts/trigger", again)
        await browser.send("/acts/trigger", again)
    assert (
        said.headers["location"] == "/launches/acme/a@2026-11-20T15:00:00Z+t1?done=trigger&count=1"
    )
    first, second = calls(of, "trigger")
    assert first.request_id == second.request_id


async def test_a_backfill_shows_its_plan_before() -> None:
    of = full("plain")
    of.answers["backfill"] = lambda asked: BackfillReport(
        launches=["acme/a@2026-11-20T15:00:00Z"], is_dry_run=asked.is_dry_run
    )
    fields = {"job": "acme/a", "from": "2026-11-20T14:00", "to": "2026-11-20T16:00", "back": "/"}
    said, _ = await acted("backfill", fields, of)
    assert said.headers["location"] == "/?done=backfill&count=1"
    assert [(one.is_dry_run, one.from_s, one.to_s) for one in calls(of, "backfill")] == [
        (True, NOON_S - 3_600, NOON_S + 3_600),
        (False, NOON_S - 3_600, NOON_S + 3_600),
    ]


async def test_the_plan_of_a_backfill_says_how_many_instants_are_older_than_the_jobs() -> None:
    of = full("plain")
    of.answers["backfill"] = lambda asked: BackfillReport(
        launches=[f"{asked.job}@2026-11-20T15:00:00Z"], before=1, applied_s=NOON_S
    )
    fields = {"from": "2026-11-20T14:00", "to": "2026-11-20T16:00", "back": "/jobs"}
    chosen = {**fields, "job": ["acme/a", "acme/b"]}
    _, browser = await acted("backfill", chosen, of, is_confirmed=False)
    text = check_sound(browser.page).text
    assert "2 of these instants lie before the job was first applied." in text


async def test_the_plan_of_many_jobs_is_below_100_kb() -> None:
    names = [f"{'t' * 100}/{'j' * 97}{number:03}" for number in range(200)]
    fields = {"job": names, "reason": '"' * 500, "back": "/jobs"}
    said, browser = await acted("pause", fields, full("plain"), is_confirmed=False)
    assert said.status == 200
    assert len(said.body) < 100_000
    assert "and 1" in check_sound(browser.page).text, "what is not listed is counted"


async def test_several_jobs_are_backfilled_with_one_plan() -> None:
    of = full("plain")
    of.answers["backfill"] = lambda asked: BackfillReport(
        launches=[f"{asked.job}@2026-11-20T15:00:00Z"], is_dry_run=asked.is_dry_run
    )
    fields = {"from": "2026-11-20T14:00", "to": "2026-11-20T16:00", "back": "/jobs"}
    said, _ = await acted("backfill", {**fields, "job": ["acme/a", "acme/b"]}, of)
    assert said.headers["location"] == "/jobs?done=backfill&count=2"
    assert [(one.job, one.is_dry_run) for one in calls(of, "backfill")] == [
        ("acme/a", True), ("acme/b", True), ("acme/a", False), ("acme/b", False),
    ]  # fmt: skip


@pytest.mark.parametrize(("act", "method"), [("redrive", "redrive"), ("drop", "drop_dead")])
async def test_dead_letters_are_shown_by_a_dry_run_before(act: str, method: str) -> None:
    of = full("plain")
    of.answers[method] = DeadOutcome(launches=["acme/a@2026-11-20T15:00:00Z"])
    said, _ = await acted(act, {"tenant": "acme", "back": "/dead"}, of)
    assert said.status == 303
    assert [(one.is_dry_run, one.query.tenant) for one in calls(of, method)] == [
        (True, "acme"),
        (False, "acme"),
    ]


async def test_an_empty_filter_changes_all_only_where_that_is_said() -> None:
    of = full("plain")
    of.answers["drop_dead"] = DeadOutcome(launches=["acme/a@2026-11-20T15:00:00Z"])
    said, _ = await acted("drop", {"back": "/dead"}, of)
    assert said.status == 400
    assert not [one for one in calls(of, "drop_dead") if not one.is_dry_run]
    said, _ = await acted("drop", {"everything": "1", "back": "/dead"}, of)
    assert said.status == 303


@pytest.mark.parametrize(
    ("act", "fields"),
    [("pause", {}), ("pause", {"job": "a", "hours": "x"}), ("backfill", {"from": "x"}),
     ("open-gate", {"gate": "x" * 300}), ("trigger", {"job": [f"j{n}" for n in range(201)]})],
)  # fmt: skip
async def test_a_form_that_makes_no_sense_is_refused_with_a_page(
    act: str, fields: dict[str, Any]
) -> None:
    of = full("plain")
    said, browser = await acted(act, fields, of, is_confirmed=act == "open-gate")
    assert said.status == 400
    check_sound(browser.page)


async def test_an_act_that_is_none_is_not_found() -> None:
    said, _ = await acted("explode", {}, full("plain"), is_confirmed=False)
    assert said.status == 404


# ---- every act


def test_each_act_has_a_case() -> None:
    assert set(CASES) == set(ACTS)


def fields_of(page: str, act: str, case: Case) -> dict[str, Any]:
    """What a form of a page sends: its hidden fields, and what a case fills in."""
    read, found, within = check_sound(page), dict[str, Any](), False
    labels = {
        str(attrs.get("for")): case.labels[text]
        for text in case.labels
        for tag, attrs in read.tags
        if tag == "label" and f'for="{attrs.get("for")}">{text}<' in page
    }
    for tag, attrs in read.tags:
        if tag == "form":
            within = attrs.get("action") == f"/acts/{act}"
        name = attrs.get("name") if tag in ("input", "select") else None
        if not within or not name or name == "csrf":
            continue
        if attrs.get("type") == "checkbox":
            if case.labels.get(str(attrs.get("aria-label"))):
                found[str(name)] = attrs["value"]
        elif tag == "select":
            found[str(name)] = "drop"
        else:
            found[str(name)] = labels.get(str(attrs.get("id")), attrs.get("value") or "")
    return found


FORM_OF = {"pause": "pause", "drop": "redrive", "cancel-group": "close-group", "hurry": "cancel"}
"""Acts whose buttons are in the form of another one."""


@pytest.mark.parametrize("act", ACTS)
async def test_each_act_shows_its_plan_and_is_done_once_that_is_confirmed(act: str) -> None:
    case = CASES[act]
    of = cell_for(case)
    async with site(of, has_console=True) as served:
        browser = Browser(served)
        await browser.get(case.page)
        assert f"/acts/{act}" in browser.page
        await browser.send(f"/acts/{act}", fields_of(browser.page, FORM_OF.get(act, act), case))
        plan_page = browser.page
        read = check_sound(plan_page)
        assert case.title in read.text
        assert case.shown in read.text
        dry = [one for one in calls(of, case.call) if not getattr(one, "is_dry_run", False)]
        assert dry == [], "nothing is changed before the plan is confirmed"
        again: dict[str, list[str]] = {}
        for tag, attrs in read.tags:
            if tag == "input" and attrs.get("name") != "csrf":
                again.setdefault(str(attrs["name"]), []).append(str(attrs["value"]))
        without_token = {**again, "csrf": "0" * 64}
        assert (await browser.send(f"/acts/{act}", without_token)).status == 403
        assert [one for one in calls(of, case.call) if not getattr(one, "is_dry_run", False)] == []
        browser.page = plan_page
        said = await browser.send(f"/acts/{act}", again)
        assert said.status == 303
        await browser.get(said.headers["location"])
    assert case.said in check_sound(browser.page).text
    made = calls(of, case.call)[-1]
    assert {name: getattr(made, name) for name in case.asks} == case.asks


@pytest.mark.parametrize("act", ACTS)
async def test_a_viewer_is_offered_no_act_and_refused_each(act: str) -> None:
    case, world = CASES[act], AccessWorld()
    of, token = cell_for(case), world.token(Role.VIEWER, name="ada")
    admission = world.admission(is_open=False)
    async with site(of, has_console=True, admission=admission) as served:
        browser = Browser(served)
        await browser.get("/signin")
        await browser.send("/signin", {"token": token})
        await browser.get(case.page)
        read = check_sound(browser.page)
        assert "/acts/" not in browser.page
        assert "You may look, and change nothing" in read.text
        for fields in ({"job": "acme/mail"}, {"job": "acme/mail", "confirmed": "1"}):
            said = await browser.send(f"/acts/{act}", fields)
            assert said.status == 403
            page = said.body.decode()
            assert "it needs a role that may" in page
            await browser.get(case.page)
    assert [one for one in of.calls if one[0] == case.call] == []


async def test_somebody_may_act_in_a_tenant_and_look_at_others() -> None:
    case, world = CASES["resume"], AccessWorld()
    of = cell_for(case)
    admission = world.admission(is_open=False)
    async with site(of, has_console=True, admission=admission) as served:
        offered = {}
        for scope in ("acme/*", "ops/*"):
            browser = Browser(served)
            await browser.get("/signin")
            await browser.send("/signin", {"token": world.token(Role.OPERATOR, scope)})
            await browser.get(case.page)
            offered[scope] = "/acts/resume" in browser.page
    # A role in another tenant does not even see the job.
    assert offered == {"acme/*": True, "ops/*": False}


@pytest.mark.parametrize("act", ACTS)
async def test_what_a_form_says_is_shown_as_text_or_refused(act: str) -> None:
    of = cell_for(CASES[act])
    names = (
        "job", "launch", "task", "group", "executor", "gate", "tenant", "pool", "jobs", "reason",
        "collection", "from", "to", "at", "priority", "hours", "rate", "back",
    )  # fmt: skip
    for extra in ({}, {"priority": "", "hours": "", "rate": "", "concurrent": "1", "gate": "7"}):
        said, browser = await acted(
            act, {**dict.fromkeys(names, HOSTILE), **extra}, of, is_confirmed=False
        )
        assert said.status in (200, 400, 404)
        check_sound(browser.page)
        assert "<script>alert" not in browser.page
    assert [
        one for one in calls(of, CASES[act].call) if not getattr(one, "is_dry_run", False)
    ] == []
