"""The body of the thread `consensus-tick`: runs ticks until it is stopped or an error occurs."""

from __future__ import annotations

import logging

from consensus.engine.handover import Failed
from consensus.engine.raft import Raft

_log = logging.getLogger(__name__)


def tick(raft: Raft) -> None:
    """Run ticks of `raft` until its `stopping` is set; pass an error to the event loop."""
    idle_s = raft.config.idle_tick_ms / 1000
    error: BaseException | None = None
    try:
        while not raft.stopping:
            raft.doTick(0.0 if raft.is_busy() else idle_s)
    except BaseException as failure:  # noqa: BLE001 - handed to the loop, which stops the replica
        error = failure
    try:
        raft.destroy()
    except Exception as failure:  # noqa: BLE001 - the first error is the one to tell
        error = error or failure
    if error is not None:
        try:
            raft.handover.post(Failed(error))
        except RuntimeError:
            _log.error("the tick thread ended after its event loop: %r", error)
