"""What the cell grants to executors: how it is given, taken and listed."""

from __future__ import annotations

from cron.api.executors import (
    ExecutorGrantRequest,
    ExecutorGrantsReport,
    ExecutorGrantView,
    ExecutorRevocation,
)
from cron.api.rpc import Request
from cron.errors import InvalidInput, LimitExceeded, NotFound
from cron.executor_grants import PATTERNS_MAX, ExecutorGrant
from cron.limits import EXECUTOR_GRANTS_MAX
from cron.service.replica import Replica
from cron.state.access import GrantExecutor, RevokeExecutor
from cron.state.outcome import Verdict

SHOWN: int = 5


async def grant(replica: Replica, request: ExecutorGrantRequest) -> ExecutorGrantView:
    """Grant to an executor, or to a pattern of ids, what it gets from now on.

    Raises:
        LimitExceeded: there are too many grants.
    """
    is_first = not replica.state.access.limits_executors
    _, results = await replica.leader.append(GrantExecutor(request.grant, request.by))
    verdict = results[0].verdict
    if verdict is Verdict.TOO_MANY:
        text = f"the cell has {EXECUTOR_GRANTS_MAX:,} grants, or {PATTERNS_MAX} for patterns"
        raise LimitExceeded(text, "revoke some, or grant to a pattern that matches several ids")
    if verdict not in (Verdict.ACCEPTED, Verdict.ALREADY):
        raise InvalidInput(f"the cell refused it: {verdict.label}")
    kept = replica.state.access.executors.get(request.executor, request.grant)
    return _view(kept, _left_out(replica) if is_first else [])


async def revoke(replica: Replica, request: ExecutorRevocation) -> ExecutorGrantView:
    """Revoke what was granted to an executor, or to a pattern of ids.

    Raises:
        NotFound: nothing was.
    """
    before = replica.state.access.executors.get(request.executor)
    _, results = await replica.leader.append(RevokeExecutor(request.executor, request.by))
    if before is None or results[0].verdict is Verdict.ALREADY:
        text = f"nothing is granted to executor {request.executor}"
        raise NotFound(text, "`raftcron executor grants` lists what is granted")
    return _view(before, [])


async def listed(replica: Replica, _request: Request) -> ExecutorGrantsReport:
    """Return all grants, by id and pattern."""
    rules = replica.state.access
    views = [_view(rules.executors[name], []) for name in sorted(rules.executors)]
    return ExecutorGrantsReport(grants=views, claims_count=not rules.limits_executors)


def _left_out(replica: Replica) -> list[str]:
    """Return a note on executors that get no work by the first grant of the cell."""
    grants = replica.state.access.executor_grants()
    ids = {one.executor for one in replica.state.executors.values()}
    out = sorted(one for one in ids if (mine := grants.of(one)) is None or not mine.pools)
    if not out:
        return []
    more = f" and {len(out) - SHOWN} more" if len(out) > SHOWN else ""
    return [
        f"from now on executors get only what is granted to them: {', '.join(out[:SHOWN])}{more} "
        "get no new launches before"
    ]


def _view(grant: ExecutorGrant, notes: list[str]) -> ExecutorGrantView:
    return ExecutorGrantView(
        executor=grant.executor,
        labels=[f"{name}={value}" if value else name for name, value in grant.labels],
        pools=list(grant.pools),
        users=list(grant.users),
        by=grant.by,
        since_ms=grant.since_ms,
        notes=notes,
    )
