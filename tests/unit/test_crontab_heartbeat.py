"""A heartbeat beside a timeout: where the timeout is first, no silence would ever be noticed."""

from __future__ import annotations

import pytest

from tests.unit.test_crontab_pool import of_table, read


@pytest.mark.parametrize("options", ["heartbeat=5m timeout=5m", "heartbeat=10m", "timeout=1s"])
def test_a_heartbeat_may_last_as_long_as_the_timeout_and_stand_alone(options):
    assert read(f"#: handler=a {options}\n@daily\n").problems == []


def test_a_heartbeat_whose_timeout_cannot_be_read_is_not_told_twice():
    (problem,) = read("#: handler=a heartbeat=10m timeout=soon\n@daily\n").errors
    assert "timeout" in problem.message
    assert "longer" not in problem.message


def test_a_job_file_refuses_a_heartbeat_longer_than_the_timeout_in_its_line():
    reading = of_table('handler = "h"\ntimeout = "5s"\nheartbeat = "1m"')
    (problem,) = reading.errors
    assert problem.message == "heartbeat 1m is longer than timeout 5s"
    assert problem.line == 5
