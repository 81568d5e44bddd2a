"""What places have and lack, read for tests."""

from __future__ import annotations

from cron.scheduler.places import ExecutorView, Need, Places


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
