"""Roles, tokens and changes as people and programs ask for them, over real connections."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.access import Role
from cron.api import table
from cron.api.access import (
    CertificateName,
    CertificateRevocation,
    ChangesQuery,
    RoleGrant,
    RoleRevocation,
    TokenCreation,
    TokenRevocation,
)
from cron.api.dead import DeadChange, DeadQuery
from cron.api.gates import GateOpening, GateRequest
from cron.api.jobs import ApplyRequest, PauseRequest, SourceFile
from cron.api.limits import LimitChange
from cron.api.queues import QueueQuery
from cron.errors import Conflict, InvalidInput, LimitExceeded, NotAllowed, NotFound
from cron.job import Job, Retry
from cron.scheduler.views import Depth
from cron.service import access
from cron.state import commands as c
from cron.state import granting
from tests.unit.access_rig import AccessWorld, asked
from tests.unit.api_rig import in_thread
from tests.unit.state_rig import MINUTE, WorkSpec


def job(name: str) -> Job:
    work = WorkSpec(("/bin/sh", "-c", "true"))
    return Job(name, MINUTE, work, deadline_s=300, retry=Retry(tries=2))


def world_with(*names: str) -> AccessWorld:
    world = AccessWorld()
    world.rig.join()
    world.rig.put(*map(job, names))
    return world


class Asking:
    """Asks a served cell with one token."""

    def __init__(self, server: str, token: str) -> None:
        self._server = server
        self._token = token

    async def __call__(self, rpc: Any, request: Any = None) -> Any:
        return await in_thread(asked, self._server, self._token, rpc, request)


# ---- roles


async def test_roles_are_granted_listed_and_revoked() -> None:
    world = AccessWorld()
    async with world.serving() as server:
        admin = Asking(server, "")
        with pytest.raises(Conflict, match="the first role makes an admin") as caught:
            await admin(table.GRANT_ROLE, RoleGrant(name="bob", role="viewer"))
        assert "role grant mallory admin" in caught.value.hint
        view = await admin(table.GRANT_ROLE, RoleGrant(name="ada", role="admin"))
        assert view.notes == ["mallory has no role: only a token, or no TLS, lets mallory in"]
        for _ in range(2):
            grant = RoleGrant(name="bob", role="operator", tenant="billing", by="ada")
            view = await admin(table.GRANT_ROLE, grant)
            assert (view.tenant, view.jobs, view.notes) == ("billing", "", [])
        await admin(table.GRANT_ROLE, RoleGrant(name="bob", role="viewer", jobs="mail*"))
        roles = (await admin(table.ROLES)).roles
        assert [(one.name, one.role, one.tenant, one.jobs, one.by) for one in roles] == [
            ("ada", "admin", "", "", "mallory"),
            ("bob", "operator", "billing", "", "ada"),
            ("bob", "viewer", "", "default/mail*", "mallory"),
        ]
        with pytest.raises(Conflict, match="ada is the only admin"):
            await admin(table.REVOKE_ROLE, RoleRevocation(name="ada", role="admin"))
        with pytest.raises(NotFound, match="bob is no viewer in the whole cell"):
            await admin(table.REVOKE_ROLE, RoleRevocation(name="bob", role="viewer"))
        revocation = RoleRevocation(name="bob", role="viewer", jobs="default/mail*")
        await admin(table.REVOKE_ROLE, revocation)
        assert len((await admin(table.ROLES)).roles) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "\u00e4da", "role": "viewer"},
        {"name": "", "role": "viewer"},
        {"name": "ada", "role": "root"},
        {"name": "ada", "role": "viewer", "tenant": "*"},
        {"name": "ada", "role": "viewer", "tenant": "a", "jobs": "a/*"},
        {"name": "ada", "role": "viewer", "jobs": "a/b/c"},
    ],
)
async def test_roles_that_are_none_are_refused(fields: dict[str, str]) -> None:
    world = AccessWorld()
    async with world.serving() as server:
        with pytest.raises(InvalidInput):
            await Asking(server, "")(table.GRANT_ROLE, RoleGrant(**fields))
    assert world.state.access.is_open


async def test_too_many_roles_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granting, "BINDINGS_MAX", 1)
    async with AccessWorld().serving() as server:
        admin = Asking(server, "")
        await admin(table.GRANT_ROLE, RoleGrant(name="ada", role="admin"))
        with pytest.raises(LimitExceeded):
            await admin(table.GRANT_ROLE, RoleGrant(name="bob", role="admin"))


# ---- tokens


def creation(number: int = 1, **fields: Any) -> TokenCreation:
    said = {"name": "ci", "role": "editor", "id": f"{number:012x}", "digest": bytes(32)}
    return TokenCreation(**(said | fields))


async def test_a_token_is_made_once_listed_and_revoked() -> None:
    world = AccessWorld()
    async with world.serving() as server:
        admin = Asking(server, "")
        for _ in range(2):
            view = await admin(table.CREATE_TOKEN, creation(tenant="billing", days=30))
            assert (view.name, view.role, view.tenant, view.state) == (
                "ci", "editor", "billing", "live"
            )  # fmt: skip
            assert view.expires_ms == world.rig.at_ms + 30 * access.DAY_MS
        with pytest.raises(InvalidInput, match="another token has the id"):
            await admin(table.CREATE_TOKEN, creation(digest=bytes(31) + b"1"))
        await admin(table.CREATE_TOKEN, creation(2, days=1))
        await admin(table.CREATE_TOKEN, creation(3, name="other"))
        world.rig.to(86_400)
        states = [one.state for one in (await admin(table.TOKENS)).tokens]
        assert states == ["live", "expired", "live"]
        report = await admin(table.REVOKE_TOKENS, TokenRevocation(names=["ci", "nobody"]))
        assert [one.id for one in report.tokens] == [f"{1:012x}", f"{2:012x}"]
        assert {one.state for one in report.tokens} == {"revoked"}
        assert report.unknown == ["nobody"]
        report = await admin(table.REVOKE_TOKENS, TokenRevocation(names=[f"rc1_{3:012x}", "ci"]))
        assert ([one.name for one in report.tokens], report.unknown) == (["other"], ["ci"])


async def test_who_has_no_admins_token_gives_nobody_a_role() -> None:
    world = AccessWorld()
    tenant_admin = world.token(Role.ADMIN, "billing/*")
    async with world.serving() as server:
        for rpc, request in (
            (table.GRANT_ROLE, RoleGrant(name="eve", role="admin", tenant="billing")),
            (table.CREATE_TOKEN, creation(tenant="billing")),
            (table.REVOKE_TOKENS, TokenRevocation(names=["ci"])),
        ):
            with pytest.raises(NotAllowed):
                await Asking(server, tenant_admin)(rpc, request)


# ---- certificates


def named(number: int, cell: str = "berlin", kind: str = "executor") -> CertificateName:
    return CertificateName(
        digest=f"{number:064x}", cell=cell, kind=kind, name="e1", expires_ms=2_000_000_000_000
    )


async def test_certificates_are_revoked_once_and_listed() -> None:
    world = AccessWorld()
    async with world.serving() as server:
        admin = Asking(server, "")
        for is_new in (True, False):
            request = CertificateRevocation(certificates=[named(1)], by="ada")
            (view,) = (await admin(table.REVOKE_CERTIFICATES, request)).certificates
            assert (view.digest, view.is_new, view.since_ms) == (
                named(1).digest, is_new, world.rig.at_ms
            )  # fmt: skip
        listed = (await admin(table.REVOKED_CERTIFICATES)).certificates
        assert [(one.kind, one.name, one.is_new) for one in listed] == [("executor", "e1", False)]


async def test_a_certificate_of_another_cell_or_of_a_replica_is_not_revoked_by_mistake() -> None:
    world = AccessWorld()
    async with world.serving() as server:
        admin = Asking(server, "")
        foreign = CertificateRevocation(certificates=[named(1), named(2, "munich")])
        with pytest.raises(InvalidInput, match="e1 of cell munich; this is cell berlin"):
            await admin(table.REVOKE_CERTIFICATES, foreign)
        replica = CertificateRevocation(certificates=[named(1, kind="replica")])
        with pytest.raises(InvalidInput, match="leaves the cell until it has another one"):
            await admin(table.REVOKE_CERTIFICATES, replica)
        assert world.state.access.revoked == {}
        meant = msgspec.structs.replace(replica, with_replicas=True)
        await admin(table.REVOKE_CERTIFICATES, meant)
        assert [*world.state.access.revoked] == [named(1).digest]


# ---- what a scope shows


async def test_lists_are_of_what_the_scope_has() -> None:
    world = world_with("billing/mail", "billing/pay", "ops/mail")
    for name in ("billing/mail", "ops/mail"):
        world.die(60, number=world.state.jobs[name].number)
    assert world.queues is not None
    world.queues.rows = [
        Depth("command", 5, tenant, 1, 0, 0, None) for tenant in ("billing", "ops")
    ]
    async with world.serving() as server:
        admin = Asking(server, "")
        for tenant in ("billing", "ops", "*"):
            await admin(table.SET_LIMIT, LimitChange(tenant=tenant, concurrent=1))
        for gate in ({"tenant": "ops"}, {"jobs": "billing/*"}, {"is_everything": True}):
            await admin(table.CLOSE_GATE, GateRequest(**gate))
        viewer = Asking(server, world.token(Role.OPERATOR, "billing/*"))
        letters = (await viewer(table.DEAD, DeadQuery())).letters
        assert [one.tenant for one in letters] == ["billing"]
        assert (await viewer(table.DEAD, DeadQuery())).total == 1
        assert [one.tenant for one in (await viewer(table.LIMITS)).limits] == ["*", "billing"]
        assert [one.number for one in (await viewer(table.GATES)).gates] == [2, 3]
        queues = (await viewer(table.QUEUES, QueueQuery())).queues
        assert [one.tenant for one in queues] == ["billing"]
        with pytest.raises(NotAllowed, match="gate 3 holds more than launches within"):
            await viewer(table.OPEN_GATES, GateOpening(numbers=[2, 3]))
        assert len(world.state.gates) == 3
        opened = await viewer(table.OPEN_GATES, GateOpening(numbers=[2]))
        assert [one.number for one in opened.gates] == [2]
        change = DeadChange(query=DeadQuery(), is_everything=True)
        assert (await viewer(table.DROP_DEAD, change)).launches == [letters[0].launch]
        assert len(world.state.dead) == 1


async def test_an_editor_of_a_tenant_applies_its_jobs_and_no_others() -> None:
    world = AccessWorld()
    async with world.serving() as server:
        admin = Asking(server, "")
        everybodys = b"#: name=billing/a\n* * * * * true\n#: name=ops/a\n* * * * * true\n"
        await admin(table.PUT_JOBS, ApplyRequest(files=[SourceFile("jobs", everybodys)]))
        editor = Asking(server, world.token(Role.EDITOR, "billing/*"))
        both = ApplyRequest(files=[SourceFile("jobs", everybodys.replace(b"true", b"false"))])
        with pytest.raises(NotAllowed, match=r"job ops/a is not within billing/\*"):
            await editor(table.PUT_JOBS, both)
        assert "false" not in str(world.state.jobs)
        theirs = b"#: name=billing/b\n* * * * * true\n"
        pruned = ApplyRequest(files=[SourceFile("jobs", theirs)], prune=True, is_confirmed=True)
        report = await editor(table.PUT_JOBS, pruned)
        actions = [(one.action, one.job) for one in report.changes]
        assert actions == [("removed", "billing/a"), ("added", "billing/b")]
        live = sorted(name for name, one in world.state.jobs.items() if one.job is not None)
        assert live == ["billing/b", "ops/a"]
        renamed = ApplyRequest(files=[SourceFile("jobs", b"#: name=billing/c\n* * * * * true\n")])
        problems = (await editor(table.PUT_JOBS, renamed)).problems
        assert "ops/a" not in str(problems)
        assert "billing/b" in str(problems)


# ---- changes


async def test_changes_say_who_from_where_and_what() -> None:
    world = world_with("billing/mail", "ops/mail")
    async with world.serving() as server:
        token = world.token(Role.OPERATOR, "billing/*")
        await Asking(server, token)(table.PAUSE, PauseRequest(pattern="billing/*"))
        world.rig.to(60)
        await Asking(server, "")(table.PAUSE, PauseRequest(pattern="*"))
        admin = Asking(server, "")
        newest, *_, first = (await admin(table.CHANGES, ChangesQuery())).changes
        assert (newest.action, newest.object, newest.by) == ("pause", "ops/mail", "mallory")
        assert (newest.before, newest.after) == ("", "paused")
        assert newest.at_ms == world.rig.at_ms
        assert newest.index == world.state.index
        assert newest.origin == ""  # the rig's leader keeps none
        assert (first.action, first.object) == ("put", "ops/mail")

        async def listed(asking: Asking, **fields: Any) -> list[tuple[str, str]]:
            report = await asking(table.CHANGES, ChangesQuery(**fields))
            return [(one.action, one.object) for one in report.changes]

        assert await listed(admin, made_by="ci") == [("pause", "billing/mail")]
        assert await listed(admin, job="ops/*") == [("pause", "ops/mail"), ("put", "ops/mail")]
        assert await listed(admin, since_ms=world.rig.at_ms) == [("pause", "ops/mail")]
        mine = Asking(server, world.token(Role.VIEWER, "ops/*"))
        assert await listed(mine) == [("pause", "ops/mail"), ("put", "ops/mail")]
        with pytest.raises(NotAllowed):
            await listed(mine, job="billing/mail")
        report = await admin(table.CHANGES, ChangesQuery(limit=1))
        assert (len(report.changes), report.left > 0) == (1, True)


async def test_a_change_of_many_objects_says_how_many_are_not_kept() -> None:
    world = world_with(*(f"billing/j{number:02}" for number in range(23)))
    world.rig.append(c.Pause(("billing/j00@",), "", 0, "ada"))
    async with world.serving() as server:
        changes = (await Asking(server, "")(table.CHANGES, ChangesQuery())).changes
    assert len(changes) == 20
    assert [one.more for one in changes] == [3] + [0] * 19
