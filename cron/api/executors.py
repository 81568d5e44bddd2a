"""Executors: what is shown of them, and how they are drained."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api.checks import ExecutorId, Person, bound
from cron.api.launches import LaunchView
from cron.api.rpc import Request, View

RUNS_MAX: Final = 1_000
"""Open launches of one executor that one request shows."""


class GroupView(View, frozen=True, kw_only=True):
    """Worker processes of an executor that share their slots, and the handlers they serve.

    `open` launches were begun there and are not over; only in ExecutorDetail.
    """

    group: str
    slots: int = 0
    handlers: list[str] = []
    open: int = 0


class ExecutorView(View, frozen=True, kw_only=True):
    """An executor, as the leader sees it.

    `role` is connected or in-doubt; left, where one is drained that was drained before and is gone.
    `open` launches were begun there and are not over, `running` is what it last said that it runs.
    `labels` are `name=value`. `silent_ms` is since it was heard. `gets_work`: it is leased, its
    clock is right, and it is not drained. `note` says why not. `incarnation` is of its process,
    `joined_ms` when the log last let it in. `certificate_ends_ms` is when the certificate of a
    connected one ends; 0 without one.
    """

    id: str
    role: str = ""
    host: str = ""
    address: str = ""
    pid: int = 0
    version: str = ""
    slots: int = 0
    open: int = 0
    running: int = 0
    labels: list[str] = []
    groups: list[GroupView] = []
    cpu_milli: int = 0
    memory_bytes: int = 0
    silent_ms: int | None = None
    clock_offset_ms: int | None = None
    connected_since_ms: int = 0
    drained_by: str = ""
    drained_ms: int = 0
    gets_work: bool = False
    ledger: str = ""
    note: str = ""
    incarnation: str = ""
    joined_ms: int = 0
    certificate_ends_ms: int = 0


class DuplicateIdView(View, frozen=True, kw_only=True):
    """A process that was refused because another one has its id.

    That was last `ago_ms` ago, and `times` in all. `held_by` says which process has the id.
    """

    executor: str
    host: str = ""
    pid: int = 0
    address: str = ""
    held_by: str = ""
    ago_ms: int = 0
    times: int = 0


class ExecutorsReport(View, frozen=True, kw_only=True):
    """All executors, by id, and the processes that were refused because another one has their
    id."""

    executors: list[ExecutorView] = []
    duplicate_ids: list[DuplicateIdView] = []


class ExecutorQuery(Request, frozen=True, kw_only=True):
    """An executor that is asked about, and how many of its launches are to be shown."""

    executor: ExecutorId
    limit: Annotated[int, bound(1, RUNS_MAX, "limit")] = 20


class ExecutorDetail(View, frozen=True, kw_only=True):
    """One executor with one ledger, and the attempts and parts that are open there, those that
    began first.

    `commands` of the open launches are commands, for which it has `slots`; the others are counted
    in their groups.
    """

    executor: ExecutorView
    commands: int = 0
    runs: list[LaunchView] = []


class ExecutorReport(View, frozen=True, kw_only=True):
    """What there is of one id, the connected one first, as of `now_ms`."""

    details: list[ExecutorDetail] = []
    duplicate_ids: list[DuplicateIdView] = []
    now_ms: int = 0


class DrainRequest(Request, frozen=True, kw_only=True):
    """An executor that is to get no more work, or work again where `is_over`."""

    executor: ExecutorId
    is_over: bool = False
    by: Person = ""
