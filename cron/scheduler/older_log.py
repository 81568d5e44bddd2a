"""Whether this log is older than what executors were ordered. Pure, given State.

Theory of operation. Raft never loses an entry that a majority has on its disks. But a disk can be
put back to an older copy, behind Raft's back. With a replica that lags it makes a majority whose
log lacks acknowledged entries, and gives their indexes to others. The executors were there: each
knows under which term's mark its rows came, and which entry it was ordered last.

A mark is random and drawn once in a term, so two leaders of the same term, in two logs, have two.
A log that has the Claim with a mark has all that its leader's orders were about, up to the next
Claim: that is Raft's log matching. Terms before format 12 have no marks, and nothing is concluded
about them.
"""

from __future__ import annotations

from typing import Final

from cron.state.machine import LEADER_TERMS_KEPT
from cron.state.state import State
from launcher.protocol.proofs import is_proven
from launcher.protocol.reports import Ordered
from launcher.protocol.work import Epoch

OTHER_LAUNCH: Final = (
    "its executor has another launch under this number: the log is older than the executor's "
    "journal"
)


def has_ordered(state: State, mark: bytes, begun: Epoch) -> bool:
    """Return whether orders with a mark can be about what was begun in this log under an epoch:
    they are of that term or a later one, and not of another life of the log."""
    if not mark:
        return True
    ordered = state.marks.get(mark)
    if ordered is not None:
        return ordered >= begun
    # What was recovered at a restore was begun, and perhaps ordered, in terms not known here.
    return begun.generation < state.epoch.generation or _is_forgotten(state, begun)


def lacks(state: State, ordered: Ordered) -> bool:
    """Return whether this log lacks an entry that a leader of the cell gave orders about. Of lives
    before a restore, and of terms that are forgotten, nothing is said."""
    epoch = ordered.epoch
    if not ordered.index or epoch.generation < state.epoch.generation:
        return False
    if state.marks.get(ordered.mark) != epoch:
        return epoch.generation > state.epoch.generation or not _is_forgotten(state, epoch)
    return ordered.index >= _end_of(state, ordered.mark)


def _end_of(state: State, mark: bytes) -> int:
    """Return the first index after a term that the log knows."""
    terms = state.leader_terms
    place = next(place for place, one in enumerate(terms) if one.mark == mark)
    return terms[place + 1].index if place + 1 < len(terms) else state.index + 1


def _is_forgotten(state: State, epoch: Epoch) -> bool:
    """Whether a term is older than those that State keeps."""
    terms = state.leader_terms
    return len(terms) == LEADER_TERMS_KEPT and epoch < terms[0].epoch


def contradiction(state: State, executor: str, ordered: Ordered) -> tuple[str, bool]:
    """Return how an executor's orders contradict this log, "" if they do not, and whether a leader
    of this cell must have given them: what is not proven is told, and stops nothing."""
    if not lacks(state, ordered):
        return "", False
    epoch = ordered.epoch
    what = f"entry {ordered.index} in term {epoch.term} of {epoch.replica}"
    if epoch.generation > state.epoch.generation:
        text = f"executor {executor} was ordered {what} in generation {epoch.generation}, and this"
        text = f"{text} log is of generation {state.epoch.generation}: the cell was restored"
    else:
        text = f"executor {executor} was ordered {what}, which this log lacks"
    return text, is_proven(state.order_key, executor, ordered)
