"""What the bench of many tenants makes of the launches of a run."""

from __future__ import annotations

from bench.pump.cell import served_of
from bench.pump.fairness import indexes
from cron.api.launches import LaunchView

TENANTS = 4
EACH = 100


def begun(tenant: int, number: int, index: int) -> LaunchView:
    """Return a launch that an entry began, and that started a second later."""
    return LaunchView(
        tenant=f"t{tenant}",
        job=f"p0-{number}",
        begun_index=index,
        begun_at_ms=index * 1_000,
        started_at_ms=(index + 1) * 1_000,
    )


def test_windows_smaller_than_an_entry_say_what_the_entry_says() -> None:
    rows = [
        begun(tenant, tenant * EACH + one, 7) for tenant in range(TENANTS) for one in range(EACH)
    ]
    backlog = {(0, tenant): EACH + 1 for tenant in range(TENANTS)}
    found = indexes(served_of(rows, 0), backlog, size=EACH)
    assert len(found) == TENANTS
    assert min(found) > 0.9, "each has about a quarter of each window"


def test_entries_stay_in_order() -> None:
    rows = [begun(0, number, 9 - number) for number in range(3)]
    assert [one.at_s for one in served_of(rows, 0)] == [8, 9, 10]
