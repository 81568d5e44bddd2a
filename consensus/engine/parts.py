"""The parts of a Raft, which the code that starts a replica constructs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from consensus.engine.gate import Gatekeeper
from consensus.engine.handover import Handover
from consensus.engine.network.peering import PeerTransport
from consensus.engine.roster import Roster
from consensus.engine.storage.disk import Disk
from consensus.engine.storage.dump import Dump
from consensus.engine.storage.incoming import Aside
from consensus.engine.storage.journal import FileJournal


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one replica; `mono` returns seconds of a clock that never jumps."""

    journal: FileJournal
    dump: Dump | None
    disk: Disk
    roster: Roster
    gate: Gatekeeper
    transport: PeerTransport
    handover: Handover
    aside: Aside
    mono: Callable[[], float]
