"""The clock of executors: what looks at deadlines all the while wakes the process together."""

from __future__ import annotations

import pytest

from launcher import clock


@pytest.mark.parametrize(
    ("boot_ns", "step_ms", "seconds"),
    [
        (1_234_700_000, 100, 0.0653),
        (1_299_999_999, 100, 1e-9),
        (1_300_000_000, 100, 0.1),
        (1_300_000_000, 500, 0.2),
    ],
)
def test_a_step_ends_at_a_multiple_of_itself(
    monkeypatch: pytest.MonkeyPatch, boot_ns: int, step_ms: int, seconds: float
) -> None:
    monkeypatch.setattr(clock.time, "clock_gettime_ns", lambda _clock: boot_ns)
    assert clock.until_step_s(step_ms) == pytest.approx(seconds)
