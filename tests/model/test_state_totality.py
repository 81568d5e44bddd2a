"""Whatever can be read can be applied: absurd values are answered, held, saved and restored."""

from __future__ import annotations

import enum
import types
import typing
from random import Random
from typing import Any

import msgspec
import pytest

from cron.errors import InvariantViolated
from cron.job import Job, Retry
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import pool
from cron.state import tasks as t
from cron.state.chains import ReleaseTasks
from cron.state.codec import decode_entry, encode_entry
from cron.state.groups import CloseGroups, GroupClose
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from launcher.protocol.names import SCHEDULED_S_MAX, LaunchName
from tests.batches import BeginItem, begin_of
from tests.drawn import seeds
from tests.unit.state_rig import FIRST, T0, with_job

COMMANDS = typing.get_args(c.Command)
NUMBERS = [
    *range(-2, 6), 60, T0, T0 + 60, T0 + 120, T0 * 1000, SCHEDULED_S_MAX, SCHEDULED_S_MAX + 1,
    2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63),
]  # fmt: skip
TEXTS = [
    "",
    "crontab",
    "default/backup",
    "default/other",
    "e1",
    "l1",
    "x",
    "\0",
    "é" * 300,
    "q" * 9,
]


def absurd(kind: Any, chance: Random) -> Any:
    """A value of the type, reasonable now and then."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        parts = typing.get_args(kind)
        if parts[-1] is Ellipsis:
            parts = (parts[0],) * chance.randint(0, 3)
        return tuple(absurd(part, chance) for part in parts)
    if origin is list:
        return [absurd(typing.get_args(kind)[0], chance) for _ in range(chance.randint(0, 3))]
    if origin in (types.UnionType, typing.Union):
        return absurd(chance.choice(typing.get_args(kind)), chance)
    if kind is int:
        return chance.choice(NUMBERS[:12] if chance.random() < 0.6 else NUMBERS)
    if kind is str:
        return chance.choice(TEXTS)
    if kind is bool:
        return chance.random() < 0.5
    if kind is bytes:
        return chance.choice(TEXTS).encode()
    if kind is type(None):
        return None
    if issubclass(kind, enum.IntEnum):
        return chance.choice(list(kind))
    assert issubclass(kind, msgspec.Struct), kind
    hints = typing.get_type_hints(kind)
    names = [name for name in kind.__struct_fields__ if name in hints]
    return kind(**{name: absurd(hints[name], chance) for name in names})


def steered(command: Any, machine: Machine, chance: Random) -> Any:
    """Now and then what brings a command past its first check."""
    state = machine.state
    if isinstance(command, c.RaiseFormat):  # a format above its own ends a replica, rightly
        return c.RaiseFormat(min(command.format, c.FORMAT))
    if isinstance(command, c.PutJobs) and chance.random() < 0.8:
        return msgspec.structs.replace(
            command, base=state.catalog, part=1, parts=1, source="crontab", removed=()
        )
    if isinstance(command, c.Account) and chance.random() < 0.8:
        lines = tuple(
            msgspec.structs.replace(line, jobs=(n,), catalog=state.catalog, from_s=r.horizon_s)
            for line, (n, r) in zip(command.lines, state.by_number.items(), strict=False)
        )
        return c.Account(lines)
    if isinstance(command, c.Begin) and state.due and chance.random() < 0.8:
        row = chance.choice(list(state.due.values()))
        record, executor = state.by_number[row.number], max(state.executors, default=1)
        item = BeginItem(row.key, row.attempt + 1, record.revision, executor, row.deadline_ms)
        return begin_of((item,))
    if isinstance(command, pool.Redrive | pool.DropDead) and state.dead and chance.random() < 0.8:
        return type(command)((chance.choice(list(state.dead)), (1, 2, 3)))
    if isinstance(command, STEERED_TASKS) and chance.random() < 0.8:
        return steered_tasks(command, machine, chance)
    keyed = (c.Report, c.Cancel, c.Skip)
    if isinstance(command, keyed) and state.active and chance.random() < 0.8:
        row = chance.choice(list(state.active.values()))
        if isinstance(command, c.Report):
            told = {"state": chance.choice(TOLD)} if chance.random() < 0.8 else {}
            ends = [msgspec.structs.replace(end, **told) for _, _, end in command.items]
            return c.Report(tuple((row.key, row.attempt, end) for end in ends))
        items = tuple(msgspec.structs.replace(item, key=row.key) for item in command.items)
        return type(command)(items)
    return command


STEERED_TASKS = (
    *(t.SubmitTasks, t.CancelTasks, t.RescheduleTasks, t.RunTasks, t.ReadyTasks),
    *(ReleaseTasks, CloseGroups),
)


def steered_tasks(command: Any, machine: Machine, chance: Random) -> Any:
    """A command about tasks that can be, or that are there."""
    if isinstance(command, t.SubmitTasks):
        fields: dict[str, Any] = {
            "queue": "default/mail",
            "key": f"k{chance.randint(1, 9)}",
            "digest": bytes(16),
        }
        options = t.TaskOptions("h", tries=chance.randint(0, 2))
        known = [*sorted(machine.state.tasks), "default/g"]
        after = tuple(chance.sample(known, min(len(known), chance.randint(0, 2))))
        ties = {"group": chance.choice(("", "default/g")), "after": after, "after_any": ()}
        fields |= chance.choice(({}, ties))
        some = [
            msgspec.structs.replace(task, **fields, options=chance.choice((options, task.options)))
            for task in command.tasks
        ]
        return t.SubmitTasks(tuple(some))
    if isinstance(command, t.ReadyTasks):
        return t.ReadyTasks(tuple(machine.state.tasks_by_number)[-3:])
    if isinstance(command, ReleaseTasks):
        return ReleaseTasks(tuple(machine.state.holds))
    if isinstance(command, CloseGroups):
        return CloseGroups((GroupClose("default/g"),))
    names = chance.sample(sorted(machine.state.tasks), min(len(machine.state.tasks), 2))
    if isinstance(command, t.RescheduleTasks):
        items = zip(command.items, names, strict=False)
        return t.RescheduleTasks(tuple(msgspec.structs.replace(i, name=name) for i, name in items))
    return type(command)(tuple(names))


TOLD = [
    LaunchState.LAUNCHED,
    LaunchState.FAILED,
    LaunchState.FAILED,
    LaunchState.SKIPPED,
    LaunchState.LOST,
]
"""States that a report may tell of."""


@pytest.mark.parametrize("seed", seeds(60))
def test_no_readable_entry_raises_or_cannot_be_saved(seed: int) -> None:
    chance = Random(seed)
    rig = with_job(retry=Retry(tries=3), deadline_s=86_400)
    rig.to(480).account(*range(60, 540, 60))
    for second in range(60, 480, 60):
        rig.begin(second)
    machine = rig.machine
    for index in range(1000, 1060):
        kinds = [chance.choice(COMMANDS) for _ in range(chance.randint(1, 3))]
        commands = tuple(steered(absurd(kind, chance), machine, chance) for kind in kinds)
        # Most time passes sanely: a log at the end of time accepts little.
        at_ms = chance.choice(NUMBERS) if chance.random() < 0.02 else rig.at_ms + index
        entry = encode_entry(max(at_ms, -(2**63)), machine.state.epoch, commands)
        outcome = machine.apply(1, index, entry)
        assert len(outcome.results) in (0, len(commands))
        image = encode_state(machine.state)
        assert encode_state(decode_state([image])) == image
        for row in outcome.rows:
            assert str(LaunchName(row.job, row.scheduled_s, row.trigger))
        for key in (*machine.state.due, *machine.state.dead):
            assert str(machine.state.launch_name(key))


@pytest.mark.parametrize("seed", seeds(20))
def test_a_damaged_entry_is_refused_or_read_but_nothing_else(seed: int) -> None:
    """Frames are checksummed below; this is what stands behind them."""
    chance = Random(seed)
    job = msgspec.structs.replace(absurd(Job, chance), name="default/x")
    good = encode_entry(T0 * 1000, FIRST, (c.PutJobs("a", 1, T0, (job,)), c.Resume((), "b")))
    for _ in range(100):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        machine = with_job().machine
        try:
            decode_entry(bytes(data))
        except InvariantViolated:
            with pytest.raises(InvariantViolated):
                machine.apply(1, 1000, bytes(data))
            continue
        machine.apply(1, 1000, bytes(data))
        assert encode_state(machine.state)


def test_an_entry_of_a_newer_version_asks_for_an_upgrade_whatever_it_holds() -> None:
    # its commands may be unknown too: the version is what a person can act on
    newer = msgspec.msgpack.encode([2, 5, [1, 1, "r1"], [["Teleport", 1]], "a field of the future"])
    with pytest.raises(InvariantViolated, match="version 2, this program knows 1: upgrade"):
        decode_entry(newer)
