"""The bench of handlers runs, and counts what it says it counts."""

from __future__ import annotations

import pytest

from bench import handlers


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_small_run_has_a_rate_and_a_cost(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    rate, cost_us = handlers.measure(kind, threads=2, buffer=8, tasks=300)
    assert rate > 0
    assert cost_us >= 0
