"""An image of State that was altered is refused in one way only, at once and in little memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.errors import InvariantViolated
from cron.state import commands as c
from cron.state.image import IMAGE_VERSION, decode_outline, decode_state
from cron.state.imaging import encode_state
from cron.state.state import State
from cron.state.tail import RowsDamaged, Tail
from cron.storage import uploads
from cron.storage.folders import name_of
from cron.storage.uploads import named
from launcher.protocol.status import Reason
from snapshots import format as form
from snapshots.disk import write_snapshot
from snapshots.errors import SnapshotCorrupt
from snapshots.format import SnapshotHeader
from tests.states import ended_rows
from tests.unit.backup_rig import CELL, keeping
from tests.unit.disk_rig import life, more
from tests.unit.state_rig import job, with_job

NUMBERS = (0x00, 0x01, 0x7F, 0x80, 0x90, 0xC0, 0xC4, 0xC6, 0xCB, 0xCF, 0xD3, 0xDC, 0xDD, 0xDF, 0xFF)
"""What MessagePack takes for numbers, lengths and kinds."""
NESTED = b"\x91" * 100_000 + b"\xc0"


def images() -> list[bytes]:
    """A State with history, and one with launches between all their log points."""
    sealed = life(2)
    more(sealed, 3)
    rig = with_job()
    rig.put(job("other"))
    for second in (60, 120, 180, 240):
        rig.to(second)
        rig.account(second)
    for second in (60, 120, 180):
        rig.begin(second)
    rig.launched(60)
    rig.append(c.Cancel((c.CancelItem((1, rig.row(60).scheduled_s, 0), Reason.KILLED, "anna"),)))
    return [encode_state(sealed.state), encode_state(rig.state)]


def altered(image: bytes, rng: random.Random) -> bytes:
    """The image with one to four places changed, cut out or put in."""
    content = bytearray(image)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, other = rng.randrange(4, len(content)), rng.randrange(4, len(content))
        match rng.randrange(5):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                content[at] = rng.choice(NUMBERS)
            case 2:
                del content[at : at + rng.randrange(1, 9)]
            case 3:
                content[at:at] = rng.randbytes(rng.randrange(1, 6))
            case _:
                content[at : at + 8] = content[other : other + 8]
    first = int.from_bytes(image[:4], "big") + len(content) - len(image)
    if rng.random() < 0.7 and first >= 0:  # or nothing behind a cut would be reached
        content[:4] = first.to_bytes(4, "big")
    return bytes(content)


def refuses(decode: Callable[[], object]) -> bool:
    """Whether it refuses; any other error is one of the test."""
    try:
        decode()
    except (InvariantViolated, RowsDamaged):
        return True
    return False


def used(image: bytes) -> State:
    """What a replica does with an image."""
    state = decode_state([image])
    ended_rows(state.history)
    for record in state.history.segments.values():
        assert ".seg" in name_of(record)
        assert named(record).bytes >= 0
    return state


@pytest.mark.parametrize("seed", range(8))
def test_altered_bytes_are_refused_or_are_another_state(seed: int) -> None:
    rng = random.Random(seed)
    originals = images()
    refused = 0
    for _ in range(800):
        image = altered(rng.choice(originals), rng)
        refused += refuses(lambda image=image: used(image))  # type: ignore[misc]
        refuses(lambda image=image: decode_outline([image]))  # type: ignore[misc]
    assert 400 < refused < 800, "some reach the far side of the decoder"


def part(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize("nested", [NESTED, b"\x81\xa1a" * 100_000 + b"\xc0"])
def test_what_is_nested_too_deep_is_refused(nested: bytes) -> None:
    head = images()[0]
    size = int.from_bytes(head[:4], "big")
    more_fields = bytes([0xDC, 0, head[6] + 1]) + head[7 : 4 + size]
    for content in (b"\x92\x03" + nested, more_fields + nested):
        pieces = [part(content)]
        for decode in (decode_state, decode_outline):
            with pytest.raises(InvariantViolated, match="cannot be read"):
                decode(pieces)
    assert refuses(lambda: Tail.of(b"\xdd\x00\x00\x00\x01" + nested).all_rows())
    lead = form.LEAD.pack(form.SNAPSHOT_MAGIC, form.FORMAT_VERSION, 4000)
    fields = b"\x97\xa1c\x01\x01\x01\xc4\x00\x01"
    with pytest.raises(SnapshotCorrupt):
        form.decode_header(lead, fields + b"\x91" * 3990, SnapshotHeader, "x.snap")


@pytest.mark.parametrize("claim", [b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf" * 9])
def test_a_length_that_cannot_be_takes_no_memory(claim: bytes) -> None:
    tracemalloc.start()
    try:
        assert refuses(lambda: decode_state([part(claim)]))
        assert refuses(lambda: decode_state([part(b"\xdc\x00\x14\x03" + claim * 3)]))
        assert refuses(lambda: Tail.of(claim).all_rows())
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


async def test_a_snapshot_whose_state_cannot_be_read_is_told_and_the_next_is_stored(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        segment_files = rig.leader.segment_files
        header = SnapshotHeader(CELL, 1, 1, rig.leader.state.index, bytes(16), rig.clock.ms)
        file = write_snapshot(
            segment_files.folders.snapshots, header, [part(bytes((0x92, IMAGE_VERSION, 0xC0)))]
        )
        with pytest.raises(SnapshotCorrupt, match="cannot be read"):
            uploads.outline_of(file)
        segment_files.files.insert(0, file)
        uploader = rig.leader.uploader
        assert uploader is not None
        uploader.lead(rig.leader.leader.epoch)
        await uploader.turn()
        assert file.path.name in rig.leader.backup.trouble.text
        await rig.launch(3)
        rig.later(120)
        await rig.look()
        await rig.look()
        assert rig.leader.backup.trouble.text == ""
        assert rig.manifests()[0].index == rig.leader.state.history.taken.index
