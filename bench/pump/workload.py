"""What goes through each queue: no-op tasks of many tenants, one of whom owns half of them.

The shape is that of Salsify's Job Pump. All tasks wait when the clock starts, those of the huge
tenant in front, as when somebody floods a queue that others use.
"""

from __future__ import annotations

from typing import Final

import msgspec

HUGE: Final = 0
"""The tenant that owns half of all tasks."""
WORKERS: Final = 395
PRIORITIES: Final = 3

Backlog = dict[tuple[int, int], int]
"""How many tasks wait, by (priority, tenant)."""


class Workload(msgspec.Struct, frozen=True):
    """How many tasks of how many tenants; `tasks` are more than twice the tenants."""

    tasks: int = 200_000
    tenants: int = 200

    def backlog(self) -> Backlog:
        """Return how many tasks each tenant has of each priority; the huge tenant first."""
        half = self.tasks // 2
        owners = [half, *shares(self.tasks - half, self.tenants - 1)]
        return {
            (priority, tenant): count
            for tenant, owned in enumerate(owners)
            for priority, count in enumerate(shares(owned, PRIORITIES))
        }


def shares(total: int, parts: int) -> list[int]:
    """Return `total` in parts as equal as may be, the larger ones first."""
    least, more = divmod(total, parts)
    return [least + (place < more) for place in range(parts)]
