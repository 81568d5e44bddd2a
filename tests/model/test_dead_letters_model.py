"""State against the naive pile: tasks of two tenants that end in all ways."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import letters, pool
from cron.state import tasks as t
from cron.state.chains import ReleaseTasks
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from tests.drawn import seeds
from tests.model.naive_pile import NaivePile, NaiveTask
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import TasksRig, task

S = LaunchState
QUEUES = ("default/mail", "shop/mail")
STEPS = 150
FAILURES = [
    one
    for one in Reason
    if one not in (Reason.KILLED, Reason.REPLACED, Reason.CANCELLED, Reason.SNOOZE, Reason.RETRY)
]
SKIPS = (
    Reason.DEADLINE, Reason.OVERLOAD, Reason.NO_EXECUTOR, Reason.FENCED, Reason.FULL, Reason.MISSED,
    Reason.GATED, Reason.PAUSED,
)  # fmt: skip


class Walk:
    """A State and the pile that it should have."""

    def __init__(self, seed: int) -> None:
        self.chance, self.rig = Random(seed), TasksRig()
        self.pile = NaivePile(
            letters.TENANT_DEAD_MAX, letters.TENANT_DEAD_BYTES_MAX, letters.DEAD_KEPT
        )
        self.seen: Counter[str] = Counter()

    def any_of(self, *states: str) -> str:
        names = [name for name, one in self.pile.tasks.items() if one.state in states]
        return self.chance.choice(names) if names else ""

    def launch(self, name: str) -> tuple[c.Key, Any] | None:
        """The key and the open launch of a task, which is made ready if it waits."""
        task = self.rig.state.tasks[name]
        if task.is_waiting and self.rig.items(t.ReadyTasks((task.number,))) != [Verdict.ACCEPTED]:
            return None
        record = self.rig.state.record_of(name)
        assert record is not None
        (row,) = record.open.values()
        return row.key, row

    # ---- steps

    def submit(self) -> None:
        queue, key = self.chance.choice(QUEUES), f"k{len(self.pile.tasks)}"
        payload = b'"' + b"x" * self.chance.choice([1, 1, 40]) + b'"'
        after = self.any_of("open") if self.chance.random() < 0.2 else ""
        options = t.TaskOptions(
            "mail.send", on_lost=self.chance.choice(list(OnLost)), tries=self.chance.choice([1, 2])
        )
        after_ms = self.rig.at_ms - T0 * 1000
        spec = task(
            key, after_ms, queue, payload=payload, options=options, after=(after,) if after else ()
        )
        tenant = queue.partition("/")[0]
        is_full = self.pile.is_full(tenant)
        verdict = self.rig.submit(spec)[0]
        assert verdict is (Verdict.PILE_FULL if is_full else Verdict.ACCEPTED)
        self.seen[verdict.label] += 1
        if not is_full:
            name = f"{queue}:{key}"
            self.pile.tasks[name] = NaiveTask(tenant, payload)

    def end(self) -> None:
        """A launch begins and ends, or is lost."""
        name = self.any_of("open")
        found = self.launch(name) if name else None
        if found is None:
            return
        key, row = found
        second, attempt = key[1] - T0, row.attempt + 1
        if row.not_before_ms > self.rig.at_ms:
            self.rig.at_ms = row.not_before_ms + 1
        if self.rig.begin(second, attempt, key[0]) is not Verdict.ACCEPTED:
            return
        one = self.pile.tasks[name]
        if self.chance.random() < 0.15:
            one.is_to_be_killed = True
            self.rig.items(c.Cancel((c.CancelItem(key, Reason.KILLED, "anna"),)))
        kind = self.chance.choice(["succeeds", "fails", "fails", "lost", "lost", "killed"])
        if kind == "lost":
            assert self.rig.lost(second, attempt, 0, key[0]) is Verdict.ACCEPTED
            one.lost = attempt
            self.ended(name, S.LOST, Reason.EXECUTOR_LOST)
            return
        state, reason = {
            "succeeds": (S.SUCCEEDED, Reason.NONE),
            "fails": (S.FAILED, self.chance.choice(FAILURES)),
            "killed": (S.CANCELLED, Reason.KILLED),
        }[kind]
        fields = {"state": state, "reason": reason, "exit_code": int(state is S.FAILED)}
        assert self.rig.finished(second, attempt, key[0], **fields) is Verdict.ACCEPTED
        self.ended(name, state, reason)

    def ended(self, name: str, state: LaunchState, reason: Reason) -> None:
        """An attempt is over; whether another one follows is not the pile's matter."""
        self.seen[f"{state.label} {reason.label}"] += 1
        record = self.rig.state.record_of(name)
        if record is not None and record.open:
            one = self.pile.tasks[name]
            one.has_failed = one.has_failed or state is S.FAILED
            assert not one.is_to_be_killed
        else:
            self.pile.ended(name, state, reason)

    def skip(self) -> None:
        name = self.any_of("open")
        found = self.launch(name) if name else None
        if found is not None:
            reason = self.chance.choice(SKIPS)
            assert self.rig.skip(found[0][1] - T0, reason, found[0][0]) is Verdict.ACCEPTED
            self.ended(name, S.SKIPPED, reason)

    def cancel(self) -> None:
        if name := self.any_of("open"):
            self.rig.items(t.CancelTasks((name,)))
            self.pile.tasks[name].state = "ended"

    def release(self) -> None:
        """Those that follow a task that has ended are released, or given up with it."""
        state = self.rig.state
        for number in list(state.holds):
            (followed,) = state.holds[number].after
            before, name = state.tasks_by_number[int(followed)], state.tasks_by_number[number].name
            if before.is_over and not state.holds[number].is_released:
                self.rig.items(ReleaseTasks((number,)))
                became = self.pile.tasks[before.name].state
                if became == "ended":
                    self.pile.tasks[name].state = "ended"
                elif became == "dead":
                    self.ended(name, S.CANCELLED, Reason.PREDECESSOR)

    def redrive(self) -> None:
        if name := self.any_of("dead", "dead", "ended"):
            record = self.rig.state.record_of(name)
            keys = [(record.number, *place) for place in record.dead] if record else []
            (verdict,) = self.rig.items(pool.Redrive((keys or [(9_999, 1, 0)])[0:1], "bea"))
            is_dead = self.pile.tasks[name].state == "dead"
            assert (verdict is Verdict.ACCEPTED) is is_dead
            if is_dead:
                self.pile.redriven(name)

    def drop(self) -> None:
        if name := self.any_of("dead"):
            record = self.rig.state.record_of(name)
            assert record is not None
            keys = tuple((record.number, *place) for place in record.dead)
            assert self.rig.items(pool.DropDead(keys, "bea")) == [Verdict.ACCEPTED]
            self.pile.tasks[name].state = "ended"

    def late_report(self) -> None:
        lost = [name for name, one in self.pile.tasks.items() if one.lost]
        if not lost:
            return
        name = self.chance.choice(lost)
        one, record = self.pile.tasks[name], self.rig.state.record_of(name)
        known = self.rig.state.lost
        mine = [key for key, n in known if record and key[0] == record.number and n == one.lost]
        if record is None or not mine or record.open:
            return
        is_letter = one.state == "dead" and record.dead[mine[0][1:]].state is S.LOST
        state = self.chance.choice([S.SUCCEEDED, S.FAILED])
        second = mine[0][1] - T0
        verdict = self.rig.finished(second, one.lost, record.number, state=state)
        assert verdict is Verdict.AMENDED
        one.lost = 0
        if is_letter and state is S.SUCCEEDED:
            one.state = "succeeded"
            self.seen["late success"] += 1

    # ---- what holds at all times

    def check(self) -> None:
        state, pile = self.rig.state, self.pile
        names = {state.by_number[key[0]].name for key in state.dead}
        assert names == set(pile.dead())
        for name in names:
            record = state.record_of(name)
            assert record is not None
            assert record.job is not None
            assert record.job.work.payload == pile.tasks[name].payload
        for tenant in ("default", "shop"):
            assert state.piles.is_full(tenant) is pile.is_full(tenant)
        again = decode_state([encode_state(state)])
        assert dict(again.piles) == dict(state.piles)
        assert again.piles.count == state.piles.count == len(pile.dead())


