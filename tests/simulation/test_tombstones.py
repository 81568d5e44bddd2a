"""A hole that seed 5795 of the simulation found: a tombstone went before what it forbade."""

from __future__ import annotations

from pathlib import Path

import msgspec

from launcher.executor.ledger import Ledger
from launcher.executor.rules import Conditions, Decisions, Works, decide
from launcher.protocol.work import WorkSpec
from tests.unit.rows_rig import Start, number_of, orders

WORK = msgspec.msgpack.encode(WorkSpec(("/bin/true",)))
LATE = "default/j2@2026-11-20T16:18:04Z#1"


def test_a_fenced_start_stays_forbidden_while_the_watermark_is_below_it(
    tmp_path: Path,
) -> None:  # R4
    ledger = Ledger(tmp_path / "journal")

    def order(
        *starts: Start, floor: int = 0, fences: bool = False, acks: bool = False
    ) -> Decisions:
        message = orders(*starts, floor=floor, epoch=(1, 8))
        if fences:  # begun at 230, and its start is still under way
            message.fences.add(index=230, row=number_of(LATE), name=LATE)
        if acks:
            message.acks.add(index=230, rows=[number_of(LATE)])
        decisions = Decisions()
        with ledger.transaction():
            conditions = Conditions(wall_ms=0, lease_valid=True, groups_free={"": 9})
            decide(ledger, message, Works(), conditions, decisions)
        return decisions

    order(Start("default/j2@2026-11-20T16:18:02Z#1", WORK, 1, 224))
    order(fences=True)
    order(acks=True)
    order(floor=228)  # something begun at 229 is open
    assert order(Start(LATE, WORK, 1, 230)).accepted == []
    ledger.close()
