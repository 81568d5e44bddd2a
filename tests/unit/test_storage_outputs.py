"""The leader and outputs: who may store what, by which URL, and what the leader stores itself."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from cron.launch_state import LaunchState
from cron.state.archive import History, SegmentRecord
from cron.state.rows import Part, Row, RowKind
from cron.storage import outputs as module
from cron.storage.outputs import (
    ANSWERS_MAX,
    PULLS_MAX,
    SLICE_BYTES,
    VALID_S,
    Outputs,
    OutputSettings,
)
from cron.storage.uploader import Trouble
from launcher.protocol.names import LaunchName, parse_attempt_name
from launcher.protocol.reports import OfferedOutput
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotError
from snapshots.format import OutputHeader
from snapshots.layout import output_object
from snapshots.store import SignedPut
from tests.fakes.memory_store import MemoryStore
from tests.fakes.packed_output import packed_output, put_output
from tests.unit.backup_rig import CELL, Clocks
from tests.unit.outputs_rig import FakeExecutors

JOB = "default/backup"
SCHEDULED_S = 1_795_219_200
AT_MS = SCHEDULED_S * 1000 + 5
DAY_MS = 86_400_000
NAME = parse_attempt_name("default/backup@2026-11-21T00:00:00Z#1")
LAUNCH = str(NAME.launch)
CONTENT = b"printed"
OBJECT = output_object(CELL, AT_MS, LAUNCH, 1)
SECRET = "X-Amz-Signature=5ec7e7"


class SigningStore(MemoryStore):
    """A store that signs URLs."""

    def __init__(self) -> None:
        super().__init__()
        self.signed: list[tuple[str, int, bytes, int]] = []

    def sign_put(self, name: str, size: int, sha256: bytes, valid_s: int) -> Any:
        self._call("sign", name)
        self.signed.append((name, size, sha256, valid_s))
        return SignedPut(f"https://store/{name}?{SECRET}", {"x-amz-checksum-sha256": "abc="})


class Ends:
    """A history of these rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.gate: asyncio.Event | None = None
        self.missing: list[SegmentRecord] = []

    def is_here(self, record: SegmentRecord) -> bool:
        return record not in self.missing

    async def of_launch(self, launch: LaunchName) -> list[Row]:
        assert launch == NAME.launch
        if self.gate is not None:
            await self.gate.wait()
        return self.rows


class Rig:
    """The outputs of one replica that leads."""

    def __init__(self, folder: Path, store: MemoryStore, keep_ms: int = 0) -> None:
        self.store, self.clock, self.ends = store, Clocks(), Ends()
        self.backup_store = BackupStore(store, CELL)
        self.pool = FakeExecutors()
        self.state = SimpleNamespace(is_resolving=False, history=History())
        self.leader = SimpleNamespace(
            epoch=Epoch(1, 1, "r1"), pool=self.pool, now_ms=lambda: self.clock.ms
        )
        self.may_store = True
        self.folder = folder / "outputs"
        applier: Any = SimpleNamespace(state=self.state)
        leader: Any = self.leader
        self.outputs = Outputs(
            leader, applier, self.ends, self.clock, self.backup_store,
            OutputSettings(keep_ms, self.folder), lambda: self.may_store,
        )  # fmt: skip

    def end(self, **fields: Any) -> None:
        """The attempt has ended on e1, and printed something."""
        row = Row(
            RowKind.ENDED, JOB, 1, SCHEDULED_S, 0, 1, LaunchState.SUCCEEDED, Reason.NONE, 7, AT_MS,
            executor="e1", output_bytes=len(CONTENT),
        )  # fmt: skip
        self.ends.rows.append(msgspec.structs.replace(row, **fields))

    def packed(self, content: bytes = CONTENT) -> OfferedOutput:
        """Let e1 have packed the attempt's output."""
        header = OutputHeader(CELL, LAUNCH, 1, len(content), 0)
        made = self.pool.packed[str(NAME)] = packed_output(header, [content])
        return OfferedOutput(NAME, len(made), hashlib.sha256(made).digest())

    async def offer(self, kept: OfferedOutput, executor: str = "e1") -> pool_pb2.OutputPlace:
        """Return what an executor is told."""
        self.outputs.offered(executor, f"ledger-{executor}", kept)
        await self.settle()
        told, place = self.pool.places.pop()
        assert (told, place.name, self.pool.places) == (executor, str(kept.name), [])
        return place

    async def settle(self) -> None:
        while tasks := list(self.outputs._answers.values()):
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    async def files(self) -> list[str]:
        """Return the names of what was pulled and is still there, once nothing is under way."""
        await self.outputs._call_thread.work(lambda: None)
        return [path.name for path in self.folder.iterdir()]


