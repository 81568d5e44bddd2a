"""The scope of a limit: the launches that it applies to, and its text form."""

from __future__ import annotations

from typing import Final, TypeAlias

PRIORITIES: Final = 10
"""Priorities are 0 (most urgent) to 9."""
ANY_PRIORITY: Final = -1
ALL_TENANTS: Final = ""
"""In a scope: all tenants together."""
EACH_TENANT: Final = "*"
"""In a scope: each tenant separately, unless it has a scope of its own."""

Scope: TypeAlias = tuple[str, str, int]
"""(tenant, pool, priority) of a limit; pool "" is any, priority -1 is any."""


def is_scope(scope: Scope) -> bool:
    """Return whether limits can be set for `scope`: a tenant's priority needs a pool."""
    tenant, pool, priority = scope
    if not ANY_PRIORITY <= priority < PRIORITIES:
        return False
    return tenant == ALL_TENANTS or bool(pool) or priority == ANY_PRIORITY


def scope_text(scope: Scope) -> str:
    """Return `scope` as text, such as `tenant acme in queue billing/5`."""
    tenant, pool, priority = scope
    parts = []
    if tenant:
        parts.append("each tenant" if tenant == EACH_TENANT else f"tenant {tenant}")
    if pool:
        parts.append(f"pool {pool}" if priority < 0 else f"queue {pool}/{priority}")
    elif priority >= 0:
        parts.append(f"priority {priority}")
    return " in ".join(parts) or "everything"


def scope_arguments(scope: Scope) -> str:
    """Return the options that name a scope: `--tenant acme --pool mail --priority 3`."""
    tenant, pool, priority = scope
    parts = []
    if tenant:
        parts.append("--each-tenant" if tenant == EACH_TENANT else f"--tenant {tenant}")
    if pool:
        parts.append(f"--pool {pool}")
    if priority >= 0:
        parts.append(f"--priority {priority}")
    return " ".join(parts) or "--all"
