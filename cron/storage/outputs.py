"""The leader's part in storing the output of launches: it decides which executor may store which
object.

Executors offer packed outputs (`launcher.executor.uploads`). The leader checks that the executor
had the attempt, and how much the attempt printed. If the store can sign URLs, the leader answers
with a URL for that object, its length and its checksum; the output does not pass through the
leader. Other stores (`file://`) accept only the leader, which then fetches the packed object and
stores it. The leader keeps no list: an executor keeps its outputs until they are stored, and offers
them again, to this leader or the next.

A URL is a secret: the leader sends it to its executor only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from cron.call_thread import CallThread
from cron.clock import Clock
from cron.errors import CronError, Shutdown
from cron.failpoints import hit
from cron.state.archive import SegmentRecord
from cron.state.rows import Row
from cron.storage.leading import Applier, Leader
from cron.storage.uploader import Trouble
from launcher.pool.errors import NotConnected, OutputUnavailable, TimedOut
from launcher.pool.pool import Pool
from launcher.protocol.names import LaunchName
from launcher.protocol.reports import OfferedOutput
from launcher.protocol.v1 import pool_pb2
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotError, StoreError
from snapshots.outputs import PackedOutput, packed_bytes_max

_log = structlog.get_logger()

VALID_S: Final = 900
"""How long an upload may begin with a URL, by the leader's clock. S3 accepts no larger error of a
clock. The URL permits only that one object."""
PULLS_MAX: Final = 4
"""Objects that the leader fetches at once; it stores one at a time."""
ANSWERS_MAX: Final = 256
"""Offers that are examined at once; executors repeat the others."""
SLICE_BYTES: Final = 256 << 10
"""The size of a piece: other messages of the executor wait for it, a few milliseconds."""
SLICE_TIMEOUT_MS: Final = 5_000
LOOKS_MAX: Final = 50
LOOK_S: Final = 1.0
"""How often, and how far apart, the leader looks for an end that was reported just now. Executors
wait for an answer for 60 s."""
_OTHER: Final = "it is not what was offered"
DAY_MS: Final = 86_400_000
PRUNE_S: Final = 60.0
"""How often the leader checks whether the outputs of another day are due for deletion."""
PRUNED_AT_ONCE: Final = 10_000


class OutputSettings(msgspec.Struct, frozen=True):
    """`keep_ms`: outputs are deleted so long after the day of their end, 0 for never. `folder` is
    for objects that the leader fetches.
    """

    keep_ms: int = 0
    folder: Path = Path("outputs")


class OutputLeader(Leader, Protocol):
    """A leader with a pool of executors."""

    @property
    def pool(self) -> Pool:
        """The connected executors."""


class Ends(Protocol):
    """The part of history that knows the ends of attempts."""

    async def of_launch(self, launch: LaunchName) -> list[Row]:
        """Return all rows of a launch, in log order."""

    def is_here(self, record: SegmentRecord) -> bool:
        """Return whether the rows of a segment are on this replica."""


class Outputs:
    """Stores outputs for one replica while it leads. `may_store` returns whether the place in the
    store is this cell's, and the store answers.
    """

    def __init__(
        self,
        leader: OutputLeader,
        applier: Applier,
        ends: Ends,
        clock: Clock,
        backup_store: BackupStore,
        settings: OutputSettings,
        may_store: Callable[[], bool],
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._ends = ends
        self._clock = clock
        self._backup_store = backup_store
        self._settings = settings
        self._may_store = may_store
        self._call_thread = CallThread("outputs")
        self._free = [settings.folder / f"{n}.pulled" for n in range(PULLS_MAX)]
        self._answers: dict[tuple[str, OfferedOutput], asyncio.Task[None]] = {}
        self._trouble = Trouble()
        self._failed = ""
        self._pruned_day = -1
        settings.folder.mkdir(parents=True, exist_ok=True)
        for path in settings.folder.glob("*.pulled"):  # a replica was killed while it pulled
            path.unlink()

    async def run(self) -> None:
        """Delete outputs that are due for deletion, until cancelled."""
        try:
            while True:
                await asyncio.sleep(PRUNE_S)
                await self.prune()
        finally:
            self.close()

    def close(self) -> None:
        """End the thread; do not wait for a call in progress. Idempotent."""
        for task in self._answers.values():
            task.cancel()
        self._call_thread.close()

    def status(self) -> tuple[int, Trouble]:
        """Return how many outputs the connected executors have yet to store, and since when and why
        outputs cannot be stored.
        """
        waiting, executor, problem = self._leader.pool.outputs_waiting()
        text = f"executor {executor} cannot store outputs: {problem}" if problem else ""
        text = self._failed or text
        if not text:
            self._trouble = Trouble()
        elif text != self._trouble.text:
            self._trouble = Trouble(self._trouble.since_ms or self._clock.wall_ms(), text)
        return waiting, self._trouble

    # ---- offers

    def offered(self, executor: str, ledger: str, kept: OfferedOutput) -> None:
        """Answer the offer of an output in a task of its own; return at once."""
        key = (executor, kept)
        if key in self._answers:
            return
        if len(self._answers) >= ANSWERS_MAX:
            self._leader.pool.place_output(executor, ledger, _later(kept, "the leader is busy"))
            return
        task = asyncio.create_task(self._answer(executor, ledger, kept), name="output")
        self._answers[key] = task
        task.add_done_callback(lambda _: self._answers.pop(key, None))

    async def _answer(self, executor: str, ledger: str, kept: OfferedOutput) -> None:
        """Answer an offer; the executor repeats it if the answer does not reach it."""
        try:
            place = await self._place(executor, ledger, kept)
        except Shutdown:
            return
        except NotConnected as error:
            place = _later(kept, str(error))
        except (TimedOut, OutputUnavailable) as error:
            self._fail(f"executor {executor} does not send its output: {error}")
            place = _later(kept, str(error))
        except (CronError, StoreError, SnapshotError, OSError) as error:
            self._fail(str(error))
            place = _later(kept, "the store takes none now")
        self._leader.pool.place_output(executor, ledger, place)

    async def _place(self, executor: str, ledger: str, kept: OfferedOutput) -> pool_pb2.OutputPlace:
        """Return where an executor is to put an output, that it is stored, or why it is not.

        Raises:
            StoreError, SnapshotError, OSError: the store fails. NotConnected, TimedOut,
                OutputUnavailable: the executor does.
        """
        if self._applier.state.is_resolving or not self._may_store():
            return _later(kept, "object storage takes no outputs now")
        place = pool_pb2.OutputPlace(name=str(kept.name), placing=pool_pb2.PLACING_NEVER)
        ended = await self._end_of(executor, kept)
        if ended is None:
            return _later(kept, "the leader does not have all history of that time yet")
        if isinstance(ended, str):
            place.reason = ended
            return place
        backup_store = self._backup_store
        where = (ended.ended_at_ms, str(kept.name.launch), kept.name.attempt)
        packed = PackedOutput(kept.size, kept.sha256)
        signed = await self._call_thread.work(
            partial(backup_store.sign_output, *where, packed, VALID_S)
        )
        if signed is not None:
            place.placing, place.url = pool_pb2.PLACING_PUT, signed.url
            place.headers.update(signed.headers)
        elif self._free:
            path = self._free.pop()
            try:
                await self._pull(path, executor, ledger, kept)
                await self._call_thread.work(partial(backup_store.put_output, *where, path))
            finally:
                self._call_thread.leave(partial(path.unlink, missing_ok=True))
                self._free.append(path)
            hit("output-stored")
            place.placing = pool_pb2.PLACING_STORED
        else:
            return _later(kept, "the leader is busy")
        self._failed = ""
        return place

    async def _end_of(self, executor: str, kept: OfferedOutput) -> Row | str | None:
        """Return the end of the attempt whose output an executor offers, or why that output is
        never stored ("" if that is as usual). Waits for an end that is not in the log yet. None if
        the end may be in a segment that this replica has yet to fetch."""
        rows: list[Row] = []
        for _ in range(LOOKS_MAX):
            rows = await self._ends.of_launch(kept.name.launch)
            rows = [row for row in rows if row.attempt == kept.name.attempt]
            if any(row.output_bytes for row in rows):
                break
            at_s, history = kept.name.launch.scheduled_s, self._applier.state.history
            if any(
                one.is_local and one.first_s <= at_s <= one.last_s and not self._ends.is_here(one)
                for one in history.segments.values()
            ):
                return None
            await asyncio.sleep(LOOK_S)
        ended = next((row for row in reversed(rows) if row.output_bytes), None)
        if ended is None:
            return "the leader does not know what it wrote"
        # An amendment of a lost attempt does not name its executor; the attempt's own row does.
        if executor not in {ended.executor, *(row.executor for row in rows if not ended.executor)}:
            return "another executor had it"
        if ended.parts or kept.name.part != 1:
            return ""  # of several parts none is stored
        if kept.size > packed_bytes_max(ended.output_bytes):
            return f"its {kept.size} bytes are more than it wrote"
        return ended

    async def _pull(self, path: Path, executor: str, ledger: str, kept: OfferedOutput) -> None:
        """Fetch a packed output into the file `path`.

        Raises:
            NotConnected, TimedOut, OutputUnavailable: the executor does not send it, or sends
                another object than it offered.
        """
        digest, done = hashlib.sha256(), 0
        while done < kept.size:
            piece = await self._leader.pool.output(
                executor, ledger, kept.name,
                offset=done, limit=SLICE_BYTES, timeout_ms=SLICE_TIMEOUT_MS, packed=True,
            )  # fmt: skip
            if (piece.offset, piece.size) != (done, kept.size) or not piece.data:
                raise OutputUnavailable(_OTHER)
            digest.update(piece.data)
            await self._call_thread.work(partial(_append, path, piece.data, is_first=not done))
            done += len(piece.data)
        if digest.digest() != kept.sha256:
            raise OutputUnavailable(_OTHER)

    # ---- retention

    async def prune(self) -> None:
        """Delete the outputs of whole days that are due for deletion."""
        before_ms = self._leader.now_ms() - self._settings.keep_ms
        is_due = self._settings.keep_ms and before_ms // DAY_MS > self._pruned_day
        if not is_due or self._leader.epoch is None or not self._may_store():
            return
        prune = partial(self._backup_store.prune_outputs, before_ms, PRUNED_AT_ONCE)
        try:
            count = await self._call_thread.work(prune)
        except Shutdown:
            return
        except (CronError, StoreError, SnapshotError, OSError) as error:
            self._fail(f"outputs are not deleted: {error}")
            return
        self._failed = ""
        if count < PRUNED_AT_ONCE:  # else the rest goes with the next look
            self._pruned_day = before_ms // DAY_MS
        if count:
            _log.info("outputs.pruned", count=count)

    def _fail(self, text: str) -> None:
        if text != self._failed:
            _log.warning("outputs.failed", error=text)
        self._failed = text


def _later(kept: OfferedOutput, reason: str) -> pool_pb2.OutputPlace:
    """Return the answer that an executor is to offer this output again."""
    return pool_pb2.OutputPlace(name=str(kept.name), placing=pool_pb2.PLACING_LATER, reason=reason)


def _append(path: Path, data: bytes, *, is_first: bool) -> None:
    with path.open("wb" if is_first else "ab") as file:
        file.write(data)
