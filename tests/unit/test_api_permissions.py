"""Every call with every role, and with none: over real connections, through the guard."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.access import CELL, Role
from cron.api import table
from cron.api.access import (
    ChangesQuery,
    RoleGrant,
    RoleRevocation,
    TokenCreation,
    TokenRevocation,
)
from cron.api.admission import Admission, Shown
from cron.api.client import Client
from cron.api.dead import DeadChange, DeadQuery
from cron.api.executors import DrainRequest, ExecutorQuery
from cron.api.gates import GateOpening, GateRequest
from cron.api.jobs import (
    ApplyRequest,
    JobsRequest,
    NextRequest,
    PauseRequest,
    RemoveRequest,
    ResumeRequest,
    SourceFile,
)
from cron.api.launches import (
    AuditRequest,
    BackfillRequest,
    HistoryQuery,
    KillRequest,
    OutputQuery,
    ShowRequest,
    TriggerRequest,
    WhyRequest,
)
from cron.api.limits import LimitChange, LimitRemoval
from cron.api.members import ClockRequest, ReplaceRequest, StatusRequest
from cron.api.queues import QueueQuery, WaitQuery
from cron.api.rpc import Request, Rpc
from cron.api.snapshots import SaveRequest, SegmentRequest, SnapshotsRequest
from cron.api.task_queues import PutQueuesRequest, TaskQueuesQuery
from cron.api.tasks import (
    CancelRequest,
    RescheduleRequest,
    SubmitRequest,
    TaskFilter,
    TaskListQuery,
    TaskNames,
    TaskQuery,
    TaskSubmission,
    WatchRequest,
)
from cron.errors import NotAllowed, NotAuthenticated, NotFound
from launcher.identity import Identity
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import in_thread

JOB = "billing/mail"
TASK = "billing/mail:k"
LAUNCH = "billing/mail@2026-11-20T15:00:00Z"
AT_S = 1_795_186_800

READERS = "viewer operator editor admin"
TASKERS = "submitter operator editor admin"
ALL = "viewer submitter operator editor admin"

CALLS: dict[str, tuple[Request, str, str]] = {
    # call: a request about billing/mail, the roles that may make it, and which scope they need:
    # `tenant` where one of the tenant billing is enough, `list` where the answer is of the scope,
    # `cell` where only a role of the whole cell will do.
    "PutJobs": (ApplyRequest(files=[SourceFile("f", b"")]), "editor admin", "list"),
    "RemoveJobs": (RemoveRequest(jobs=[JOB]), "editor admin", "tenant"),
    "Pause": (PauseRequest(pattern=JOB), "operator editor admin", "tenant"),
    "Resume": (ResumeRequest(pattern="billing/m*"), "operator editor admin", "tenant"),
    "Jobs": (JobsRequest(), READERS, "list"),
    "Next": (NextRequest(job=JOB, count=1), READERS, "tenant"),
    "Trigger": (TriggerRequest(job=JOB, request_id="1"), "operator editor admin", "tenant"),
    "Kill": (KillRequest(launch=LAUNCH), "operator editor admin", "tenant"),
    "Backfill": (
        BackfillRequest(job=JOB, from_s=AT_S, to_s=AT_S + 1), "operator editor admin", "tenant"
    ),
    "History": (HistoryQuery(), READERS, "list"),
    "Show": (ShowRequest(launch=LAUNCH), READERS, "tenant"),
    "Output": (OutputQuery(launch=LAUNCH), READERS, "tenant"),
    "Why": (WhyRequest(job=JOB, at_s=AT_S), READERS, "tenant"),
    "Audit": (AuditRequest(job=JOB), READERS, "tenant"),
    "SetLimit": (LimitChange(tenant="billing", concurrent=1), "admin", "tenant"),
    "RemoveLimit": (LimitRemoval(tenant="billing"), "admin", "tenant"),
    "Limits": (table.LIMITS.request(), READERS, "list"),
    "CloseGate": (GateRequest(tenant="billing"), "operator editor admin", "tenant"),
    "OpenGates": (GateOpening(numbers=[1]), "operator editor admin", "list"),
    "Gates": (table.GATES.request(), READERS, "list"),
    "Dead": (DeadQuery(), READERS, "list"),
    "Redrive": (DeadChange(query=DeadQuery(jobs=JOB)), "operator editor admin", "tenant"),
    "DropDead": (DeadChange(query=DeadQuery(launch=LAUNCH)), "operator editor admin", "tenant"),
    "Executors": (Request(), READERS, "cell"),
    "Executor": (ExecutorQuery(executor="e1"), READERS, "cell"),
    "Drain": (DrainRequest(executor="e1"), "admin", "cell"),
    "Queues": (QueueQuery(), READERS, "list"),
    "Waits": (WaitQuery(job=JOB), READERS, "tenant"),
    "GrantRole": (RoleGrant(name="bob", role="viewer", tenant="billing"), "admin", "cell"),
    "RevokeRole": (RoleRevocation(name="bob", role="viewer"), "admin", "cell"),
    "Roles": (Request(), "admin", "cell"),
    "CreateToken": (
        TokenCreation(name="ci", role="viewer", tenant="billing", id=12 * "0", digest=bytes(32)),
        "admin",
        "cell",
    ),
    "Tokens": (Request(), "admin", "cell"),
    "RevokeTokens": (TokenRevocation(names=["ci"]), "admin", "cell"),
    "Changes": (ChangesQuery(), READERS, "list"),
    "SaveSnapshot": (SaveRequest(), "admin", "cell"),
    "Snapshots": (SnapshotsRequest(), READERS, "cell"),
    "VerifySnapshots": (SnapshotsRequest(), READERS, "cell"),
    "Replace": (ReplaceRequest(replica="r2"), "admin", "cell"),
    "ResetClock": (ClockRequest(), "admin", "cell"),
    "Status": (StatusRequest(), ALL, "list"),
    "PeerStatus": (Request(), ALL, "list"),
    "FetchSegment": (SegmentRequest(name="a.seg"), "", "cell"),
    "Submit": (
        SubmitRequest(tasks=[TaskSubmission(key="k", tenant="billing", queue="mail")]),
        "submitter editor admin",
        "tenant",
    ),
    "Cancel": (CancelRequest(names=[TASK]), TASKERS, "tenant"),
    "Reschedule": (RescheduleRequest(name=TASK, delay_ms=0), TASKERS, "tenant"),
    "RunNow": (TaskNames(names=[TASK]), TASKERS, "tenant"),
    "Get": (TaskQuery(name=TASK), ALL, "tenant"),
    "List": (TaskListQuery(filter=TaskFilter(queue=JOB)), ALL, "tenant"),
    "Watch": (WatchRequest(), ALL, "list"),
    "PutQueues": (PutQueuesRequest(source="q", text="[queue.mail]"), "editor admin", "list"),
    "ListQueues": (TaskQueuesQuery(), ALL, "list"),
}  # fmt: skip


class Reached:
    """A backend that tells whoever reaches it so, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        self.requests.append(request)
        raise NotFound("reached")