@asynccontextmanager
async def leading(
    folder: Path, store: MemoryStore | None = None, keep_ms: int = 0
) -> AsyncIterator[Rig]:
    rig = Rig(folder, store or MemoryStore(), keep_ms)
    try:
        yield rig
    finally:
        rig.outputs.close()
        await asyncio.gather(*rig.outputs._answers.values(), return_exceptions=True)


# --- a store that signs


async def test_the_executor_gets_a_url_for_this_object_alone(tmp_path: Path) -> None:
    store = SigningStore()
    async with leading(tmp_path, store) as rig:
        rig.end()
        kept = rig.packed()
        with structlog.testing.capture_logs() as logs:
            place = await rig.offer(kept)
        assert place.placing == pool_pb2.PLACING_PUT
        assert place.url == f"https://store/{OBJECT}?{SECRET}"
        assert dict(place.headers) == {"x-amz-checksum-sha256": "abc="}
        assert store.signed == [(OBJECT, kept.size, kept.sha256, VALID_S)]
        assert rig.pool.asked == [], "nothing of it passes through the leader"
        assert store.objects == {}
        assert SECRET not in str(logs)


async def test_a_url_is_valid_for_as_long_as_s3_bears_that_a_clock_is_wrong(tmp_path: Path) -> None:
    store = SigningStore()
    async with leading(tmp_path, store) as rig:
        rig.end()
        await rig.offer(rig.packed())
        [(_, _, _, valid_s)] = store.signed
        assert valid_s >= 15 * 60, "a leader whose clock is late signs URLs that are old"


async def test_late_report_of_a_lost_attempt_is_enough_from_its_executor(tmp_path: Path) -> None:
    async with leading(tmp_path, SigningStore()) as rig:
        rig.end(state=LaunchState.LOST, output_bytes=0)
        rig.end(kind=RowKind.AMENDMENT, executor="", ended_at_ms=AT_MS + 9)
        assert (await rig.offer(rig.packed())).placing == pool_pb2.PLACING_PUT
        assert (await rig.offer(rig.packed(), "e2")).placing == pool_pb2.PLACING_NEVER


NOT_ITS = [
    ({"executor": "e2"}, pool_pb2.PLACING_NEVER, "another executor had it"),
    ({"executor": ""}, pool_pb2.PLACING_NEVER, "another executor had it"),
    ({"attempt": 2}, pool_pb2.PLACING_NEVER, "does not know what it wrote"),
    ({"output_bytes": 0}, pool_pb2.PLACING_NEVER, "does not know what it wrote"),
    (
        {"parts": 2 * (Part(1, LaunchState.SUCCEEDED, name="e1", ledger="l"),)},
        pool_pb2.PLACING_NEVER,
        "",
    ),
]


@pytest.mark.parametrize(("fields", "placing", "why"), NOT_ITS)
async def test_an_executor_stores_only_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], placing: int, why: str
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0)
    store = SigningStore()
    async with leading(tmp_path, store) as rig:
        rig.end(**fields)
        place = await rig.offer(rig.packed())
        assert place.placing == placing
        assert why in place.reason
        assert (place.url, store.signed) == ("", [])


async def test_an_offer_is_answered_once_the_end_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0)
    monkeypatch.setattr(module, "LOOKS_MAX", 1 << 62)
    async with leading(tmp_path, SigningStore()) as rig:
        kept = rig.packed()
        rig.outputs.offered("e1", "ledger-e1", kept)
        for _ in range(9):
            await asyncio.sleep(0)
        assert rig.pool.places == []
        rig.end()
        await rig.settle()
        [(_, place)] = rig.pool.places
        assert place.placing == pool_pb2.PLACING_PUT


