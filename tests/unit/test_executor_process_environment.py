"""What a command finds around it: never anything of the executor's own."""

from __future__ import annotations

import pwd
from typing import Any

import pytest

from launcher.config import ExecutorConfig
from launcher.executor.attempt import Attempt
from launcher.executor.commands import running as process_environment
from launcher.executor.commands.running import (
    Account,
    UserRefused,
    account_of,
    accounts,
    choose_account,
    own_account,
    variables_of,
    work_of,
)
from launcher.protocol.reports import Accounts
from launcher.protocol.work import WorkSpec
from tests.unit.rows_rig import attempt_of

NAME = "acme/a@2026-11-20T15:00:00Z+t2#3/4"
CRON = Account("cron", 1234, 1235, "/home/cron")
ROOT = Account("root", 0, 0, "/root")


def accepted(name: str = NAME, **fields: Any) -> Attempt:
    work = WorkSpec(**{"argv": ("/bin/bash", "-c", "true"), **fields})
    return attempt_of(name, work, not_after_ms=77, epoch="1.2.r3")


def order_of(attempt: Attempt, users: tuple[str, ...]) -> dict[str, Any]:
    """Return what the spawner makes of a work and a start."""
    config = ExecutorConfig(id="e1", data="/tmp", leaders=("127.0.0.1:1",), users=users)
    work = work_of(attempt.spec, config)
    return {**work, "env": work["env"] | variables_of(attempt)}


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setattr(process_environment, "own_account", lambda: CRON)
    return CRON


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_environment, "own_account", lambda: ROOT)


@pytest.mark.usefixtures("own")
def test_the_environment_is_complete_and_in_order() -> None:
    environment = order_of(accepted(env=(("A", "1"), ("B", "2"))), ())["env"]
    assert list(environment.items()) == [
        ("SHELL", "/bin/bash"),
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/home/cron"),
        ("LOGNAME", "cron"),
        ("USER", "cron"),
        ("A", "1"),
        ("B", "2"),
        ("RAFTCRON_LAUNCH", "acme/a@2026-11-20T15:00:00Z+t2"),
        ("RAFTCRON_JOB", "acme/a"),
        ("RAFTCRON_SCHEDULED_TIME", "2026-11-20T15:00:00Z"),
        ("RAFTCRON_ATTEMPT", "3"),
        ("RAFTCRON_PART", "4"),
        ("RAFTCRON_EPOCH", "1.2.r3"),
        ("RAFTCRON_FENCE", "9"),
    ]


@pytest.mark.usefixtures("own")
def test_a_crontab_changes_path_and_home_and_not_what_raftcron_says() -> None:
    lines = (("PATH", "/opt/bin"), ("HOME", "/srv"), ("PATH", "/b"), ("RAFTCRON_JOB", "forged"))
    environment = order_of(accepted(env=lines), ())["env"]
    assert (environment["PATH"], environment["HOME"]) == ("/b", "/srv")
    assert environment["RAFTCRON_JOB"] == "acme/a"


@pytest.mark.parametrize(
    ("cwd", "home", "expected"),
    [
        ("", "/home/cron", "/home/cron"),
        ("/srv", "/home/cron", "/srv"),
        ("logs", "/home/cron", "/home/cron/logs"),
        ("", "", "/"),
    ],
)
@pytest.mark.usefixtures("own")
def test_the_directory_is_cwd_or_home(cwd: str, home: str, expected: str) -> None:
    assert order_of(accepted(cwd=cwd, env=(("HOME", home),)), ())["cwd"] == expected


def test_no_user_and_ones_own_are_no_switch(own: Account) -> None:
    assert choose_account("", ()) is own
    assert choose_account("cron", ()) is own


def test_only_root_switches(own: Account) -> None:
    with pytest.raises(UserRefused, match="runs as cron; only root can switch"):
        choose_account("root", ("root",))


@pytest.mark.usefixtures("as_root")
def test_root_switches_only_to_users_of_its_list() -> None:
    with pytest.raises(UserRefused, match="is not in `users`"):
        choose_account("nobody", ("www-data",))
    expected = pwd.getpwnam("nobody")
    chosen = choose_account("nobody", ("nobody",))
    assert (chosen.uid, chosen.gid, chosen.home) == (
        expected.pw_uid,
        expected.pw_gid,
        expected.pw_dir,
    )


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("user", ["", "root"])
def test_an_executor_of_root_runs_nothing_as_root_unless_root_is_listed(user: str) -> None:
    with pytest.raises(UserRefused, match=r"give the job another user=, or list root in `users`"):
        choose_account(user, ("nobody",))
    assert choose_account(user, ("root",)).uid == 0


def test_an_executor_says_as_which_accounts_it_runs_commands(own: Account) -> None:
    assert accounts(("nobody",)) == Accounts(own.name)
    assert accounts(()).runs("")
    assert not accounts(("nobody",)).runs("nobody")


@pytest.mark.usefixtures("as_root")
def test_an_executor_of_root_says_which_users_it_switches_to() -> None:
    assert accounts(()).runs_nothing
    said = accounts(("nobody", "nobody-here", "nobody"))
    assert said == Accounts("", ("nobody",))
    assert [said.runs(user) for user in ("", "nobody", "root")] == [False, True, False]
    assert accounts(("root", "nobody")) == Accounts("root", ("nobody",))


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("user", ["0", "toor"])
def test_another_name_of_root_is_root(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    toor = Account(user, 0, 0, "/root")
    monkeypatch.setattr(process_environment, "account_of", lambda name: toor)
    with pytest.raises(UserRefused, match="is not in `users`"):
        choose_account(user, ("root",))
    with pytest.raises(UserRefused, match=f"user {user} is root"):
        choose_account(user, (user,))
    assert choose_account(user, (user, "root")) is toor


@pytest.mark.parametrize("name", ["no-such-user", "nul\0byte"])
def test_a_user_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(UserRefused, match="does not exist"):
        account_of(name)


def test_a_user_without_a_name_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    own_account.cache_clear()
    monkeypatch.setattr("os.getuid", lambda: 3_999_999)
    account = own_account()
    own_account.cache_clear()
    assert (account.name, account.uid, account.home) == ("3999999", 3_999_999, "/")


@pytest.mark.usefixtures("own")
def test_an_order_for_ones_own_user_switches_nothing() -> None:
    order = order_of(accepted(stdin="x", timeout_ms=5, guarded=True), ())
    assert (order["login"], order["stdin"]) == (None, "x")
    assert (order["timeout_ms"], order["guarded"]) == (5, True)
    assert order["argv"] == ["/bin/bash", "-c", "true"]


@pytest.mark.usefixtures("as_root")
def test_an_order_for_another_user_names_it_and_its_process_environment() -> None:
    order = order_of(accepted(user="nobody"), ("nobody",))
    assert order["login"][0] == order["env"]["USER"] == order["env"]["LOGNAME"] == "nobody"
    assert order["env"]["HOME"] == order["cwd"] == pwd.getpwnam("nobody").pw_dir
