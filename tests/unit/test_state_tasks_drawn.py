"""Tasks through everything that can happen to them, drawn: replicas that began with an image at
any entry have the same State as the one that applied all entries."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import tasking
from cron.state import tasks as t
from cron.state.chains import ReleaseTasks
from cron.state.groups import CloseGroups, ForgetGroups, GroupClose
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.pool import DropDead, Redrive
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, BeginItem, begin_of, lost_item
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import TasksRig, name, task

KEYS = [f"k{n}" for n in range(12)]
QUEUES = ["default/mail", "default/import"]
GROUPS = [f"default/g{n}" for n in range(9)]
ENDS = [
    (LaunchState.SUCCEEDED, Reason.NONE),
    (LaunchState.SUCCEEDED, Reason.NONE),
    (LaunchState.FAILED, Reason.RAISED),
    (LaunchState.FAILED, Reason.FATAL),
]


class Drawn(TasksRig):
    """A rig, and replicas that follow it from an image each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.others: list[Machine] = []
        super().__init__()

    def append(self, *commands: c.Command, **fields: Any) -> Any:
        outcome = super().append(*commands, **fields)
        for other in self.others:
            other.apply(1, self.state.index, self.log[-1])
            assert other.state.digest == self.state.digest
            assert encode_state(other.state) == encode_state(self.state)
            assert other.state.tasks.payload_bytes == self.state.tasks.payload_bytes
            assert other.state.tasks.result_bytes == self.state.tasks.result_bytes
        return outcome

    def step(self) -> None:
        chance = self.chance
        if chance.random() < 0.2:
            self.others = [*self.others[-2:], Machine(decode_state([encode_state(self.state)]))]
        self.at_ms += chance.choice([0, 7, 400, 3_000, 40_000])
        self.append(*[self.command() for _ in range(chance.randint(1, 3))])

    def command(self) -> c.Command:
        chance, state = self.chance, self.state
        tasks = list(state.tasks_by_number.values())
        some = tuple(one.name for one in chance.sample(tasks, min(len(tasks), 2)))
        kinds = ["submit", "ready", "ready", "begin", "end", "end", "late", "other", "release"]
        kind = chance.choice([*kinds, "close"])
        if kind == "release":
            return ReleaseTasks(tuple(state.holds))
        if kind == "close":
            hook = chance.choice([None, msgspec.structs.replace(self.drawn(), group="")])
            return CloseGroups((GroupClose(chance.choice(GROUPS), hook),), "anna")
        if kind == "submit":
            return t.SubmitTasks(tuple(self.drawn() for _ in range(3)), "shop")
        if kind == "ready":
            return t.ReadyTasks(tuple(state.tasks_by_number))
        if kind == "begin" and state.due.detailed:
            return self.begins(chance.choice(list(state.due.detailed)))
        if kind == "end" and state.active:
            return self.end(chance.choice(list(state.active)))
        if kind == "late" and state.lost:
            key, attempt = chance.choice(list(state.lost))
            return self.said(key, attempt)
        dead = tuple(chance.sample(list(state.dead), min(len(state.dead), 2)))
        names = tuple(name(key, queue) for key in KEYS[:3] for queue in QUEUES)
        return chance.choice(
            [
                t.CancelTasks(some, "anna"),
                t.RunTasks(names, "anna"),
                t.RescheduleTasks(
                    tuple(t.RescheduleItem(one, at_ms=self.at_ms + 5_000) for one in some)
                ),
                t.ForgetTasks(tuple(state.tasks_by_number)),
                ForgetGroups(tuple(GROUPS)),
                DropDead(dead),
                Redrive(dead, "anna"),
                c.Skip(tuple(c.SkippedItem(key, Reason.DEADLINE) for key in state.due.detailed)),
                c.ResetClock(self.at_ms - 20_000, "anna")
                if chance.random() < 0.1
                else self.queue(),
            ]
        )

    def queue(self) -> c.Command:
        chance, spec = self.chance, t.QueueSpec(QUEUES[1], "mail.send", waiting_max=4)
        is_removed = chance.random() < 0.5 and bool(self.state.queues.get(QUEUES[1]))
        queues, removed = ((), (QUEUES[1],)) if is_removed else ((spec,), ())
        return t.PutQueues("q.toml", self.state.queues_revision, queues, removed, "anna")

    def drawn(self) -> t.TaskSpec:
        chance = self.chance
        options = t.TaskOptions(
            "mail.send",
            tries=chance.choice([0, 1, 3]),
            backoff_ms=chance.choice([0, 1_000]),
            on_lost=chance.choice([-1, OnLost.RETRY]),
            deadline_s=chance.choice([0, 60]),
            labels=chance.choice([(), (("order", "4711"),)]),
        )
        after_ms = self.at_ms - T0 * 1000 + chance.choice([0, 5_000])
        closed = [name for name, one in self.state.groups.items() if one.is_closed]
        names = [*self.state.tasks, *closed]
        followed = tuple(chance.sample(names, min(len(names), chance.choice([0, 0, 1, 3]))))
        cut = chance.randint(0, len(followed))
        ties = {"group": chance.choice([*[""] * 9, *GROUPS]), "after": followed[:cut]}
        ties |= {"after_any": followed[cut:]}
        queue = chance.choice(QUEUES)
        return task(chance.choice(KEYS), after_ms, queue, options=options, **ties)

    def begins(self, key: c.Key) -> c.Command:
        row = self.state.due.get(key)
        assert row is not None
        revision = self.state.by_number[key[0]].revision
        return begin_of((BeginItem(key, row.attempt + 1, revision, 1, self.at_ms + 5_000),))

    def end(self, key: c.Key) -> c.Command:
        row = self.state.active.get(key)
        assert row is not None
        if self.chance.random() < 0.4:
            return c.Report((lost_item(key, row.attempt, self.at_ms, "silent"),))
        return self.said(key, row.attempt)

    def said(self, key: c.Key, attempt: int) -> c.Command:
        state, reason = self.chance.choice(ENDS)
        times: dict[str, Any] = {"started_ms": self.at_ms, "finished_ms": self.at_ms}
        if state is LaunchState.SUCCEEDED:
            times["detail"] = self.chance.choice(["", "4 rows"])
        return c.Report((AttemptItem.of(key, attempt, state, reason, 0, **times),))


@pytest.mark.parametrize("seed", range(12))
def test_replicas_that_began_with_an_image_have_the_same_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasking, "TASKS_REMEMBERED_MAX", 6)
    rig = Drawn(seed)
    for _ in range(120):
        rig.step()
    assert rig.state.task_numbers > 20
