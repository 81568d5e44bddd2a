"""What a crontab warns of is what an executor does with its variables."""

from __future__ import annotations

import pytest

from cron.crontab.reader import read_crontab
from launcher.executor.commands.running import Account, environment_of, variables_of
from tests.unit.test_executor_process_environment import accepted


def environment(*lines: tuple[str, str]) -> dict[str, str]:
    attempt = accepted(env=lines)
    account = Account("cron", 1, 1, "/home/cron")
    return environment_of(attempt.spec, account) | variables_of(attempt)


GIVEN = environment()
EVERY = sorted(name for name in GIVEN if name.startswith("RAFTCRON_"))


@pytest.mark.parametrize("name", EVERY)
def test_every_variable_that_a_launch_sets_anew_is_warned_of(name: str) -> None:
    crontab = f"{name}=mine\n@daily x\n".encode()
    (warning,) = read_crontab(crontab, file="tab").problems
    assert warning.message == f"{name} is set anew for each launch"
    lines = read_crontab(crontab, file="tab").jobs[0].work.env
    assert environment(*lines)[name] == GIVEN[name] != "mine"
