"""What the wheel brings into somebody's site-packages, where names like `cron` are everybody's."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.style.tree import PACKAGES, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=200,
    )
    (path,) = folder.glob("raftcron-*.whl")
    return zipfile.ZipFile(path)


FACADE = "raftcron/__init__.py"
"""What users' code imports: `launcher/worker/facade.py`, which goes there."""


def test_the_wheel_brings_the_four_packages_and_never_the_tests(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/", 1)[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {*PACKAGES, "raftcron"}


def test_type_checkers_read_the_types_of_the_library(wheel: zipfile.ZipFile) -> None:  # PEP 561
    assert {"raftcron/py.typed", "launcher/py.typed"} <= {*wheel.namelist()}


def test_the_facade_is_shipped_as_it_is_here_and_has_no_classes_of_its_own(
    wheel: zipfile.ZipFile,
) -> None:
    assert wheel.read(FACADE) == (ROOT / "launcher/worker/facade.py").read_bytes()
    facade = __import__("raftcron")
    assert facade.Context.__module__ == "launcher.worker.context"
    assert all(hasattr(facade, name) for name in facade.__all__)


def test_the_wheel_brings_every_module(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if name.endswith(".py")}
    written = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "stubs" not in path.parts
    }
    assert packed == written - {"launcher/worker/facade.py"} | {FACADE}


def test_the_wheel_brings_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "raftcron = cron.main:main" in wheel.read(name).decode()


def test_all_packages_come_from_this_folder() -> None:
    # A second distribution with a package `cron` would overwrite ours without a word.
    for package in PACKAGES:
        module = __import__(package)
        assert module.__file__ is not None
        assert Path(module.__file__).resolve().parent == ROOT / package
    assert distribution("raftcron").metadata["Name"] == "raftcron"


def pins(lock: str) -> dict[str, str]:
    """The packages of a lock file with their versions."""
    text = (ROOT / lock).read_text()
    return dict(re.findall(r"^([a-z0-9.-]+)(?:\[[a-z,]+\])?==(\S+)", text, re.MULTILINE))


def test_running_installs_nothing_that_only_tests_need() -> None:
    running, testing = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {"grpcio", "croniter", "hatchling"} <= running.keys()
    assert not {"pytest", "mypy", "moto", "pyarrow", "hypothesis"} & running.keys()
    assert running.items() <= testing.items(), "the tests run on the same versions"


def test_make_says_that_it_sets_up_before_it_does() -> None:
    planned = subprocess.run(
        ["make", "--always-make", "--dry-run", "--no-print-directory", "setup"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    first, *rest = planned.splitlines()
    assert first.startswith("echo")
    assert "setting up .venv" in first
    assert "once" in first
    assert not any("requirements-dev" in line for line in rest)


def test_what_make_installs_is_named_while_it_does() -> None:
    planned = subprocess.run(
        ["make", "--always-make", "--dry-run", "--no-print-directory", "setup", "setup-tests"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    lines = planned.replace("\\\n", " ").splitlines()
    installing = [line for line in lines if " install " in line]
    assert len(installing) == 4, "uv, what raftcron needs, raftcron, what the tests need"
    for line in installing:
        assert not {"-q", "-qq", "--quiet", "--no-progress", ">/dev/null"} & {*line.split()}, line
