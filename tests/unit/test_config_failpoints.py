"""cron.failpoints: the daemon's points, by the mechanism that `launcher` has for all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron import failpoints
from cron.failpoints import arm, hit
from launcher.errors import BadConfig, FailpointHit


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


def run_hits(spec: str, names: str) -> subprocess.CompletedProcess[str]:
    script = (
        "from cron.failpoints import arm, hit\narm()\n"
        f"for name in {names.split()!r}:\n    hit(name)\n    print(name, flush=True)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        env={"RAFTCRON_FAILPOINTS": spec},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_point_that_nobody_names_does_nothing() -> None:
    arm("")
    for name in failpoints.NAMES:
        hit(name)


def test_kill_ends_the_process_at_that_point() -> None:
    done = run_hits("after-begin=kill", "before-begin after-begin after-dispatch")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["before-begin"]


def test_a_number_chooses_the_hit() -> None:
    done = run_hits("after-begin=kill@3", "after-begin after-begin after-begin after-begin")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["after-begin"] * 2


def test_with_a_file_it_happens_once_over_restarts(tmp_path: Path) -> None:
    spec = f"before-claim=kill+file:{tmp_path}/once"
    assert run_hits(spec, "before-claim").returncode == -signal.SIGKILL
    assert (tmp_path / "once").exists()
    assert run_hits(spec, "before-claim").returncode == 0


def test_error_raises_and_only_at_its_hit() -> None:
    arm("after-claim=error@2")
    hit("after-claim")
    with pytest.raises(FailpointHit, match="after-claim"):
        hit("after-claim")
    hit("after-claim")


def test_sleep_holds_the_process_up() -> None:
    arm("after-launched=sleep:30")
    before = time.monotonic()
    hit("after-launched")
    assert time.monotonic() - before >= 0.03


def test_several_points_are_separated_by_commas() -> None:
    arm("before-claim=error, after-claim=error")
    for name in ("before-claim", "after-claim"):
        with pytest.raises(FailpointHit):
            hit(name)


def test_a_point_of_another_kind_of_process_is_refused() -> None:
    with pytest.raises(BadConfig, match="after-ledger"):
        arm("after-ledger=kill")


@pytest.mark.parametrize(
    "text",
    ["before-begin", "before-begin=die", "before-begin=kill@0", "before-begin=sleep", "=kill"],
)
def test_a_text_that_is_no_failpoint_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="RAFTCRON_FAILPOINTS") as caught:
        arm(text)
    assert caught.value.hint
