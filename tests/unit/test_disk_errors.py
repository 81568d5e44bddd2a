"""Errors of a disk as an operator reads them, of a replica and of an executor."""

from __future__ import annotations

import errno
import os

import pytest
import structlog

from consensus.errors import DiskFull, LogDamaged
from cron import endings
from cron.daemon import _ended_by
from launcher.disk_errors import hint_of, text_of


def failed(number: int, name: str | None = "/data/raft") -> OSError:
    return OSError(number, os.strerror(number), name)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EIO, "dmesg"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "chown"),
        (errno.EPERM, "chown"),
        (errno.ENOENT, "mounted"),
        (errno.EMFILE, "LimitNOFILE"),
    ],
)
def test_each_error_of_a_disk_has_a_way_out(number: int, says: str) -> None:
    assert says in hint_of(failed(number))
    assert text_of(failed(number)) == f"/data/raft: {os.strerror(number).lower()}"
    assert text_of(failed(number, None)) == os.strerror(number).lower()


def test_an_error_that_is_of_no_disk_keeps_its_traceback() -> None:
    for error in (failed(errno.ECONNRESET), OSError("no number"), ValueError("x")):
        assert endings.of_disk(error) is error


@pytest.mark.parametrize("is_start", [True, False])
def test_a_full_disk_ends_a_replica_alike_whoever_notices_it(is_start: bool) -> None:
    told = endings.of_disk(failed(errno.ENOSPC))
    assert isinstance(told, DiskFull)
    assert endings.exit_code(told, is_start=is_start) == endings.DISK_FULL


def test_a_failing_disk_is_no_bug_and_says_what_to_do_if_it_is_lost() -> None:
    told = endings.of_disk(failed(errno.EIO))
    assert isinstance(told, endings.DiskFailed)
    assert str(told) == "/data/raft: input/output error"
    assert "dmesg" in told.hint
    assert "while the other replicas have a leader" in told.hint
    assert endings.exit_code(told, is_start=False) == endings.FAILED
    assert endings.exit_code(told, is_start=True) == endings.REFUSED


@pytest.mark.parametrize("error", [failed(errno.EIO), LogDamaged("/data/raft", "cannot be read")])
def test_a_replica_that_its_disk_ends_logs_a_hint_and_no_traceback(error: Exception) -> None:
    with structlog.testing.capture_logs() as logs:
        assert _ended_by(error) == endings.FAILED
    [line] = logs
    assert line["event"] == "replica.failed"
    assert "exc_info" not in line
    assert "`raftcron restore`" in line["hint"]


def test_a_bug_is_logged_with_its_traceback() -> None:
    with structlog.testing.capture_logs() as logs:
        assert _ended_by(failed(errno.ECONNRESET)) == endings.FAILED
    assert "exc_info" in logs[0]
