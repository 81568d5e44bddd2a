"""What operators say of the pool: limits, gates, drains; and the commands that change them, and
dead letters.

Evolution: as in `commands.py`.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from cron.scopes import Scope


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What a scope may have; 0 is "not limited".

    `concurrent` launches at once; a tenant may have up to `burst` while nobody else has anything to
    run. `rate_milli` are starts in a thousand seconds. More than `waiting_max` do not wait;
    `reserved` slots stand free for nobody else. `weight` is a tenant's share beside others, 1 for
    0. `retry_budget` is how many retries a tenant may be ahead of its successes, ten of which earn
    one.
    """

    weight: int = 0
    concurrent: int = 0
    burst: int = 0
    rate_milli: int = 0
    waiting_max: int = 0
    reserved: int = 0
    retry_budget: int = 0


class GateAction(enum.IntEnum):
    """What becomes of launches at a closed gate. In the log: append, never renumber."""

    PAUSE = 0  # they wait until it is lifted, and the clocks of their deadlines are held
    DROP = 1  # they are skipped


class Gate(msgspec.Struct, frozen=True, array_like=True):
    """A closed gate. It holds every launch that fits all that it names; "" and -1 name nothing.

    `jobs` is a pattern of job names, such as `billing/*`. `until_ms` is 0 for "until it is lifted".
    """

    number: int
    action: GateAction
    reason: str
    by: str
    since_ms: int
    until_ms: int = 0
    pool: str = ""
    collection: str = ""
    tenant: str = ""
    jobs: str = ""
    priority: int = -1

    def holds(self, now_ms: int) -> bool:
        """Whether it is still closed at `now_ms`."""
        return self.until_ms == 0 or now_ms < self.until_ms


HELD_MS_MAX: Final = 7 * 86_400_000
"""So long, in all, gates may hold the clock of one launch's deadline."""


class OpenedGate(msgspec.Struct, frozen=True, array_like=True):
    """A gate that let launches wait, and when it was opened: that time does not count against the
    deadlines of what it held."""

    gate: Gate
    at_ms: int


class LimitItem(msgspec.Struct, frozen=True, array_like=True):
    """The limits of one scope; None takes them away."""

    scope: Scope
    limits: Limits | None = None


class SetLimits(msgspec.Struct, frozen=True, array_like=True, tag="limits"):
    """Limits of several scopes, from now on."""

    items: tuple[LimitItem, ...]
    by: str = ""


class ForgetDebts(msgspec.Struct, frozen=True, array_like=True, tag="forget-debts"):
    """A tenant that has no retry budget, or has none any more, owes no retries: one that is given a
    budget again begins full."""


class CloseGate(msgspec.Struct, frozen=True, array_like=True, tag="close-gate"):
    """A gate to be closed; State gives it its number and time."""

    gate: Gate


class LiftGates(msgspec.Struct, frozen=True, array_like=True, tag="lift-gates"):
    """Gates to be opened, by number; an item each."""

    numbers: tuple[int, ...]
    by: str = ""


class Redrive(msgspec.Struct, frozen=True, array_like=True, tag="redrive"):
    """Dead letters to be launched again, by the keys of their launches; an item each."""

    keys: tuple[tuple[int, int, int], ...]
    by: str = ""


class DropDead(msgspec.Struct, frozen=True, array_like=True, tag="drop-dead"):
    """Dead letters to be forgotten; an item each."""

    keys: tuple[tuple[int, int, int], ...]
    by: str = ""


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """An executor, by its id, gets no more work; or gets work again, where `is_over`."""

    executor: str
    by: str = ""
    is_over: bool = False
