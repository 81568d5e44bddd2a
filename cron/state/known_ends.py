"""How the launches of a job ended, for jobs that follow it (`after=`). Pure.

State has no row of a launch that is over; history has. But what follows a launch must know its end
on every replica, at once. So the record of a followed job has the ends of its launches as steps:
from which instant on they ended in which state. A job whose launches always succeed needs one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cron.limits import STEPS_KEPT
from cron.notes import NO_LAUNCH

UNKNOWN: Final = NO_LAUNCH
"""What stands for a LaunchState where no end is known."""


class KnownEnds(msgspec.Struct, frozen=True, array_like=True):
    """Ends of scheduled launches up to `newest_s`, as steps (first instant, LaunchState), in the
    order of their instants. A step lasts until the next one begins."""

    newest_s: int
    steps: tuple[tuple[int, int], ...]

    def at(self, scheduled_s: int) -> int:
        """Return the LaunchState in which the launch of an instant ended, UNKNOWN if that is not
        known. Ask only about instants whose launches are over."""
        if scheduled_s > self.newest_s:
            return UNKNOWN
        known = (state for since_s, state in reversed(self.steps) if since_s <= scheduled_s)
        return next(known, UNKNOWN)

    def with_end(self, first_s: int, last_s: int, state: int) -> KnownEnds:
        """Return the ends with that of all instants from `first_s` to `last_s`; of too many steps
        the oldest goes."""
        steps = [step for step in self.steps if step[0] < first_s]
        steps.append((first_s, state))
        if last_s < self.newest_s:
            steps.append((last_s + 1, self.at(last_s + 1)))
            steps += [step for step in self.steps if step[0] > last_s + 1]
        kept = [
            step for place, step in enumerate(steps) if not place or step[1] != steps[place - 1][1]
        ]
        return KnownEnds(max(self.newest_s, last_s), tuple(kept[-STEPS_KEPT:]))

    def reset(self, to_s: int, spent: Sequence[int]) -> KnownEnds:
        """Return the ends that are left when instants after `to_s` come again, but the `spent`
        ones, in ascending order: without these, steps of a wrong clock would crowd out new ones.
        """
        steps = [step for step in self.steps if step[0] <= to_s]
        newest_s = min(self.newest_s, to_s)
        for at_s in spent:
            state = self.at(at_s)
            is_new = state != UNKNOWN and (not steps or steps[-1][1] != state)
            if is_new and len(steps) >= STEPS_KEPT // 2:
                break
            if is_new:
                steps.append((at_s, state))
            newest_s = max(newest_s, min(at_s, self.newest_s))
        return KnownEnds(newest_s, tuple(steps[-STEPS_KEPT // 2 :]))


NO_ENDS: Final = KnownEnds(-1, ())
