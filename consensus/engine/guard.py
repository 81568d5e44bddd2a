"""The guard at PySyncObj's door: the exact version, and no unpickling whatsoever.

Stock PySyncObj unpickles frames from sockets, its journal and its dump: one frame runs any code.
Ours uses none of the three: transport, journal, dump and commands are our own formats. What is left
of `pickle` in the library is replaced by a refusal, so that no path we overlooked can be reached.
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
    """Something in the library tried to unpickle; nothing was read."""


def refuse(*_: object) -> NoReturn:
    """Stand in the place of every `load` and `loads`."""
    raise Unpickling("the engine tried to unpickle; nothing of ours is pickled")


def open_journal(journal: object) -> FileJournal:
    """Stand in the place of `createJournal`: hand the journal through that we opened."""
    invariant(isinstance(journal, FileJournal), "the engine was given a journal that is not ours")
    return journal  # type: ignore[return-value]


def stand() -> None:
    """Replace what must not be used; idempotent.

    Raises:
        InvariantViolated: another PySyncObj is installed; the overrides are written for one.
    """
    invariant(VERSION == PINNED, f"PySyncObj is {VERSION}, the engine is written for {PINNED}")
    pysyncobj.pickle.loads = refuse
    pysyncobj.pickle.load = refuse
    pysyncobj.journal.loads = refuse
    pysyncobj.syncobj.createJournal = open_journal
