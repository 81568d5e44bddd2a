"""The machine as a whole: epochs, time, digest, image, and what it cannot read (R3)."""

from __future__ import annotations

import msgspec
import pytest

from cron.errors import InvariantViolated, TooOld
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.archive import History
from cron.state.codec import encode_entry
from cron.state.image import IMAGE_VERSION, decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.names import SCHEDULED_S_MAX
from tests.unit.state_rig import (
    FIRST,
    T0,
    StateRig,
    image_of,
    image_parts,
    job,
    open_on,
    with_job,
)


def test_the_time_of_the_log_never_goes_back() -> None:  # R2, R10
    rig = with_job().to(100)
    rig.append()
    rig.to(40).append()
    assert rig.state.at_ms == (T0 + 100) * 1000


@pytest.mark.parametrize("at_ms", [2**64 - 1, SCHEDULED_S_MAX * 1000 + 1000])
def test_a_clock_past_the_last_name_stops_at_it(at_ms: int) -> None:  # R10
    rig = with_job()
    rig.at_ms = at_ms
    rig.trigger("q1")
    assert rig.state.at_ms == SCHEDULED_S_MAX * 1000
    (key,) = rig.state.due
    assert str(rig.state.launch_name(key)).endswith("@9999-12-31T23:59:59Z+t1")
    assert decode_state([encode_state(rig.state)]).due


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"nonsense",
        msgspec.msgpack.encode([1, 0, [1, 1, "r1"], [["unheard-of"]]]),
        msgspec.msgpack.encode([1, 0, [1, 1, "r1"]]),
        msgspec.msgpack.encode([2, 0, [1, 1, "r1"], []]),
        msgspec.msgpack.encode([1, "now", [1, 1, "r1"], []]),
        msgspec.msgpack.encode([1, 0, [1, 1, "r1"], [["finished", [[[1, 2, 3], 1, 99]]]]]),
        msgspec.msgpack.encode([1, 0, [1, 1, "r1"], [["claim", "X"]]]).replace(b"X", b"\xff"),
        encode_entry(0, FIRST, (c.Claim(format=c.FORMAT),)) + b"\x00",
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_read_stops_the_replica(data: bytes) -> None:
    rig = with_job()
    with rig.unchanged(), pytest.raises(InvariantViolated):
        rig.machine.apply(1, 1000, data)


def test_fields_of_a_later_release_are_read_over() -> None:
    """Evolution: new fields come at the end; who does not know them ignores them."""
    rig = with_job()
    entry = msgspec.msgpack.encode([1, rig.at_ms, [1, 1, "r1"], [["resume", [], "anna", "new"]], 7])
    assert rig.machine.apply(1, 1000, entry).verdict is Verdict.ACCEPTED


def everything() -> StateRig:
    """A rig with something in every corner of State."""
    rig = with_job(deadline_s=4000)
    rig.put(job("other"), source="b")
    rig.put(job("gone"))
    rig.put(removed=("default/gone",))
    rig.join("e2", "l2")
    rig.to(180).account(60, 120, 180)
    rig.begin(60)
    rig.launched(60)
    rig.begin(120, executor=2)
    rig.lost(120, held_until=400)
    rig.begin(180)
    rig.cancel(180)
    rig.trigger("q1")
    rig.reopen(120, LaunchState.LOST, 1)
    rig.append(c.Pause(("default/other",), "why", 0, "anna"))
    rig.put(job("staged"), part=1, parts=2, change="x")
    return rig


def test_an_image_shares_its_launches_with_its_executors() -> None:
    again = decode_state([encode_state(everything().state)])
    again.make_detailed(again.by_number.values())
    for number, executor in again.executors.items():
        for key, row in open_on(executor).items():
            assert row is again.active[key] is again.by_number[key[0]].open[key[1:]]
            assert row.executor == number


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_damaged_image_is_not_taken_for_a_state(cut: int) -> None:
    image = encode_state(everything().state)
    with pytest.raises(InvariantViolated):
        decode_state([image[:cut]])


def test_an_image_of_an_unknown_version_is_refused() -> None:
    _, *jobs = image_parts(encode_state(everything().state))
    with pytest.raises(TooOld, match=f"version {IMAGE_VERSION + 1}"):
        decode_state([image_of([[IMAGE_VERSION + 1, "whatever it holds"], *jobs])])


def test_an_image_that_lacks_jobs_is_refused() -> None:
    head, *_ = image_parts(encode_state(everything().state))
    with pytest.raises(InvariantViolated, match="0 of 3 jobs"):
        decode_state([image_of([head])])


def test_an_image_may_be_cut_in_pieces_anywhere() -> None:
    image = encode_state(everything().state)
    for size in (1, 3, 7, 1000):
        pieces = (image[start : start + size] for start in range(0, len(image), size))
        assert encode_state(decode_state(pieces)) == image


def test_an_image_with_damaged_rows_is_refused() -> None:
    head, *jobs = image_parts(encode_state(everything().state))
    history = head[2][State.__struct_fields__.index("history")]
    tails = History.__struct_fields__.index("tails")
    history[tails][0] = history[tails][0][:-1]
    with pytest.raises(InvariantViolated, match="segment:"):
        decode_state([image_of([head, *jobs])])
