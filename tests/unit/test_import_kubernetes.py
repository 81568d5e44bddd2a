"""CronJobs of Kubernetes: each field means the same here, or a note says what is left out.

The cases of variables and quantities are of the kinds that Kubernetes' own tests have
(`expansion/expand_test.go`, `resource/quantity_test.go`), written anew.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.crontab.import_kubernetes import import_kubernetes
from cron.crontab.imported import Imported
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.kubernetes_values import pieces, quantity
from cron.crontab.located import read_json

CASES = Path(__file__).parents[1] / "data" / "imports"


def imported(case: str) -> Imported:
    found = import_kubernetes([json.loads((CASES / f"{case}.json").read_bytes())])
    reading = read_jobs_toml(found.text.encode(), file="f")
    assert reading.errors == []
    return found


def one(
    *, spec: Any = (), job: Any = (), pod: Any = (), container: Any = (), **others: Any
) -> Imported:
    """A CronJob with these fields beside those that each has."""
    whole = {"image": "i", "command": ["/bin/true"], **dict(container)}
    pods = {"restartPolicy": "Never", "containers": [whole], **dict(pod)}
    jobs = {"backoffLimit": 0, "template": {"spec": pods}, **dict(job)}
    specs = {
        "schedule": "0 4 * * *", "timeZone": "UTC", "startingDeadlineSeconds": 300,
        "jobTemplate": {"spec": jobs}, **dict(spec),
    }  # fmt: skip
    metadata = {"name": "a", "namespace": "shop"}
    whole = {"kind": "CronJob", "metadata": metadata, "spec": specs, **others}
    return import_kubernetes([whole])


def notes(found: Imported) -> list[str]:
    return [left.what for left in found.left if "image i" not in left.what]


def only(found: Imported) -> dict[str, Any]:
    (table,) = found.tables
    return table


# ---- cases that were wrong


def test_a_question_mark_is_each_day_and_not_one_of_our_choice() -> None:
    found = imported("k8s-question-mark")
    assert [table["schedule"] for table in found.tables] == ["0 3 * * *"] * 2


def test_a_step_in_a_day_field_joins_both_by_or() -> None:
    assert only(imported("k8s-step-or"))["schedule"] == "0 0 1-31/2 * 1"


def test_variables_are_replaced_as_kubernetes_does_before_a_shell_sees_them() -> None:
    plain, in_shell = imported("k8s-dollar-parens").tables
    assert plain["command"] == "/usr/bin/backup --to s3://b '$(KEEP)'"
    assert in_shell["command"] == "echo to /srv/x"
    assert in_shell["env"] == {"BASE": "/srv", "DEST": "/srv/x"}


def test_quantities_of_every_form_are_limits() -> None:
    binary, exponent = imported("k8s-quantity").tables
    assert (binary["memory"], binary["cpu"]) == ("1572864K", "0.250")
    assert (exponent["memory"], exponent["cpu"]) == ("976563K", "1.000")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"spec": {"suspend": True}}, "suspended in Kubernetes"),
        ({"job": {"suspend": True}}, "its Jobs are suspended in Kubernetes"),
        ({"job": {"parallelism": 0}}, "parallelism 0 in Kubernetes"),
    ],
)
def test_what_is_suspended_arrives_paused(fields: dict[str, Any], reason: str) -> None:
    assert only(imported("k8s-suspended"))["paused"] == "suspended in Kubernetes"
    assert only(one(**fields))["paused"] == reason
    assert "paused" not in only(one(spec={"suspend": False}))
    assert one(spec={"suspend": "true"}).tables == []


def test_a_deadline_for_the_start_does_not_end_retries() -> None:
    """20 s, with delays of 10 s to 160 s before retries."""
    found = imported("k8s-deadline-retries")
    assert only(found)["deadline"] == "10m20s"
    reading = read_jobs_toml(found.text.encode(), file="f")
    assert reading.warnings == []  # such as "deadline is over before the last retry"
    without = one(job={"backoffLimit": 3})
    assert "deadline" not in only(without)
    assert "startingDeadlineSeconds 300: a deadline here ends retries too" in notes(without)[0]


# ---- times


def test_a_deadline_of_the_whole_job_bounds_each_attempt_and_the_start_of_the_last() -> None:
    found = one(job={"backoffLimit": 6, "activeDeadlineSeconds": 100})
    table = only(found)
    # Delays of 10, 20 and 40 s end before 100 s, and the fourth one after it.
    assert (table["timeout"], table["deadline"], table["retries"]) == ("1m40s", "6m40s", 3)
    said = "\n".join(notes(found))
    assert "backoffLimit 6: delays before retries leave time for 3" in said
    assert "activeDeadlineSeconds 100 is of all 4 attempts together there" in said
    single = one(job={"activeDeadlineSeconds": 90})
    assert (only(single)["timeout"], only(single)["deadline"]) == ("1m30s", "5m")
    assert notes(single) == []


def test_a_deadline_of_a_pod_is_that_of_an_attempt() -> None:
    table = only(one(job={"backoffLimit": 2}, pod={"activeDeadlineSeconds": 60}))
    assert (table["timeout"], table["retries"], table["backoff-max"]) == ("1m", 2, "10m")
    again = one(job={"backoffLimit": 2}, pod={"activeDeadlineSeconds": 60,
                                              "restartPolicy": "OnFailure"})  # fmt: skip
    assert only(again)["backoff-max"] == "5m"
    assert "activeDeadlineSeconds 60 is of all 3 attempts together" in "\n".join(notes(again))


def test_a_run_without_a_deadline_begins_however_late() -> None:
    assert only(one(spec={"startingDeadlineSeconds": None}))["deadline"] == "31d"
    assert only(one(job={"backoffLimit": None}))["retries"] == 6


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spec": {"startingDeadlineSeconds": 0}}, "startingDeadlineSeconds: 0 lets nothing run"),
        ({"job": {"activeDeadlineSeconds": 0}}, "activeDeadlineSeconds: 0 lets nothing run"),
        ({"job": {"activeDeadlineSeconds": "90"}}, "activeDeadlineSeconds: 90 is not a number"),
        ({"job": {"backoffLimit": True}}, "backoffLimit: True is not a number"),
        ({"pod": {"restartPolicy": "Always"}}, "restartPolicy Always is none of a Job"),
        ({"spec": {"concurrencyPolicy": "forbid"}}, "concurrencyPolicy forbid is none"),
        ({"spec": {"schedule": "0 4 * * 7"}}, "day of week 7 is not in 0-6"),
        ({"spec": {"schedule": "0 22-6 * * *"}}, "hour 22-6 is not in 0-23"),
        ({"spec": {"schedule": "0 0 L * *"}}, "'L', which is not a number"),
        ({"spec": {"timeZone": "Berlin"}}, "Berlin"),
        ({"container": {"command": ["sleep", 5]}}, "command: 5 is not a text"),
        ({"container": {"env": [{"name": "A", "value": True}]}}, "env: A: True is not a text"),
        ({"container": {"command": None, "args": ["a"]}}, "its command is that of the image"),
        ({"container": {"resources": {"limits": {"memory": "1.5GiB"}}}}, "quantity 1.5GiB"),
        ({"container": {"resources": {"limits": {"cpu": "-1"}}}}, "quantity -1"),
    ],
)
def test_what_kubernetes_refuses_or_never_runs_is_left_out(
    fields: dict[str, Any], why: str
) -> None:
    found = one(**fields)
    assert found.tables == []
    assert why in next(left.what for left in found.left if left.is_whole)


def test_a_zone_in_the_schedule_wins_and_one_with_changes_of_clocks_is_said() -> None:
    found = one(spec={"schedule": "TZ=Europe/Berlin 30 2 * * *"})
    assert (only(found)["schedule"], only(found)["zone"]) == ("30 2 * * *", "Europe/Berlin")
    assert "timeZone UTC: the schedule names Europe/Berlin" in notes(found)[0]
    assert "a time that a change of clocks skips or repeats is due once" in notes(found)[1]
    every = one(spec={"schedule": "@every 90m"})
    assert only(every)["schedule"] == "@every 1h30m"
    assert "counts from 1970 here" in notes(every)[0]


def test_an_instant_during_a_run_is_said_to_differ_where_runs_may_not_overlap() -> None:
    found = one(spec={"concurrencyPolicy": "Forbid"})
    assert only(found)["overlap"] == "forbid"
    assert "skipped here; there the newest one begins when the run is over" in notes(found)[0]
    assert only(one(spec={"concurrencyPolicy": "Replace"}))["overlap"] == "replace"


# ---- keys


def test_an_unknown_key_of_each_part_is_noted_and_one_without_effect_is_not() -> None:
    strange = {"strange": {"a": 1}}
    found = one(
        spec={**strange, "successfulJobsHistoryLimit": 1},
        job={**strange, "ttlSecondsAfterFinished": 5, "completionMode": "NonIndexed"},
        pod={**strange, "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
             "securityContext": {}, "terminationGracePeriodSeconds": 30},
        container={**strange, "imagePullPolicy": "Always", "tty": False,
                   "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "1"}}},
        apiVersion="batch/v1", status={}, strange=1,
    )  # fmt: skip
    assert only(found)["name"] == "shop/a"
    unknown = "strange: this key is not known"
    assert notes(found) == [
        "CronJob: strange 1: this key is not known",
        f"spec: {unknown}",
        f"jobTemplate.spec: {unknown}",
        f"template.spec: {unknown}",
        "template.spec: terminationGracePeriodSeconds 30: term_grace_ms of the executor says it "
        "here",
        f"container: {unknown}",
        "resources: requests: executors do not reserve what is not a limit",
        "limits: nvidia.com/gpu 1: this key is not known",
    ]


def test_a_note_names_the_file_the_line_and_the_key() -> None:
    text = (CASES / "k8s-deadline-retries.json").read_text()
    found = import_kubernetes(read_json(text), file="jobs.json")
    lines = text.splitlines()
    for left in found.left:
        key = left.what.removeprefix("container: ").split(" ", 1)[0]
        assert left.place.file == "jobs.json"
        assert f'"{key}"' in lines[left.place.line - 1]
    assert len(found.left) == 5


def test_pods_beyond_one_are_said() -> None:
    said = "\n".join(notes(one(job={"completions": 3, "parallelism": 2})))
    assert "completions 3: the command runs once here" in said
    assert "parallelism 2: the command runs once here" in said


# ---- variables


def expanded(text: str, variables: dict[str, str]) -> str:
    return "".join(
        variables.get(part.text, f"$({part.text})") if part.is_variable else part.text
        for part in pieces(text)
    )


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("$(A)", "1"), ("$(A)-$(A)", "1-1"), ("a$(EMPTY)b", "ab"), ("$$(A)_$(A)", "$(A)_1"),
        ("$$A", "$A"), ("\\$(A)", "\\1"), ("$(B)", "$(A)"), ("$(A$(A))", "$(A$(A))"),
        ("$(Awhoops", "$(Awhoops"), ("(A)", "(A)"), ("$?_$!", "$?_$!"), ("$A", "$A"),
        ("$(NONE)", "$(NONE)"), ("$$$$$$(A)", "$$$(A)"), ("$$$$$$$(A)", "$$$1"),
        ("$(A)_$(", "1_$("), ("a$", "a$"), ("--$($($(--", "--$($($(--"), ("${A}", "${A}"),
        ("$(a$$b)", "$(a$$b)"), ("$()", "$()"), ("", ""), ("\n", "\n"),
    ],
)  # fmt: skip
def test_references_to_variables_are_those_of_kubernetes(text: str, whole: str) -> None:
    assert expanded(text, {"A": "1", "B": "$(A)", "EMPTY": ""}) == whole


def test_a_variable_has_what_was_defined_before_it() -> None:
    env = [
        {"name": "A", "value": "$(B)"}, {"name": "B", "value": "b"},
        {"name": "C", "value": "$(B)$(B)"}, {"name": "B", "value": "$(B)2"}, {"name": "N"},
    ]  # fmt: skip
    command = {"command": ["echo", "$(A)$(B)", "$(C) d", "$(NONE)"]}
    table = only(one(container={"env": env, **command}))
    assert table["env"] == {"A": "$(B)", "C": "bb", "B": "b2", "N": ""}
    assert table["command"] == "exec echo '$(B)b2' 'bb d' '$(NONE)'"


def test_a_secret_in_a_word_is_the_variable_that_the_executor_sets() -> None:
    secret = {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}
    table = only(one(container={"env": [secret], "command": ["psql", "-p$(PW) x", "$(PW)"]}))
    assert table["command"] == """psql -p"${PW}"' x' "${PW}\""""
    assert table["secret"] == ["PW:db/pw"]
    found = one(container={"env": [secret], "command": ["sh", "-c", "psql -p$(PW)"]})
    assert found.tables == []
    assert "the value of $(PW) is known to Kubernetes alone" in found.left[-1].what


