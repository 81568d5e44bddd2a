"""The format of State: a cell begins at its founder's; it rises once all replicas can apply it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cron import endings
from cron.errors import TooNew, TooOld
from cron.state import commands as c
from cron.state import image
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.work import Epoch
from tests.unit.state_rig import StateRig, image_of, image_parts
from tests.unit.test_leader_term import reigning

LATER = c.FORMAT + 1


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A release that can apply one format more than this one."""
    monkeypatch.setattr(image, "FORMAT", LATER)
    return


def place_of(field: str) -> int:
    return State.__struct_fields__.index(field)


@pytest.mark.parametrize("log_format", [c.FORMAT, LATER])
def test_a_new_cell_has_the_format_of_its_founder(log_format: int) -> None:
    assert StateRig(is_claimed=False).state.format == c.LEAST_FORMAT
    assert StateRig(log_format=log_format).state.format == log_format


def test_the_log_of_an_older_release_keeps_its_format_under_newer_leaders() -> None:
    rig = StateRig(log_format=c.FORMAT)
    claim = c.Claim("2027a", "2", LATER)
    assert rig.append(claim, epoch=Epoch(1, 2, "r2")).verdict is Verdict.ACCEPTED
    assert rig.state.format == c.FORMAT


def test_the_format_rises_once_and_never_falls() -> None:
    rig = StateRig(log_format=c.FORMAT)
    assert rig.answer(c.RaiseFormat(LATER)).verdict is Verdict.ACCEPTED
    assert rig.state.format == LATER
    for again in (LATER, c.FORMAT, 0):
        assert rig.answer(c.RaiseFormat(again)).verdict is Verdict.ALREADY
    assert rig.state.format == LATER


def test_a_replica_stops_at_a_format_above_its_own() -> None:
    rig = StateRig()
    with pytest.raises(TooOld, match="upgrade this replica"):
        rig.append(c.RaiseFormat(LATER + 1))
    founder = StateRig(is_claimed=False)
    with pytest.raises(TooOld, match="upgrade this replica"):
        founder.append(c.Claim("2026b", "9", LATER + 1))


@pytest.mark.parametrize("log_format", [1, 2])
def test_a_log_of_a_format_that_is_read_no_more_is_refused_with_the_way_out(
    log_format: int,
) -> None:
    founder = StateRig(is_claimed=False)
    with pytest.raises(TooNew, match=r"earlier version.* wrote it; .* start a new cell"):
        founder.append(c.Claim("2026b", "0.1.0", log_format))


def test_a_replica_that_is_too_old_ends_with_the_exit_code_of_one() -> None:
    assert endings.exit_code(TooOld("upgrade this replica"), is_start=False) == endings.TOO_OLD


def test_a_replica_that_is_too_new_for_its_data_says_so_in_its_exit_code() -> None:
    for is_start in (True, False):
        assert endings.exit_code(TooNew("of before"), is_start=is_start) == endings.TOO_NEW


@pytest.mark.parametrize("log_format", [c.FORMAT, LATER])
def test_an_image_keeps_the_format(log_format: int) -> None:
    encoded = encode_state(StateRig(log_format=log_format).state)
    assert decode_state([encoded]).format == log_format


def test_an_image_above_the_own_format_is_refused() -> None:
    parts = image_parts(encode_state(StateRig().state))
    parts[0][2][place_of("format")] = LATER + 1
    with pytest.raises(TooOld, match="upgrade this replica"):
        decode_state([image_of(parts)])


async def test_a_leader_raises_the_format_once_all_replicas_can_apply_it() -> None:
    async with reigning() as replica:
        await replica.until(lambda: replica.leader.epoch is not None)
        assert replica.state.format == c.FORMAT
        replica.leader.shared_format = lambda: LATER
        await replica.until(lambda: replica.state.format == LATER)
        index = replica.state.index
        await replica.put()
        assert replica.state.index == index + 1, "it is raised once"
