"""The format of State: a cell begins at its founder's, and rises when every replica can apply more.

A replica of the release before ignores what it does not know of a Claim, and stops at a command
that it does not know.
"""

from __future__ import annotations

import msgspec
import pytest

from cron import endings
from cron.errors import TooOld
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from launcher.work import Epoch
from tests.unit.state_rig import StateRig, image_of, image_parts
from tests.unit.test_leader_reign import reigning

OLD_CLAIM = msgspec.msgpack.encode([1, 5, [1, 1, "r1"], [["claim", "2026b", "0.1.0"]]])
"""An entry as the release before wrote it."""


def test_a_new_cell_has_the_format_of_its_founder() -> None:
    assert StateRig(is_claimed=False).state.format == 1
    assert StateRig().state.format == c.FORMAT


def test_the_log_of_an_older_release_keeps_its_format_under_newer_leaders() -> None:
    machine = Machine()
    machine.apply(1, 1, OLD_CLAIM)
    assert machine.state.format == 1
    rig = StateRig(log_format=0)
    assert rig.append(c.Claim("2027a", "2", c.FORMAT), epoch=Epoch(1, 2, "r2")).verdict is (
        Verdict.ACCEPTED
    )
    assert rig.state.format == 1


def test_the_format_rises_once_and_never_falls() -> None:
    rig = StateRig(log_format=0)
    assert rig.answer(c.RaiseFormat(c.FORMAT)).verdict is Verdict.ACCEPTED
    assert rig.state.format == c.FORMAT
    for again in (c.FORMAT, 1, 0):
        assert rig.answer(c.RaiseFormat(again)).verdict is Verdict.ALREADY
    assert rig.state.format == c.FORMAT


def test_a_replica_stops_at_a_format_above_its_own() -> None:
    rig = StateRig()
    with pytest.raises(TooOld, match="upgrade this replica"):
        rig.append(c.RaiseFormat(c.FORMAT + 1))
    founder = StateRig(is_claimed=False)
    with pytest.raises(TooOld, match="upgrade this replica"):
        founder.append(c.Claim("2026b", "9", c.FORMAT + 1))


def test_a_replica_that_is_too_old_ends_with_the_exit_code_of_one() -> None:
    assert endings.exit_code(TooOld("upgrade this replica"), is_start=False) == endings.TOO_OLD


@pytest.mark.parametrize("log_format", [1, c.FORMAT])
def test_an_image_keeps_the_format(log_format: int) -> None:
    image = encode_state(StateRig(log_format=log_format).state)
    assert decode_state([image]).format == log_format


def test_an_image_of_the_release_before_has_format_1() -> None:
    parts = image_parts(encode_state(StateRig().state))
    del parts[0][22:]  # it ended with the budgets
    assert decode_state([image_of(parts)]).format == 1


def test_an_image_above_the_own_format_is_refused() -> None:
    parts = image_parts(encode_state(StateRig().state))
    parts[0][22] = c.FORMAT + 1
    with pytest.raises(TooOld, match="upgrade this replica"):
        decode_state([image_of(parts)])


async def test_a_leader_raises_the_format_once_all_replicas_can_apply_it() -> None:
    async with reigning(log_format=0) as replica:
        await replica.until(lambda: replica.leader.epoch is not None)
        assert replica.state.format == 1
        replica.leader.shared_format = lambda: c.FORMAT
        await replica.until(lambda: replica.state.format == c.FORMAT)
        index = replica.state.index
        await replica.put()
        assert replica.state.index == index + 1, "it is raised once"
