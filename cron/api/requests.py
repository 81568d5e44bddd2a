"""Requests as they come from outside, made into checked ones; what is wrong raises InvalidInput."""

from __future__ import annotations

from typing import Any

import msgspec

from cron import limits
from cron.api import checks
from cron.api.pattern import EVERYTHING, parse_pattern
from cron.api.translate import to_view
from cron.api.views import (
    ApplyRequest,
    BackfillRequest,
    ClockRequest,
    HistoryCursor,
    HistoryQuery,
    JobsRequest,
    OutputQuery,
    PauseRequest,
    RemoveRequest,
    ReplaceRequest,
    SourceFile,
)
from cron.errors import InvalidInput, LimitExceeded
from launcher.names import DEFAULT_TENANT


def checked_apply(message: Any) -> ApplyRequest:
    """Return the files to apply; sizes and names are within bounds, contents are not read yet."""
    request = to_view(message, ApplyRequest)
    if not request.files:
        raise InvalidInput("apply has no file")
    checks.between(len(request.files), 1, checks.FILES_MAX, "number of files")
    for file in request.files:
        _check_file(file)
    if request.source is not None:
        checks.source(request.source)
    tenant = request.tenant or DEFAULT_TENANT  # "" is what a client sends that says none
    checks.job_name(f"{tenant}/x")
    checks.person(request.by)
    return msgspec.structs.replace(request, tenant=tenant)


def checked_removal(message: Any) -> RemoveRequest:
    """Return the request with full names of jobs, each once."""
    request = to_view(message, RemoveRequest)
    checks.between(len(request.jobs), 1, limits.REMOVED_AT_ONCE_MAX, "number of jobs")
    names = sorted({checks.job_name(name) for name in request.jobs})
    return RemoveRequest(jobs=names, by=checks.person(request.by))


def _check_file(file: SourceFile) -> None:
    checks.source(file.name)
    if len(file.content) > limits.CRONTAB_BYTES_MAX:
        raise LimitExceeded(
            f"{file.name} has {len(file.content)} bytes, "
            f"at most {limits.CRONTAB_BYTES_MAX} are allowed",
            "split it into several files",
        )


def checked_history(message: Any) -> HistoryQuery:
    """Return the query with its job's full name and its states in the table's order."""
    query = to_view(message, HistoryQuery)
    return HistoryQuery(
        job=_pattern_or_all(query.job),
        states=checks.states(query.states),
        since_ms=checks.instant_ms(query.since_ms, "since"),
        until_ms=checks.instant_ms(query.until_ms, "until"),
        limit=checks.between(query.limit, 1, limits.HISTORY_PAGE_MAX, "limit"),
        archive=query.archive,
        is_all=query.is_all,
        after=_checked_cursor(query.after),
        tenant=checks.word(query.tenant, "tenant"),
        pool=checks.word(query.pool, "pool"),
        collection=checks.word(query.collection, "collection"),
    )


def checked_jobs(message: Any) -> JobsRequest:
    """Return which jobs to list, with the pattern's tenant."""
    request = to_view(message, JobsRequest)
    return JobsRequest(
        pattern=parse_pattern(request.pattern),
        tenant=checks.word(request.tenant, "tenant"),
        pool=checks.word(request.pool, "pool"),
        collection=checks.word(request.collection, "collection"),
    )


def _pattern_or_all(text: str) -> str:
    """Return a pattern with its tenant; "" for all jobs."""
    pattern = parse_pattern(text)
    return "" if pattern == EVERYTHING else pattern


def _checked_cursor(cursor: HistoryCursor | None) -> HistoryCursor | None:
    if cursor is not None:
        checks.launch_name(cursor.launch)
    return cursor


def checked_output(message: Any) -> OutputQuery:
    """Return the query with the launch's full name and a bounded number of bytes."""
    query = to_view(message, OutputQuery)
    return OutputQuery(
        launch=checks.launch_name(query.launch),
        attempt=checks.between(query.attempt, 0, 1 << 31, "attempt"),
        offset=checks.between(query.offset, 0, 1 << 62, "offset"),
        limit=checks.between(query.limit, 1, checks.OUTPUT_BYTES_MAX, "limit"),
        tail=query.tail,
    )


def checked_pause(message: Any) -> PauseRequest:
    """Return the request with its pattern's tenant and texts of one line."""
    request = to_view(message, PauseRequest)
    if not request.pattern:
        raise InvalidInput("pattern is empty", "'*/*' is every job of every tenant")
    return PauseRequest(
        pattern=parse_pattern(request.pattern),
        reason=checks.note(request.reason),
        until_ms=checks.instant_ms(request.until_ms, "until"),
        by=checks.person(request.by),
    )


def checked_clock(message: Any) -> ClockRequest:
    """Return the request with a name of who asks."""
    request = to_view(message, ClockRequest)
    return ClockRequest(is_dry_run=request.is_dry_run, by=checks.person(request.by))


def checked_replace(message: Any) -> ReplaceRequest:
    """Return the request with an id and addresses that can be some; "" stays ""."""
    request = to_view(message, ReplaceRequest)
    return ReplaceRequest(
        replica=checks.replica_name(request.replica),
        raft=checks.place(request.raft, "raft address"),
        client=checks.place(request.client, "client address"),
        is_confirmed=request.is_confirmed,
        by=checks.person(request.by),
    )


def checked_backfill(message: Any) -> BackfillRequest:
    """Return the request with its job's full name and a range that is not empty."""
    request = to_view(message, BackfillRequest)
    from_s = checks.instant_s(request.from_s, "from")
    to_s = checks.instant_s(request.to_s, "to")
    if to_s <= from_s:
        raise InvalidInput("range is empty: its end is not after its begin")
    return BackfillRequest(
        job=checks.job_name(request.job),
        from_s=from_s,
        to_s=to_s,
        is_dry_run=request.is_dry_run,
        by=checks.person(request.by),
    )
