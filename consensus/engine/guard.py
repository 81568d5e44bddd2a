"""Checks PySyncObj's exact version, and disables all unpickling in it.

Stock PySyncObj unpickles frames from sockets, its journal and its dump, so one frame can run any
code. The engine uses its own transport, journal, dump and commands. The remaining uses of `pickle`
in the library are replaced by functions that raise, in case a path to them was overlooked.
"""

from __future__ import annotations

from typing import Final, NoReturn

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.syncobj
from pysyncobj.version import VERSION

from consensus.engine.storage.journal import FileJournal
from consensus.errors import InvariantViolated, invariant

PINNED: Final = "0.3.17"


class Unpickling(InvariantViolated):
    """The library tried to unpickle; nothing was read."""


def refuse(*_: object) -> NoReturn:
    """Raise an error; replaces every `load` and `loads`."""
    raise Unpickling("the engine tried to unpickle; nothing of ours is pickled")


def open_journal(journal: object) -> FileJournal:
    """Return the journal that the engine opened; replaces `createJournal`."""
    invariant(isinstance(journal, FileJournal), "the engine was given a journal that is not ours")
    return journal  # type: ignore[return-value]


def stand() -> None:
    """Replace the forbidden functions; idempotent.

    Raises:
        InvariantViolated: another PySyncObj is installed; the overrides are written for one.
    """
    invariant(VERSION == PINNED, f"PySyncObj is {VERSION}, the engine is written for {PINNED}")
    pysyncobj.pickle.loads = refuse
    pysyncobj.pickle.load = refuse
    pysyncobj.journal.loads = refuse
    pysyncobj.syncobj.createJournal = open_journal