def outcome(client: Client, rpc: Rpc[Any, Any], request: Request) -> str:
    """What becomes of a call: reached, denied or unknown (who calls)."""
    try:
        client.ask(rpc, request)
    except NotAuthenticated:
        return "unknown"
    except NotAllowed:
        return "denied"
    except NotFound as error:
        return str(error)
    return "answered"


def walked(server: str, token: str) -> dict[str, str]:
    """The outcome of every call with a token."""
    with Client([server], 20_000, token=token) as client:
        return {name: outcome(client, table.TABLE[name], CALLS[name][0]) for name in CALLS}


def test_every_call_of_the_table_is_walked() -> None:
    assert [*CALLS] == [*table.TABLE]


@pytest.mark.parametrize("role", Role)
async def test_every_call_with_every_role(role: Role) -> None:
    world, reached = AccessWorld(), Reached()
    async with world.serving(reached, is_open=False) as server:
        for scope in (CELL, "billing/*", "ops/*"):
            expected = {}
            for name, (_, roles, need) in CALLS.items():
                is_covered = scope == CELL or need == "list"
                is_covered = is_covered or (need == "tenant" and scope == "billing/*")
                may = role.label in roles.split() and is_covered
                expected[name] = "reached" if may else "denied"
            token = world.token(role, scope)
            assert await in_thread(walked, server, token) == expected
            wanted = [] if scope == CELL else [scope]
            asked, reached.requests = reached.requests, []
            assert len(asked) == [*expected.values()].count("reached")
            for request in asked:
                assert getattr(request, "by", "ci") == "ci"
                assert getattr(request, "within", wanted) == wanted
                inner = getattr(request, "query", None) or getattr(request, "filter", None)
                assert getattr(inner, "within", wanted) == wanted


@pytest.mark.parametrize("how", ["none", "cut", "expired", "revoked", "of another cell"])
async def test_every_call_without_a_token_that_counts(how: str) -> None:
    world, reached = AccessWorld(), Reached()
    token = world.token(Role.ADMIN)
    if how == "none":
        token = ""
    elif how == "cut":
        token = token[:-1]
    elif how == "expired":
        world.rig.to(86_400)
    elif how == "revoked":
        world.rig.append(*_revocation(token))
    else:
        token = AccessWorld().token(Role.ADMIN)[:-1] + "f"
    async with world.serving(reached, is_open=False) as server:
        assert set((await in_thread(walked, server, token)).values()) == {"unknown"}
    assert reached.requests == []


def _revocation(token: str) -> list[Any]:
    from cron.access import token_id
    from cron.state.access import RevokeTokens

    return [RevokeTokens((token_id(token),), "ada")]


async def test_without_tls_every_call_is_open_to_who_shows_nothing() -> None:
    world, reached = AccessWorld(), Reached()
    async with world.serving(reached) as server:
        outcomes = await in_thread(walked, server, "")
    assert {*outcomes.values()} == {"reached"}  # also what replicas ask each other


@pytest.mark.parametrize("kind", ["replica", "executor", "authority", "worker"])
def test_certificates_of_machines_make_the_calls_of_machines(kind: str) -> None:
    rules = AccessWorld().state.access
    admission = Admission("berlin", lambda: rules, lambda: 0, is_open=False)
    shown = Shown(Identity("berlin", kind, "r1"))
    allowed = []
    for name, (request, _, _) in CALLS.items():
        try:
            admission.admit(table.TABLE[name], request, shown)
        except NotAllowed:
            continue
        else:
            allowed.append(name)
    assert allowed == (["Status", "PeerStatus", "FetchSegment"] if kind == "replica" else [])


def test_every_list_and_every_change_by_filter_is_limited_by_the_guard() -> None:
    """A call for which any scope will do has to tell its service what the scope is."""
    harmless = {"Status", "PeerStatus"}
    for name, (request, _, need) in CALLS.items():
        if need == "list" and name not in harmless:
            fields = [request, *(getattr(request, one, None) for one in ("query", "filter"))]
            has_within = [
                one
                for one in fields
                if isinstance(one, msgspec.Struct) and "within" in one.__struct_fields__
            ]
            assert has_within, f"{name}: nothing carries what its caller may see"
