"""cron.api.admission: who calls, what they may, and what is written over their requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.access import (
    TOKEN_BYTES,
    AccessRules,
    Binding,
    Role,
    Token,
    token_digest,
    token_id,
    token_text,
)
from cron.api import table
from cron.api.admission import Admission, Shown
from cron.api.callers import Guard
from cron.api.client import Client
from cron.api.dead import DeadChange, DeadQuery
from cron.api.gates import GateRequest
from cron.api.jobs import JobsRequest, PauseReport, PauseRequest
from cron.api.launches import TriggerRequest
from cron.api.server import SERVER_OPTIONS, add_admin
from cron.api.tasks import (
    CancelRequest,
    SubmitRequest,
    TaskFilter,
    TaskListQuery,
    TaskQuery,
    TaskSubmission,
)
from cron.errors import CronError, InvalidInput, NotAllowed, NotAuthenticated, NotLeader
from launcher.identity import Identity
from tests.unit.api_rig import FakeBackend, in_thread, launch

NOW_MS = 1_795_186_800_000
CELL = "berlin"


class Rules:
    """Bindings and tokens as State would have them, and what decides by them."""

    def __init__(self) -> None:
        self.access = AccessRules()
        self.now_ms = NOW_MS
        self.leader: str | None = None

    def grant(self, name: str, role: Role, scope: str = "") -> None:
        mine = self.access.bindings.get(name, ())
        self.access.bindings[name] = (*mine, Binding(name, role, scope))

    def token(self, role: Role, scope: str = "", name: str = "ci", **more: Any) -> str:
        text = token_text(len(self.access.tokens).to_bytes(TOKEN_BYTES, "little"))
        number = token_id(text)
        self.access.tokens[number] = Token(number, name, role, scope, token_digest(text), **more)
        return text

    def admission(self, *, is_open: bool = True) -> Admission:
        return Admission(
            CELL,
            lambda: self.access,
            lambda: self.now_ms,
            is_open=is_open,
            elsewhere=lambda: NotLeader(self.leader) if self.leader else None,
        )


@pytest.fixture
def rules() -> Rules:
    return Rules()


def bearer(token: str) -> Shown:
    return Shown(authorization=f"Bearer {token}", address="ipv4:127.0.0.1:9")


def person(name: str, kind: str = "person") -> Shown:
    return Shown(Identity(CELL, kind, name))


PAUSE = PauseRequest(pattern="billing/mail", by="mallory")


# ---- who calls


def test_without_tls_nobody_is_refused_who_shows_nothing(rules: Rules) -> None:
    rules.grant("ada", Role.ADMIN)
    request = rules.admission().admit(table.PAUSE, PAUSE, Shown())
    assert request.by == "mallory"


def test_who_shows_a_token_is_who_it_says_without_tls_too(rules: Rules) -> None:
    request = rules.admission().admit(table.PAUSE, PAUSE, bearer(rules.token(Role.OPERATOR)))
    assert request.by == "ci"
    viewer = bearer(rules.token(Role.VIEWER))
    with pytest.raises(NotAllowed, match="may not use Pause: it needs a role that may operate"):
        rules.admission().admit(table.PAUSE, PAUSE, viewer)


def test_where_callers_must_prove_themselves_nothing_is_not_enough(rules: Rules) -> None:
    with pytest.raises(NotAuthenticated, match="neither a token nor a certificate") as caught:
        rules.admission(is_open=False).admit(table.STATUS, table.STATUS.request(), Shown())
    assert "Bearer TOKEN" in caught.value.hint


def test_a_token_counts_before_a_certificate(rules: Rules) -> None:
    shown = Shown(Identity(CELL, "person", "ada"), bearer(rules.token(Role.OPERATOR)).authorization)
    assert rules.admission().admit(table.PAUSE, PAUSE, shown).by == "ci"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Basic YWRh", "not a bearer token"),
        ("Bearer", "not a bearer token"),
        ("Bearer a b", "not a bearer token"),
        ("Bearer rc1_00", "not whole: it has 6 characters, a token has 81"),
        ("Bearer " + "x" * 81, "not whole: it has characters that no token has"),
        ("Bearer rc1_" + 12 * "f" + "_" + 64 * "0", "rc1_ffffffffffff is not one of cell berlin"),
    ],
)
def test_a_token_of_no_use_is_refused_with_the_way_out(
    rules: Rules, text: str, message: str
) -> None:
    with pytest.raises(NotAuthenticated, match=message) as caught:
        rules.admission().admit(table.PAUSE, PAUSE, Shown(authorization=text))
    assert caught.value.hint


def test_a_token_is_refused_from_the_moment_it_expires(rules: Rules) -> None:
    token = rules.token(Role.OPERATOR, expires_ms=NOW_MS)
    rules.now_ms = NOW_MS - 1
    rules.admission().admit(table.PAUSE, PAUSE, bearer(token))
    rules.now_ms = NOW_MS + 1_000
    with pytest.raises(NotAuthenticated, match="of ci expired 1 s ago") as caught:
        rules.admission().admit(table.PAUSE, PAUSE, bearer(token))
    assert "token create" in caught.value.hint


def test_revoked_cut_and_forged_tokens_are_refused(rules: Rules) -> None:
    revoked = rules.token(Role.ADMIN, revoked_ms=1)
    with pytest.raises(NotAuthenticated, match="was revoked"):
        rules.admission().admit(table.PAUSE, PAUSE, bearer(revoked))
    token = rules.token(Role.ADMIN)
    with pytest.raises(NotAuthenticated, match="80 characters"):
        rules.admission().admit(table.PAUSE, PAUSE, bearer(token[:-1]))
    forged = token[:-1] + ("1" if token[-1] == "0" else "0")
    with pytest.raises(NotAuthenticated, match="not one of cell"):
        rules.admission().admit(table.PAUSE, PAUSE, bearer(forged))


def test_no_error_repeats_a_tokens_secret(rules: Rules) -> None:
    token = rules.token(Role.VIEWER, revoked_ms=1)
    for shown in (bearer(token), bearer(token[:-1]), bearer(token + "0")):
        with pytest.raises(NotAllowed) as caught:
            rules.admission().admit(table.PAUSE, PAUSE, shown)
        assert token[20:60] not in str(caught.value) + caught.value.hint


# ---- certificates and roles


def test_until_the_first_role_is_granted_a_persons_certificate_may_everything(
    rules: Rules,
) -> None:
    assert rules.admission().admit(table.PAUSE, PAUSE, person("ada")).by == "ada"
    rules.grant("ada", Role.ADMIN)
    assert rules.admission().admit(table.PAUSE, PAUSE, person("ada")).by == "ada"
    with pytest.raises(NotAllowed, match="person bob of cell berlin has no role") as caught:
        rules.admission().admit(table.PAUSE, PAUSE, person("bob"))
    assert "raftcron role grant bob viewer" in caught.value.hint


def test_a_token_has_its_own_role_and_not_those_of_its_name(rules: Rules) -> None:
    rules.grant("ada", Role.ADMIN)
    token = rules.token(Role.VIEWER, name="ada")
    with pytest.raises(NotAllowed, match=r"and token rc1_0{12} of ada is viewer"):
        rules.admission().admit(table.PAUSE, PAUSE, bearer(token))


def test_roles_do_not_open_what_only_machines_may(rules: Rules) -> None:
    rules.grant("ada", Role.ADMIN)
    request = table.FETCH_SEGMENT.request(name="a.seg")
    with pytest.raises(NotAllowed, match="may not use FetchSegment"):
        rules.admission().admit(table.FETCH_SEGMENT, request, person("ada"))
    admitted = rules.admission().admit(table.FETCH_SEGMENT, request, person("r1", "replica"))
    assert admitted == request


# ---- scopes


def test_a_change_outside_the_scope_is_refused(rules: Rules) -> None:
    shown = bearer(rules.token(Role.OPERATOR, "billing/*"))
    rules.admission().admit(table.PAUSE, PAUSE, shown)
    for pattern in ("mail", "*", "*/mail", "billing2/*"):
        with pytest.raises(NotAllowed, match=r"may operate in billing/\* only"):
            rules.admission().admit(table.PAUSE, PauseRequest(pattern=pattern), shown)


def test_a_request_is_brought_into_its_form_before_it_is_compared(rules: Rules) -> None:
    shown = bearer(rules.token(Role.OPERATOR, "default/*"))
    request = TriggerRequest(job="mail", request_id="1")
    assert rules.admission().admit(table.TRIGGER, request, shown).job == "default/mail"
    with pytest.raises(InvalidInput):
        rules.admission().admit(table.TRIGGER, TriggerRequest(job="..", request_id="1"), shown)


def test_a_list_is_of_what_the_caller_may_see_whatever_it_says(rules: Rules) -> None:
    shown = bearer(rules.token(Role.VIEWER, "billing/*"))
    everything = JobsRequest(within=["*/*", "ops/*"])
    assert rules.admission().admit(table.JOBS, everything, shown).within == ["billing/*"]
    whole = bearer(rules.token(Role.VIEWER))
    assert rules.admission().admit(table.JOBS, everything, whole).within == []
    with pytest.raises(NotAllowed, match="ops/mail"):
        rules.admission().admit(table.JOBS, JobsRequest(pattern="ops/mail"), shown)


def test_a_query_inside_a_change_is_limited_too(rules: Rules) -> None:
    shown = bearer(rules.token(Role.OPERATOR, "billing/*"))
    change = DeadChange(query=DeadQuery(within=["*/*"]), is_everything=True)
    assert rules.admission().admit(table.REDRIVE, change, shown).query.within == ["billing/*"]


def test_tasks_are_where_their_queues_are(rules: Rules) -> None:
    shown = bearer(rules.token(Role.SUBMITTER, "billing/mail*"))
    admit = rules.admission().admit

    def submitted(*names: tuple[str, str]) -> SubmitRequest:
        tasks = [TaskSubmission(key="k", tenant=tenant, queue=queue) for tenant, queue in names]
        return admit(table.SUBMIT, SubmitRequest(tasks=tasks), shown)

    assert submitted(("billing", "mail"), ("billing", "mails")).by == "ci"
    for queue in ("ops", "mail"), ("billing", "ops"), ("", "mail"), ("*", "mail"):
        with pytest.raises(NotAllowed):
            submitted(("billing", "mail"), queue)
    assert admit(table.GET, TaskQuery(name="billing/mail:k"), shown).name == "billing/mail:k"
    with pytest.raises(NotAllowed):
        admit(table.GET, TaskQuery(name="mail:k"), shown)
    listed = admit(table.LIST, TaskListQuery(filter=TaskFilter(within=["*/*"])), shown)
    assert listed.filter.within == ["billing/mail*"]
    cancelled = admit(table.CANCEL, CancelRequest(names=["billing/mail:k"]), shown)
    assert cancelled.names == ["billing/mail:k"]
    with pytest.raises(NotAllowed):
        admit(table.CANCEL, CancelRequest(filter=TaskFilter(queue="billing/ops")), shown)


def test_a_replica_that_does_not_lead_sends_a_refused_caller_to_the_leader(rules: Rules) -> None:
    rules.leader = "127.0.0.1:7401"
    unknown = bearer(token_text(bytes(TOKEN_BYTES)))
    with pytest.raises(NotLeader) as caught:
        rules.admission().admit(table.PAUSE, PAUSE, unknown)
    assert caught.value.leader == rules.leader
    with pytest.raises(NotAuthenticated):
        rules.admission().admit(table.STATUS, table.STATUS.request(), unknown)
    rules.grant("ada", Role.ADMIN)
    with pytest.raises(NotLeader):
        rules.admission(is_open=False).admit(table.PAUSE, PAUSE, person("bob"))


def test_what_no_replica_lets_in_is_refused_by_each(rules: Rules) -> None:
    rules.leader = "127.0.0.1:7401"
    for shown in (
        Shown(),
        bearer("rc1_cut"),
        Shown(authorization="Basic x"),
        person("e", "executor"),
    ):
        with pytest.raises(NotAllowed):
            rules.admission(is_open=False).admit(table.PAUSE, PAUSE, shown)


# ---- over real connections


@contextlib.asynccontextmanager
async def guarded(rules: Rules, backend: FakeBackend, recheck_s: float = 2.0) -> AsyncIterator[str]:
    """Serve a backend without TLS, behind the guard; the address."""
    guard = Guard(None, admission=rules.admission(), recheck_s=recheck_s)
    server = grpc.aio.server(interceptors=[guard], options=SERVER_OPTIONS)
    add_admin(server, backend)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def asked(server: str, token: str, rpc: Any, request: Any) -> Any:
    with Client([server], 20_000, by=lambda: "mallory", token=token) as client:
        return client.ask(rpc, request)


async def test_a_client_shows_its_token_and_is_recorded_by_its_name(rules: Rules) -> None:
    backend = FakeBackend(pause=PauseReport(changed=["billing/mail"]), trigger=launch())
    token = rules.token(Role.OPERATOR, "billing/*")
    async with guarded(rules, backend) as server:
        await in_thread(asked, server, token, table.PAUSE, PauseRequest(pattern="billing/*"))
        with pytest.raises(NotAllowed, match="default/mail"):
            await in_thread(
                asked, server, token, table.TRIGGER, TriggerRequest(job="mail", request_id="1")
            )
        with pytest.raises(NotAuthenticated, match="not whole"):
            await in_thread(asked, server, token[:-2], table.JOBS, None)
        await in_thread(asked, server, "", table.PAUSE, PauseRequest(pattern="x"))
    assert [(name, one.by) for name, (one,) in backend.calls] == [
        ("pause", "ci"),
        ("pause", "mallory"),
    ]


@pytest.mark.parametrize("how", ["revoked", "narrowed"])
async def test_a_stream_that_is_open_ends_when_its_role_is_taken_away(
    rules: Rules, how: str
) -> None:
    begun = asyncio.Event()
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[Any]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield None
        finally:
            ended.set()

    backend = FakeBackend(verify_snapshots=lambda _: endless())
    token = rules.token(Role.VIEWER)
    async with guarded(rules, backend, recheck_s=0.05) as server:
        call = asyncio.create_task(in_thread(asked, server, token, table.VERIFY_SNAPSHOTS, None))
        async with asyncio.timeout(20):
            await begun.wait()
            await asyncio.sleep(0.2)
            assert not call.done()
            number = token_id(token)
            fields = {"revoked_ms": 1} if how == "revoked" else {"scope": "billing/*"}
            old = rules.access.tokens[number]
            rules.access.tokens[number] = Token(
                **({name: getattr(old, name) for name in old.__struct_fields__} | fields)
            )
            with pytest.raises(CronError) as caught:
                await call
            assert isinstance(caught.value, NotAllowed)
            await ended.wait()


# ---- whatever is sent


_PART = st.text("bilng*?[]!-", min_size=1, max_size=8) | st.sampled_from(["billing", "ops", "*"])
_PATTERN = _PART | st.builds("{}/{}".format, _PART, _PART)
_NAMES = [
    f"{tenant}/{name}"
    for tenant in ("billing", "billin", "ops", "b", "default")
    for name in ("billing", "b", "mail", "in")
]


@given(_PATTERN, st.sampled_from(["", "billing", "ops"]))
def test_a_change_that_is_let_in_is_within_the_scope(pattern: str, tenant: str) -> None:
    rules = Rules()
    shown = bearer(rules.token(Role.OPERATOR, "billing/*"))
    admit = rules.admission().admit
    with contextlib.suppress(CronError):
        meant = admit(table.PAUSE, PauseRequest(pattern=pattern), shown).pattern
        assert [
            name for name in _NAMES if fnmatchcase(name, meant) and name[:8] != "billing/"
        ] == []
    with contextlib.suppress(CronError):
        gate = admit(table.CLOSE_GATE, GateRequest(jobs=pattern, tenant=tenant), shown)
        held = [
            name
            for name in _NAMES
            if fnmatchcase(name, gate.jobs) and gate.tenant in ("", name.partition("/")[0])
        ]
        assert [name for name in held if name[:8] != "billing/"] == []


@given(st.text() | st.builds("Bearer {}".format, st.text("rc1_0f", max_size=90)))
def test_any_text_but_a_token_is_refused_as_such(text: str) -> None:
    rules = Rules()
    rules.token(Role.ADMIN)
    if text:
        with pytest.raises(NotAuthenticated):
            rules.admission().admit(table.PAUSE, PAUSE, Shown(authorization=text))


@given(st.integers(0, 80), st.sampled_from("0123456789abcdefg_ \u0661"))
def test_a_token_with_another_character_is_refused(place: int, character: str) -> None:
    rules = Rules()
    token = rules.token(Role.ADMIN)
    other = token[:place] + character + token[place + 1 :]
    if other != token:
        with pytest.raises(NotAuthenticated):
            rules.admission().admit(table.PAUSE, PAUSE, bearer(other))
