"""A State that keeps lines and one that gives every launch a row of its own are the same State."""

from __future__ import annotations

from random import Random

from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.state import State
from launcher.protocol.work import Epoch
from tests.model.drawn_commands import NAMES, Commands
from tests.model.naive_state import NaiveState
from tests.unit.state_rig import T0

ENTRIES = 300


def seen(state: State) -> list[object]:
    """What anybody can see of the launches of a State."""
    opened = {name: state.open_of(record) for name, record in state.jobs.items()}
    horizons = {name: record.horizon_s for name, record in state.jobs.items()}
    return [dict(state.due), state.active, opened, horizons, state.digest, state.dead]


def compared(seed: int) -> int:
    """Let both go through one log; return how many lines there were, over all of its entries."""
    chance, naive, epoch = Random(seed), NaiveState(), Epoch(1, 1, "r1")
    commands = Commands(naive, chance.randint)
    lines, rows = Machine(), Machine()
    at_ms, in_lines = T0 * 1000, 0
    for index in range(1, ENTRIES):
        at_ms += chance.choice([0, 1_000, 20_000])
        drawn = [commands.any() for _ in range(chance.randint(1, 3))]
        if index == 2:
            drawn = [c.PutJobs("a", 0, at_ms // 1000, tuple(map(commands.drawn_job, NAMES)))]
        elif index % 3 == 0:
            drawn = [commands.account()]
        entry = c.Entry(
            1, at_ms, epoch, tuple(drawn) if index > 1 else (c.Claim("", "", c.FORMAT),)
        )
        data = encode_entry(entry.at_ms, entry.epoch, entry.commands)
        naive.apply(index, entry)
        first, second = lines.apply(1, index, data), rows.apply(1, index, data)
        assert (first.results, first.rows) == (second.results, second.rows)
        rows.state.make_detailed(rows.state.by_number.values())
        assert not rows.state.due.usual
        assert seen(lines.state) == seen(rows.state)
        in_lines += len(lines.state.due.usual)
        if index % 50 == 0:  # a replica that begins from an image goes on in the same way
            image = encode_state(lines.state)
            lines = Machine(decode_state([image]))
            assert encode_state(lines.state) == image
    return in_lines


def test_lines_say_what_rows_would() -> None:
    assert sum(map(compared, range(20))) > 500