@pytest.mark.parametrize(
    ("is_missing", "is_local", "first_s", "placing"),
    [
        (True, True, SCHEDULED_S, pool_pb2.PLACING_LATER),
        (False, True, SCHEDULED_S, pool_pb2.PLACING_NEVER),
        (True, False, SCHEDULED_S, pool_pb2.PLACING_NEVER),  # this replica will not fetch it
        (True, True, SCHEDULED_S + 1, pool_pb2.PLACING_NEVER),
    ],
)
async def test_an_output_is_kept_until_the_leader_has_the_history_of_its_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_missing: bool,
    is_local: bool,
    first_s: int,
    placing: int,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0)
    async with leading(tmp_path, SigningStore()) as rig:
        record = SegmentRecord(
            1, 1, 0, 0, 9, 1, 100, bytes(32), first_s, SCHEDULED_S + 9, AT_MS, is_local
        )
        rig.state.history.segments[record.key] = record
        rig.ends.missing = [record] if is_missing else []
        assert (await rig.offer(rig.packed())).placing == placing
        rig.end()  # the segment was fetched
        assert (await rig.offer(rig.packed())).placing == pool_pb2.PLACING_PUT


async def test_more_than_the_attempt_wrote_is_not_stored(tmp_path: Path) -> None:
    store = SigningStore()
    async with leading(tmp_path, store) as rig:
        rig.end()
        place = await rig.offer(OfferedOutput(NAME, 1 << 20, bytes(32)))
        assert place.placing == pool_pb2.PLACING_NEVER
        assert store.signed == []


@pytest.mark.parametrize("why", ["resolving", "no place", "away"])
async def test_while_nothing_can_be_stored_the_executor_keeps_it(tmp_path: Path, why: str) -> None:
    store = SigningStore()
    async with leading(tmp_path, store) as rig:
        rig.end()
        rig.state.is_resolving = why == "resolving"
        rig.may_store = why != "no place"
        store.away = "connection refused" if why == "away" else ""
        assert (await rig.offer(rig.packed())).placing == pool_pb2.PLACING_LATER
        if why == "away":
            assert "connection refused" in rig.outputs.status()[1].text
        store.away = ""
        rig.state.is_resolving, rig.may_store = False, True
        assert (await rig.offer(rig.packed())).placing == pool_pb2.PLACING_PUT
        assert rig.outputs.status()[1].text == ""


async def test_an_offer_that_is_repeated_is_answered_once(tmp_path: Path) -> None:
    async with leading(tmp_path, SigningStore()) as rig:
        rig.end()
        kept, rig.ends.gate = rig.packed(), asyncio.Event()
        for _ in range(3):
            rig.outputs.offered("e1", "ledger-e1", kept)
        rig.ends.gate.set()
        await rig.settle()
        assert len(rig.pool.places) == 1


async def test_more_offers_than_the_leader_looks_at_are_put_off(tmp_path: Path) -> None:
    async with leading(tmp_path, SigningStore()) as rig:
        rig.ends.gate = asyncio.Event()
        for number in range(ANSWERS_MAX + 2):
            rig.outputs.offered("e1", "ledger-e1", OfferedOutput(NAME, 1 + number, bytes(32)))
        assert [place.placing for _, place in rig.pool.places] == [pool_pb2.PLACING_LATER] * 2
        assert len(rig.outputs._answers) == ANSWERS_MAX


# --- a store that only the leader can write


