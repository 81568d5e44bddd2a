"""A job whose rows State refuses holds up itself alone, and costs one line for each instant."""

from __future__ import annotations

from itertools import accumulate

from msgspec import structs

from cron.scheduler.plan import View, plan
from cron.state import commands as c
from cron.state.outcome import Verdict
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, job

BAD = 2
MINUTE_S = 60


class Refusing:
    """A leader with three jobs of every minute. State refuses each line with the second of them,
    as it would if a plan and `apply` had two views of it."""

    def __init__(self) -> None:
        self.rig = QueuesRig(*(job(f"j{n}") for n in (1, 2, 3)))
        self.is_refusing = True

    def turn(self, second: int) -> list[list[int]]:
        """Take a turn; return the jobs of each line of its entry."""
        rig = self.rig.to(second)
        due = rig.indexes.due_heap.take(T0 + second, limit=100)
        commands = plan(View(rig.state, due, rig.queues, steady_ms=T0 * 1000), rig.now_ms)
        sent = [self._refused(one) for one in commands]
        if sent:
            rig.append(*sent)
        accounts = [one for one in sent if isinstance(one, c.Account)]
        return [list(accumulate(line.jobs)) for one in accounts for line in one.lines]

    def _refused(self, command: c.Command) -> c.Command:
        """Return a command as State shall see it: a line without any time is refused."""
        if not isinstance(command, c.Account) or not self.is_refusing:
            return command
        lines = [
            structs.replace(line, to_s=line.from_s) if BAD in accumulate(line.jobs) else line
            for line in command.lines
        ]
        return c.Account(tuple(lines))

    def horizons(self) -> list[int]:
        """Up to which second after T0 each job is accounted for."""
        return [self.rig.state.by_number[number].horizon_s - T0 for number in (1, 2, 3)]


def test_a_line_that_is_refused_is_tried_job_by_job_in_the_next_turn_and_no_more() -> None:
    world = Refusing()
    assert world.turn(MINUTE_S) == [[1, 2, 3]]
    assert world.horizons() == [0, 0, 0]
    assert world.rig.agrees(), "what the plan began by count does not run"
    assert world.turn(MINUTE_S) == [[1], [2], [3]]
    assert world.horizons() == [MINUTE_S, 0, MINUTE_S]
    assert sorted(key[0] for key in world.rig.state.active) == [1, 3]
    assert world.turn(MINUTE_S) == []
    assert world.rig.indexes.due_heap.next_s() == T0 + 2 * MINUTE_S
    label = Verdict.BAD_TIMES.label
    assert world.rig.indexes.due_heap.stuck() == {BAD: f"its rows are refused: {label}"}


def test_the_other_jobs_share_a_line_again_and_the_refused_one_is_tried_with_each_instant() -> None:
    world = Refusing()
    for _ in range(2):
        world.turn(MINUTE_S)
    assert world.turn(2 * MINUTE_S) == [[1, 3], [2]]
    assert world.turn(2 * MINUTE_S) == []
    world.is_refusing = False
    assert world.turn(3 * MINUTE_S) == [[1, 3], [2]]
    assert world.horizons() == [3 * MINUTE_S] * 3
    assert world.rig.indexes.due_heap.stuck() == {}
    assert world.turn(4 * MINUTE_S) == [[1, 2, 3]]
