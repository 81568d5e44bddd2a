"""Which ends leave a dead letter, and the pile of dead letters that each tenant has. Pure.

A task ends with success, by a person's will, or as a dead letter with its payload. Its letter stays
until somebody redrives or drops it, or a late report says that it succeeded. Many letters of a
tenant refuse the tenant's new tasks (`is_full`); they are never forgotten by themselves.

A job is due again and again, so it has one letter for each kind of end: of the launch that ended so
last, with how many did and which was the first. Its letters are bounded by the number of jobs.

Before the format `LETTERS` only failures of jobs with retries and of handlers left a letter, one
for each launch, and of too many the oldest of all tenants went.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from cron.launch_state import LaunchState
from cron.limits import DEAD_KEPT, TENANT_DEAD_BYTES_MAX, TENANT_DEAD_MAX
from cron.state.alerts import SELF
from cron.state.chains import work_bytes
from cron.state.rows import Row
from cron.state.tasks import tenant_of
from launcher.protocol.status import Reason

if TYPE_CHECKING:
    from cron.state.state import JobRecord, State

LETTERS: Final = 12
"""The format from which every task that ends without success leaves a letter."""
OTHERS_KEPT: Final = 10
"""Launches beside its own that a letter of a job knows by name; of more, the count alone."""
Key: TypeAlias = tuple[int, int, int]


class Leaves(enum.Enum):
    """When an end of a task leaves a dead letter."""

    ALWAYS = enum.auto()
    TRIED = (
        enum.auto()
    )  # a person stopped it, but a try of it had failed, or it was a letter before
    NEVER = enum.auto()  # a person ended it


ENDS: Final[dict[Reason, Leaves]] = {
    Reason.NONE: Leaves.ALWAYS,  # an exit code that is no success
    Reason.MISSED: Leaves.ALWAYS,
    Reason.OVERLAP: Leaves.ALWAYS,
    Reason.PAUSED: Leaves.TRIED,
    Reason.GATED: Leaves.TRIED,  # a person closed a gate that drops
    Reason.DEADLINE: Leaves.ALWAYS,
    Reason.TIMEOUT: Leaves.ALWAYS,
    Reason.KILLED: Leaves.NEVER,
    Reason.REPLACED: Leaves.NEVER,
    Reason.FENCED: Leaves.ALWAYS,
    Reason.EXECUTOR_LOST: Leaves.ALWAYS,
    Reason.RESTORED: Leaves.ALWAYS,
    Reason.USER: Leaves.ALWAYS,
    Reason.SPAWN: Leaves.ALWAYS,
    Reason.RETRY: Leaves.ALWAYS,
    Reason.FATAL: Leaves.ALWAYS,
    Reason.SNOOZE: Leaves.ALWAYS,
    Reason.RAISED: Leaves.ALWAYS,
    Reason.SILENT: Leaves.ALWAYS,
    Reason.WORKER_DIED: Leaves.ALWAYS,
    Reason.MEMORY: Leaves.ALWAYS,
    Reason.BUDGET: Leaves.ALWAYS,
    Reason.FULL: Leaves.ALWAYS,
    Reason.OVERLOAD: Leaves.ALWAYS,
    Reason.NO_EXECUTOR: Leaves.ALWAYS,
    Reason.PREDECESSOR: Leaves.ALWAYS,  # but not where a person ended what it follows
    Reason.CANCELLED: Leaves.NEVER,
    Reason.SECRET: Leaves.ALWAYS,
}
"""The fate of a task by the reason of its end. An end that a person asked for leaves no letter,
whatever its reason."""


def keeps_all(state: State) -> bool:
    """Return whether every task that ends without success leaves a letter."""
    return state.format >= LETTERS


def leaves(reason: Reason, *, was_tried: bool) -> bool:
    """Return whether a task that ends for this reason leaves a letter. `was_tried`: a try of it had
    failed, or it was a letter before."""
    kept = ENDS.get(reason, Leaves.ALWAYS)
    return kept is Leaves.ALWAYS or (kept is Leaves.TRIED and was_tried)


Place: TypeAlias = tuple[int, int]
"""A launch of a job: its instant and its number among manual ones."""


class DeadLaunch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Another launch for which a letter of its job stands; fields as in Row."""

    scheduled_s: int
    trigger: int
    attempt: int
    tries: int
    exit_code: int
    executor: str
    ended_at_ms: int

    @property
    def place(self) -> Place:
        """What it is known by among the launches of its job."""
        return self.scheduled_s, self.trigger


