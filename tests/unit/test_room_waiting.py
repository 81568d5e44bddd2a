"""A replica that waits for room tells the others, and gives up in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consensus.errors import DiskFull
from cron import endings
from cron.api.listening import answering
from cron.api.members import StatusRow
from cron.api.peers import Peers
from cron.room import with_room
from cron.service.members import with_leader
from tests.fakes.ports import free_address
from tests.unit.api_rig import run_cli

FULL = DiskFull("/data/raft", "12 bytes are free, at least 16777216 are needed")
ROW = StatusRow(kind="replica", id="r2", role="waiting", note=str(FULL), wall_ms=7)


async def test_its_client_port_answers_the_other_replicas() -> None:
    address, peers = free_address(), Peers(None)
    try:
        async with answering("default", address, None, lambda: ROW):
            assert await peers.peer_status(address, 20_000) == ROW
    finally:
        await peers.close()


async def test_where_all_disks_are_full_a_trigger_says_so() -> None:
    address = free_address()
    async with answering("default", address, None, lambda: ROW):
        result = await run_cli("trigger", "backup", "--timeout", "1s", server=address)
        told = await run_cli("status", server=address)
    assert result.exit_code == 5
    assert result.stderr.splitlines() == [
        f"raftcron: r2 {ROW.note}: the change did not happen",
        "  hint: make room there; it goes on by itself then",
    ]
    assert told.exit_code == 1
    assert ROW.note in told.stdout.splitlines()[-1]


def test_status_keeps_what_it_waits_for_and_does_not_count_it_as_one_that_votes() -> None:
    follower = StatusRow(kind="replica", id="r1", role="follower")
    away = StatusRow(kind="replica", id="r3", role="unreachable")
    rows = with_leader([follower, ROW, away])
    assert rows[1] == ROW
    assert "1 of 3 replicas answers" in rows[0].note


async def test_it_gives_up_with_the_exit_code_of_a_full_disk_and_the_text() -> None:
    notes: list[str] = []

    @contextlib.asynccontextmanager
    async def told(note: str) -> AsyncIterator[None]:
        notes.append(note)
        yield

    async def start() -> None:
        raise FULL

    with pytest.raises(DiskFull) as ended:
        await with_room(
            start,
            Path("/data"),
            asyncio.Event(),
            room=lambda folder: 12,
            look_s=0.001,
            give_up_s=0.01,
            answering=told,
        )
    assert endings.exit_code(ended.value, is_start=True) == endings.DISK_FULL
    assert "16777216" in str(ended.value)
    assert ["waits for room on its disk" in note for note in notes] == [True]
