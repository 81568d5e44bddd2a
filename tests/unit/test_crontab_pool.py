"""What a job says to the pool: handlers and payloads, priorities, places, resources, retries."""

from __future__ import annotations

import json
import math
from functools import partial

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cron import limits
from cron.calendar.duration import format_duration
from cron.crontab.conflicts import rests_s
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.options import KNOWN
from cron.crontab.payload import dump_payload, read_payload
from cron.crontab.reader import read_crontab
from cron.errors import InvalidInput
from cron.job import Retry
from cron.state.retries import backoff_ms
from launcher.protocol.work import WorkSpec


def read(text, **options):
    return read_crontab(text.encode(), file="tab", **options)


def one(text, **options):
    reading = read(text, **options)
    assert reading.problems == []
    (job,) = reading.jobs
    return job


def of_table(text):
    content = f'[[job]]\nschedule = "@daily"\n{text}\n'.encode()
    return read_jobs_toml(content, file="jobs.toml")


def one_of_table(text):
    reading = of_table(text)
    assert reading.problems == []
    (job,) = reading.jobs
    return job


def test_a_command_says_what_it_asks_of_the_pool():
    job = one(
        "#: priority=0 collection=nightly concurrency=3 where='zone=eu, !small'\n"
        "#: retries=5 backoff=10s backoff-max=10m retry-on=75,111 fatal-on=2 cpu=0.5 memory=256M\n"
        "@daily run it\n"
    )
    assert (job.pool, job.work.priority, job.collection, job.concurrency) == (
        "command", 0, "nightly", 3,
    )  # fmt: skip
    assert job.where == "!small,zone=eu"
    assert job.retry == Retry(6, 10_000, 600_000, (75, 111), (2,))
    assert (job.work.cpu_milli, job.work.memory_bytes) == (500, 256 << 20)
    assert job.work.argv == ("/bin/sh", "-c", "run it")


def test_a_launch_may_run_in_parts_on_several_executors():
    job = one("#: parts=3 where=ssd\n@daily x")
    assert (job.parts, job.each, job.has_parts) == (3, "", True)
    assert one("#: each='!small, role=web'\n@daily x").each == "role=web,!small"
    assert one_of_table('command = "x"\nparts = 3').parts == 3


def test_a_job_that_says_nothing_of_the_pool_is_as_it_always_was():
    job = one("@daily x")
    assert (job.retry, job.concurrency, job.collection, job.where) == (Retry(), 0, "", "")
    assert job.work == WorkSpec(argv=("/bin/sh", "-c", "x"))


def test_a_handler_gets_the_rest_of_the_line_as_it_is_written():
    job = one('A=b\n#: handler=billing.invoice heartbeat=30s timeout=5m\n@daily  {"share": "50%"} ')
    assert job.pool == "billing.invoice"
    assert job.work == WorkSpec(
        argv=(),
        handler="billing.invoice",
        payload=b'{"share": "50%"}',
        heartbeat_ms=30_000,
        timeout_ms=300_000,
    )


@pytest.mark.parametrize("line", ["@daily", "@daily  ", "0 0 * * *", "0 0 * * *\t"])
def test_a_handler_needs_no_payload(line):
    assert one(f"#: handler=a\n{line}").work.payload == b""


def test_a_handlers_work_is_guarded_as_a_commands_is():
    assert not one("#: handler=a\n@daily").work.guarded
    assert one("#: handler=a overlap=forbid\n@daily").work.guarded
    assert one("#: handler=a on-lost=retry\n@daily").work.guarded
    assert one("#: handler=a concurrency=3\n@daily").work.guarded


def test_a_system_crontab_has_its_user_column_for_handlers_too():
    job = one('#: handler=a\n@daily root {"n": 1}', system=True)
    assert (job.work.payload, job.work.user) == (b'{"n": 1}', "")


def test_handlers_without_a_name_are_told_apart_by_handler_and_payload():
    tab = "#: handler=a\n@daily 1\n#: handler=b\n@daily 1\n#: handler=a\n@daily 2\n@daily 1\n"
    reading = read(tab)
    assert reading.problems == []
    assert len({job.name for job in reading.jobs}) == 4


