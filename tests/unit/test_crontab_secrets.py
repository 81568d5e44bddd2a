"""`secret=`: what a job may name, and what is warned of where a secret stands in clear."""

from __future__ import annotations

import pytest

from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.reader import read_crontab
from cron.crontab.reading import Reading
from cron.crontab.secretive import secret_in, secret_in_payload, secret_in_text
from cron.crontab.written import job_text
from cron.limits import SECRETS_MAX
from cron.state.definitions import compared, definition


def crontab(*options: str, before: str = "", command: str = "true") -> Reading:
    lines = [*before.splitlines(), *(f"#: {one}" for one in options), f"@daily {command}"]
    return read_crontab("\n".join(lines).encode() + b"\n", file="crontab")


def secrets(reading: Reading) -> tuple[tuple[str, str], ...]:
    assert not reading.errors, reading.errors
    return reading.jobs[0].work.secrets


def test_a_job_names_secrets_by_commas_or_again() -> None:
    found = secrets(crontab("secret=PGPASSWORD:db/billing,KEY:api.key secret=B:b", "secret=C:c"))
    assert found == (("PGPASSWORD", "db/billing"), ("KEY", "api.key"), ("B", "b"), ("C", "c"))


@pytest.mark.parametrize(
    "written", ['"A:x,B:db/y"', '["A:x", "B:db/y"]', '{ A = "x", B = "db/y" }']
)
def test_a_job_file_has_a_text_a_list_or_a_table(written: str) -> None:
    text = f'[[job]]\nschedule = "@daily"\ncommand = "true"\nsecret = {written}\n'
    reading = read_jobs_toml(text.encode(), file="jobs.toml")
    assert secrets(reading) == (("A", "x"), ("B", "db/y"))
    again = read_jobs_toml(job_text(reading.jobs[0]).encode(), file="jobs.toml")
    assert secrets(again) == secrets(reading), "what is exported says the same"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("PGPASSWORD", "is not a variable and a name"),
        ("PGPASSWORD:", "is not a variable and a name"),
        ("1A:x", "is not a variable and a name"),
        ("A:/etc/shadow", "is not a variable and a name"),
        ("A:../x", "is not a variable and a name"),
        ("A:a/../x", "is not a variable and a name"),
        ("A:a//x", "is not a variable and a name"),
        ("A:-rf", "is not a variable and a name"),
        ("A:ä", "is not a variable and a name"),
        ("A:x,", "is not a variable and a name"),
        (f"A:{'x' * 201}", "has a name of more than 200"),
        ("PATH:x", "secret sets PATH, which each launch has of its own"),
        ("RAFTCRON_EPOCH:x", "secret sets RAFTCRON_EPOCH"),
        ("A:x,A:y", "secret sets A twice"),
        ("A:x secret=A:y", "secret sets A twice"),
    ],
)
def test_what_is_no_secret_is_an_error(value: str, said: str) -> None:
    [error] = crontab(f"secret={value}").errors
    assert said in error.message
    assert error.hint


def test_a_job_has_no_more_than_so_many() -> None:
    some = [f"secret=V{number}:x" for number in range(SECRETS_MAX)]
    assert len(secrets(crontab(*some))) == SECRETS_MAX
    [error] = crontab(*some, "secret=MORE:x").errors
    assert "more than 20 secrets" in error.message


@pytest.mark.parametrize("written", ["1", "[]", "[1]", "{ A = 1 }", '{ A = "x,B:y" }'])
def test_a_job_file_with_something_else_is_an_error(written: str) -> None:
    text = f'[[job]]\nschedule = "@daily"\ncommand = "true"\nsecret = {written}\n'
    assert len(read_jobs_toml(text.encode(), file="jobs.toml").errors) == 1


def test_a_handler_has_no_environment_of_its_own() -> None:
    [error] = crontab("handler=mail secret=A:x", command="{}").errors
    assert error.message == "secret is for commands, and this is a handler's job"


def test_a_change_of_secrets_shows_their_names() -> None:
    before, after = (crontab("name=a", f"secret=A:{one}").jobs[0] for one in ("x", "y"))
    assert compared(definition(before), definition(after), 1_000) == (("secrets", "A:x", "A:y"),)


# ---- secrets in clear


def warnings(reading: Reading) -> list[str]:
    assert not reading.errors
    return [one.message for one in reading.warnings]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PGPASSWORD", "hunter2"),
        ("DB_PASSWORD", "hunter2"),
        ("SMTP_PASS", "hunter2"),
        ("API_KEY", "0xabc"),
        ("STRIPE_APIKEY", "x"),
        ("GITHUB_TOKEN", "x"),
        ("client_secret", "x"),
        ("ANY", "AKIAIOSFODNN7EXAMPLE"),
        ("ANY", "-----BEGIN RSA PRIVATE KEY-----"),
        ("ANY", "rc1_0a1b2c3d4e5f_0123456789abcdef"),
        ("ANY", "ghp_0123456789abcdefghij"),
        ("DATABASE_URL", "postgres://app:hunter2@db/app"),
    ],
)
def test_a_secret_in_an_environment_line_is_warned_of(name: str, value: str) -> None:
    [message] = warnings(crontab(before=f"{name}={value}"))
    assert message.startswith(f"{name} holds what looks like ")
    assert value not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PASSWORD_FILE", "/etc/password"),
        ("PGPASSWORD", "/run/secrets/db"),
        ("PGPASSWORD", ""),
        ("TOKEN", "yes"),
        ("MAX_TOKEN", "1000"),
        ("BYPASS", "x"),
        ("PWD", "/srv"),
        ("KEYBOARD", "de"),
        ("URL", "https://user@host:80/a@b"),
        ("URL", "postgres://app:$PASSWORD@db/app"),
        ("RSYNC", "host::module"),
    ],
)
def test_what_only_seems_so_is_not(name: str, value: str) -> None:
    assert secret_in(name, value) == ""


def test_commands_and_payloads_are_looked_at_too() -> None:
    url = "https://app:hunter2@host/x"
    assert warnings(crontab(command=f"curl {url}")) == [
        "command holds what looks like a password in a URL"
    ]
    assert warnings(crontab("handler=mail", command='{"api_key": "hunter2"}')) == [
        "payload holds what looks like a secret, by its name (api_key)"
    ]
    assert secret_in_text("echo a; git clone https://host/x") == ""
    assert secret_in_payload('{"to": "ada", "token": ""}') == ""


def test_a_line_that_a_secret_overrides_is_warned_of() -> None:
    said = warnings(crontab("secret=TZ:zone", before="TZ=UTC\nCRON_TZ=UTC"))
    assert said == ["TZ is set by a line of the environment as well: the secret counts"]
