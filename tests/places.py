"""What places have and lack, read for tests."""

from __future__ import annotations

from collections import Counter

from cron.scheduler.placed import placed_of
from cron.scheduler.places import ExecutorView, Need, Places
from cron.scheduler.queues import Queues


def view_of(places: Places, number: int) -> ExecutorView | None:
    """An executor, away or not; None if nothing is known of it."""
    return places.views.get(number) or places._away.get(number)


def used(places: Places, number: int) -> dict[str, int]:
    """Slots that are taken of an executor, away or not, by pool."""
    view = view_of(places, number)
    return {pool: count for pool, count in view.taken.items() if count} if view else {}


def has_room(places: Places, number: int, need: Need) -> bool:
    """Whether this executor has room for one more launch, and fits it."""
    group = places.fit(need).groups.get(number)
    return group is not None and group.has_room(need)


def counts_what_runs(queues: Queues) -> bool:
    """Whether each active launch of State counts once, in its tenant's queue, and no other does;
    each with an entry of its own whose job limits how many of its launches run."""
    state, wanted, limited = queues.state, Counter[tuple[str, int, str]](), set()
    for row in state.active.values():
        record = state.by_number[row.number]
        job = row.job or record.job
        assert job is not None
        flow = placed_of(record.name, job).live
        wanted[flow.pool, flow.priority, flow.tenant] += 1
        if record.job is not None and record.job.is_limited:
            limited.add(row.key)
    depths = [one for one in queues.depths() if one.running]
    counted = Counter({(one.pool, one.priority, one.tenant): one.running for one in depths})
    return counted == wanted and limited <= set(queues._running) <= set(state.active)
