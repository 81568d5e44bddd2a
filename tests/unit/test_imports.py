"""Jobs of dkron, Kubernetes and cron: what is carried over, and what is said of the rest.

The examples have the forms of those in dkron's guide ("Getting started", 4.x) and in Kubernetes'
documents (application/job/cronjob.yaml); they are written anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from cron.api.jobs import ApplyReport
from cron.crontab.import_dkron import import_dkron
from cron.crontab.import_kubernetes import import_kubernetes
from cron.crontab.imported import Imported
from cron.crontab.jobfile import read_jobs_toml
from cron.errors import InvalidInput, Problem
from tests.unit.api_rig import FakeBackend
from tests.unit.test_cli_tasks import asked, cli

GUIDE = {
    "name": "job1", "schedule": "@every 10s", "timezone": "Europe/Berlin",
    "owner": "Platform Team", "owner_email": "platform@example.com", "disabled": False,
    "tags": {"server": "true:1"}, "metadata": {"user": "12345"}, "concurrency": "allow",
    "executor": "shell", "executor_config": {"command": "date"},
}  # fmt: skip
HELLO = {
    "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "hello"},
    "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": {
        "containers": [{"name": "hello", "image": "busybox:1.28",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["/bin/sh", "-c", "date; echo Hello from the cluster"]}],
        "restartPolicy": "OnFailure"}}}}},
}  # fmt: skip


def said(imported: Imported) -> str:
    return "\n".join(f"{one.job}: {one.what}" for one in imported.left)


def dkron(**fields: object) -> Imported:
    return import_dkron(json.dumps({**GUIDE, **fields}).encode())


def check_file(imported: Imported) -> None:
    reading = read_jobs_toml(imported.text.encode(), file="f")
    assert reading.errors == []
    assert len(reading.jobs) == len(imported.tables)


# ---- dkron


def test_the_job_of_dkrons_guide() -> None:
    imported = dkron()
    assert imported.tables == [
        {"name": "job1", "schedule": "@every 10s", "command": "date",
         "env": {"ENV_JOB_NAME": "job1"}, "catchup": "none"}
    ]  # fmt: skip
    assert 'job1: metadata {"user": "12345"}: ' in said(imported)
    assert "owner_email platform@example.com: write alert=failed" in said(imported)
    check_file(imported)


def test_jobs_of_dkron_one_after_the_other() -> None:
    text = json.dumps(GUIDE) + "\n\n" + json.dumps({**GUIDE, "name": "job2"})
    assert [one["name"] for one in import_dkron(text.encode()).tables] == ["job1", "job2"]


@pytest.mark.parametrize(
    "fields",
    [
        {"executor_config": "date"}, {"tags": ["a"]}, {"schedule": "\u00b2 * * * * *"},
        {"executor_config": {"command": "a", "env": 3}}, {"retries": 10**30},
        {"schedule": "@daily", "timezone": {}, "name": ""}, {"parent_job": ["a"]},
        {"executor_config": {"command": "a", "mem_limit": "much"}},
        {"executor_config": {"command": "a", "payload": "%"}},
        {"schedule": "0 * * * * *", "timezone": 5},
    ],
)  # fmt: skip
def test_a_job_of_dkron_that_is_not_of_its_form_is_imported_or_left_out(
    fields: dict[str, object],
) -> None:
    imported = dkron(**fields)
    assert len(imported.tables) + sum(one.is_whole for one in imported.left) == 1
    check_file(imported)


def test_a_document_of_dkron_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not JSON"):
        import_dkron(b"[" * 100_000)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"{}", b'{"name": 1}', b'"x"', b"\xff"])
def test_what_is_no_answer_of_dkron_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"dkron|JSON"):
        import_dkron(content)


# ---- Kubernetes


def test_the_example_of_kubernetes() -> None:
    imported = import_kubernetes([HELLO])
    assert imported.tables == [
        {"name": "default/hello", "schedule": "* * * * *", "retries": 6, "backoff-max": "5m",
         "deadline": "31d", "command": "date; echo Hello from the cluster"}
    ]  # fmt: skip
    assert "image busybox:1.28: the command runs on an executor's host" in said(imported)
    check_file(imported)


def test_options_of_a_cron_job() -> None:
    spec = {
        "schedule": "30 2 * * *", "timeZone": "Europe/Berlin", "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 300, "suspend": True,
        "jobTemplate": {"spec": {"backoffLimit": 0, "activeDeadlineSeconds": 90, "parallelism": 3,
            "template": {"spec": {"volumes": [{}], "containers": [{
                "image": "i", "command": ["backup"], "args": ["--to", "a b"], "workingDir": "/w",
                "env": [{"name": "A", "value": "1"}, {"name": "S", "valueFrom": {}},
                        {"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}],
                "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}}}, {}]}}}},
    }  # fmt: skip
    one = {"kind": "CronJob", "metadata": {"name": "b", "namespace": "shop"}, "spec": spec}
    imported = import_kubernetes([{"kind": "List", "items": [one]}, {"kind": "Service"}])
    assert imported.tables == [
        {"name": "shop/b", "schedule": "30 2 * * *", "zone": "Europe/Berlin",
         "command": "backup --to 'a b'", "env": {"A": "1"}, "secret": ["P:db/pw"],
         "cwd": "/w", "timeout": "1m30s",
         "deadline": "5m", "overlap": "forbid", "cpu": "0.250", "memory": "65536K",
         "paused": "suspended in Kubernetes"}
    ]  # fmt: skip
    for what in (
        "variable S",
        "secret db/pw",
        "1 more containers",
        "volumes",
        "parallelism 3",
    ):
        assert what in said(imported)
    check_file(imported)


def test_a_cron_job_without_a_command_or_form_is_left_out() -> None:
    bare = json.loads(json.dumps(HELLO))
    del bare["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    imported = import_kubernetes([bare, {"kind": "CronJob", "spec": {"schedule": "* * * * *"}}])
    assert imported.tables == []
    assert "its command is that of the image busybox" in said(imported)
    assert "not of the form of a CronJob" in said(imported)
    with pytest.raises(InvalidInput, match="there is no CronJob"):
        import_kubernetes([{"kind": "Pod"}, None, 3])


def test_all_that_a_cron_job_says_is_carried_over_or_noted() -> None:
    one = json.loads(json.dumps(HELLO))
    job = one["spec"]["jobTemplate"]["spec"]
    job |= {"podFailurePolicy": {"rules": [{}]}, "ttlSecondsAfterFinished": 9}
    job["template"]["spec"] |= {"affinity": {"a": {}}, "hostNetwork": False}
    job["template"]["spec"]["containers"][0] |= {"securityContext": {"runAsUser": 4}}
    notes = said(import_kubernetes([one])).splitlines()
    assert sorted(notes) == sorted([
        "default/hello: jobTemplate.spec: podFailurePolicy: write retry-on or fatal-on for exit "
        "codes",
        "default/hello: template.spec: affinity: write where= with labels of executors",
        "default/hello: container: image busybox:1.28: the command runs on an executor's host",
        "default/hello: container: securityContext: there is no container here",
    ])  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": "hello"}, {"metadata": {"name": 3, "namespace": ["a"]}}, {"spec": []},
        {"spec": {**HELLO["spec"], "schedule": 5}},  # type: ignore[dict-item]
        {"spec": {**HELLO["spec"], "concurrencyPolicy": None}},  # type: ignore[dict-item]
    ],
)  # fmt: skip
def test_a_cron_job_of_any_form_is_imported_or_left_out(fields: dict[str, object]) -> None:
    imported = import_kubernetes([{**HELLO, **fields}])
    assert len(imported.tables) + sum(one.is_whole for one in imported.left) == 1
    check_file(imported)


def test_quantities_that_cannot_be_are_left_out() -> None:
    for limits in ({"cpu": "inf"}, {"memory": "9" * 5_000}, {"cpu": "1" * 5_000 + "m"}):
        one = json.loads(json.dumps(HELLO))
        pod = one["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        pod["containers"][0]["resources"] = {"limits": limits}
        assert "not of the form of a CronJob" in said(import_kubernetes([one]))


def test_lists_of_kubernetes_that_are_nested_too_deeply_are_refused() -> None:
    document: object = HELLO
    for _ in range(5_000):
        document = {"items": [document]}
    with pytest.raises(InvalidInput, match="nested too deeply"):
        import_kubernetes([document])


# ---- the command


async def run(*arguments: str) -> Result:
    return await cli(FakeBackend(), "import", *arguments)


async def test_the_command_prints_a_job_file_and_what_is_left(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([GUIDE, {**GUIDE, "name": "off", "executor": "http"}]))
    result = await run("dkron", str(file))
    assert result.exit_code == 0
    assert [job.name for job in read_jobs_toml(result.stdout.encode(), file="f").jobs] == [
        "default/job1"
    ]
    assert "off: left out: its executor is http" in result.stderr
    assert result.stderr.splitlines()[-1] == "1 job, 1 left out"
    result = await run("dkron", str(file), "-o", "json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows[0]["job"] == "job1"
    assert rows[-1] == {
        "left": "its executor is http: serve it as a handler, see docs/targets.md", "of": "off",
        "is_left_out": True, "file": str(file), "line": 1,
    }  # fmt: skip
    file.write_text(json.dumps(HELLO))
    assert 'name = "default/hello"' in (await run("kubernetes", str(file))).stdout
    (tmp_path / "a.timer").write_text("[Timer]\nOnCalendar=daily\n")
    (tmp_path / "a.service").write_text("[Service]\nExecStart=/bin/true\n")
    assert 'command = "/bin/true"' in (await run("systemd", str(tmp_path))).stdout
    file.write_text("0 1 * * * x\n")
    assert 'command = "x"' in (await run("crontab", str(file))).stdout
    assert (await run("crontab")).exit_code == 2
    assert (await run("dkron", str(tmp_path / "no"))).exit_code == 2
    assert (await run("dkron", "http://127.0.0.1:1")).exit_code == 5


async def test_a_zone_or_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.timer").write_text("[Timer]\nOnCalendar=03:00\n")
    (tmp_path / "a.service").write_text("[Service]\nExecStart=/bin/true\n")
    folder = str(tmp_path)
    result = await run("systemd", folder, "--zone", "Europe/Berlin")
    assert 'zone = "Europe/Berlin"' in result.stdout
    for arguments, why in (
        (("systemd", folder, "--zone", "Mars/Base"), "Mars/Base"),
        (("systemd", folder, "--without", "ConditionACPowr"), "there is no such key"),
        (("crontab", folder, "--zone", "Mars/Base"), "Mars/Base"),
        (("crontab", "--host", "--zone", "UTC"), "--host takes the zone of this machine"),
    ):
        result = await run(*arguments)
        assert result.exit_code == 2
        assert why in result.stderr


async def test_jobs_are_applied_at_once_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(GUIDE))
    backend = FakeBackend(put_jobs=ApplyReport(source="dkron", applied=True))
    result = await cli(backend, "import", "dkron", str(file), "--apply")
    assert result.exit_code == 0, result.stderr
    request = asked(backend, "put_jobs")
    assert request.source == "dkron"
    assert b'name = "job1"' in request.files[0].content


async def test_an_import_that_is_applied_says_what_lint_warns_of(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(GUIDE))
    warning = Problem("dkron.toml", 3, 1, "so is it", "do this", is_warning=True)
    report = ApplyReport(source="dkron", applied=True, problems=[warning])
    for output in ((), ("-o", "json")):
        backend = FakeBackend(put_jobs=report)
        result = await cli(backend, "import", "dkron", str(file), "--apply", *output)
        assert "dkron.toml line 3, column 1: warning: so is it\n" in result.stderr


async def test_notes_about_yaml_name_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "kind: CronJob\nmetadata: {name: a}\nspec:\n  schedule: 0 4 * * ?\n  strange: 1\n"
        "  jobTemplate: {spec: {template: {spec: {containers: [{image: i, command: [c]}]}}}}\n"
        "---\nkind: CronJob\nmetadata: {name: b}\nspec:\n  schedule: 0 4 * * 7\n"
        "  jobTemplate: {spec: {template: {spec: {containers: [{image: i, command: [c]}]}}}}\n"
    )
    result = await cli(FakeBackend(), "import", "kubernetes", str(file))
    assert 'schedule = "0 4 * * *"' in result.stdout
    assert f"{file}:5: default/a: not carried over: spec: strange 1: this key" in result.stderr
    assert f"{file}:11: default/b: left out: day of week 7 is not in 0-6" in result.stderr
    endless = tmp_path / "endless.yaml"
    endless.write_text("&a {b: *a}\n")
    assert "is not YAML" in (await cli(FakeBackend(), "import", "kubernetes", str(endless))).stderr
