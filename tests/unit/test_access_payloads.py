"""Who sees payloads: jobs, tasks, revisions and changes as each role gets them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from cron.access import CELL, TOKEN_BYTES, TOKEN_ROLES, Role, token_digest, token_id, token_text
from cron.api import table
from cron.api.access import ChangesQuery
from cron.api.admission import Admission, Shown
from cron.api.jobs import ApplyRequest, JobsRequest, RevisionsQuery, SourceFile
from cron.api.overview import JobPageQuery
from cron.api.tasks import SubmitRequest, TaskQuery, TaskSubmission
from cron.state import access as a
from launcher.identity import Identity
from tests.unit.tasks_world import HANDLER, Rows, TasksWorld

SECRET: Final = "hunter2"
JOBS: Final = f"""
#: name=billing/mail handler={HANDLER}
* * * * * {{"key": "{SECRET}"}}
#: name=billing/feed
* * * * * feed%{SECRET}
"""
SEERS: Final = {Role.SUBMITTER, Role.EDITOR, Role.ADMIN}


class NoRows(Rows):
    async def last_of_each(self, _names: Any) -> dict[str, Any]:
        return {}

    async def newest_of_each(self, _names: Any, _limit: int) -> dict[str, Any]:
        return {}

    async def ends_before(self, _index: int) -> tuple[int, dict[str, bytes]]:
        return 0, {}


class Seeing:
    """A cell with jobs and a task that have payloads, asked by anybody."""

    def __init__(self) -> None:
        self.world = TasksWorld(NoRows())
        self.drawn = 0

    @classmethod
    async def told(cls) -> Seeing:
        seeing = cls()
        for text in (JOBS, JOBS.replace("* * * * *", "0 * * * *").replace(SECRET, f"{SECRET}!")):
            request = ApplyRequest(files=[SourceFile("tab", text.encode())])
            await seeing.world.cell.answer(table.PUT_JOBS, request)
        payload = msgspec.Raw(f'"{SECRET}"'.encode())
        task = TaskSubmission(key="k", tenant="billing", handler=HANDLER, payload=payload)
        await seeing.world.cell.answer(table.SUBMIT, SubmitRequest(tasks=[task], by="shop"))
        return seeing

    async def ask(self, shown: Shown, rpc: Any, request: Any) -> Any:
        world = self.world
        rules = lambda: world.state.access  # noqa: E731
        admission = Admission("berlin", rules, lambda: world.rig.at_ms, is_open=True)
        return await world.cell.answer(rpc, admission.admit(rpc, request, shown))

    def token(self, role: Role, scope: str = CELL, *, payloads: bool = False) -> Shown:
        self.drawn += 1
        text = token_text(self.drawn.to_bytes(TOKEN_BYTES, "little"))
        self.world.rig.append(
            a.CreateToken(
                token_id(text), "ci", role, scope, token_digest(text), 0, "", (), payloads
            )
        )
        return Shown(authorization=f"Bearer {text}")

    async def all_of(self, shown: Shown) -> list[Any]:
        """Everything that may have a payload, for who reads jobs."""
        return [
            await self.ask(shown, table.JOBS, JobsRequest()),
            await self.ask(shown, table.JOB_PAGE, JobPageQuery()),
            await self.ask(shown, table.JOB_REVISIONS, RevisionsQuery(job="billing/mail")),
            await self.ask(shown, table.JOB_REVISIONS, RevisionsQuery(job="billing/feed")),
            await self.ask(shown, table.CHANGES, ChangesQuery()),
            await self.task(shown),
        ]

    async def task(self, shown: Shown) -> Any:
        return await self.ask(shown, table.GET, TaskQuery(name=f"billing/{HANDLER}:k"))


def has_secret(answer: Any) -> bool:
    return SECRET in repr(answer)


@pytest.mark.parametrize("role", [*TOKEN_ROLES])
async def test_payloads_are_for_who_gives_them_or_is_granted_them(role: Role) -> None:
    seeing = await Seeing.told()
    task = await seeing.task(seeing.token(role, "billing/*"))
    assert has_secret(task) is (role in SEERS)
    assert task.payload_hidden is (role not in SEERS)
    if role is not Role.SUBMITTER:
        for shown, sees in (
            (seeing.token(role, "billing/*"), role in SEERS),
            (seeing.token(role, "billing/*", payloads=True), True),
        ):
            found = await seeing.all_of(shown)
            assert [has_secret(one) for one in found] == [sees] * len(found)


async def test_what_is_hidden_is_said_to_be_there() -> None:
    seeing = await Seeing.told()
    jobs, _, of_mail, of_feed, changes, _ = await seeing.all_of(seeing.token(Role.VIEWER))
    needs = {one.name: one.needs for one in jobs}
    assert needs["billing/mail"].payload_hidden
    assert not needs["billing/feed"].payload_hidden
    fields = {one.name: (one.before, one.after) for one in of_mail.fields}
    assert fields["payload"] == ("set", "set to another value")
    fields |= {one.name: (one.before, one.after) for one in of_feed.fields}
    assert fields["stdin"] == ("set", "set to another value")
    told = {field.name: field.after for one in changes.changes for field in one.fields}
    assert told["payload"] == "set"


async def test_a_scope_of_payloads_is_one_of_its_own() -> None:
    seeing = await Seeing.told()
    rig = seeing.world.rig
    rig.append(a.GrantRole("root", Role.ADMIN), a.GrantRole("cyd", Role.VIEWER))
    cyd = Shown(Identity("berlin", "person", "cyd"))
    assert not any(map(has_secret, await seeing.all_of(cyd)))
    rig.append(a.GrantRole("cyd", Role.SEE_PAYLOADS, "ops/*"))
    assert not any(map(has_secret, await seeing.all_of(cyd)))
    rig.append(a.GrantRole("cyd", Role.SEE_PAYLOADS, "billing/*"))
    assert all(map(has_secret, await seeing.all_of(cyd)))


async def test_without_tls_who_shows_nothing_sees_all() -> None:
    seeing = await Seeing.told()
    assert all(map(has_secret, await seeing.all_of(Shown())))


async def test_a_caller_does_not_say_what_it_may_see() -> None:
    seeing = await Seeing.told()
    viewer = seeing.token(Role.VIEWER)
    for scopes in ([], ["billing/*"], ["*/*"]):
        query = TaskQuery(name=f"billing/{HANDLER}:k", payloads=scopes)
        assert not has_secret(await seeing.ask(viewer, table.GET, query))
