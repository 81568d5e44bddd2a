"""Roles and tokens as the log has them, and what is kept of each change."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from cron import origin
from cron.access import (
    CELL,
    TOKEN_BYTES,
    RevokedCertificate,
    Role,
    token_digest,
    token_id,
    token_text,
)
from cron.state import access as a
from cron.state import commands as c
from cron.state import granting, pool, tasks
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.tasks_rig import TasksRig, name, task
from tests.unit.test_leader_term import reigning


def with_admin() -> StateRig:
    rig = StateRig()
    assert rig.answer(a.GrantRole("ada", Role.ADMIN, CELL, "ada")).verdict is Verdict.ACCEPTED
    return rig


def token(number: int = 1, name: str = "ci", **more: object) -> a.CreateToken:
    text = token_text(number.to_bytes(TOKEN_BYTES, "big"))
    said: dict[str, object] = {"role": Role.EDITOR, "scope": "billing/*", "by": "ada"}
    return a.CreateToken(
        token_text(number.to_bytes(TOKEN_BYTES, "little"))[4:16],
        name,
        digest=token_digest(text),
        **(said | more),  # type: ignore[arg-type]
    )


def test_the_first_role_makes_an_admin_of_the_cell() -> None:
    rig = StateRig()
    for command in (a.GrantRole("ada", Role.EDITOR), a.GrantRole("ada", Role.ADMIN, "x/*")):
        with rig.unchanged():
            assert rig.answer(command).verdict is Verdict.NO_ADMIN
    assert rig.answer(a.GrantRole("ada", Role.ADMIN)).verdict is Verdict.ACCEPTED
    assert rig.answer(a.GrantRole("bob", Role.VIEWER, "x/*")).verdict is Verdict.ACCEPTED
    assert rig.state.access.grants_of("bob")[0].scope == "x/*"


def test_the_last_admin_stays() -> None:
    rig = with_admin()
    rig.append(a.GrantRole("bob", Role.ADMIN, "billing/*"))
    with rig.unchanged():
        assert rig.answer(a.RevokeRole("ada", Role.ADMIN)).verdict is Verdict.NO_ADMIN
    rig.append(a.GrantRole("bob", Role.ADMIN))
    assert rig.answer(a.RevokeRole("ada", Role.ADMIN)).verdict is Verdict.ACCEPTED
    assert rig.state.access.grants_of("ada") == ()
    assert not rig.state.access.is_open


def test_a_role_is_granted_and_revoked_once() -> None:
    rig = with_admin()
    grant = a.GrantRole("bob", Role.VIEWER, "billing/*", "ada")
    assert rig.answer(grant).verdict is Verdict.ACCEPTED
    revision = rig.state.access.revision
    with rig.unchanged():
        assert rig.answer(grant).verdict is Verdict.ALREADY
        assert rig.answer(a.RevokeRole("bob", Role.VIEWER)).verdict is Verdict.ALREADY
        assert rig.answer(a.RevokeRole("cyd", Role.VIEWER)).verdict is Verdict.ALREADY
    assert rig.state.access.revision == revision
    assert rig.answer(a.RevokeRole("bob", Role.VIEWER, "billing/*")).verdict is Verdict.ACCEPTED
    assert rig.state.access.revision == rig.state.index


@pytest.mark.parametrize("name", ["", ".ada", "\u00e4da", "ada\n", "a" * 65, "a/b", "\u0430da"])
def test_a_name_that_no_certificate_has_gets_nothing(name: str) -> None:
    rig = with_admin()
    with rig.unchanged():
        assert rig.answer(a.GrantRole(name, Role.VIEWER)).verdict is Verdict.BAD_ACCESS
        assert rig.answer(token(name=name)).verdict is Verdict.BAD_ACCESS


@pytest.mark.parametrize(
    "scope", ["billing", "a/b/c", "/", "a/", "\u00e4/*", "a" * 250 + "/*", " /*"]
)
def test_a_scope_that_matches_no_name_is_refused(scope: str) -> None:
    rig = with_admin()
    with rig.unchanged():
        assert rig.answer(a.GrantRole("bob", Role.VIEWER, scope)).verdict is Verdict.BAD_ACCESS


def test_roles_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granting, "GRANTS_EACH_MAX", 2)
    monkeypatch.setattr(granting, "BINDINGS_MAX", 4)
    rig = with_admin()
    names = ["bob", "bob", "bob", "cyd", "dan"]
    verdicts = [
        rig.answer(a.GrantRole(name, Role.VIEWER, f"t{number}/*")).verdict
        for number, name in enumerate(names)
    ]
    assert verdicts == [
        Verdict.ACCEPTED,
        Verdict.ACCEPTED,
        Verdict.TOO_MANY,
        Verdict.ACCEPTED,
        Verdict.TOO_MANY,
    ]


# ---- tokens


def test_a_token_is_kept_by_its_hash_and_only_once() -> None:
    rig = StateRig()
    made = token()
    assert rig.answer(made).verdict is Verdict.ACCEPTED
    kept = rig.state.access.tokens[made.id]
    assert (kept.name, kept.role, kept.scope) == ("ci", Role.EDITOR, "billing/*")
    assert (kept.created_ms, kept.by, kept.digest) == (rig.at_ms, "ada", made.digest)
    with rig.unchanged():
        assert rig.answer(made).verdict is Verdict.ALREADY
        other = a.CreateToken(made.id, "ci", Role.ADMIN, CELL, bytes(32))
        assert rig.answer(other).verdict is Verdict.REPEATED


def test_a_token_that_is_none_is_refused() -> None:
    rig = StateRig()
    made = token()
    with rig.unchanged():
        for number in ("", "g" * 12, "0" * 11):
            wrong = a.CreateToken(number, "ci", Role.VIEWER, CELL, made.digest)
            assert rig.answer(wrong).verdict is Verdict.BAD_ACCESS
        short = a.CreateToken(made.id, "ci", Role.VIEWER, CELL, b"x")
        assert rig.answer(short).verdict is Verdict.BAD_ACCESS
        for expires_ms in (rig.at_ms, 1, -1, 1 << 62):
            assert rig.answer(token(expires_ms=expires_ms)).verdict is Verdict.BAD_TIMES


def test_a_revoked_token_is_remembered() -> None:
    rig = StateRig()
    made = token()
    rig.append(made)
    revoke = a.RevokeTokens((made.id, "0" * 12), "bob")
    assert rig.items(revoke) == [Verdict.ACCEPTED, Verdict.ALREADY]
    assert rig.state.access.tokens[made.id].revoked_ms == rig.at_ms
    with rig.unchanged():
        assert rig.items(revoke) == [Verdict.ALREADY, Verdict.ALREADY]
        assert rig.answer(made).verdict is Verdict.ALREADY


def test_of_too_many_tokens_those_that_ended_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granting, "TOKENS_MAX", 3)
    rig = StateRig()
    made = [token(1), token(2, expires_ms=(T0 + 60) * 1000), token(3)]
    for one in made:
        rig.append(one)
    with rig.unchanged():
        assert rig.answer(token(4)).verdict is Verdict.TOO_MANY
    rig.to(60)
    assert rig.answer(token(4)).verdict is Verdict.ACCEPTED
    assert [*rig.state.access.tokens] == [made[0].id, made[2].id, token(4).id]
    rig.append(a.RevokeTokens((made[0].id,)))
    assert rig.answer(token(5)).verdict is Verdict.ACCEPTED
    assert made[0].id not in rig.state.access.tokens


def certificate(number: int, expires_s: int = T0 + 3_600) -> RevokedCertificate:
    return RevokedCertificate(f"{number:064x}", "executor", "e1", expires_s * 1000)


def test_a_revoked_certificate_is_remembered_until_it_expires() -> None:
    rig = StateRig()
    one, two = certificate(1), certificate(2, T0 + 60)
    assert rig.items(a.RevokeCertificates((one, two), "ada")) == [Verdict.ACCEPTED] * 2
    assert rig.state.access.revoked[one.digest] == RevokedCertificate(
        one.digest, "executor", "e1", one.expires_ms, "ada", rig.at_ms
    )
    last = rig.state.revisions[-1]
    assert (last.by, last.command, last.subject) == ("ada", "revoke-certificates", "e1")
    assert changed(rig)[0] == ("certificate 0000000000000000 of executor e1", "", "revoked")
    with rig.unchanged():
        assert rig.items(a.RevokeCertificates((one,), "bob")) == [Verdict.ALREADY]
    rig.to(60)
    rig.append(a.RevokeCertificates((certificate(3),)))
    assert [*rig.state.access.revoked] == [one.digest, certificate(3).digest]


def test_certificates_that_are_none_or_too_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(granting, "REVOKED_MAX", 2)
    rig = StateRig()
    rig.append(a.RevokeCertificates((certificate(1), certificate(2, T0 + 60))))
    wrong = [
        RevokedCertificate("g" * 64, "executor", "e1", 1),
        RevokedCertificate("0" * 63, "executor", "e1", 1),
        RevokedCertificate("0" * 64, "authority", "e1", 1),
        RevokedCertificate("0" * 64, "executor", "e 1", 1),
        certificate(3, 0),
    ]
    with rig.unchanged():
        for one in wrong:
            answer = rig.answer(a.RevokeCertificates((certificate(1), one)))
            assert answer.verdict is Verdict.BAD_ACCESS
        assert rig.answer(a.RevokeCertificates((certificate(3),))).verdict is Verdict.TOO_MANY
    rig.to(60)
    assert rig.answer(a.RevokeCertificates((certificate(3),))).verdict is Verdict.ACCEPTED


def test_an_image_has_roles_tokens_and_revoked_certificates() -> None:
    rig = with_admin()
    rig.append(token())
    rig.append(a.RevokeCertificates((certificate(1),)))
    rig.append(a.RevokeTokens((token().id,), "bob"))
    read = decode_state([encode_state(rig.state)])
    assert read.access == rig.state.access
    assert encode_state(read) == encode_state(rig.state)


def test_ids_of_tokens_are_those_of_their_texts() -> None:
    text = token_text(bytes(range(TOKEN_BYTES)))
    rig = StateRig()
    made = a.CreateToken(token_id(text), "ci", Role.VIEWER, CELL, token_digest(text))
    assert rig.answer(made).verdict is Verdict.ACCEPTED


# ---- what is kept of changes


def changed(rig: StateRig) -> list[tuple[str, str, str]]:
    return [(one.name, one.before, one.after) for one in rig.state.revisions[-1].changed]


def test_a_change_keeps_what_was_and_what_is() -> None:
    rig = with_job()
    name = "default/backup"
    rig.put(job(deadline_s=77), job("new"))
    assert changed(rig)[-1][:2] == ("default/new", "")
    rig.append(c.Pause((name, "default/new"), "why", 0, "ada"))
    assert changed(rig) == [(name, "", "paused"), ("default/new", "", "paused")]
    rig.append(c.Resume((name,), "ada"))
    assert changed(rig) == [(name, "paused", "")]
    rig.append(pool.SetLimits((pool.LimitItem(("acme", "", -1), pool.Limits(weight=2)),), "cyd"))
    assert changed(rig) == [("tenant acme", "", "weight 2")]
    rig.append(pool.CloseGate(pool.Gate(0, pool.GateAction.PAUSE, "why", "dan", 0, tenant="acme")))
    assert changed(rig) == [("1", "", "pause acme: why")]
    rig.append(pool.LiftGates((1,), "eve"))
    assert changed(rig) == [("1", "pause acme: why", "")]
    rig.to(60).account(60)
    rig.append(c.Cancel((c.CancelItem((1, T0 + 60, 0), Reason.KILLED, "hal"),)))
    assert changed(rig) == [("default/backup@2026-11-20T16:01:00Z", "due", "")]
    rig.put(removed=(name,))
    ((gone, before, after),) = changed(rig)
    assert (gone, after) == (name, "")
    assert before.startswith("* * * * *")


def test_changes_of_access_are_kept_without_secrets() -> None:
    rig = with_admin()
    rig.append(a.GrantRole("bob", Role.VIEWER, "billing/*", "ada"))
    rig.append(a.GrantRole("bob", Role.EDITOR, "ops/*", "ada"))
    assert changed(rig) == [("bob", "viewer in billing/*", "viewer in billing/*; editor in ops/*")]
    rig.append(a.RevokeRole("bob", Role.VIEWER, "billing/*", "ada"))
    assert changed(rig) == [("bob", "viewer in billing/*; editor in ops/*", "editor in ops/*")]
    rig.append(token())
    assert changed(rig) == [(f"token rc1_{token().id}", "", "ci: editor in billing/*")]
    rig.append(a.RevokeTokens((token().id,), "bob"))
    last = rig.state.revisions[-1]
    assert (last.by, last.command, last.subject, last.count) == ("bob", "revoke-tokens", "ci", 1)
    assert changed(rig)[0][1:] == ("ci: editor in billing/*", "")


def test_of_many_objects_the_first_are_kept_and_texts_are_cut() -> None:
    rig = StateRig()
    rig.put(*(job(f"j{number:02}", work=WorkSpec(("x" * 500,))) for number in range(30)))
    last = rig.state.revisions[-1]
    assert (last.count, len(last.changed)) == (30, 20)
    assert {len(one.after) for one in last.changed} == {120}


def test_origins_belong_to_the_changes_that_follow_them() -> None:
    rig = with_job()
    pauses = [c.Pause(("default/backup",), "", 0, by) for by in ("ada", "bob", "cyd")]
    resume = c.Resume(("default/backup",), "x")
    rig.append(a.CameFrom("here", 2), pauses[0], resume, pauses[1], resume)
    rig.append(pauses[2])
    kept = [(one.by, one.origin) for one in rig.state.revisions[1:]]
    assert kept == [("ada", "here"), ("x", "here"), ("bob", ""), ("x", ""), ("cyd", "")]


async def test_the_leader_says_where_a_change_came_from() -> None:
    async with reigning() as replica:
        await replica.put(job("a"))

        async def asked(by: str, whence: str) -> list[Verdict]:
            origin.CURRENT.set(whence)
            pause = c.Pause(("default/a",), "", 0, by)
            resume = c.Resume(("default/a",), by)
            _, results = await replica.leader.append(pause, resume)
            return [result.verdict for result in results]

        answers = await asyncio.gather(
            *(
                asyncio.create_task(asked(by, whence), context=copy_context())
                for by, whence in (("ada", "token x"), ("bob", ""), ("cyd", "certificate"))
            )
        )
        assert answers == [[Verdict.ACCEPTED] * 2] * 3
        kept = [(one.by, one.origin) for one in replica.applier.state.revisions[1:]]
        assert kept == [
            *[("ada", "token x")] * 2,
            *[("bob", "")] * 2,
            *[("cyd", "certificate")] * 2,
        ]


def test_manual_launches_are_changes_and_repeated_requests_are_none() -> None:
    rig = with_job()
    rig.trigger("r1")
    assert changed(rig) == [("default/backup@2026-11-20T16:00:00Z+t1", "", "due")]
    last = rig.state.revisions[-1]
    assert (last.by, last.command, last.subject, last.count) == (
        "anna", "trigger", "default/backup", 1
    )  # fmt: skip
    with rig.unchanged():
        rig.trigger("r1")
        rig.trigger("r2", name="never")
    rig.trigger("r2")
    assert [one.name[-3:] for one in rig.state.revisions[-1].changed] == ["+t1", "+t2"]
    assert len(rig.state.revisions) == 2


def test_programs_that_change_many_tasks_do_not_push_out_what_people_did() -> None:
    rig = TasksRig()
    rig.append(c.Pause(("default/never",), "", 0, "ada"))
    rig.append(pool.CloseGate(pool.Gate(0, pool.GateAction.PAUSE, "why", "ada", 0, tenant="x")))
    before = len(rig.state.revisions)
    keys = [f"k{number}" for number in range(40)]
    assert {*rig.submit(*(task(key) for key in keys))} == {Verdict.ACCEPTED}
    for number, key in enumerate(keys):
        rig.append(tasks.CancelTasks((name(key),), "shop" if number % 2 else "mall"))
    kept = rig.state.revisions[before:]
    assert [(one.by, one.count, len(one.changed)) for one in kept] == [
        ("mall", 20, 20),
        ("shop", 20, 20),
    ]
    assert kept[-1].index == rig.state.index
    assert kept[0].changed[1].name == name("k2")
    rig.submit(task("later"))
    rig.to(60)
    rig.append(tasks.CancelTasks((name("later"),), "shop"))
    assert [one.count for one in rig.state.revisions[before:]] == [20, 20, 1]
