"""The cell in memory: the controls that tests of others rely on."""

from __future__ import annotations

import asyncio

import pytest

from consensus.errors import EntryTooBig, InvariantViolated, NotLeader, OutcomeUnknown, QueueFull
from consensus.leadership import Leadership, Position
from consensus.limits import ENTRY_BYTES_MAX, IN_FLIGHT_MAX
from consensus.memory import MemoryCell, MemoryLog
from tests.conformance.ledger import Ledger


class Rig:
    def __init__(self, *names: str, automatic: bool = True) -> None:
        self.cell = MemoryCell(names, automatic=automatic)
        self.ledgers = {name: Ledger() for name in names}
        self.logs: dict[str, MemoryLog] = {
            name: self.cell.log(name, self.ledgers[name]) for name in names
        }

    async def start(self) -> None:
        for log in self.logs.values():
            await log.start()


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_cell_of_one_leads_at_once_and_counts_from_one() -> None:
    cell = MemoryCell()
    ledger = Ledger()
    log = cell.log("r1", ledger)
    await log.start()
    assert log.leadership == Leadership(1, True, "r1")
    answer = await log.append(b"x", timeout_ms=100)
    assert (answer.position, answer.outcome) == (Position(1, 2), 1)
    assert await log.barrier(timeout_ms=100) == Position(1, 3)
    assert log.applied == Position(1, 3)


async def test_two_runs_are_equal() -> None:
    async def run() -> list[tuple[Position, bytes]]:
        rig = Rig("r1", "r2", "r3")
        await rig.start()
        await rig.logs["r1"].append(b"a", timeout_ms=100)
        rig.cell.elect("r3")
        await rig.logs["r3"].append(b"b", timeout_ms=100)
        await turns()
        ledger = rig.ledgers["r2"]
        return list(zip(ledger.positions, ledger.entries, strict=True))

    assert await run() == await run() == [(Position(1, 2), b"a"), (Position(2, 4), b"b")]


async def test_nobody_leads_before_a_majority_is_there() -> None:
    rig = Rig("r1", "r2", "r3")
    await rig.logs["r3"].start()
    assert rig.cell.leader is None
    with pytest.raises(NotLeader):
        await rig.logs["r3"].append(b"x", timeout_ms=100)
    await rig.logs["r2"].start()
    assert rig.cell.leader == "r2"


async def test_without_automatic_elections_the_test_decides() -> None:
    rig = Rig("r1", "r2", "r3", automatic=False)
    await rig.start()
    assert rig.cell.leader is None
    rig.cell.elect("r2")
    assert rig.logs["r1"].leadership == Leadership(1, False, "r2")
    rig.cell.isolate("r2")
    assert rig.cell.leader is None
    assert rig.logs["r1"].leadership == Leadership(1, False, None)


async def test_listeners_hear_each_change_once() -> None:
    rig = Rig("r1", "r2", "r3")
    heard: list[Leadership] = []
    rig.logs["r1"].subscribe(heard.append)
    await rig.start()
    rig.cell.elect("r2")
    rig.cell.heal()
    assert heard == [Leadership(1, True, "r1"), Leadership(2, False, "r2")]


async def test_what_is_held_is_in_flight_until_it_is_released() -> None:
    rig = Rig("r1")
    await rig.start()
    rig.cell.hold()
    appends = [
        asyncio.create_task(rig.logs["r1"].append(entry, timeout_ms=1_000))
        for entry in (b"a", b"b")
    ]
    await turns()
    assert rig.ledgers["r1"].entries == []
    rig.cell.release()
    assert [answer.outcome for answer in await asyncio.gather(*appends)] == [1, 2]


async def test_what_is_held_is_lost_with_its_leader() -> None:
    rig = Rig("r1", "r2", "r3")
    await rig.start()
    rig.cell.hold()
    append = asyncio.create_task(rig.logs["r1"].append(b"a", timeout_ms=1_000))
    await turns()
    rig.cell.elect("r2")
    with pytest.raises(OutcomeUnknown):
        await append
    rig.cell.release()
    await rig.logs["r2"].append(b"b", timeout_ms=100)
    assert rig.ledgers["r2"].entries == [b"b"]


