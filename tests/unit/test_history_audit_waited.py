"""Audit: a launch that failed, waited for its next attempt, and was ended by the same entry."""

from __future__ import annotations

import pytest

from cron.history.audited import FindingKind
from cron.launch_state import LaunchState
from launcher.protocol.status import Reason
from tests.unit.test_history_audit import find, kinds, ran


@pytest.mark.parametrize("is_first", [True, False])
def test_what_failed_and_was_replaced_by_one_entry_is_fine(*, is_first: bool) -> None:
    failed = ran(60, 1, state=LaunchState.FAILED)
    replaced = ran(
        60, 0, state=LaunchState.CANCELLED, reason=Reason.REPLACED, by="a newer launch",
        launched_index=0, ended_index=failed.ended_index, started_ms=0, finished_ms=0,
    )  # fmt: skip
    rows = [failed, replaced] if is_first else [replaced, failed]
    assert find(rows, until_s=60) == []


def test_two_ends_of_one_attempt_in_one_entry_are_found() -> None:
    rows = [ran(60, 1, state=LaunchState.FAILED), ran(60, 1, state=LaunchState.FAILED)]
    assert FindingKind.ACCOUNTED_TWICE in kinds(find(rows, until_s=60))
