"""What any bytes in the place of a state image, an entry of the log or a segment's rows may do.

A replica that cannot read one of them stops (InvariantViolated), or fetches another copy.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from cron.errors import InvariantViolated
from cron.history.order import Match
from cron.history.segment import Segment, sections_of
from cron.state import commands as c
from cron.state.archive import History, SegmentRecord
from cron.state.codec import decode_entry, encode_entry, time_of
from cron.state.image import decode_outline, decode_state
from cron.state.imaging import encode_state
from cron.state.tail import RowsDamaged, Tail
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from snapshots.errors import SnapshotError
from tests.fuzz.subject import Subject, check_same
from tests.unit.history_rig import row, skipped
from tests.unit.state_rig import job, with_job

_EVERYTHING: Final = Match()
_JOB: Final = "default/backup"


def entry(content: bytes) -> bool:
    """As an entry of the log."""
    time_of(content)
    with suppress(InvariantViolated):
        found = decode_entry(content)
        check_same(found, decode_entry(encode_entry(*_fields(found))), "an entry")
        return bool(found.commands)
    return False


def image(content: bytes) -> bool:
    """As the image of a State: one that is read comes back."""
    with suppress(InvariantViolated):
        decode_outline([content])
    with suppress(InvariantViolated):
        again = encode_state(decode_state([content]))
        check_same(again, encode_state(decode_state([again])), "an image")
        return True
    return False


class _Cut:
    """The sections of a segment, in memory."""

    def __init__(self, sections: list[bytes]) -> None:
        self._sections = sections

    def __len__(self) -> int:
        return len(self._sections)

    def read(self, number: int) -> bytes:
        """Return one, as the file does."""
        return self._sections[number]


def index(content: bytes) -> bool:
    """As the index of a segment of history."""
    return _reads([content, *_SECTIONS[1:]])


def section(content: bytes) -> bool:
    """As one of its other sections."""
    place = 1 + (content or b"\0")[0] % (len(_SECTIONS) - 1)
    return _reads([*_SECTIONS[:place], content[1:], *_SECTIONS[place + 1 :]])


def _reads(sections: list[bytes]) -> bool:
    """Return whether all rows can be read; each question may say that they cannot."""
    try:
        segment = Segment(_RECORD, _Cut(sections))
    except (RowsDamaged, SnapshotError):
        return False
    asks = (
        lambda: list(segment.all_rows()),
        lambda: segment.of_job(_JOB, _EVERYTHING, 5),
        lambda: segment.newest(_EVERYTHING, 5),
        segment.lasts_s,
        lambda: segment.later({_JOB: 60}),
        segment.content,
    )
    answered = 0
    for ask in asks:
        with suppress(RowsDamaged, SnapshotError):
            ask()
            answered += 1
    return answered == len(asks)


def _fields(found: msgspec.Struct) -> list[object]:
    return [getattr(found, name) for name in ("at_ms", "epoch", "commands")]


def _sealed() -> tuple[SegmentRecord, list[bytes]]:
    history = History()
    for number in range(8):
        history.append(row(number + 1, 60 * number, job=(_JOB, "shop/mail")[number % 2]))
    history.append(skipped(9, 600, 1_200))
    (sealed,) = history.seal(1, 9, 0)
    assert isinstance(sealed.tail, Tail)
    return sealed.record, sections_of(sealed.tail)


def _entries() -> list[bytes]:
    put = c.PutJobs("crontab", 0, 60, (job("backup"), job("mail", after=("default/backup",))))
    cancel = c.Cancel((c.CancelItem((1, 60, 0), Reason.KILLED, "anna"),))
    return [encode_entry(1_000, Epoch(1, 2, "r1"), (one,)) for one in (put, cancel)]


def _image() -> bytes:
    rig = with_job()
    rig.put(job("other"))
    for second in (60, 120, 180):
        rig.to(second)
        rig.account(second)
    rig.begin(60)
    rig.launched(60)
    return encode_state(rig.state)


_RECORD, _SECTIONS = _sealed()

SUBJECT: Final = Subject(
    (entry, image, index, section),
    {
        "entry": _entries(),
        "image": [_image()],
        "index": [_SECTIONS[0]],
        "section": [bytes([place - 1]) + _SECTIONS[place] for place in range(1, len(_SECTIONS))],
    },
)