@pytest.mark.parametrize(
    ("env", "maps", "text"),
    [
        ([{"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}], [], "$(P)"),
        ([], [{"configMapRef": {"name": "c"}}], "$(OF_MAP)"),
        ([], [], "$(REDIS_SERVICE_HOST)"), ([], [], "$(REDIS_PORT_6379_TCP)"),
        ([{"name": "A", "value": "$(DB_SERVICE_PORT)"}], [], "$(A)"),
    ],
)  # fmt: skip
def test_a_command_with_a_value_that_only_the_cluster_knows_is_left_out(
    env: list[Any], maps: list[Any], text: str
) -> None:
    found = one(container={"env": env, "envFrom": maps, "command": ["echo", text]})
    assert found.tables == []
    assert "is known to Kubernetes alone" in found.left[-1].what


def test_a_variable_with_a_value_of_the_cluster_is_left_out_alone() -> None:
    secret = {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}
    found = one(container={"env": [secret, {"name": "URL", "value": "x:$(PW)@db"}]})
    assert "env" not in only(found)
    assert any("variable URL, which has $(PW)" in what for what in notes(found))


def test_a_shell_keeps_its_own_substitutions() -> None:
    table = only(one(container={"command": ["/bin/sh", "-c", "echo $(date +%F) $$1 ${A}"]}))
    assert table["command"] == "echo $(date +%F) $1 ${A}"


# ---- quantities

UNITS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
    "e3": Fraction(1000), "E-2": Fraction(1, 100), "e+1": Fraction(10),
}  # fmt: skip


@given(st.decimals(0, 10**6, places=4), st.sampled_from(sorted(UNITS)), st.sampled_from([1, 1000]))
def test_a_quantity_is_exact_and_rounded_up(number: Any, unit: str, per_unit: int) -> None:
    exact = Fraction(str(number)) * UNITS[unit] * per_unit
    assert quantity(f"{number}{unit}", per_unit=per_unit) == -(-exact // 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("128974848", 128974848), ("129e6", 129 * 10**6), ("129M", 129 * 10**6), ("123Mi", 123 << 20),
     ("128974848000m", 128974848), ("1.5Gi", 3 << 29), ("+1Ki", 1024), (".5Ki", 512), ("1.", 1),
     ("1E", 10**18), ("1E3", 1000), ("0.9n", 1), (1, 1), (0.5, 1), (1e9, 10**9), ("0", 0)],
)  # fmt: skip
def test_quantities_of_kubernetes_documents(text: object, size: int) -> None:
    assert quantity(text) == size


@pytest.mark.parametrize(
    "text", ["", ".", "1x", "1 Gi", "1GI", "1K", "1ki", "-1", "1e", "1e1.5", "Ki", True, "inf",
             "\u0661", "1e100", "0x10"]
)  # fmt: skip
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("limits", "carried", "note"),
    [
        ({"cpu": "1u"}, {"cpu": "0.001"}, ""), ({"cpu": "1.0001"}, {"cpu": "1.001"}, ""),
        ({"cpu": 0, "memory": "0"}, {}, ""), ({"memory": "2k"}, {"memory": "1024K"}, "least is 1M"),
        ({"memory": "1000001"}, {"memory": "1024K"}, "least is 1M"),
        ({"memory": "1048577"}, {"memory": "1025K"}, ""),
        ({"memory": "8E"}, {}, "memory 8E"), ({"cpu": "20k"}, {}, "cpu 20k"),
    ],
)  # fmt: skip
def test_limits_are_rounded_up_and_what_cannot_be_is_said(
    limits: dict[str, object], carried: dict[str, str], note: str
) -> None:
    found = one(container={"resources": {"limits": limits}})
    table = only(found)
    assert {key: table[key] for key in ("cpu", "memory") if key in table} == carried
    assert any(note in what for what in notes(found)) if note else notes(found) == []


