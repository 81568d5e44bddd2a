"""As whom jobs run: users that the cell grants to names and tokens, from the log to an apply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from cron.access import CELL, USERS_EACH_MAX, Role
from cron.api import table
from cron.api.access import RoleGrant, RoleRevocation, TokenCreation
from cron.api.admission import Shown
from cron.api.jobs import ApplyRequest, RollBackRequest, SourceFile
from cron.cli import exits
from cron.errors import CrontabError, InvalidInput, NotAllowed, NotFound
from cron.state import access as a
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.identity import Identity
from tests.unit.access_rig import AccessWorld, asked
from tests.unit.api_rig import in_thread, run_cli
from tests.unit.state_rig import StateRig

BILLING = "#: name=billing/mail user=app\n* * * * * mail"
ADMIN, RUN_AS, EDITOR = Role.ADMIN, Role.RUN_AS, Role.EDITOR


def granted() -> StateRig:
    rig = StateRig()
    rig.append(a.GrantRole("root", ADMIN))
    return rig


def users_of(rig: StateRig, name: str) -> list[tuple[str, ...]]:
    return [one.users for one in rig.state.access.bindings.get(name, ()) if one.role is RUN_AS]


# ---- in the log


def test_users_of_a_scope_add_up_and_are_taken_away_one_by_one() -> None:
    rig = granted()
    rig.append(a.GrantRole("ada", RUN_AS, "billing/*", "root", ("www", "app")))
    rig.append(a.GrantRole("ada", RUN_AS, "billing/*", "root", ("db",)))
    rig.append(a.GrantRole("ada", RUN_AS, "ops/*", "root", ("app",)))
    assert users_of(rig, "ada") == [("app", "db", "www"), ("app",)]
    with rig.unchanged():
        again = a.GrantRole("ada", RUN_AS, "billing/*", "root", ("db",))
        assert rig.answer(again).verdict is Verdict.ALREADY
        missing = a.RevokeRole("ada", RUN_AS, "billing/*", "root", ("root",))
        assert rig.answer(missing).verdict is Verdict.ALREADY
    rig.append(a.RevokeRole("ada", RUN_AS, "billing/*", "root", ("app", "www", "other")))
    assert sorted(users_of(rig, "ada")) == [("app",), ("db",)]
    rig.append(a.RevokeRole("ada", RUN_AS, "ops/*", "root", ("app",)))
    rig.append(a.RevokeRole("ada", RUN_AS, "billing/*", "root"))
    assert users_of(rig, "ada") == []
    assert rig.state.access.limits_users, "to revoke the last grant opens nothing"
    texts = [one.changed[0].after for one in rig.state.revisions if one.command == "grant-role"]
    assert texts[1] == "run-as app,www in billing/*"


@pytest.mark.parametrize(
    ("role", "users"),
    [
        (RUN_AS, ()),
        (EDITOR, ("app",)),
        (RUN_AS, ("",)),
        (RUN_AS, ("a b",)),
        (RUN_AS, ("\u0430pp",)),
        (RUN_AS, ("app\n",)),
        (RUN_AS, tuple(f"u{number}" for number in range(USERS_EACH_MAX + 1))),
    ],
)
def test_users_that_are_none_are_refused(role: Role, users: tuple[str, ...]) -> None:
    rig = granted()
    with rig.unchanged():
        assert rig.answer(a.GrantRole("ada", role, CELL, "", users)).verdict is Verdict.BAD_ACCESS


def test_users_of_one_grant_are_bounded() -> None:
    rig = granted()
    many = tuple(f"u{number:03}" for number in range(USERS_EACH_MAX))
    rig.append(a.GrantRole("ada", RUN_AS, CELL, "", many))
    with rig.unchanged():
        one_more = a.GrantRole("ada", RUN_AS, CELL, "", ("app",))
        assert rig.answer(one_more).verdict is Verdict.TOO_MANY


def test_the_first_role_is_no_role_that_only_adds_to_another() -> None:
    rig = StateRig()
    for command in (
        a.GrantRole("ada", RUN_AS, CELL, "", ("app",)),
        a.GrantRole("ada", Role.SEE_PAYLOADS),
    ):
        with rig.unchanged():
            assert rig.answer(command).verdict is Verdict.NO_ADMIN
    with rig.unchanged():
        token = a.CreateToken("0" * 12, "ci", Role.SEE_PAYLOADS, CELL, b"0" * 32)
        assert rig.answer(token).verdict is Verdict.BAD_ACCESS


def test_a_snapshot_has_users_and_what_limits_them() -> None:
    rig = granted()
    rig.append(a.GrantRole("ada", RUN_AS, "billing/*", "root", ("app",)))
    users = ("app",)
    rig.append(a.CreateToken("0" * 12, "ci", EDITOR, CELL, b"0" * 32, 0, "", users, payloads=True))
    loaded = decode_state([encode_state(rig.state)])
    assert loaded.access == rig.state.access


# ---- asked for


class Editing:
    """A cell, and what it answers to names with certificates and to tokens."""

    def __init__(self) -> None:
        self.world = AccessWorld()
        self.world.rig.append(a.GrantRole("root", ADMIN))

    def grant(self, name: str, role: Role, scope: str = CELL, *users: str) -> None:
        self.world.rig.append(a.GrantRole(name, role, scope, "root", users))

    async def ask(self, name: str, rpc: Any, request: Any) -> Any:
        shown = Shown(Identity("berlin", "person", name))
        return await self.admitted(shown, rpc, request)

    async def admitted(self, shown: Shown, rpc: Any, request: Any) -> Any:
        admission = self.world.admission(is_open=False)
        return await self.world.cell.answer(rpc, admission.admit(rpc, request, shown))

    async def apply(self, name: str, text: str = BILLING, **more: Any) -> Any:
        request = ApplyRequest(files=[SourceFile("tab", text.encode())], **more)
        return await self.ask(name, table.PUT_JOBS, request)


async def test_until_the_first_grant_editors_name_any_user() -> None:
    cell = Editing()
    cell.grant("ada", EDITOR)
    assert (await cell.apply("ada")).applied
    cell.grant("bob", RUN_AS, CELL, "www")
    with pytest.raises(NotAllowed) as caught:
        await cell.apply("ada")
    said = "job billing/mail runs as user app, and ada may not say that; nothing was changed"
    assert str(caught.value) == said
    assert "raftcron role grant ada run-as --tenant billing --users app" in caught.value.hint
    assert (await cell.apply("root")).applied, "admins of the cell name any user"


@pytest.mark.parametrize("is_dry_run", [False, True])
async def test_a_user_is_granted_for_a_scope_and_byte_for_byte(is_dry_run: bool) -> None:
    cell = Editing()
    cell.grant("ada", EDITOR)
    cell.grant("ada", RUN_AS, "billing/*", "app")
    assert (await cell.apply("ada", is_dry_run=is_dry_run)).changes[0].action == "added"
    for text in (
        BILLING.replace("billing", "ops"),
        BILLING.replace("user=app", "user=App"),
        BILLING.replace("user=app", "user=app$"),
        BILLING + "\n#: name=billing/more user=root\n* * * * * more",
    ):
        with pytest.raises(NotAllowed, match="ada may not say that; nothing was changed"):
            await cell.apply("ada", text, is_dry_run=is_dry_run)
    assert "billing/more" not in cell.world.state.jobs
    plain = "#: name=ops/plain\n* * * * * plain"
    assert (await cell.apply("ada", plain, source="plain", is_dry_run=is_dry_run)).changes


async def test_a_user_that_differs_in_unicode_form_is_no_user() -> None:
    cell = Editing()
    cell.grant("ada", EDITOR)
    cell.grant("ada", RUN_AS, "billing/*", "app")
    for user in ("\uff41pp", "\u0430pp", "app\u0301", "a\u200bpp"):
        with pytest.raises(CrontabError, match="is not a user's name"):
            await cell.apply("ada", BILLING.replace("user=app", f"user={user}"))
    grant = RoleGrant(name="ada", role="run-as", users=["\uff41pp"])
    with pytest.raises(InvalidInput, match="is not a user's name"):
        await cell.ask("root", table.GRANT_ROLE, grant)


async def test_a_rollback_runs_as_nobody_whom_the_caller_may_not_name() -> None:
    cell = Editing()
    cell.grant("ada", EDITOR)
    await cell.apply("ada")
    first = cell.world.state.jobs["billing/mail"].revision
    await cell.apply("ada", BILLING.replace("user=app", "user=www"))
    cell.grant("ada", RUN_AS, "billing/*", "www")
    back = RollBackRequest(job="billing/mail", revision=first)
    with pytest.raises(NotAllowed, match="runs as user app, and ada may not say that"):
        await cell.ask("ada", table.ROLL_BACK, back)
    cell.grant("ada", RUN_AS, "billing/*", "app")
    assert (await cell.ask("ada", table.ROLL_BACK, back)).applied


async def test_a_token_names_its_own_users_and_no_others() -> None:
    cell = Editing()
    cell.grant("ci", RUN_AS, CELL, "www")  # of that name, but for certificates
    async with cell.world.serving() as server:

        async def apply(token: str, user: str) -> Any:
            text = BILLING.replace("user=app", f"user={user}").encode()
            request = ApplyRequest(files=[SourceFile("tab", text)])
            return await in_thread(asked, server, token, table.PUT_JOBS, request)

        plain = cell.world.token(EDITOR, "billing/*")
        for user in ("www", "app"):
            with pytest.raises(NotAllowed, match="ci may not say that"):
                await apply(plain, user)
        token = cell.world.token(EDITOR, "billing/*", users=("app",))
        assert (await apply(token, "app")).applied
        with pytest.raises(NotAllowed, match="ci may not say that"):
            await apply(token, "www")


async def test_roles_with_users_are_given_and_taken_by_request() -> None:
    cell = Editing()
    grant = RoleGrant(name="ada", role="run-as", tenant="billing", users=["www", "app"])
    assert (await cell.ask("root", table.GRANT_ROLE, grant)).users == ["app", "www"]
    for wrong in (
        RoleGrant(name="ada", role="run-as"),
        RoleGrant(name="ada", role="viewer", users=["app"]),
        TokenCreation(name="ci", role="run-as", id="0" * 12, digest=bytes(32)),
    ):
        rpc = table.CREATE_TOKEN if isinstance(wrong, TokenCreation) else table.GRANT_ROLE
        with pytest.raises(InvalidInput):
            await cell.ask("root", rpc, wrong)
    take = RoleRevocation(name="ada", role="run-as", tenant="billing", users=["db"])
    with pytest.raises(NotFound, match="ada is no run-as of user db in billing"):
        await cell.ask("root", table.REVOKE_ROLE, take)


async def cli(world: AccessWorld, line: str) -> Result:
    async with world.serving() as server:
        return await run_cli(*line.split(), "-o", "json", server=server)


async def test_users_are_granted_and_shown_on_the_command_line() -> None:
    world = Editing().world
    made = await cli(world, "role grant ada run-as --tenant billing --users app,www")
    assert json.loads(made.stdout)["users"] == ["app", "www"]
    made = await cli(world, "token create ci --role editor --users app --see-payloads")
    assert made.exit_code == exits.OK, made.stderr
    token = json.loads((await cli(world, "token list")).stdout)
    assert (token["users"], token["see_payloads"]) == (["app"], True)
    taken = await cli(world, "role revoke ada run-as --tenant billing --users app")
    assert taken.exit_code == exits.OK
    rows = [json.loads(one) for one in (await cli(world, "role list")).stdout.splitlines()]
    assert [one.get("users") for one in rows] == [["www"], None]
    assert (await cli(world, "token create ci --role run-as")).exit_code == exits.USAGE
    assert (await cli(world, "role grant ada run-as --users app,,b")).exit_code == exits.USAGE
