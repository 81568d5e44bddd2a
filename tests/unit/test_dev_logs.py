"""cron.logs and cron.parent: what the processes of a cell share."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cron.logs import configure_logs
from tests.cluster.harness import wait_gone

LOGGING = """
import logging, sys, threading
import structlog
from cron.logs import configure_logs
configure_logs(replica="r1", level="info")
log = structlog.get_logger()
log.info("launch.finished", launch="default/a@2026-11-20T15:00:00Z", lateness_ms=41)
log.debug("tick.planned")
other = logging.getLogger("cron.other")
one = threading.Thread(target=other.warning, args=("from a %s", "thread"))
one.start(); one.join()
logging.getLogger("pysyncobj").info("noise")
logging.getLogger("botocore.credentials").info("Found credentials in environment variables.")
logging.getLogger("urllib3.connectionpool").warning("Connection pool is full")
try:
    raise ValueError("bad")
except ValueError:
    log.exception("loop.failed")
"""


def test_all_logs_are_json_lines_on_stderr_with_the_replica() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGING], capture_output=True, text=True, timeout=200, check=True
    )
    rows = [json.loads(line) for line in done.stderr.splitlines()]
    assert [row["event"] for row in rows] == ["launch.finished", "from a thread", "loop.failed"]
    assert {row["replica"] for row in rows} == {"r1"}
    assert [row["level"] for row in rows] == ["info", "warning", "error"]
    assert rows[0]["lateness_ms"] == 41
    assert rows[0]["at"].endswith("Z")
    assert "ValueError: bad" in rows[2]["exception"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud' is none of"):
        configure_logs(replica="r1", level="loud")


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
CHILD = """
import sys, time
from cron.parent import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_child_dies_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pid, word = parent.stdout.readline().split()
        assert word == b"ready"
        parent.kill()
        parent.wait(60)
        # The pipe ends once nobody holds it: the child has gone too, or this waits until timeout.
        parent.stdout.read()
    wait_gone(int(pid))


def test_a_child_whose_parent_died_before_it_asked_ends_at_once() -> None:
    script = "from cron.parent import die_with_parent\ndie_with_parent(1)\nprint('alive')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout) == (-9, b"")
