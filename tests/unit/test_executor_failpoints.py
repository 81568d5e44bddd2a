"""Failpoints: off unless named, refused where unknown, exact about which hit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import failpoints
from launcher.errors import BadConfig, FailpointHit


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    failpoints.arm("")
    yield
    failpoints.arm("")


def test_nothing_is_armed_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    failpoints.arm()
    for name in failpoints.NAMES:
        failpoints.hit(name)


def test_the_environment_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "before-ledger=error, after-start=error@2")
    failpoints.arm()
    with pytest.raises(FailpointHit, match="before-ledger"):
        failpoints.hit("before-ledger")
    failpoints.hit("after-ledger")


def test_only_the_nth_hit_acts() -> None:
    failpoints.arm("after-start=error@2")
    failpoints.hit("after-start")
    with pytest.raises(FailpointHit):
        failpoints.hit("after-start")
    failpoints.hit("after-start")


def test_with_a_file_it_acts_once_over_all_lives_of_a_process(tmp_path: Path) -> None:
    for _ in range(2):
        failpoints.arm(f"after-start=error+file:{tmp_path}/done")
        if not (tmp_path / "done").exists():
            with pytest.raises(FailpointHit):
                failpoints.hit("after-start")
        failpoints.hit("after-start")


def test_an_action_without_a_number_acts_each_time() -> None:
    failpoints.arm("before-report=error")
    for _ in range(2):
        with pytest.raises(FailpointHit):
            failpoints.hit("before-report")


@pytest.mark.parametrize(("verb", "expected"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_kill_and_stop_signal_this_process(
    monkeypatch: pytest.MonkeyPatch, verb: str, expected: int
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    failpoints.arm(f"after-ledger={verb}")
    failpoints.hit("after-ledger")
    assert sent == [(os.getpid(), expected)]


def test_sleep_sleeps_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    failpoints.arm("after-ledger=sleep:250")
    failpoints.hit("after-ledger")
    assert slept == [0.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere=kill", "'nowhere' does not exist"),
        ("after-ledger=explode", "'explode' of after-ledger"),
        ("after-ledger=kill@0", "cannot be read"),
        ("after-ledger", "cannot be read"),
        ("after-ledger=sleep", "cannot be read"),
    ],
)
def test_what_is_not_known_is_refused_and_arms_nothing(text: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message) as caught:
        failpoints.arm(f"before-report=error,{text}")
    assert caught.value.hint
    failpoints.hit("before-report")
