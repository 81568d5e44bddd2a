"""What a job asks of the pool, as programs and people see it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.api.jobs import JobNeeds, JobView
from cron.cli.jobs import JOBS, job_pairs, job_row
from cron.cli.values import show_cpu, show_size
from cron.crontab.jobs import differences
from cron.crontab.options import KNOWN
from cron.crontab.reader import read_crontab
from cron.job import Retry
from cron.launch_state import LaunchState
from cron.service.jobs import PAYLOAD_SHOWN_BYTES, of_job
from cron.state.state import JobRecord
from launcher.protocol.status import Reason
from tests.unit.api_rig import FakeBackend, run_cli, serving
from tests.unit.history_rig import row

OPTIONS = (
    "priority=0 collection=nightly concurrency=3 where=zone=eu cpu=0.5 memory=256M "
    "retries=5 backoff=20s backoff-max=10m retry-on=75,111 fatal-on=2"
)


def job_of(text):
    reading = read_crontab(text.encode(), file="tab")
    assert reading.problems == []
    return reading.jobs[0]


def view_of(job, **fields):
    record = JobRecord(1, job.name, "tab", 4, 0, job, [])
    record.dead = fields.pop("dead", {})
    return of_job(record, job, None, 0)


def test_a_job_is_shown_with_all_that_it_asks_for():
    letter = row(6, 60, state=LaunchState.FAILED, reason=Reason.NONE)
    view = view_of(job_of(f"#: name=a {OPTIONS}\n@daily x"), dead={(60, 0): letter})
    assert view.needs == JobNeeds(
        priority=0,
        collection="nightly",
        concurrency=3,
        where="zone=eu",
        cpu_milli=500,
        memory_bytes=256 << 20,
        tries=6,
        backoff_ms=20_000,
        backoff_max_ms=600_000,
        retry_codes=[75, 111],
        fatal_codes=[2],
        dead=1,
    )
    assert (view.command, view.deadline_s) == ("x", 3600 + rests_of(view))


def rests_of(view):
    rests_ms = [20_000 << n for n in range(view.needs.tries - 1)]
    return -(-sum(rests_ms) * 11 // 10_000)


def test_a_handlers_job_shows_its_handler_and_the_beginning_of_its_payload():
    long = '"' + "x" * 5_000 + '"'
    view = view_of(job_of(f"#: name=a handler=b.c heartbeat=30s\n@daily {long}"))
    assert (view.needs.handler, view.needs.heartbeat_ms, view.command) == ("b.c", 30_000, "")
    assert view.needs.payload == long[:PAYLOAD_SHOWN_BYTES]
    assert JOBS.cells(view)[8] == "b.c"


def test_a_row_for_programs_says_what_the_options_said():
    row = job_row(view_of(job_of(f"#: name=a {OPTIONS}\n@daily x")))
    assert row["priority"] == 0
    assert row["retries"] == 5
    assert (row["cpu_milli"], row["memory_bytes"]) == (500, 268_435_456)
    assert (row["retry_on"], row["fatal_on"]) == ([75, 111], [2])
    assert (row["handler"], row["payload"], row["heartbeat_ms"]) == (None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        f"#: name=a {OPTIONS} timeout=1h30m user=www-data cwd=/srv\n@daily x",
        "#: name=a handler=b.c heartbeat=90s timeout=5m overlap=queue on-lost=retry\n@daily 1",
    ],
)
def test_what_people_see_can_be_written_back_as_options(text):
    job = job_of(text)
    pairs = dict(job_pairs(view_of(job)))
    words = [
        f"{key}={value}" for key, value in pairs.items() if key in KNOWN and value not in ("", "-")
    ]
    again = job_of(f"#: name=a {' '.join(words)}\n{text.splitlines()[-1]}")
    assert differences(job, again) == []


def test_people_see_each_option_of_a_job():
    shown = dict(job_pairs(view_of(job_of("#: name=a\n@daily x"))))
    of_alerts = {"alert", "to", "remind"}
    of_arrival = {"paused"}  # how a new job arrives: later its pause is shown, as that of any job
    assert KNOWN.keys() - shown.keys() == {"name"} | of_alerts | of_arrival


def test_people_see_which_alerts_a_job_has_of_its_own_and_how_often_they_come_again():
    text = "#: name=a alert=failed:2,missed to=ops,chat remind=4h\n@daily x"
    again = "to ops, chat, again after each 4h"
    assert dict(job_pairs(view_of(job_of(text))))["alerts"] == f"failed:2 {again}; missed {again}"


@given(st.integers(1, 9_999_999))
def test_cpus_are_shown_as_they_are_read(milli):
    shown = show_cpu(milli)
    assert "e" not in shown
    assert KNOWN["cpu"].read("cpu", shown) == milli


@given(st.integers(1, 1 << 30), st.sampled_from([20, 30]))
def test_sizes_are_shown_as_they_are_read(number, bits):
    size = min(number << bits, 1 << 50)
    assert KNOWN["memory"].read("memory", show_size(size)) == size


@pytest.mark.parametrize(("size", "shown"), [(0, "-"), (1_000, "1000"), (1_536 << 20, "1536M")])
def test_sizes_that_no_option_has_are_shown_all_the_same(size, shown):
    assert show_size(size) == shown


def test_every_option_is_among_the_differences_that_an_apply_names():
    before, after = job_of("#: name=a\n@daily x"), job_of(f"#: name=a {OPTIONS}\n@daily x")
    named = {pair.split("=")[0] for pair in OPTIONS.split()}
    assert set(differences(before, after)) == named | {"deadline"}
    handler = job_of("#: name=a handler=b heartbeat=1s\n@daily 1")
    changed = {"handler", "payload", "heartbeat", "command", "shell"}
    assert set(differences(before, handler)) == changed


async def test_jobs_long_says_all_of_a_job_line_by_line():
    view = view_of(job_of(f"#: name=a {OPTIONS}\n@daily x"))
    async with serving(FakeBackend(jobs=[view])) as server:
        result = await run_cli("jobs", "a", "--long", server=server)
        in_json = await run_cli("jobs", "a", "-l", "-o", "json", server=server)
    assert result.stdout, (result.stderr, result.exception)
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    assert lines[0] == ["a"]
    assert ["priority", "0"] in lines
    assert ["memory", "256M"] in lines
    assert ["retry-on", "75,111"] in lines
    assert json.loads(in_json.stdout)["collection"] == "nightly"


async def test_a_job_of_which_launches_were_given_up_says_so_in_the_list():
    needs = JobNeeds(dead=2, tries=Retry().tries)
    view = JobView(name="default/a", schedule="@daily", paused=True, needs=needs)
    async with serving(FakeBackend(jobs=[view])) as server:
        result = await run_cli("jobs", server=server)
    assert result.stdout.splitlines()[1].endswith("paused, 2 dead letters")
