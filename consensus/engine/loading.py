"""Reading back what a replica left on its disk, in whatever moment it died."""

from __future__ import annotations

from consensus.engine.matching import align
from consensus.engine.settings import Files
from consensus.engine.storage.dump import Dump, read_dump
from consensus.engine.storage.journal import FileJournal
from consensus.errors import LogDamaged


def load(files: Files, replica: str) -> tuple[FileJournal, Dump | None]:
    """Return the journal, made to continue the dump, and the dump if there is one.

    Raises:
        LogDamaged: either cannot be read back, or entries between them are missing.
    """
    dump = read_dump(files.dump) if files.dump.exists() else None
    journal = FileJournal(files.journal, replica)
    base = journal[0][1] if len(journal) else 1
    if dump is None and base > 1:
        raise LogDamaged(str(files.dump), f"missing, but the journal begins at {base}")
    if dump is not None:
        if base > max(dump.position.index, 1):
            raise LogDamaged(
                str(files.dump), f"at {dump.position.index}, but the journal begins at {base}"
            )
        align(journal, dump.position)
    return journal, dump