@pytest.mark.parametrize(
    ("options", "column", "message", "hint"),
    [
        ("priority=10", 13, "priority 10 is not in 0 to 9", "0 to 9"),
        ("priority=-1", 13, "priority '-1' is not a whole number", "0 to 9"),
        ("concurrency=0", 16, "concurrency 0 is not in 1 to", "1 to"),
        ("collection=a/b", 15, "collection 'a/b' is not a plain word", "A-Z a-z"),
        ("retries=1001", 12, "retries 1001 is not in 0 to 1000", "0 to 1000"),
        ("retries=1 backoff=10", 22, "backoff 10 has no unit", "10s"),
        ("retries=1 backoff=0s", 22, "backoff 0s is not in 1s to 1d", "1s to 1d"),
        ("retries=1 backoff-max=32d", 26, "backoff-max 32d is not in 1s to 31d", "31d"),
        ("retries=1 retry-on=75,x", 23, "retry-on 'x' is not a whole number", "0 to 255"),
        ("retries=1 retry-on=256", 23, "retry-on 256 is not in 0 to 255", "255"),
        ("retries=1 fatal-on=0", 23, "fatal-on has exit code 0, which is success", "leave it"),
        ("where=zone=", 15, "where: label zone has no value here", "zone=eu"),
        ("where='zone=eu,,x'", 19, "where: there is no term here", "comma"),
        ("where=''", 11, "where is empty", "any executor"),
        ("cpu=0", 8, "cpu 0 is not in 0.001 to 10000", "leave it out"),
        ("cpu=.5", 8, "cpu '.5' is not a number of CPUs", "0.5"),
        ("cpu=0.0001", 8, "cpu '0.0001' is not a number of CPUs", "3 decimals"),
        ("memory=256", 11, "memory 256 has no unit", "256M"),
        ("memory=0", 11, "memory '0' is not a size", "256M"),
        ("memory=256MB", 11, "memory '256MB' is not a size", "256M"),
        ("memory=1023K", 11, "memory 1023K is not in 1M to 1024T", "1M"),
        ("memory=1025T", 11, "memory 1025T is not in 1M to 1024T", "1024T"),
        ("handler=command", 12, "handler 'command' is what the pool of commands", "another name"),
        ("handler=a/b", 12, "handler 'a/b' is not a plain word", "A-Z a-z"),
        ("handler=a heartbeat=2d", 24, "heartbeat 2d is not in 1s to 1d", "1d"),
        ("parts=0", 10, "parts 0 is not in 1 to 100", "1 to 100"),
        ("parts=101", 10, "parts 101 is not in 1 to 100", "1 to 100"),
        ("each='role=web,,x'", 19, "each: there is no term here", "comma"),
        ("each=''", 10, "each is empty", "any executor"),
        ("each=web parts=2", 13, "each and parts both set the number", "one of the two"),
        ("overlap=forbid concurrency=2", 19, "concurrency means nothing with overlap=forbid",
         "overlap=allow"),
        ("backoff=10s", 4, "backoff means nothing without retries", "retries=5"),
        ("fatal-on=2", 4, "fatal-on means nothing without retries", "retries=5"),
        ("heartbeat=10s", 4, "heartbeat is for handlers", "name the handler"),
        ("handler=a user=root", 14, "user is for commands, and this is a handler's job", "worker"),
        ("handler=a cwd=/tmp", 14, "cwd is for commands, and this is a handler's job", "worker"),
        ("handler=a retries=2 retry-on=7", 24, "retry-on is for commands", "raises Retry"),
        ("handler=a fatal-on=7", 14, "fatal-on is for commands", "raises Fatal"),
        ("retries=2 retry-on=1,2 fatal-on=2,3", 36, "exit code 2 is in retry-on and in fatal-on",
         "remove it"),
        ("retries=2 backoff=2m backoff-max=1m", 37, "backoff-max is shorter than backoff",
         "longest"),
        ("handler=a heartbeat=10m timeout=5m", 24, "heartbeat 10m is longer than timeout 5m",
         "make it shorter, or remove"),
        ("timeout=1s handler=a heartbeat=2s", 35, "heartbeat 2s is longer than timeout 1s",
         "make it shorter, or remove"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place_and_the_way_out(options, column, message, hint):
    reading = read(f"\n#: {options}\n@daily 1\n")
    (problem,) = reading.errors
    assert (problem.line, problem.column) == (2, column)
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("payload", "column", "message"),
    [
        ("{", 9, "payload is not JSON: expecting property name"),
        ('{"a": 1,}', 16, "payload is not JSON"),
        ("{'a': 1}", 9, "payload is not JSON: expecting property name"),
        ("  [1, oops]", 14, "payload is not JSON: expecting value"),
        ("NaN", 8, "payload is not JSON: NaN is not a JSON number"),
        ('"\\ud800"', 8, "payload is not JSON"),
        ("[" * 50_000, 8, "payload is nested too deeply"),
        ("9" * 5_000, 8, "payload is not JSON"),
    ],
)
def test_a_payload_that_is_no_json_is_told_where_it_goes_wrong(payload, column, message):
    (problem,) = read(f"#: handler=a\n@daily {payload}\n").problems
    assert (problem.line, problem.column) == (2, column)
    assert message in problem.message
    assert problem.hint


def test_a_job_whose_only_fault_is_its_payload_is_not_made():
    assert read("#: handler=a\n@daily {\n").jobs == []


# ---- retries and deadlines


def test_the_default_deadline_has_room_for_every_retry():
    job = one("#: retries=9 backoff=1m timeout=10m\n*/5 * * * * x")
    rests_ms = sum(
        backoff_ms(job.retry, failures, f"{job.name}@x#{failures}") for failures in range(1, 10)
    )
    assert job.deadline_s * 1000 >= rests_ms + 9 * job.work.timeout_ms


@given(st.integers(0, 1000), st.integers(1, 86_400), st.integers(1, 31 * 86_400), st.text())
def test_no_draw_makes_the_rests_longer_than_the_deadline_reckons(retries, least_s, most_s, name):
    retry = Retry(retries + 1, least_s * 1000, max(least_s, most_s) * 1000)
    drawn_ms = sum(backoff_ms(retry, n, f"{name}{n}") for n in range(1, retries + 1))
    assert drawn_ms <= rests_s(retry) * 1000


def test_a_default_deadline_has_its_bound():
    assert one("#: retries=1000 backoff=1d\n@daily x").deadline_s == limits.DEADLINE_S_MAX


def test_a_deadline_that_is_given_is_kept_and_warned_of_where_retries_come_after_it():
    reading = read("#: retries=5 deadline=1m\n@daily x")
    (warning,) = reading.warnings
    assert (warning.line, warning.column) == (1, 23)
    assert "before the last retry" in warning.message
    assert reading.jobs[0].deadline_s == 60
    assert one("#: retries=1 deadline=1m\n@daily x").deadline_s == 60


def test_a_backoff_above_the_usual_bound_is_the_bound():
    assert one("#: retries=2 backoff=2h\n@daily x").retry == Retry(3, 7_200_000, 7_200_000)


# ---- job files


def test_a_job_file_takes_numbers_and_lists_where_a_crontab_has_words():
    job = one_of_table(
        'command = "x"\npriority = 0\nconcurrency = 2\nretries = 3\nretry-on = [111, 75]\n'
        'fatal-on = 2\ncpu = 1.25\nmemory = "1G"\nwhere = "zone=eu"\nbackoff = "5s"'
    )
    assert (job.work.priority, job.concurrency, job.work.cpu_milli) == (0, 2, 1_250)
    assert job.retry == Retry(4, 5_000, 3_600_000, (75, 111), (2,))
    assert (job.where, job.work.memory_bytes) == ("zone=eu", 1 << 30)
    assert one_of_table('command = "x"\ncpu = 2').work.cpu_milli == 2_000
    assert one_of_table('command = "x"\ncpu = "0.5"').work.cpu_milli == 500


def test_a_job_files_payload_is_a_value_and_becomes_canonical_json():
    job = one_of_table('handler = "a"\npayload = { to = ["ü"], amount = 1.5, "a" = { ok = true } }')
    assert job.work.payload == '{"a":{"ok":true},"amount":1.5,"to":["ü"]}'.encode()
    assert job.work.argv == ()
    subtable = one_of_table('handler = "a"\n[job.payload]\nto = ["ü"]\namount = 1.5\na.ok = true')
    assert subtable.work == job.work
    assert one_of_table('handler = "a"').work.payload == b""
    assert one_of_table('handler = "a"\npayload = "text"').work.payload == b'"text"'


def test_a_job_file_and_a_crontab_can_say_the_same_of_a_handler():
    from_table = one_of_table('handler = "a"\npayload = [1,2]\nheartbeat = "5s"\npriority = 3')
    from_line = one("#: handler=a heartbeat=5s priority=3\n@daily [1,2]")
    assert from_table.work == from_line.work
    assert from_table.name == from_line.name


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('command = "x"\npriority = true', 4, "priority is not a whole number", "priority = 3"),
        ('command = "x"\npriority = 11', 4, "priority 11 is not in 0 to 9", "0 to 9"),
        ('command = "x"\nretries = 1.5', 4, "retries is not a whole number", "retries = 3"),
        ('command = "x"\ncpu = [1]', 4, "cpu is not a number", "cpu = 0.5"),
        ('command = "x"\ncpu = 1e-7', 4, "cpu '1e-07' is not a number of CPUs", "decimals"),
        ('command = "x"\ncpu = inf', 4, "cpu 'inf' is not a number of CPUs", "decimals"),
        ('command = "x"\nmemory = 1024', 4, "memory is not a text", "in quotes"),
        ('command = "x"\nretries = 1\nretry-on = []', 5, "retry-on is not a list of exit codes",
         "[75, 111]"),
        ('command = "x"\nretries = 1\nretry-on = ["75"]', 5, "retry-on is not a list of exit",
         "[75, 111]"),
        ('command = "x"\nwhere = "zone=eu,="', 4, "(column 9 of the value)", "up to 100"),
        ('command = "x"\nparts = [3]', 4, "parts is not a whole number", "parts = 3"),
        ('command = "x"\npayload = 1', 4, "payload is for handlers", "handler's name"),
        ('handler = "a"\ncommand = "x"', 4, "command is for commands", "remove the command"),
        ('handler = "a"\nstdin = "x"', 4, "stdin is for commands", "payload"),
        ('handler = "a"\nenv = { A = "b" }', 4, "env is for commands", "worker"),
        ('handler = "a"\npayload = 2026-11-20', 4, "is a date, which JSON has not", "texts"),
        ('handler = "a"\npayload = [nan]', 4, "payload cannot be JSON", "texts"),
        ('handler = "a"\npayload = [[12:00:00]]', 4, "is a time, which JSON has not", "texts"),
        ('handler = 5', 3, "handler is not a text", "in quotes"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_job_file_is_told_with_its_line(text, line, message, hint):
    (problem,) = of_table(text).errors
    assert (problem.line, problem.column) == (line, 1)
    assert message in problem.message
    assert hint in problem.hint


def test_a_payload_of_a_job_file_may_be_longer_than_a_line_and_hold_any_character():
    long = "x" * (limits.CRONTAB_LINE_BYTES_MAX + 1)
    assert len(one_of_table(f'handler = "a"\npayload = "{long}"').work.payload) == len(long) + 2
    assert one_of_table('handler = "a"\npayload = "\\u0000"').work.payload == b'"\\u0000"'


def test_a_payload_has_its_bound():
    letters = limits.PAYLOAD_BYTES_MAX - 2
    assert len(dump_payload("x" * letters)) == limits.PAYLOAD_BYTES_MAX
    with pytest.raises(InvalidInput, match=f"more than {limits.PAYLOAD_BYTES_MAX}"):
        dump_payload("x" * (letters + 1))
    with pytest.raises(InvalidInput, match=f"more than {limits.PAYLOAD_BYTES_MAX}"):
        read_payload('"' + "ü" * (letters // 2 + 1) + '"')


# ---- whatever is written


def outcome(call, text):
    """What a call returns, and what it refuses with."""
    try:
        return call(text), None
    except InvalidInput as error:
        return None, error


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(JSON)
def test_a_payload_of_a_line_is_what_its_handler_reads(value):
    text = json.dumps(value, ensure_ascii=True)
    payload = one(f"#: handler=a\n@daily {text}").work.payload
    assert payload == text.encode()
    assert msgspec.json.decode(payload) == value


@given(JSON)
def test_values_of_a_job_file_become_the_same_bytes_again(value):
    payload = dump_payload(value)
    assert dump_payload(json.loads(payload)) == payload
    decoded = json.loads(payload)
    assert decoded == value or (isinstance(value, float) and math.isclose(decoded, value))


@given(st.text(max_size=30))
@example("")
@example("[")
@example('"\\udfff"')
def test_every_text_is_either_a_payload_or_refused_with_a_way_out(text):
    payload, refused = outcome(read_payload, text)
    assert (payload is None) is (refused is not None)
    if payload:
        msgspec.json.decode(payload)
    if refused is not None:
        assert refused.hint


WHOLE = st.integers(0, 1000)


@given(
    st.integers(0, 9), st.integers(1, 1000), WHOLE, st.integers(1, 3600), st.integers(1, 9_999_999),
    st.integers(1, 1 << 20), st.lists(st.integers(1, 255), min_size=1, max_size=4),
)  # fmt: skip
def test_what_is_written_is_what_is_read(
    priority, concurrency, retries, backoff_s, milli, mib, codes
):
    job = read(
        f"#: priority={priority} concurrency={concurrency} retries={retries} "
        f"backoff={format_duration(backoff_s)} retry-on={','.join(map(str, codes))} "
        f"cpu={milli // 1000}.{milli % 1000:03d} memory={mib}M\n@daily x"
    ).jobs[0]
    assert (job.work.priority, job.concurrency) == (priority, concurrency)
    assert (job.work.cpu_milli, job.work.memory_bytes) == (milli, mib << 20)
    codes_in_order = tuple(sorted(set(codes)))
    assert job.retry == Retry(retries + 1, backoff_s * 1000, 3_600_000, codes_in_order)


@given(st.sampled_from(sorted(KNOWN)), st.text(max_size=30))
def test_no_value_does_anything_but_be_read_or_refused_with_a_way_out(key, text):
    read_value, refused = outcome(partial(KNOWN[key].read, key), text)
    assert read_value is not None or refused.hint