@pytest.mark.parametrize(("loss", "left"), [("committed", [b"a", b"b"]), ("dropped", [b"b"])])
async def test_an_answer_can_be_lost_with_or_without_its_entry(
    loss: str, left: list[bytes]
) -> None:
    rig = Rig("r1")
    await rig.start()
    rig.cell.lose_next(loss)  # type: ignore[arg-type]
    with pytest.raises(OutcomeUnknown):
        await rig.logs["r1"].append(b"a", timeout_ms=1_000)
    await rig.logs["r1"].append(b"b", timeout_ms=1_000)
    assert rig.ledgers["r1"].entries == left


async def test_an_append_that_takes_too_long_is_unknown_and_may_still_happen() -> None:
    rig = Rig("r1")
    await rig.start()
    rig.cell.hold()
    with pytest.raises(OutcomeUnknown, match="within 1 ms"):
        await rig.logs["r1"].append(b"a", timeout_ms=1)
    rig.cell.release()
    await rig.logs["r1"].barrier(timeout_ms=100)
    assert rig.ledgers["r1"].entries == [b"a"]


async def test_a_leader_that_believes_on_commits_nothing() -> None:
    rig = Rig("r1", "r2", "r3")
    await rig.start()
    rig.cell.isolate("r1", believes=True)
    assert rig.logs["r1"].leadership.leads
    assert rig.cell.leader == "r2"
    zombie = asyncio.create_task(rig.logs["r1"].append(b"old", timeout_ms=10_000))
    await turns()
    rig.cell.heal()
    with pytest.raises(OutcomeUnknown):
        await zombie
    await rig.logs["r2"].append(b"new", timeout_ms=100)
    await turns()
    assert rig.ledgers["r1"].entries == [b"new"]


async def test_a_committed_entry_is_answered_although_leadership_moves_on() -> None:
    rig = Rig("r1", "r2", "r3")
    await rig.start()
    append = asyncio.create_task(rig.logs["r1"].append(b"a", timeout_ms=1_000))
    await asyncio.sleep(0)
    rig.cell.elect("r2")
    assert (await append).outcome == 1


async def test_a_crash_forgets_the_state_and_a_restart_rebuilds_it_from_dump_and_log() -> None:
    rig = Rig("r1", "r2", "r3")
    await rig.start()
    await rig.logs["r1"].append(b"a", timeout_ms=100)
    position = await rig.logs["r1"].snapshot()
    await rig.logs["r1"].append(b"b", timeout_ms=100)
    rig.cell.crash("r1")
    assert rig.cell.leader == "r2"
    again = Ledger()
    log = rig.cell.log("r1", again)
    await log.start()
    assert again.entries == [b"a", b"b"]
    assert again.restored == [position]
    assert log.leadership == Leadership(2, False, "r2")


async def test_limits_are_those_of_the_engine() -> None:
    rig = Rig("r1")
    await rig.start()
    log = rig.logs["r1"]
    with pytest.raises(EntryTooBig):
        await log.append(b"x" * (ENTRY_BYTES_MAX + 1), timeout_ms=100)
    rig.cell.hold()
    waiting = [
        asyncio.create_task(log.append(b"", timeout_ms=60_000)) for _ in range(IN_FLIGHT_MAX)
    ]
    await turns()
    with pytest.raises(QueueFull):
        await log.append(b"", timeout_ms=100)
    await log.stop()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, OutcomeUnknown) for result in results)


async def test_misuse_is_told() -> None:
    with pytest.raises(InvariantViolated):
        MemoryCell(["r1", "r1"])
    cell = MemoryCell(["r1", "r2", "r3"])
    with pytest.raises(InvariantViolated):
        cell.log("r9", Ledger())
    with pytest.raises(InvariantViolated):
        cell.elect("r1")


async def test_who_was_deposed_without_knowing_has_no_leadership_to_give_away() -> None:
    rig = Rig("r1", "r2", "r3")
    await rig.start()
    rig.cell.isolate("r1", believes=True)
    rig.cell.crash("r2")
    assert rig.logs["r1"].leadership.leads
    await rig.logs["r1"].transfer()
    await turns()
    assert (rig.cell.leader, rig.cell.term) == (None, 2)