class Repeats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A letter of a job stands for `count` launches that ended alike. `others` are the newest of
    them beside its own, that which ended last at the end."""

    count: int
    first_s: int
    first_trigger: int
    others: tuple[DeadLaunch, ...] = ()


class Pile(msgspec.Struct):
    """The letters of a tenant's tasks, those that died first at the front, each with the bytes of
    its work."""

    letters: dict[Key, int] = {}
    weight: int = 0

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.letters)


class Piles(dict[str, Pile]):
    """The piles of all tenants that have one; `count` letters in all."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self, record: JobRecord, key: Key) -> None:
        """Count a letter of a task, if it is not counted yet."""
        pile = self.setdefault(tenant_of(record.name), Pile())
        if key not in pile.letters:
            weight = work_bytes(record.job.work) if record.job is not None else 0
            pile.letters[key] = weight
            pile.weight += weight
            self.count += 1

    def remove(self, record: JobRecord, key: Key) -> None:
        """Count a letter of a task no more; no error where it is not counted."""
        tenant = tenant_of(record.name)
        pile = self.get(tenant)
        weight = pile.letters.pop(key, None) if pile is not None else None
        if pile is None or weight is None:
            return
        pile.weight -= weight
        self.count -= 1
        if not pile.letters:
            del self[tenant]

    def permille(self, tenant: str) -> int:
        """Return how full the pile of a tenant is, in thousandths: by count or bytes, or by its
        share where all tenants together have as many letters as the cell may."""
        pile = self.get(tenant)
        if pile is None:
            return 0
        by_count = pile.count * 1000 // TENANT_DEAD_MAX
        by_weight = pile.weight * 1000 // TENANT_DEAD_BYTES_MAX
        by_share = pile.count * len(self) * 1000 // DEAD_KEPT if self.count >= DEAD_KEPT else 0
        return max(by_count, by_weight, by_share)

    def is_full(self, tenant: str) -> bool:
        """Return whether a tenant has as many letters as it may. The cell's own never has."""
        return tenant in self and tenant != SELF and self.permille(tenant) >= 1000

    def excess(self) -> list[Key]:
        """Return the oldest letters of the cell's own deliveries beyond what it may have: nobody
        handed these over, and old news must not keep new ones from being told."""
        pile = self.get(SELF)
        if pile is None or pile.count <= TENANT_DEAD_MAX:
            return []
        return list(pile.letters)[: pile.count - TENANT_DEAD_MAX]


def alike(record: JobRecord, state: LaunchState, reason: Reason) -> list[Place]:
    """Return the letters of a job that ended in this state for this reason."""
    return [
        place
        for place, letter in record.dead.items()
        if letter.state is state and letter.reason is reason
    ]


def merged(record: JobRecord, place: Place, letters: Iterable[Place]) -> Repeats | None:
    """Return what a new letter of a job stands for that takes the place of others; None where it
    stands for its own launch alone."""
    count, first, others = 1, place, list[DeadLaunch]()
    for one in letters:
        known = record.repeats.get(one, Repeats(1, *one))
        count += known.count
        first = min(first, (known.first_s, known.first_trigger))
        others += (*known.others, _other(record.dead[one]))
    return Repeats(count, *first, tuple(others[-OTHERS_KEPT:])) if count > 1 else None


def _other(letter: Row) -> DeadLaunch:
    return DeadLaunch(
        letter.scheduled_s,
        letter.trigger,
        letter.attempt,
        letter.tries,
        letter.exit_code,
        letter.executor,
        letter.ended_at_ms,
    )


def before_it(record: JobRecord, place: Place) -> tuple[Row, Repeats | None] | None:
    """Return the letter of a job as it is once its own launch needs it no more: of the launch that
    ended before, as far as that is known. None where there is none."""
    known, letter = record.repeats.get(place), record.dead[place]
    if known is None or not known.others:
        return None
    *others, newest = known.others
    older = Row(
        letter.kind,
        letter.job,
        letter.revision,
        newest.scheduled_s,
        newest.trigger,
        newest.attempt,
        letter.state,
        letter.reason,
        letter.ended_index,
        newest.ended_at_ms,
        last_s=newest.scheduled_s,
        executor=newest.executor,
        exit_code=newest.exit_code,
        number=letter.number,
        tries=newest.tries,
    )
    return older, _less(known, tuple(others))


def without(record: JobRecord, place: Place) -> None:
    """Have no letter of a job stand for a launch that is not its own: that is due again, or a late
    report tells what became of it."""
    for last, known in record.repeats.items():
        others = tuple([one for one in known.others if one.place != place])
        if len(others) < len(known.others):
            fewer = _less(known, others)
            if fewer is None:
                del record.repeats[last]
            else:
                record.repeats[last] = fewer
            return


def _less(known: Repeats, others: tuple[DeadLaunch, ...]) -> Repeats | None:
    """Return what a letter stands for that stood for one launch more, None for its own alone."""
    if known.count == 2:
        return None
    return msgspec.structs.replace(known, count=known.count - 1, others=others)


def find(record: JobRecord, place: Place) -> tuple[Row, int] | None:
    """Return the letter of a job or task that stands for a launch, alone or with others, and that
    launch's newest attempt; None where none does."""
    letter = record.dead.get(place)
    if letter is not None:
        return letter, letter.attempt
    for last, known in record.repeats.items():
        for one in known.others:
            if one.place == place:
                return record.dead[last], one.attempt
    return None


def count_of(record: JobRecord) -> int:
    """Return how many launches the letters of a job stand for."""
    return len(record.dead) + sum(one.count - 1 for one in record.repeats.values())
