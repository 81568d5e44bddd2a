"""The table in `docs/security.md` of who may do what: every call, stream, path and page.

`python -m tests.style.access_table` writes it, from the tables that decide; `test_access_table.py`
compares it, and the walks in `tests/unit/test_api_permissions.py` and `test_web_permissions.py`
make each of these requests with every role.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]

from cron.access import PERMITTED, TOKEN_ROLES, Action, Role
from cron.api import callers, reach
from cron.api import table as t
from cron.api.rpc import Rpc
from cron.web.console.acts import ACTS
from cron.web.console.site import PAGES
from launcher.identity import EXECUTOR, PERSON, REPLICA
from launcher.protocol.v1 import pool_pb2
from tests.style.tree import ROOT

PAGE: Final = ROOT / "docs" / "security.md"
BEGIN: Final = "<!-- generated: python -m tests.style.access_table -->\n"
END: Final = "<!-- end of what is generated -->\n"
CELL: Final = "cell"
NAMED: Final = "named"
ANY: Final = "any"
"""Which scope a role needs: the whole cell; one that covers what the request names; any."""
OPEN: Final = (
    "GET /healthz",
    "GET /readyz",
    "GET /v1/openapi.json",
    "GET /assets/",
    "GET /signin",
    "POST /signin",
    "POST /signout",
)
"""What HTTP answers to everybody."""
HEALTH: Final = ("Check", "Watch")
"""What a replica serves of grpc.health.v1.Health (`cron/api/health.py`)."""
SHOWN_BY: Final[dict[str, Rpc[Any, Any]]] = {
    "/jobs": t.JOB_PAGE,
    "/jobs/": t.JOBS,
    "/launches/": t.SHOW,
    "/dead": t.DEAD,
    "/tasks": t.LIST,
    "/tasks/": t.GET,
    "/groups/": t.GET_GROUP,
}
"""The calls without which a page shows nothing. The other pages show the parts whose calls their
caller may make, to everybody who has a role."""


class Row(NamedTuple):
    """A row: what is asked, what that is, which scope it needs, and who may ask it. `roles` are
    those of persons and tokens, `others` are kinds of certificates, and `worker` and `nobody`."""

    name: str
    action: str
    scope: str
    roles: frozenset[Role] = frozenset()
    others: frozenset[str] = frozenset()


NOBODY: Final = "nobody"
WORKER: Final = "worker"
ALL: Final = frozenset(TOKEN_ROLES)
HEADS: Final = (
    ("asked", "is to", "scope"),
    tuple(role.label for role in TOKEN_ROLES),
    (REPLICA, EXECUTOR, WORKER, NOBODY),
)


def permitted(action: Action) -> frozenset[Role]:
    """Return the roles that may do something."""
    return frozenset(role for role in TOKEN_ROLES if action in PERMITTED[role])


def scope_of(rpc: Rpc[Any, Any]) -> str:
    """Return which scope a role needs for a call."""
    return {reach.cell: CELL, reach.anything: ANY}.get(rpc.reach, NAMED)


def calls() -> list[Row]:
    """Return the rows of the calls, in the order of their own table."""
    rows = []
    for rpc in t.TABLE.values():
        roles = permitted(rpc.action) if PERSON in rpc.roles else frozenset[Role]()
        action = rpc.action.value if roles else "-"
        others = frozenset({REPLICA} & {*rpc.roles})
        rows.append(Row(rpc.name, action, scope_of(rpc) if roles else "-", roles, others))
    return rows


def methods() -> dict[str, Row]:
    """Return the rows of the other methods of gRPC, by path: certificates alone decide."""
    pool, health = (
        pool_pb2.DESCRIPTOR.services_by_name["Pool"],
        health_pb2.DESCRIPTOR.services_by_name["Health"],
    )
    rows = {}
    for service, served in ((pool, pool.methods_by_name), (health, HEALTH)):
        for method in served:
            path = f"/{service.full_name}/{method}"
            kinds = {kind for kind in (PERSON, REPLICA, EXECUTOR) if callers.may(kind, path)}
            roles = ALL if PERSON in kinds else frozenset[Role]()
            others = frozenset(kinds - {PERSON})
            action = "stream" if service is pool else "see-health"
            rows[path] = Row(f"{service.name}.{method}", action, "-", roles, others)
    return rows


def paths() -> list[Row]:
    """Return the rows of what HTTP answers beside the calls, by method and path."""
    everybody = frozenset({REPLICA, EXECUTOR, NOBODY})
    rows = [Row(name, "-", "-", ALL, everybody) for name in OPEN]
    measured = t.ACTIVITY
    rows.append(Row("GET /metrics", measured.action.value, CELL, permitted(measured.action)))
    for path in PAGES:
        rpc = SHOWN_BY.get(path)
        if rpc is None:
            rows.append(Row(f"GET {path}", "see parts", ANY, ALL))
        else:
            rows.append(Row(f"GET {path}", rpc.action.value, scope_of(rpc), permitted(rpc.action)))
    rows.append(Row("GET /events", "see parts", ANY, ALL))
    for name, act in ACTS.items():
        action = act.rpc.action
        rows.append(Row(f"POST /acts/{name}", action.value, scope_of(act.rpc), permitted(action)))
    return rows


def sockets() -> list[Row]:
    """Return the row of the socket of workers; `test_executor_workers_lies.py` walks it."""
    return [Row("workers.sock", "serve handlers", "-", others=frozenset({WORKER}))]


def table() -> str:
    """Return the table."""
    heads = tuple(one for part in HEADS for one in part)
    rows = [*calls(), *methods().values(), *paths(), *sockets()]
    lines = [heads, tuple("---" for _ in heads), *map(_cells, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(row: Row) -> tuple[str, ...]:
    may = [role in row.roles for role in TOKEN_ROLES]
    may += [other in row.others for other in HEADS[2]]
    return (f"`{row.name}`", row.action, row.scope, *("yes" if one else "-" for one in may))


def page() -> str:
    """Return the page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