def test_variables_with_a_meaning_of_their_own_here_are_only_variables() -> None:
    env = [{"name": "MAILTO", "value": "ops@example.com"}, {"name": "A", "value": "1"}]
    plain = only(one(container={"env": env, "command": ["printf", "a"]}))
    assert plain["command"] == "export MAILTO=ops@example.com\nexec printf a"
    script = only(one(container={"env": env, "command": ["sh", "-c", "a & b"]}))
    assert script["command"] == "export MAILTO=ops@example.com\na & b"
    assert plain["env"] == script["env"] == {"A": "1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["/bin/sh", "-c", "sleep 100 & exit 0"]},
        {"command": ["/bin/bash", "-c", "sleep 100 & exit 0"]},
        {"command": ["/bin/sh"], "args": ["-c", "sleep 100 & exit 0"]},
    ],
)
def test_a_command_that_leaves_a_process_in_the_background_is_said(fields: dict[str, Any]) -> None:
    mark = "& leaves a process in the background: it is killed when its shell is over"
    assert any(what.startswith(mark) for what in notes(one(container=fields)))


def test_an_ampersand_that_no_shell_reads_is_a_word() -> None:
    found = one(container={"command": ["/bin/echo", "&"]})
    assert not any("background" in what for what in notes(found))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"container": {"command": "echo hi"}}, "command: echo hi is not a list of texts"),
        ({"container": {"args": "hi"}}, "args: hi is not a list of texts"),
        ({"container": {"args": {"a": 1}}}, "args: {'a': 1} is not a list of texts"),
        ({"container": {"args": [["a"]]}}, "args: ['a'] is not a text"),
        ({"container": {"env": "A=1"}}, "env: A=1 is not a list of maps"),
        ({"container": {"env": ["A"]}}, "env: A is not a map"),
        ({"container": {"env": [{"name": "A", "value": 0}]}}, "env: A: 0 is not a text"),
        ({"container": {"env": [{"name": "A", "valueFrom": []}]}}, "valueFrom: [] is not a map"),
        ({"container": {"workingDir": 5}}, "workingDir: 5 is not a text"),
        ({"container": {"workingDir": False}}, "workingDir: False is not a text"),
        ({"container": {"resources": []}}, "resources: [] is not a map"),
        ({"container": {"resources": {"limits": ""}}}, "limits:  is not a map"),
        ({"pod": {"containers": {"command": ["x"]}}}, "is not a list of maps"),
        ({"job": {"template": ""}}, "template:  is not a map"),
        ({"spec": {"timeZone": 0}}, "timeZone: 0 is not a text"),
        ({"spec": {"suspend": "false"}}, "suspend: false is not true or false"),
        ({"metadata": {"name": 5}}, "name: 5 is not a text"),
    ],
)
def test_a_value_of_another_form_than_that_of_the_api_leaves_the_job_out(
    fields: dict[str, Any], why: str
) -> None:
    found = one(**fields)
    assert found.tables == []
    assert why in next(left.what for left in found.left if left.is_whole)


def test_an_empty_value_and_none_have_the_form_of_any_key() -> None:
    found = one(spec={"concurrencyPolicy": None, "timeZone": None}, container={"args": None})
    assert only(found)["command"] == "/bin/true"