def walk(seed: int) -> Counter[str]:
    one = Walk(seed)
    steps = [
        *[one.submit] * 6, *[one.end] * 8, one.skip, one.skip, one.cancel, one.redrive, one.redrive,
        one.drop, one.late_report, one.late_report,
    ]  # fmt: skip
    for _ in range(STEPS):
        one.chance.choice(steps)()
        one.release()
        one.rig.at_ms += one.chance.randint(0, 5_000)
        one.check()
    return one.seen


@pytest.fixture(autouse=True)
def small_piles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "TENANT_DEAD_MAX", 6)
    monkeypatch.setattr(letters, "TENANT_DEAD_BYTES_MAX", 120)
    monkeypatch.setattr(letters, "DEAD_KEPT", 9)


@pytest.mark.parametrize("seed", seeds(6))
def test_what_a_program_handed_over_succeeds_is_ended_by_a_person_or_is_in_the_pile(
    seed: int,
) -> None:
    walk(seed)


def test_such_walks_come_by_the_bound_and_by_every_end_of_a_task() -> None:
    """Or the comparison above would say little."""
    seen = sum((walk(seed) for seed in range(3)), Counter[str]())
    ends = ("skipped deadline", "skipped overload", "lost executor-lost", "cancelled predecessor")
    missing = [one for one in ("pile full", "late success", *ends) if not seen[one]]
    assert not missing, seen
