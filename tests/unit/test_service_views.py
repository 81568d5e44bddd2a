"""Launches as they are shown: what the rows of State and history become."""

from __future__ import annotations

from cron.launch_state import LaunchState
from cron.service.launches import of_row
from tests.states import ended_rows
from tests.unit.state_rig import T0, with_job


def test_a_trigger_is_late_from_when_it_was_asked_for() -> None:
    """It was late by the fraction of its second, a random number below a thousand."""
    rig = with_job()
    rig.at_ms = (T0 + 33) * 1000 + 957
    rig.trigger("q1")
    rig.begin(33, trigger=1)
    started_ms = rig.at_ms + 12
    key = (1, T0 + 33, 1)
    rig.finished(33, key=key, started_ms=started_ms, finished_ms=started_ms + 5)
    (row,) = [row for row in ended_rows(rig.state.history) if row.trigger]
    assert row.state is LaunchState.SUCCEEDED
    assert of_row(row).lateness_ms == 12


def test_a_scheduled_launch_is_late_from_its_instant() -> None:
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    rig.finished(60, started_ms=(T0 + 60) * 1000 + 40, finished_ms=(T0 + 61) * 1000)
    (row,) = ended_rows(rig.state.history)
    assert of_row(row).lateness_ms == 40
