"""Notes: explanations in replicated records, as codes with arguments, and their sentences. Pure.

Rows, open launches and dead letters contain notes. The sentence is made when a note is shown, so
its wording may change between releases. Notes are in the log: append codes, never renumber them,
and append arguments of a code at the end.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from cron.launch_state import LaunchState
from launcher.protocol.names import SCHEDULED_S_MAX, format_time
from launcher.texts import cut

TEXT_CHARS_MAX: Final = 256
"""Characters of a reason that a launch keeps of what stopped it; at most 1 KiB."""
TEXT_BYTES_MAX: Final = 1 << 10
"""A text from outside that a row keeps, in UTF-8."""
NOT_OVER: Final = 0
NEVER_RAN: Final = -1
NO_LAUNCH: Final = -2
"""What notes about predecessors have instead of a LaunchState."""
GATE_REASON_CHARS_MAX: Final = 100
"""Characters of a gate's reason that each launch keeps that the gate dropped."""


class NoteCode(enum.IntEnum):
    """The kinds of notes. Comments list the arguments; those in brackets are optional."""

    REMOVED = 1  # the job was removed
    IN_DOUBT = 2  # it was due in the snapshot of a restored cell
    NOBODYS = 3  # it ran on an executor that the restored cell does not know
    PAUSED = 4  # who paused it, until_ms (0: until resumed), reason
    GATE = 5  # number, [who closed it, until_ms (0: until opened), reason]
    BEFORE_RESTORE = 6  # until_s: a launch from before the restore may run until then
    PART = 7  # number, of how many, executor, [code and arguments of a note about that part]
    LATE_PART = 8  # number, [LaunchState, [code and arguments of a note about that part]]
    SILENT = 9  # the lease of its executor ended
    DIED = 10  # its executor died
    CONTRADICTED = 11  # its executor reported that it began, and that it never ran
    NO_RECORD = 12  # its executor has no record of it
    REFUSED = 13
    FENCED = 14
    PARTS = 15  # the LaunchState of each part, as executors reported it after a restore
    FORGOTTEN = 16  # no executor has a record of that part
    UNSENT = 17  # its order was never sent to its executor
    CLOCKS = 18  # ms: how far the clocks of its executors are ahead of the leader's, at least
    PREDECESSOR = 19  # what it follows, LaunchState, or a number as above
    NO_TIME_LEFT = 20  # its deadline, and when the next try could have begun, in ms


class Note(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A code and its arguments."""

    code: NoteCode
    args: tuple[int | str, ...] = ()


_SENTENCES: Final[dict[NoteCode, str]] = {
    NoteCode.REMOVED: "the job was removed",
    NoteCode.IN_DOUBT: "it was due in the snapshot, and may have run afterwards",
    NoteCode.NOBODYS: "its executor is not known",
    NoteCode.SILENT: "its executor went silent",
    NoteCode.DIED: "its executor died",
    NoteCode.CONTRADICTED: "its executor contradicts itself",
    NoteCode.NO_RECORD: "its executor has no record of it",
    NoteCode.REFUSED: "refused",
    NoteCode.FENCED: "fenced",
    NoteCode.FORGOTTEN: "no executor has a record of it",
    NoteCode.UNSENT: "its order was never sent: the executor did not answer",
}
"""The sentences of notes without arguments."""


def sentence(note: Note | None, text: str = "") -> str:
    """Return the sentence of a note with the added `text`; only `text` if there is no note."""
    if note is None:
        return text
    try:
        said = _SENTENCES.get(note.code) or _MAKERS[note.code](note.args)
    except (ValueError, IndexError, OverflowError, RecursionError):  # invalid arguments
        said = f"{note.code.name.lower()} {note.args}"
    if not text:
        return said
    return f"{said}; {text}" if note.code is NoteCode.PARTS else f"{said}: {text}"


def written(note: Note | None, text: str = "") -> tuple[str, Note | None]:
    """Return (text, note) in the form that State and its commands store."""
    return text if len(text) <= TEXT_CHARS_MAX else cut(text, TEXT_BYTES_MAX), note


def about_part(code: NoteCode, args: tuple[int | str, ...], inner: Note | None) -> Note:
    """Return a note about a part, which contains the part's own note."""
    return Note(code, args if inner is None else (*args, int(inner.code), *inner.args))


def shortened(text: str, chars: int) -> str:
    """Return `text`, cut to `chars` characters with an ellipsis if it is longer."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def _paused(args: tuple[int | str, ...]) -> str:
    by, until_ms, reason = args
    return f"paused by {by or 'somebody'} {_until(until_ms, 'somebody resumes it')}{_why(reason)}"


def _gate(args: tuple[int | str, ...]) -> str:
    if len(args) < 4:
        return f"gate {args[0]}"
    number, by, until_ms, reason = args[:4]
    until = _until(until_ms, "it is opened")
    return f"gate {number}, closed by {by or 'somebody'} {until}{_why(reason)}"


def _before_restore(args: tuple[int | str, ...]) -> str:
    return f"a launch from before the restore may still run, until {format_time(int(args[0]))}"


def _part(args: tuple[int | str, ...]) -> str:
    number, of, executor = args[:3]
    where = f" on {executor}" if executor else ""
    return f"part {number} of {of}{where}{_inner(args[3:])}"


def _late_part(args: tuple[int | str, ...]) -> str:
    ended = f" {LaunchState(int(args[1])).label}" if len(args) > 1 else ""
    return f"part {args[0]}{ended}{_inner(args[2:])}"


def _parts(args: tuple[int | str, ...]) -> str:
    states = (LaunchState(int(state)).label for state in args)
    return ", ".join(f"part {number} {state}" for number, state in enumerate(states, 1))


def _clocks(args: tuple[int | str, ...]) -> str:
    seconds = int(args[0]) / 1000
    return f"the clocks of its executors are {seconds:.1f} s ahead of the leader's"


def _no_time_left(args: tuple[int | str, ...]) -> str:
    times_s = [min(max(int(at_ms) // 1000, 0), SCHEDULED_S_MAX) for at_ms in args[:2]]
    until, not_before = map(format_time, times_s)
    return f"its deadline {until} ended the retries: the next try had to wait until {not_before}"


def _predecessor(args: tuple[int | str, ...]) -> str:
    name, state = args[:2]
    if state == NO_LAUNCH:
        return f"{name} has no launch at that time or before, as far as is known"
    if state == NOT_OVER:
        return f"{name} was not over"
    return f"{name} {'never ran' if state == NEVER_RAN else LaunchState(int(state)).label}"


def _inner(args: tuple[int | str, ...]) -> str:
    """Return the sentence of a note inside another note."""
    return f": {sentence(Note(NoteCode(int(args[0])), args[1:]))}" if args else ""


def _until(until_ms: int | str, forever: str) -> str:
    if not until_ms:
        return f"until {forever}"
    # Later times have no names.
    return f"until {format_time(min(max(int(until_ms) // 1000, 0), SCHEDULED_S_MAX))}"


def _why(reason: int | str) -> str:
    return f": {reason}" if reason else ""


_MAKERS: Final = {
    NoteCode.PAUSED: _paused,
    NoteCode.GATE: _gate,
    NoteCode.BEFORE_RESTORE: _before_restore,
    NoteCode.PART: _part,
    NoteCode.LATE_PART: _late_part,
    NoteCode.PARTS: _parts,
    NoteCode.CLOCKS: _clocks,
    NoteCode.PREDECESSOR: _predecessor,
    NoteCode.NO_TIME_LEFT: _no_time_left,
}
