"""What a leader measures of its cell for rules of alerts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cron.alert_rules import AlertKind
from cron.api.members import StatusRow
from cron.api.snapshots import KeepingView
from cron.service.observing import (
    BACKUP,
    EXECUTORS_LOOK_MS,
    EXECUTORS_MAX,
    GONE_MS,
    ExecutorCertificates,
    Observing,
    disk_used_percent,
)

NOW_MS = 1_795_186_800_000


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.ms = 0

    def wall_ms(self) -> int:
        return NOW_MS + self.ms

    def mono_ms(self) -> int:
        return self.ms


class Status:
    """What a replica knows of itself and of the others."""

    def __init__(self) -> None:
        self.own = StatusRow(kind="replica", id="r1")
        self.others: dict[str, tuple[StatusRow | None, int | None]] = {
            "r2": (StatusRow(kind="replica", id="r2"), 0),
            "r3": (StatusRow(kind="replica", id="r3"), 0),
        }
        self.off_ms = 0

    def seen(self) -> Any:
        return self.own, self.others

    def off_by(self) -> int:
        return self.off_ms


class Rig:
    def __init__(self) -> None:
        self.clock, self.status = Clock(), Status()
        self.keeping: KeepingView | None = None
        status: Any = self.status
        clock: Any = self.clock
        self.sessions: list[Any] = []
        self.is_settling = False
        executors = ExecutorCertificates(lambda: self.sessions, lambda: self.is_settling, clock)
        self._observing = Observing("prod", status, clock, lambda: self.keeping, executors)

    def connect(self, **ends_ms: int) -> None:
        """Have executors be connected, and no others, with certificates that end at a time."""
        self.sessions = [
            SimpleNamespace(executor=name, certificate_ends_ms=end) for name, end in ends_ms.items()
        ]
        self.clock.ms += EXECUTORS_LOOK_MS

    def measured(self, kind: AlertKind) -> Any:
        found = self._observing.observe()
        assert found.cell == "prod"
        return found.measured.get(kind)


def test_a_replica_is_away_from_when_it_was_missed_until_it_answers() -> None:
    rig = Rig()
    assert rig.measured(AlertKind.REPLICA_AWAY) == {"r2": 0, "r3": 0}
    row = rig.status.others["r3"]
    rig.status.others["r3"] = (None, None)
    assert rig.measured(AlertKind.REPLICA_AWAY) == {"r2": 0, "r3": 0}
    rig.clock.ms += 61_000
    assert rig.measured(AlertKind.REPLICA_AWAY) == {"r2": 0, "r3": 61}
    rig.status.others["r3"] = row
    assert rig.measured(AlertKind.REPLICA_AWAY) == {"r2": 0, "r3": 0}
    rig.status.others["r3"] = (None, None)
    rig.clock.ms += 5_000
    assert rig.measured(AlertKind.REPLICA_AWAY) == {"r2": 0, "r3": 0}, "it begins anew"


def test_clocks_are_compared_with_the_median_of_all() -> None:
    rig = Rig()
    rig.status.off_ms = 3_000  # this one is ahead
    rig.status.others |= {"r2": (None, None), "r3": (rig.status.others["r3"][0], -3_000)}
    assert rig.measured(AlertKind.CLOCK_OFF) == {"r1": 3_000, "r3": 0}


def test_the_certificate_that_ends_first_counts_and_none_is_none() -> None:
    rig = Rig()
    assert rig.measured(AlertKind.CERTIFICATE_ENDING) is None
    rig.status.own = StatusRow(
        kind="replica", id="r1", certificate_ends_ms=NOW_MS + 90_000,
        authority_ends_ms=NOW_MS + 60_000,
    )  # fmt: skip
    over = StatusRow(kind="replica", id="r2", certificate_ends_ms=NOW_MS - 5_000)
    rig.status.others["r2"] = (over, 0)
    assert rig.measured(AlertKind.CERTIFICATE_ENDING) == {"r1": 60, "r2": 0}


def test_certificates_of_executors_count_while_they_are_connected_and_restart() -> None:
    rig = Rig()
    rig.connect(e1=NOW_MS + 100_000, e2=NOW_MS + 50_000, open=0)
    assert rig.measured(AlertKind.CERTIFICATE_ENDING) == {"e1": 90, "e2": 40}
    rig.status.own = StatusRow(kind="replica", id="e2", certificate_ends_ms=NOW_MS + 20_000)
    rig.connect(e1=NOW_MS + 900_000)
    assert rig.measured(AlertKind.CERTIFICATE_ENDING) == {"e1": 880, "e2": 0}
    rig.status.own = StatusRow(kind="replica", id="r1")
    assert rig.measured(AlertKind.CERTIFICATE_ENDING) == {"e1": 880, "e2": 30}, "it may come back"
    rig.clock.ms += GONE_MS - EXECUTORS_LOOK_MS
    assert "e2" not in rig.measured(AlertKind.CERTIFICATE_ENDING)


def test_a_new_leader_says_nothing_of_certificates_before_executors_came() -> None:
    rig = Rig()
    rig.status.own = StatusRow(kind="replica", id="r1", certificate_ends_ms=NOW_MS + 90_000)
    rig.is_settling = True
    assert rig.measured(AlertKind.CERTIFICATE_ENDING) is None, "open alerts stay as they are"
    rig.is_settling = False
    assert rig.measured(AlertKind.CERTIFICATE_ENDING) == {"r1": 90}


def test_of_many_executors_those_are_watched_whose_certificates_end_first() -> None:
    rig = Rig()
    rig.connect(**{f"e{n}": NOW_MS + 1_000_000 - n for n in range(2 * EXECUTORS_MAX)})
    found = rig.measured(AlertKind.CERTIFICATE_ENDING)
    assert len(found) == EXECUTORS_MAX
    assert f"e{2 * EXECUTORS_MAX - 1}" in found


def test_a_backup_fails_from_its_first_failure_on() -> None:
    rig = Rig()
    assert rig.measured(AlertKind.BACKUP_FAILING) is None
    rig.keeping = KeepingView()
    assert rig.measured(AlertKind.BACKUP_FAILING) is None, "there is no object storage"
    rig.keeping = KeepingView(store="s3://cell")
    assert rig.measured(AlertKind.BACKUP_FAILING) == {BACKUP: 0}
    rig.keeping = KeepingView(store="s3://cell", failing_since_ms=NOW_MS)
    rig.clock.ms += 61_000
    assert rig.measured(AlertKind.BACKUP_FAILING) == {BACKUP: 61}


def test_disks_are_those_that_are_known() -> None:
    rig = Rig()
    assert rig.measured(AlertKind.DISK_FILLING) is None
    rig.status.own = StatusRow(kind="replica", id="r1", disk_used_percent=91)
    assert rig.measured(AlertKind.DISK_FILLING) == {"r1": 91}


def test_a_disk_is_as_full_as_others_than_root_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < disk_used_percent(tmp_path) <= 100
    usage = type("Usage", (), {"total": 100, "used": 50, "free": 40})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert disk_used_percent(tmp_path) == 56
