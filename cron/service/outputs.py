"""What a launch wrote: from the executor that keeps it, else from object storage.

An object can only be verified whole. So it is fetched once, and the pieces that are asked for one
after the other come from a file; the newest few of these stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from cron.api.launches import LaunchView, OutputQuery, OutputView, ShowRequest
from cron.call_thread import CallThread
from cron.errors import Conflict, CronError, ExecutorAway, NotFound, NotNow, Unavailable
from cron.launch_state import LaunchState
from cron.service.launches import show
from cron.service.replica import Replica
from launcher.pool.errors import NotConnected, OutputUnavailable, TimedOut
from launcher.pool.pool import Pool
from launcher.protocol.names import AttemptName, format_time, parse_launch_name, short_job_name
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotError, StoreAway, StoreError
from snapshots.format import OutputHeader
from snapshots.outputs import OUTPUT_BYTES_MAX

OUTPUT_TIMEOUT_MS: Final = 5_000


async def read(replica: Replica, query: OutputQuery) -> OutputView:
    """Return a part of what a launch wrote; `store` in it says where it is from, if that is not its
    executor.

    Raises:
        NotFound: there is no such launch or part. NotNow: it has not begun, or never will.
        ExecutorAway, Conflict: nobody gives it.
    """
    views = await show(replica, ShowRequest(launch=query.launch))
    return await read_of(replica.leader.pool, replica.saving.outputs, views, query)


async def read_of(
    pool: Pool, stored: StoredOutputs | None, views: list[LaunchView], query: OutputQuery
) -> OutputView:
    """Return the same of a launch by all its attempts; `stored` is None without object storage."""
    view = _attempt_of(views, query.attempt)
    if view is None:
        raise _unbegun(views, query)
    if query.part > max(1, len(view.parts)):
        is_many = len(view.parts) > 1
        has = f"{len(view.parts)} parts" if is_many else "one part"
        hint = "`raftcron show` lists them" if is_many else "leave out the part"
        raise NotFound(f"launch {query.launch} has {has}, and no part {query.part}", hint)
    if view.parts:  # the executor of a part alone keeps what that wrote
        part = view.parts[query.part - 1]
        its = msgspec.structs.replace(view, executor=part.executor)
        return await _from_executor(pool, its, query, is_kept=part.output_bytes > 0)
    # The end of an attempt that left output: its own row, or an amendment of it.
    ends = (one for one in reversed(views) if one.attempt == view.attempt and one.output_bytes)
    ended = next(ends, None)
    try:
        given = await _from_executor(pool, view, query, is_kept=ended is not None)
        _check_known(views, view, given)
        return given
    except (ExecutorAway, Conflict) as error:
        if ended is None or stored is None:
            raise
        try:
            found = await stored.read(ended, query)
        except CronError as failure:
            raise type(failure)(f"{error}; {failure}", failure.hint) from failure
        if found is None:
            text = f"{error}; and it is not in {stored.url}"
            raise type(error)(text, error.hint) from error
        return msgspec.structs.replace(found, executor=view.executor, note=str(error))


async def _from_executor(
    pool: Pool, view: LaunchView, query: OutputQuery, *, is_kept: bool
) -> OutputView:
    session = next((one for one in pool.sessions() if one.executor == view.executor), None)
    if session is None:
        raise ExecutorAway(
            f"executor {view.executor}, which keeps the output, is not connected",
            "`raftcron status` shows it",
        )
    try:
        piece = await pool.output(
            session.executor,
            session.ledger,
            AttemptName(parse_launch_name(query.launch), view.attempt, query.part),
            offset=None if query.tail else query.offset,
            limit=query.limit,
            timeout_ms=OUTPUT_TIMEOUT_MS,
        )
    except (NotConnected, TimedOut) as error:
        raise ExecutorAway(str(error), "`raftcron status` shows it") from error
    except OutputUnavailable as error:
        raise Conflict(str(error)) from error
    if is_kept and not piece.size:
        raise Conflict(f"executor {view.executor} does not have the output any more")
    return OutputView(
        content=piece.data,
        offset=piece.offset,
        size=piece.size,
        ended=piece.ended,
        dropped=piece.dropped,
        executor=view.executor,
    )


def _unbegun(views: list[LaunchView], query: OutputQuery) -> NotNow:
    """Return why there is no output: not yet, or never."""
    what = f"launch {query.launch}"
    if query.attempt and _attempt_of(views, 0) is not None:
        what = f"attempt {query.attempt} of {what}"
    last = views[-1]
    if last.is_open:
        return NotNow(f"{what} has not begun, it has no output yet")
    state = f"{last.state} ({last.reason})" if last.reason else last.state
    text = f"{what} was never begun, it has no output: the launch is {state}"
    if last.state == LaunchState.LOST.label:
        text = f"nobody knows whether {what} was begun, there is no output: the launch is {state}"
    return NotNow(text, _why_hint(query.launch))


def _check_known(views: list[LaunchView], view: LaunchView, found: OutputView) -> None:
    """Raise where nothing of a lost attempt is found, and no late report says that it wrote none.

    Raises:
        Conflict: it is not known what it wrote.
    """
    is_amended = any(one.attempt == view.attempt and one.kind == "amendment" for one in views)
    is_lost = view.state == LaunchState.LOST.label and not is_amended
    if is_lost and not (found.size or found.dropped):
        raise Conflict(
            f"launch {view.launch} was lost, and executor {view.executor} has no output of it: "
            "whether it printed anything nobody knows",
            _why_hint(view.launch),
        )


def _why_hint(launch: str) -> str:
    name = parse_launch_name(launch)
    return f"`raftcron why {short_job_name(name.job)} {format_time(name.scheduled_s)}` tells more"


def _attempt_of(views: list[LaunchView], attempt: int) -> LaunchView | None:
    """Return the newest attempt that began on an executor, or that one."""
    begun = [view for view in views if view.executor and view.kind == "launch"]
    return next((view for view in reversed(begun) if attempt in (0, view.attempt)), None)


FETCHED_MAX: Final = 4
BYTES_MAX_MIN: Final = 1 << 20
"""Of more than twice what its row says nothing is fetched, but so much always."""
FETCH_TIMEOUT_S: Final = 20.0
"""A client waits for so long; the fetch goes on, and the next one who asks may find it done."""


_Key = tuple[int, str, int]  # when it ended, launch, attempt


class StoredOutputs:
    """What `backup_store` has of outputs; those that are read are kept below `folder`."""

    def __init__(self, backup_store: BackupStore, folder: Path) -> None:
        self._backup_store = backup_store
        self._folder = folder
        self._call_thread = CallThread("output-reads")
        self._fetched: OrderedDict[_Key, tuple[Path, OutputHeader]] = OrderedDict()
        self._count = 0

    @property
    def url(self) -> str:
        """Where they are."""
        return self._backup_store.store.url

    def close(self) -> None:
        """End the thread."""
        self._call_thread.close()

    async def read(self, ended: LaunchView, query: OutputQuery) -> OutputView | None:
        """Return the part of an output that `query` asks for, of an attempt by its end; None if it
        is not in the store.

        Raises:
            Unavailable: the store does not answer now. Conflict: it refuses, or it is damaged.
        """
        key = (ended.ended_at_ms, query.launch, ended.attempt)
        bytes_max = min(max(2 * ended.output_bytes, BYTES_MAX_MIN), OUTPUT_BYTES_MAX)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await self._call_thread.work(partial(self._read, key, query, bytes_max))
        except TimeoutError as error:
            text = f"{self.url} did not give the output within {FETCH_TIMEOUT_S:.0f} s"
            raise Unavailable(text, "try again in a while") from error
        except StoreAway as error:
            raise Unavailable(str(error), error.hint) from error
        except (StoreError, SnapshotError) as error:
            raise Conflict(str(error), error.hint) from error
        except OSError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}", "look at the disk") from error

    # ---- in the thread

    def _read(self, key: _Key, query: OutputQuery, bytes_max: int) -> OutputView | None:
        found = self._fetched.get(key) or self._fetch(key, bytes_max)
        if found is None:
            return None
        self._fetched.move_to_end(key)
        path, header = found
        dropped, end = header.dropped, header.dropped + header.size
        begin = max(dropped, end - query.limit) if query.tail else query.offset
        begin = min(max(begin, dropped), end)
        with path.open("rb") as file:
            file.seek(begin - dropped)
            data = file.read(query.limit)
        is_all = begin + len(data) >= end
        return OutputView(
            content=data,
            offset=begin,
            size=header.size,
            ended=is_all,
            dropped=dropped,
            store=self.url,
        )

    def _fetch(self, key: _Key, bytes_max: int) -> tuple[Path, OutputHeader] | None:
        if not self._count:
            shutil.rmtree(self._folder, ignore_errors=True)  # of an earlier life of this process
        self._count += 1
        path = self._folder / f"{self._count}"
        header = self._backup_store.fetch_output(*key, path, bytes_max)
        if header is None:
            return None
        while len(self._fetched) >= FETCHED_MAX:
            _, (old, _) = self._fetched.popitem(last=False)
            old.unlink(missing_ok=True)
        self._fetched[key] = path, header
        return path, header
