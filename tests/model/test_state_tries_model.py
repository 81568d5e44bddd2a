"""The machine against the naive state where nearly everything fails: tries, letters, budgets."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from cron.job import Job, OnLost
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import letters, pool, retries
from cron.state.letters import LETTERS
from cron.state.rows import Row
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, BeginItem
from tests.drawn import seeds
from tests.model.drawn_commands import COMMAND as PLAIN
from tests.model.drawn_commands import ENDED_BY, HANDLER, RETRIES, Commands, job
from tests.model.test_state_model import CHECKS, StateAgainstNaive

STEPS = 250
FAILS = [LaunchState.FAILED] * 6 + [LaunchState.SUCCEEDED, LaunchState.CANCELLED]


class Failing(Commands):
    """Commands without slips, of launches that mostly fail."""

    def any(self) -> c.Command:
        kinds = [
            *[self.account] * 2, *[self.begin] * 5, *[self.finished] * 5, self.lost, self.refused,
            self.cancel, self.redrive, self.drop_dead, self.reopen, self.limits,
        ]  # fmt: skip
        if not self.between(0, 25):
            return self.put()
        if not self.between(0, 60):
            return self.too_late()
        command: c.Command = self.of(kinds)()
        return command

    def slip(self) -> int:
        return 0

    def drawn_job(self, name: str) -> Job:
        return job(
            name,
            self.of([300, 3600]),
            "X",
            retry=self.of([RETRIES[1], RETRIES[2], RETRIES[2], RETRIES[3]]),
            work=self.of([PLAIN, HANDLER]),
            on_lost=self.of(list(OnLost)),
        )

    def begin_item(self) -> BeginItem:
        item = super().begin_item()
        launch = self.naive.open.get(item.key)
        attempt = launch.attempt + 1 if launch else 1
        return BeginItem(item.key, attempt, item.catalog, 1, item.not_after_ms)

    def finished(self) -> c.Report:
        key = self.key((LaunchState.BEGUN, LaunchState.LAUNCHED))
        state, code = self.of(FAILS), self.of([1, 1, 1, 7])
        reasons = [Reason.SNOOZE] if state is LaunchState.CANCELLED else ENDED_BY
        after_ms = self.of([0, 0, 0, 500, 20_000])
        item = AttemptItem.of(
            key, self.attempt(key), state, self.of(reasons), code, 1, 2, retry_after_ms=after_ms
        )
        return c.Report((item,))

    def too_late(self) -> c.Skip:
        reason = self.of([Reason.DEADLINE, Reason.FENCED])
        return c.Skip((c.SkippedItem(self.key((LaunchState.DUE,)), reason),))

    def dead_keys(self) -> tuple[c.Key, ...]:
        return (self.of(list(self.naive.dead) or [self.key()]),)

    def limits(self) -> pool.SetLimits:
        tenant = self.of(["default", "other", "*"])
        limits = self.of([None, *(pool.Limits(retry_budget=n) for n in (0, 2, 9))])
        return pool.SetLimits((pool.LimitItem((tenant, "", -1), limits),), "anna")


def run(seed: int, dead_kept: int, log_format: int = c.FORMAT) -> dict[tuple[int, int] | None, Row]:
    """Walk a long way from this seed, comparing all the while; return all who died on it."""
    chance = Random(seed)
    world = StateAgainstNaive()
    world.naive.dead_kept, world.naive.format = dead_kept, log_format
    world.begin_with_jobs()
    commands: Any = Failing(world.naive, chance.randint)
    seen: dict[tuple[int, int] | None, Row] = {}
    for step in range(STEPS):
        event = chance.random()
        if event < 0.03:
            world.restart()
        elif event < 0.3:
            world.time(chance.randint(0, 30))
        else:
            world.append(*(commands.any() for _ in range(chance.randint(1, 3))))
        seen |= {one.key: one for one in world.machine.state.dead.values()}
        if step % 10 == 0:
            for check in CHECKS:
                check(world)
    for check in CHECKS:
        check(world)
    return seen


@pytest.mark.parametrize("seed", seeds(30))
def test_what_fails_and_fails_again_agrees(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the newest format, and in the one before the format of all letters."""
    dead_kept = 3 if seed % 2 else 100_000
    monkeypatch.setattr(retries, "DEAD_KEPT", dead_kept)
    monkeypatch.setattr(letters, "OTHERS_KEPT", 1_000)
    run(seed, dead_kept, LETTERS - 1 if seed % 4 > 1 else c.FORMAT)


@pytest.mark.nightly
def test_such_walks_come_by_every_way_to_die() -> None:
    """Or the comparison above would say little."""
    found: Counter[Reason] = Counter()
    tries: Counter[int] = Counter()
    for seed in range(0, 20, 2):
        for letter in run(seed, 100_000).values():
            found[letter.reason] += 1
            tries[letter.tries] += 1
    ways = (Reason.NONE, Reason.FATAL, Reason.DEADLINE, Reason.TIMEOUT)
    assert all(found[reason] for reason in ways), found
    assert not found[Reason.BUDGET], "a budget delays, and never buries"
    assert max(tries) == 4, tries