async def test_the_leader_stores_what_it_pulls(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        content = bytes(n * n % 251 for n in range(3 * SLICE_BYTES))
        rig.end(output_bytes=len(content))
        kept = rig.packed(content)
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_STORED
        assert rig.store.objects[OBJECT] == rig.pool.packed[str(NAME)]
        offsets = [offset for _, _, offset in rig.pool.asked]
        assert offsets == list(range(0, kept.size, SLICE_BYTES))
        assert await rig.files() == []


async def test_a_pull_that_fails_leaves_no_file(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        content = hashlib.shake_256().digest(2 * SLICE_BYTES)
        rig.end(output_bytes=len(content))
        kept = rig.packed(content)
        rig.pool.after_slice = lambda _count: rig.pool.connected.clear()
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_LATER
        assert len(rig.pool.asked) == 2, "one slice came"
        assert await rig.files() == []


async def test_what_a_crash_left_of_pulls_is_removed_at_the_start(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        (rig.folder / "1.pulled").write_bytes(b"half")
    async with leading(tmp_path) as rig:
        assert await rig.files() == []


async def test_another_object_than_was_offered_is_not_stored(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        rig.end()
        kept = rig.packed()
        rig.pool.packed[str(NAME)] = bytes(kept.size)
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_LATER
        rig.pool.packed[str(NAME)] = bytes(kept.size + 1)
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_LATER
        assert (rig.store.objects, await rig.files()) == ({}, [])


async def test_an_executor_that_dies_meanwhile_costs_nothing(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        rig.end()
        kept = rig.packed()
        rig.pool.connected.clear()
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_LATER
        rig.pool.connected.add("e1")
        assert rig.outputs.status()[1].text == ""
        rig.pool.failing["e1"] = "input/output error"
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_LATER
        assert "e1 does not send its output: input/output error" in rig.outputs.status()[1].text
        rig.pool.failing.clear()
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_STORED
        assert rig.outputs.status()[1].text == ""


async def test_a_store_that_refuses_is_told_of_and_tried_again(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        rig.end()
        kept = rig.packed()
        rig.store.refused = "no permission"
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_LATER
        trouble = rig.outputs.status()[1]
        assert "no permission" in trouble.text
        rig.clock.ms += 5_000
        assert rig.outputs.status()[1] == trouble, "since then"
        rig.store.refused = ""
        assert (await rig.offer(kept)).placing == pool_pb2.PLACING_STORED
        assert rig.outputs.status()[1].text == ""


async def test_a_few_are_pulled_at_once(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        rig.end()
        kept = rig.packed()
        rig.pool.hanging.add("e1")
        for n in range(PULLS_MAX + 1):
            rig.outputs.offered(
                "e1", "ledger-e1", msgspec.structs.replace(kept, size=kept.size - n)
            )
        async with asyncio.timeout(60):
            while not rig.pool.places:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)
        ((_, place),) = rig.pool.places
        assert (place.placing, place.reason) == (pool_pb2.PLACING_LATER, "the leader is busy")
        rig.pool.released.set()
        await rig.settle()
        assert OBJECT in rig.store.objects


# --- what people see


async def test_what_waits_and_what_fails_is_what_executors_say(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        rig.pool.connected |= {"e2"}
        rig.pool.waiting = {"e1": 3, "e2": 4}
        assert rig.outputs.status() == (7, Trouble())
        rig.pool.problems = {"e2": "store.example answers 403 AccessDenied"}
        trouble = rig.outputs.status()[1]
        assert trouble.since_ms == rig.clock.ms
        assert trouble.text == (
            "executor e2 cannot store outputs: store.example answers 403 AccessDenied"
        )
        rig.pool.waiting["e2"] = 0
        assert rig.outputs.status()[1].text == ""


# --- retention


async def test_outputs_of_days_that_are_over_their_time_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(tmp_path, keep_ms=2 * DAY_MS) as rig:
        monkeypatch.setattr(module, "PRUNED_AT_ONCE", 2)
        rig.clock.ms = AT_MS
        for attempt in range(1, 4):
            header = OutputHeader(CELL, LAUNCH, attempt, len(CONTENT), 0)
            put_output(rig.backup_store, AT_MS - 4 * DAY_MS, header, CONTENT)
        put_output(rig.backup_store, AT_MS, OutputHeader(CELL, LAUNCH, 1, len(CONTENT), 0), CONTENT)
        rig.may_store = False
        await rig.outputs.prune()
        assert len(rig.store.objects) == 4
        rig.may_store = True
        await rig.outputs.prune()
        assert len(rig.store.objects) == 2, "so many at once"
        await rig.outputs.prune()
        assert list(rig.store.objects) == [OBJECT]
        rig.store.calls.clear()
        await rig.outputs.prune()
        assert rig.store.calls == [], "once a day"
        rig.clock.ms += 3 * DAY_MS
        rig.store.refused = "may not delete"
        await rig.outputs.prune()
        assert "outputs are not deleted" in rig.outputs.status()[1].text
        rig.store.refused = ""
        await rig.outputs.prune()
        assert rig.store.objects == {}


@pytest.mark.parametrize("error", [OSError("no room"), SnapshotError("a.out", "damaged")])
async def test_no_error_of_a_store_ends_retention(tmp_path: Path, error: Exception) -> None:
    async with leading(tmp_path, keep_ms=DAY_MS) as rig:
        put_output(rig.backup_store, 0, OutputHeader(CELL, LAUNCH, 1, len(CONTENT), 0), CONTENT)

        def fail(_operation: str, _name: str) -> None:
            raise error

        rig.store.hook = fail
        await rig.outputs.prune()
        assert str(error) in rig.outputs.status()[1].text
        rig.store.hook = lambda _operation, _name: None
        await rig.outputs.prune()
        assert rig.store.objects == {}


async def test_without_a_time_outputs_stay(tmp_path: Path) -> None:
    async with leading(tmp_path) as rig:
        put_output(rig.backup_store, 0, OutputHeader(CELL, LAUNCH, 1, len(CONTENT), 0), CONTENT)
        await rig.outputs.prune()
        assert len(rig.store.objects) == 1
