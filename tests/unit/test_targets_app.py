"""The app that `raftcron target` serves, its configuration, and what the command becomes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cron.main  # noqa: F401 - adds the commands that start processes
from cron.cli import targets as command
from cron.cli.app import cli
from launcher.errors import BadConfig
from launcher.targets import app
from launcher.targets.config import load
from launcher.targets.target import Target
from launcher.worker.options import EXIT_APP, ChildOptions, worker_options
from launcher.worker.parent import start_child
from tests.conformance.targets import kubeconfig_of
from tests.style.tree import ROOT
from tests.unit.api_rig import run_cli
from tests.unit.targets_rig import read

EXAMPLE = ROOT / "examples" / "targets.toml"


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command becomes, in place of becoming it."""
    found: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda _, argv: found.append(argv))
    monkeypatch.setenv(command.KIND_VARIABLE, "")
    monkeypatch.setenv(command.CONFIG_VARIABLE, "")
    return found


async def test_the_command_becomes_a_worker_that_serves_the_target(became: list[Any]) -> None:
    result = await run_cli(
        "target", "http", "--config", str(EXAMPLE), "--threads", "7", "--executor", "there"
    )
    assert result.exit_code == 0, result.stderr
    [argv] = became
    assert argv[1:3] == ["-m", "launcher.worker"]
    options = worker_options(**json.loads(argv[3]))
    assert (options.threads, options.executor, options.group) == (7, "there", "target.http")
    assert os.environ[command.CONFIG_VARIABLE] == str(EXAMPLE)


async def test_another_target_is_refused(became: list[Any]) -> None:
    result = await run_cli("target", "carrier-pigeon")
    assert result.exit_code == 2
    assert "carrier-pigeon" in result.stderr
    assert became == []


def test_command_and_app_know_the_same_targets() -> None:
    assert command.KINDS == app.KINDS
    assert command.ALL == app.ALL
    assert command.KIND_VARIABLE == app.KIND_VARIABLE
    assert command.CONFIG_VARIABLE == app.CONFIG_VARIABLE


def example_target(kind: str, folder: Path) -> Target:
    """The target that the example configures, with the files that it names."""
    path = folder / "targets.toml"
    path.write_text(EXAMPLE.read_text())
    (folder / "alerts").symlink_to(EXAMPLE.parent / "alerts")
    (folder / "kubeconfig.json").write_text(json.dumps(kubeconfig_of("https://kube.example")))
    return app.target_of(kind, load(path), path)


@pytest.mark.parametrize("kind", app.KINDS)
def test_the_example_has_every_target(kind: str, tmp_path: Path) -> None:
    registry = app.registry_of(example_target(kind, tmp_path))
    [handler] = registry
    assert handler.name == kind
    assert handler.served.resumes, "a dead worker's launches are looked up"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no [http]"),
        ("[http]\n", "missing required field `hosts`"),
        ("[http]\nhosts = []\n", "length >= 1"),
        ('[http]\nhosts = ["*"]\nport = 7\n', "http.port: not a known key"),
        ('[pigeon]\nhosts = ["*"]\n', "pigeon: not a known key"),
        ("[http\n", "is not TOML"),
        ('[http]\nhosts = ["*"]\nhandler = "a b"\n', "$.http.handler"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match=r"targets\.toml") as caught:
        app.target_of("http", load(path), path)
    assert problem in str(caught.value)
    assert caught.value.hint != ""


def test_all_targets_are_handlers_of_one_worker(tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    web = '[http]\nhosts = ["*"]\n'
    mail = '[mail]\nserver = "mail"\nfrom = "c@example.com"\nrecipients = ["*"]\n'
    path.write_text(web + mail)
    registry = app.registry_of(*app.targets_of(app.ALL, load(path), path))
    assert sorted(one.name for one in registry) == ["http", "mail"]
    assert len({one.function for one in registry}) == 2
    path.write_text(web + 'handler = "mail"\n' + mail)
    with pytest.raises(BadConfig, match="two targets have the handler mail"):
        app.registry_of(*app.targets_of(app.ALL, load(path), path))
    path.write_text("")
    with pytest.raises(BadConfig, match="configures no target"):
        app.targets_of(app.ALL, load(path), path)


def test_a_worker_without_its_file_ends_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(app.KIND_VARIABLE, "http")
    monkeypatch.setenv(app.CONFIG_VARIABLE, str(tmp_path / "missing"))
    options = worker_options("launcher.targets.app:registry")
    assert start_child(ChildOptions(worker=options, check=True)).wait(60) == EXIT_APP


def test_the_parent_of_a_target_is_light() -> None:
    # The http target must not pay for the client library of another one.
    seen = "import sys, launcher.targets.http; sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", seen], cwd=ROOT, check=False).returncode == 0


DOCUMENT = (ROOT / "docs" / "targets.md").read_text()
EXAMPLES = [
    block
    for block in re.findall(r"^```\w*\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    if block.startswith(("#:", "[[job]]"))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_jobs_of_the_document_are_ones_that_targets_take(text: str, tmp_path: Path) -> None:
    is_crontab = text.startswith("#:")
    path = tmp_path / ("crontab" if is_crontab else "jobs.toml")
    path.write_text(text)
    result = CliRunner().invoke(cli, ["lint", str(path)])
    assert result.exit_code == 0, result.output
    if is_crontab:
        kind, payload = text.split("handler=")[1].split()[0], text[text.index("{") :].encode()
    else:
        [job] = tomllib.loads(text)["job"]
        kind, payload = job["handler"], json.dumps(job["payload"]).encode()
    target = example_target(kind, tmp_path)
    assert read(target, payload, job="shop/any") is not None


def test_every_target_has_a_job_in_the_document() -> None:
    assert len(EXAMPLES) == len(app.KINDS)
