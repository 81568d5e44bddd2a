"""What `jobs export` writes declares the same jobs again."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.jobs import differences
from cron.crontab.options import KNOWN
from cron.crontab.reader import read_crontab
from cron.crontab.written import job_text

WORD = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,8}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
LENGTH = st.integers(1, 10_000).map(lambda number: f"{number}s")
COMMON = {
    "timeout": LENGTH | st.just("none"),
    "overlap": st.sampled_from(["allow", "forbid", "queue", "replace"]),
    "catchup": st.sampled_from(["none", "last", "all"]),
    "deadline": st.integers(60, 9_000).map(lambda number: f"{number}s"),
    "on-lost": st.sampled_from(["skip", "retry"]),
    "priority": st.integers(0, 9),
    "collection": WORD,
    "where": st.sampled_from(["zone=eu|us, ssd, !small", "ssd"]),
    "cpu": st.sampled_from(["0.5", "2", "0.001", "1.25"]),
    "memory": st.sampled_from(["1M", "1536K", "2G", "1T"]),
    "after": st.lists(WORD.map(lambda word: f"x/{word}"), min_size=1, max_size=3, unique=True),
    "metrics": st.just("yes"),
    "start": st.dates().filter(lambda day: 1971 <= day.year <= 2100).map(str),
    "calendar": st.sampled_from(["hol:skip", "hol:only"]),
}
OF_RETRIES = {
    "retries": st.integers(1, 9),
    "backoff": st.integers(1, 20_000).map(lambda number: f"{number}s"),
}
OF_COMMANDS = {"user": WORD.map(lambda word: f"u{word}"), "cwd": WORD.map(lambda word: f"/{word}")}
SCHEDULES = st.sampled_from(
    ["* * * * *", "?/5 22-6 * * friday", "@daily", "0 9 L * *", "? ?(2-6) * * mon-fri"]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def drawn(draw, options):
    return draw(st.fixed_dictionaries({}, optional=options))


def check_round_trip(jobs):
    text = "\n".join(map(job_text, jobs))
    reading = read_jobs_toml(text.encode(), file="f")
    assert reading.errors == [], text
    assert len(reading.jobs) == len(jobs)
    for before, after in zip(jobs, reading.jobs, strict=True):
        assert differences(before, after) == [], text
        assert msgspec.structs.replace(after, line=before.line) == before, text


@settings(max_examples=50)
@given(st.data())
def test_commands_with_any_options_come_back(data):
    options = drawn(data.draw, COMMON | OF_COMMANDS)
    if data.draw(st.booleans()):
        options |= drawn(data.draw, OF_RETRIES) | {"retries": 2}
    env = data.draw(st.dictionaries(st.from_regex(r"[A-Z]{1,5}X", fullmatch=True), TEXT))
    table = options | {
        "name": "billing/" + data.draw(WORD), "schedule": data.draw(SCHEDULES),
        "zone": data.draw(ZONES), "command": data.draw(TEXT) + "x", "stdin": data.draw(TEXT),
        "env": env | data.draw(st.sampled_from([{}, {"SHELL": "/bin/bash", "MAILTO": "a@b.org"}])),
    }  # fmt: skip
    text = b"[[job]]\n" + b"".join(
        f"{key} = {toml(value)}\n".encode() for key, value in table.items()
    )
    reading = read_jobs_toml(text, file="f")
    assert reading.errors == [], text
    check_round_trip(reading.jobs)


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value) + '"'
    return str(value)


@settings(max_examples=50)
@given(JSON, st.booleans(), st.data())
def test_handlers_with_any_payload_come_back(value, is_compact, data):
    payload = msgspec.json.encode(value)
    if not is_compact:
        payload = msgspec.json.format(payload, indent=data.draw(st.sampled_from([0, 1]))).replace(
            b"\n", b" "
        )
    options = drawn(data.draw, COMMON | {"heartbeat": st.just("1s")})
    line = " ".join(
        f"{key}='{','.join(value) if isinstance(value, list) else value}'"
        for key, value in options.items()
    )
    text = f"#: name=mail handler=send {line}\n0 * * * * ".encode() + payload + b"\n"
    reading = read_crontab(text, file="f")
    if reading.errors:  # a line that is too long, or a number of too many digits
        return
    check_round_trip(reading.jobs)


EACH = {
    "timeout": "5m", "overlap": "queue", "catchup": "all", "deadline": "3h", "on-lost": "retry",
    "user": "www-data", "cwd": "/srv", "priority": "3", "collection": "nightly", "concurrency": "2",
    "retries": "2", "backoff": "20s retries=2", "backoff-max": "10m retries=2",
    "retry-on": "75 retries=2", "fatal-on": "2 retries=2", "where": "zone=eu", "parts": "2",
    "each": "ssd", "cpu": "0.5", "memory": "256M", "handler": "send",
    "heartbeat": "30s handler=send", "after": "b", "after-any": "b", "metrics": "yes",
    "alert": "failed:2 to=ops", "to": "ops alert=failed:2",
    "remind": "1h alert=failed:2 to=ops", "start": "2026-12-01",
    "end": "2027-12-01", "calendar": "hol:skip", "secret": "PGPASSWORD:db/billing",
    "pause-after": "3", "paused": "later", "jitter": "10m",
}  # fmt: skip
"""A value of each option, with the options that it needs."""


@pytest.mark.parametrize("key", sorted(KNOWN.keys() - {"name", "paused"}))
def test_each_option_comes_back(key):
    said = f"{key}={EACH[key]}"
    text = f"#: name=a {said}\n@daily 1\n#: name=b\n@daily 1"
    reading = read_crontab(text.encode(), file="f")
    assert reading.errors == []
    check_round_trip(reading.jobs)
    assert key in differences(*reading.jobs)


@pytest.mark.parametrize(
    "text",
    [
        "MAILTO=ops@example.com\nA='x y'\n0 1 * * * date +\\%F%in%put\nB=2\n@every 90s b \\\\ c",
        "#: alert=failed:2,late:10m to=ops,dev\n@hourly x",
        "#: retries=3 backoff=2h retry-on=75,111 fatal-on=2\n@hourly x",
        "#: retries=3 backoff=10s backoff-max=30s timeout=5m\n*/5 * * * * x",
        "#: each=role=web timeout=5m\n@hourly x\n#: parts=3\n@daily y",
        "#: after=a after-any=x/b,c concurrency=3\n@hourly x",
        "CRON_TZ=Europe/Berlin\n#: end=2027-03-28T02:30 calendar=a:only\n@daily x",
        "#: handler=a timeout=none\n@daily null\n#: handler=b\n@daily",
        "#: handler=a\n@daily 123456789012345678901234567890",
    ],
)
def test_what_crontabs_say_comes_back(text):
    reading = read_crontab(text.encode(), file="f")
    assert reading.errors == []
    check_round_trip(reading.jobs)
