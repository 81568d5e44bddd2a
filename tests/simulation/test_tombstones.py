"""A hole that seed 5795 of the simulation found: a tombstone went before what it forbade."""

from __future__ import annotations

from pathlib import Path

import msgspec

from launcher.executor.ledger import Ledger
from launcher.executor.rules import Conditions, Settled, settle
from launcher.rpc.v1 import pool_pb2
from launcher.work import WorkSpec

EPOCH = pool_pb2.Epoch(lineage=1, term=8, replica="r1")
WORK = msgspec.msgpack.encode(WorkSpec(("/bin/true",)))
LATE = "default/j2@2026-11-20T16:18:04Z#1"


def test_a_fenced_start_stays_forbidden_while_the_floor_is_below_it(tmp_path: Path) -> None:  # R4
    ledger = Ledger(tmp_path / "journal")

    def order(**fields: object) -> Settled:
        with ledger.transaction():
            orders = pool_pb2.Orders(epoch=EPOCH, **fields)  # type: ignore[arg-type]
            return settle(ledger, orders, Conditions(wall_ms=0, lease_valid=True, slots_free=9))

    def start(name: str, begun_index: int) -> pool_pb2.Start:
        return pool_pb2.Start(name=name, begun_index=begun_index, not_after_ms=1, work=WORK)

    order(starts=[start("default/j2@2026-11-20T16:18:02Z#1", 224)])
    order(fences=[LATE], fence_index=230)  # begun at 230, and its start is still under way
    order(acks=[LATE])
    order(floor=228)  # something begun at 229 is open
    assert order(starts=[start(LATE, 230)]).accepted == []
    ledger.close()
