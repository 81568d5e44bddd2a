"""Jobs of dkron: each field means the same here, or a note says what is left out.

The forms are those of dkron's guide (4.x) and of its own tests (`job_test.go`), and of the tests of
mattn/go-shellwords, written anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cron.crontab.dkron_words import BadCommand, split_words
from cron.crontab.import_dkron import import_dkron
from cron.crontab.imported import Imported
from cron.crontab.jobfile import read_jobs_toml

CASES = Path(__file__).parents[1] / "data" / "imports"
JOB = {
    "name": "job1", "schedule": "0 0 4 * * *", "timezone": "UTC", "tags": {"server": "true:1"},
    "executor": "shell", "executor_config": {"command": "date"},
}  # fmt: skip


def read(*jobs: dict[str, Any]) -> Imported:
    found = import_dkron(json.dumps(jobs).encode(), file="jobs.json")
    reading = read_jobs_toml(found.text.encode(), file="f")
    assert reading.errors == []
    assert len(reading.jobs) == len(found.tables)
    return found


def dkron(config: dict[str, Any] | None = None, **fields: Any) -> Imported:
    return read({**JOB, "executor_config": {"command": "date", **(config or {})}, **fields})


def case(name: str) -> Imported:
    return import_dkron((CASES / f"{name}.json").read_bytes(), file="f")


def only(found: Imported) -> dict[str, Any]:
    (table,) = found.tables
    return table


def notes(found: Imported) -> list[str]:
    return [left.what for left in found.left]


# ---- cases that were wrong


def test_a_child_has_a_deadline_that_the_run_of_its_parent_cannot_exhaust() -> None:
    parent, child = case("dkron-child-never-runs").tables
    assert (parent["schedule"], child["schedule"]) == ("@every 1m", "@every 1m")
    assert (child["after"], child["deadline"]) == (["extract"], "31d")


def test_a_child_of_a_job_that_is_left_out_is_left_out() -> None:
    found = case("dkron-parent-left-out")
    assert [table["name"] for table in found.tables] == ["good"]
    whole = {left.job: left.what for left in found.left if left.is_whole}
    assert whole.keys() == {"ping", "after-ping"}
    assert "parent_job ping is left out" in whole["after-ping"]
    assert str(found.left[1]).startswith("f:2: after-ping: left out: parent_job ping")


def test_steps_above_the_size_of_a_field_leave_its_first_value() -> None:
    of_seconds, of_days = case("dkron-steps").tables
    assert (of_seconds["schedule"], of_days["schedule"]) == ("* * * * *", "0 0 1-31/2 * 1")


# ---- children


def child(name: str, parent: str, **fields: Any) -> dict[str, Any]:
    return {**JOB, "name": name, "parent_job": parent, "schedule": "", **fields}


def test_children_of_children_have_the_schedule_of_the_first_parent_in_any_order() -> None:
    found = read(child("c", "b"), child("b", "a"), {**JOB, "name": "a"})
    assert [(one["name"], one["schedule"], one.get("after")) for one in found.tables] == [
        ("a", "0 4 * * *", None), ("b", "0 4 * * *", ["a"]), ("c", "0 4 * * *", ["b"]),
    ]  # fmt: skip
    assert "runs of it that somebody asks for have no child here" in notes(found)[-1]


def test_all_children_below_a_job_that_is_left_out_are_left_out() -> None:
    jobs = [child("c", "b"), child("b", "a"), {**JOB, "name": "a", "schedule": "@manually"}]
    found = read(*jobs, {**JOB, "name": "d"})
    assert [one["name"] for one in found.tables] == ["d"]
    assert [left.job for left in found.left if left.is_whole] == ["a", "b", "c"]


def test_a_cycle_of_parents_and_a_parent_elsewhere_are_left_out() -> None:
    found = read(child("a", "b"), child("b", "a"), child("c", "c"), child("d", "nowhere"))
    assert found.tables == []
    assert [left.is_whole for left in found.left] == [True] * 4
    assert "parent_job nowhere is not in the file" in notes(found)[-1]


def test_a_long_line_of_children_is_read() -> None:
    jobs = [child(f"j{number}", f"j{number + 1}") for number in range(2_000)]
    found = read(*jobs, {**JOB, "name": "j2000"})
    assert len(found.tables) == 2_001


def test_a_child_is_not_due_where_its_parent_is_not() -> None:
    """Else it would follow the last run of the parent again and again."""
    parent = {**JOB, "name": "a", "expires_at": "2027-01-31T12:00:00Z"}
    bounds = {"starts_at": "2027-01-01T00:00:00Z", "expires_at": "2028-01-01T00:00:00Z"}
    first, second = read(parent, child("b", "a", **bounds)).tables
    assert first["end"] == second["end"] == "2027-01-31T12:00:00Z"
    assert second["start"] == "2027-01-01T00:00:00Z"


def test_a_child_that_may_not_overlap_says_which_launches_are_skipped() -> None:
    found = read({**JOB, "name": "a"}, child("b", "a", concurrency="forbid"))
    assert found.tables[1]["overlap"] == "forbid"
    assert any("launches that wait for their parents are skipped" in what for what in notes(found))


# ---- schedules


@pytest.mark.parametrize(
    ("schedule", "here"),
    [
        ("0 */15 * * * *", "*/15 * * * *"), ("0 0 9 ? * MON-FRI", "0 9 * * MON-FRI"),
        ("*/10 * * * * *", "@every 10s"), ("* * * * * *", "@every 1s"), ("@daily", "@daily"),
        ("@minutely", "* * * * *"), ("@every 1h30m10s", "@every 1h30m10s"),
        ("0 */90 * * * *", "0 * * * *"), ("30 0 1 * * *", "0 1 * * *"),
        # The name job1 has the sum 364 of its characters: a ~ is that modulo the field's size.
        ("0 ~ 3 * * *", "4 3 * * *"), ("0 0 ~ * * *", "0 4 * * *"), ("0 0 0 ~ * *", "0 0 1 * *"),
        ("0 0 0 1 ~ *", "0 0 1 5 *"), ("0 0 0 * * ~", "0 0 * * 0"),
        ("0 ~/15 * * * *", "4/15 * * * *"), ("~ 0 4 * * *", "0 4 * * *"),
        ("CRON_TZ=Asia/Tokyo 0 ~ 3 * * *", "4 3 * * *"), ("0 0  ~ * * *", "0 1 * * *"),
    ],
)  # fmt: skip
def test_a_schedule_has_the_instants_of_dkron(schedule: str, here: str) -> None:
    assert only(dkron(schedule=schedule))["schedule"] == here


@pytest.mark.parametrize(
    ("fields", "zone", "note"),
    [
        ({"timezone": "Asia/Tokyo"}, "Asia/Tokyo", ""),
        ({"schedule": "TZ=Asia/Tokyo 0 0 4 * * *"}, "Asia/Tokyo", ""),
        ({"schedule": "TZ=Asia/Tokyo @daily"}, "Asia/Tokyo", ""),
        ({"schedule": "@daily", "timezone": "Asia/Tokyo"}, None, "it does not count there"),
        ({"schedule": "@daily", "timezone": ""}, None, "@daily is in UTC here"),
        ({"schedule": "@every 1h"}, None, "counts from 1970 here"),
        ({"schedule": "30 0 1 * * *"}, "UTC", "second 30: it is due at the whole minute"),
        ({"schedule": "0 30 2 * * *", "timezone": "Europe/Berlin"}, "Europe/Berlin",
         "a time that a change of clocks skips or repeats is due once"),
    ],
)  # fmt: skip
def test_zones_of_schedules(fields: dict[str, str], zone: str | None, note: str) -> None:
    found = dkron(**fields)
    assert only(found).get("zone") == zone
    assert any(note in what for what in notes(found)) if note else notes(found) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"schedule": "@at 2027-01-01T00:00:00Z"}, "submit a task for that time"),
        ({"schedule": "@manually"}, "a job without a schedule is none here"),
        ({"schedule": ""}, "schedule missing"),
        ({"schedule": "*/7 * * * * *"}, "no even period"),
        ({"schedule": "*/10 5 * * * *"}, "start at whole minutes"),
        ({"schedule": "0 61 * * * *"}, "minute 61 is not in 0-59"),
        ({"schedule": "*/5 * * * *"}, "5 fields, and not six"),
        ({"executor": "http"}, "its executor is http: serve it as a handler"),
        ({"ephemeral": True}, "ephemeral true: it is removed there after it has succeeded once"),
        ({"concurrency": "never"}, "concurrency never is neither allow nor forbid"),
        ({"disabled": "yes"}, "disabled: yes is neither true nor false"),
        ({"retries": "3"}, "retries 3 is not a number"),
        ({"tags": {"role": "web:0"}}, "tag role web:0: dkron runs it on no node"),
        ({"tags": {"role": "web:x"}}, "tag role web:x: dkron runs it on no node"),
        ({"tags": {"role": "a|b"}}, "is not a label of an executor"),
        ({"expires_at": "soon"}, "not of the form of a job"),
        ({"config": {"command": ""}}, "it has no word"),
        ({"config": {"command": "a `b`"}}, "it has ` without quotes"),
        ({"config": {"command": "a $(b)"}}, "it has ( without quotes"),
        ({"config": {"command": "a 'b"}}, "a quote does not close"),
        ({"config": {"timeout": "5"}}, "'5' is not a duration"),
        ({"config": {"timeout": "-5s"}}, "ends each run at once"),
        ({"config": {"mem_limit": "1PB"}}, "mem_limit 1PB is not a size"),
        ({"config": {"mem_limit": "0MB"}}, "mem_limit 0MB lets nothing run"),
        ({"config": {"cwd": "relative"}}, "not an absolute path"),
    ],
)  # fmt: skip
def test_a_job_that_has_no_equivalent_is_left_out(fields: dict[str, Any], why: str) -> None:
    found = dkron(**fields)
    assert found.tables == []
    assert why in next(left.what for left in found.left if left.is_whole)


# ---- fields


def test_nothing_that_was_missed_is_launched_late_and_what_is_disabled_arrives_paused() -> None:
    table = only(dkron(disabled=True))
    assert (table["catchup"], table["paused"]) == ("none", "disabled in dkron")
    assert "paused" not in only(dkron(disabled=False))


def test_retries_are_not_ended_by_a_deadline() -> None:
    table = only(dkron(retries=3))
    assert (table["retries"], table["deadline"]) == (3, "31d")
    assert "deadline" not in only(dkron())


@pytest.mark.parametrize(
    ("tags", "places"),
    [
        ({}, {"each": "executor"}), (None, {"each": "executor"}), ({"server": "true:1"}, {}),
        ({"server": "true"}, {"each": "executor"}), ({"role": "web"}, {"each": "role=web"}),
        ({"role": "web:2"}, {"where": "role=web", "parts": 2}),
        ({"role": "web:3", "dc": "eu:2", "rack": "7"},
         {"where": "role=web, dc=eu, rack=7", "parts": 2}),
        # What has two colons is a label without a number.
        ({"role": "web:2:3"}, {"each": "role=web"}), ({"role": "web:1"}, {"where": "role=web"}),
    ],
)  # fmt: skip
def test_tags_are_labels_and_a_job_without_a_number_runs_on_each(
    tags: dict[str, str] | None, places: dict[str, Any]
) -> None:
    table = only(dkron(tags=tags))
    assert {key: table[key] for key in ("where", "parts", "each") if key in table} == places


@pytest.mark.parametrize(
    ("size", "here", "note"),
    [
        ("512MB", "524288K", ""), ("0.5GB", "524288K", ""), ("1048577", "1025K", ""),
        ("2097152 ", "2048K", ""), ("0.0625g", "65536K", ""), ("1k", "1024K", "the least is 1M"),
        ("1048576 TB", None, "not a size"), ("2048TB", None, "not limited to that"),
    ],
)  # fmt: skip
def test_memory_is_rounded_up(size: str, here: str | None, note: str) -> None:
    found = dkron({"mem_limit": size})
    if found.tables:
        assert only(found).get("memory") == here
    assert any(note in what for what in notes(found)) if note else notes(found) == []


def test_lengths_of_go_are_whole_seconds() -> None:
    assert only(dkron({"timeout": "1.5m"}))["timeout"] == "1m30s"
    found = dkron({"timeout": "1500ms"})
    assert only(found)["timeout"] == "2s"
    assert "timeout 1500ms: rounded up to whole seconds" in notes(found)[0]
    assert "timeout" not in only(dkron({"timeout": "0s"}))


def test_variables_are_split_at_commas_and_nowhere_else() -> None:
    found = dkron({"env": "A=1,B=x y=z,C, D=4,A=2"})
    assert only(found)["env"] == {"A": "2", "B": "x y=z", "ENV_JOB_NAME": "job1"}
    assert [what for what in notes(found) if "env:" in what] == [
        "env: 'C', which sets no variable", "env: ' D=4', which sets no variable",
    ]  # fmt: skip


def test_times_are_those_of_rfc_3339() -> None:
    table = only(dkron(starts_at="2027-01-01T00:00:00.5+01:00", expires_at="2027-02-01T00:00:00Z"))
    assert (table["start"], table["end"]) == ("2026-12-31T23:00:01Z", "2027-02-01T00:00:00Z")
    never = only(dkron(starts_at=None, expires_at="0001-01-01T00:00:00Z"))
    assert not {"start", "end"} & never.keys()


def test_an_unknown_key_is_noted_and_one_that_says_nothing_is_not() -> None:
    found = dkron(
        {"strange": ""}, strange=0, displayname="x", owner="o", next="2027-01-01T00:00:00Z",
        success_count=3, dependent_jobs=["b"], processors={"log": {}}, metadata={}, owner_email="",
    )  # fmt: skip
    assert notes(found) == [
        "strange 0: this key is not known",
        'processors {"log": {}}: the output stays where executors keep it',
        "executor_config.strange : this key is not known",
    ]


# ---- commands


@pytest.mark.parametrize(
    ("text", "words", "rest"),
    [
        ("date", ["date"], ""), (" a  b\tc\n", ["a", "b", "c"], ""),
        ("a 'b c' \"d e\"", ["a", "b c", "d e"], ""), ("a b\\ c", ["a", "b c"], ""),
        ("a 'b\\c'", ["a", "b\\c"], ""), ('a "b\\"c"', ["a", 'b"c'], ""),
        ("a \\n\\t\\x", ["a", "\n\tx"], ""), ("a x'y'\"z\"", ["a", "xyz"], ""),
        ("a ''", ["a", ""], ""),
        ("ps | wc", ["ps"], "| wc"), ("a > b", ["a"], "> b"), ("a 2>&1", ["a"], "2>&1"),
        ("a x2>&1", ["a", "x2"], ">&1"), ("a 'b;c' ; d", ["a", "b;c"], "; d"),
        ("a $HOME * ~ #c {1,2}", ["a", "$HOME", "*", "~", "#c", "{1,2}"], ""),
    ],
)  # fmt: skip
def test_words_of_a_command_that_no_shell_reads(text: str, words: list[str], rest: str) -> None:
    assert split_words(text) == (words, rest)


@pytest.mark.parametrize("text", ["", "  ", "'a", 'a "b', "a\\", "`a`", "a (b)", "$(a)", "| a"])
def test_a_command_that_cannot_be_split_is_refused(text: str) -> None:
    with pytest.raises(BadCommand):
        split_words(text)


def test_a_command_without_a_shell_has_its_words_in_quotes() -> None:
    found = dkron({"command": "find /a -name *.gz | wc", "shell": "false"})
    assert only(found)["command"] == "find /a -name '*.gz'"
    assert "command: | wc, which dkron leaves out" in notes(found)[0]
    in_shell = dkron({"command": "find /a -name *.gz | wc", "shell": "true"})
    assert only(in_shell)["command"] == "find /a -name *.gz | wc"
    assert notes(in_shell) == []


def test_the_payload_is_the_input() -> None:
    assert only(dkron({"payload": "aGk="}))["stdin"] == "hi"
    assert dkron({"payload": "/w=="}).tables == []  # not a text


def test_a_name_that_no_job_can_have_is_said() -> None:
    found = dkron(name="gr\u00f6\u00dfe")
    assert only(found)["name"] == "gr-e"
    assert only(found)["env"] == {"ENV_JOB_NAME": "gr\u00f6\u00dfe"}
    assert notes(found) == ["name gr\u00f6\u00dfe: it is called gr-e here"]


def test_variables_with_a_meaning_of_their_own_here_are_only_variables() -> None:
    table = only(dkron({"env": "MAILTO=a@b", "command": "echo a"}))
    assert table["command"] == "export MAILTO=a@b\nexec echo a"
    assert "MAILTO" not in table["env"]


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({"executor_config": {"command": "nohup /opt/a &", "shell": "true"}}, "&"),
        ({"executor_config": {"command": "setsid /opt/a", "shell": True}}, "setsid"),
        ({"executor_config": {"command": "setsid /opt/a"}}, "setsid"),
        ({"executor_config": {}, "command": "nohup /opt/a &", "shell": True}, "&"),
        ({"executor_config": {"command": "sh -c 'a & b'"}}, "&"),
    ],
)
def test_a_command_that_leaves_a_process_in_the_background_is_said(
    fields: dict[str, Any], how: str
) -> None:
    found = dkron_lines({**JOB, **fields})
    line = found[0].index('"command"')
    (note,) = [one for one in found[1].left if "background" in one.what]
    assert str(note).startswith(
        f"f:{found[0][:line].count(chr(10)) + 1}: job1: not carried over: {how} leaves a process"
    )


def dkron_lines(job: dict[str, Any]) -> tuple[str, Imported]:
    text = json.dumps(job, indent=1)
    return text, import_dkron(text.encode(), file="f")


def test_an_ampersand_that_no_shell_reads_is_a_word() -> None:
    assert not any("background" in one for one in notes(dkron({"command": "echo '&'"})))
