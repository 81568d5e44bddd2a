"""Do the documents name files, sections and commands that exist?"""

from __future__ import annotations

import functools
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import pytest
from click.testing import CliRunner

import cron.main  # noqa: F401 - adds the commands that start processes
from cron.cli.app import cli
from cron.config import parse_replica_config
from cron.job import Retry
from cron.scheduler.policy import FAILOVER_MS
from cron.state.retries import backoff_ms
from cron.state.state import State
from launcher.config import ExecutorConfig
from tests.style.tree import ROOT, files

README_LINES_MAX: Final = 200
WRITTEN_BY_USERS: Final = frozenset({"tasks.py", "raftcron.py"})
"""Files that a document speaks of and that are not in the repository under this name."""

_SOURCE: Final = re.compile(r"`([\w./-]+\.(?:py|md|proto|toml))`")
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SECTION: Final = re.compile(r'([\w/.]*DESIGN\.md), "([^"]+)"')


def documents() -> dict[str, str]:
    """The documents that describe this release, by path: neither the log of changes nor data."""
    return {
        name: text
        for name, text in files().items()
        if name.endswith(".md") and name != "CHANGELOG.md" and not name.startswith("tests/data/")
    }


@functools.cache
def basenames() -> frozenset[str]:
    """The names of all files, without their folders."""
    return frozenset(Path(name).name for name in files())


def exists(document: str, named: str) -> bool:
    """Whether a document names a file: from its own folder, one above it, or the root."""
    if "/" not in named:
        return named in basenames() or named in WRITTEN_BY_USERS
    folder = (ROOT / document).parent
    places = [folder, *(one for one in folder.parents if one.is_relative_to(ROOT))]
    return named.startswith(("/", "cell/")) or any((place / named).exists() for place in places)


def headings(text: str) -> set[str]:
    """The titles of a document's sections, without their numbers and rules."""
    found = re.findall(r"^#+ +(?:\d+\. )?(.+?)(?: \(R\d.*\))?$", text, re.MULTILINE)
    return {title.strip() for title in found}


def anchor(title: str) -> str:
    """The fragment by which a section is linked to."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_the_readme_is_no_manual() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


def test_documents_name_files_that_exist() -> None:
    missing = [
        f"{document}: {named}"
        for document, text in documents().items()
        for named in _SOURCE.findall(text)
        if not document.startswith("bench/") and not exists(document, named)
    ]
    assert missing == []


def test_links_lead_somewhere() -> None:
    broken = []
    for document, text in documents().items():
        for link in _LINK.findall(text):
            if "://" in link:
                continue
            path, _, fragment = link.partition("#")
            target = (ROOT / document).parent / path if path else ROOT / document
            titles = headings(target.read_text()) if fragment and target.exists() else set()
            if not target.exists() or (fragment and fragment not in map(anchor, titles)):
                broken.append(f"{document}: {link}")
    assert broken == []


def test_sections_that_are_cited_exist() -> None:
    missing = []
    for name, text in files().items():
        for cited, title in _SECTION.findall(text):
            places = [ROOT / cited, (ROOT / name).parent / cited]
            found = next((place for place in places if place.is_file()), None)
            if found is None or title not in headings(found.read_text()):
                missing.append(f"{name}: {cited}, {title}")
    assert missing == []


def blocks(text: str) -> list[str]:
    """The code blocks of a document, without the indentation of a list that they are in."""
    found = re.findall(r"^( *)```\w*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for _, block in found]


def commands(text: str) -> list[str]:
    """The lines of the code blocks of a document that call raftcron, without their comments."""
    lines = (line.strip() for block in blocks(text) for line in block.splitlines())
    return [line.partition("  #")[0] for line in lines if line.startswith("raftcron ")]


def complaint(line: str) -> str:
    """Why the command line cannot be parsed; empty where it can. Nothing is run."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="raftcron", **cli.context_settings)
    try:
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            if found is None:
                return f"there is no command {words[0]}"
            command, words = found, words[1:]
        command.make_context(command.name, words, parent=context)
    except click.UsageError as error:
        message = error.format_message()
        return "" if message.endswith("does not exist.") else message  # a path of the reader's
    return ""


@pytest.mark.parametrize("document", [one for one in documents() if commands(documents()[one])])
def test_commands_in_documents_exist(document: str) -> None:
    wrong = [(line, complaint(line)) for line in commands(documents()[document]) if complaint(line)]
    assert wrong == []


def test_certificates_are_issued_as_the_documents_say(tmp_path: Path, monkeypatch: Any) -> None:
    """A reader of docs/cell.md goes on to docs/security.md: nothing is issued twice."""
    monkeypatch.chdir(tmp_path)
    for document in ("docs/cell.md", "docs/security.md"):
        for line in commands(documents()[document]):
            if line.startswith(("raftcron certs i", "raftcron certs show")):
                ran = CliRunner().invoke(cli, shlex.split(line)[1:])
                assert ran.exit_code == 0, (document, line, ran.output)


@pytest.mark.parametrize("document", ["README.md", "docs/handlers.md"])
def test_crontabs_in_documents_have_no_error(document: str) -> None:
    crontabs = [one for one in blocks(documents()[document]) if "#: name=" in one]
    assert crontabs
    for crontab in crontabs:
        ran = CliRunner().invoke(cli, ["lint", "-"], input=crontab)
        assert ran.exit_code == 0, ran.output


def test_the_configuration_in_documents_can_be_read() -> None:
    found = [one for one in blocks(documents()["docs/cell.md"]) if one.startswith("id = ")]
    configs = [parse_replica_config(one, "cell.md") for one in found]
    assert [(one.cell, one.single) for one in configs] == [("prod", False), ("prod", True)]
    storage = [one for one in blocks(documents()["docs/backup.md"]) if "[object_storage]" in one]
    assert len(storage) == 4
    for one in storage:
        parse_replica_config(found[0] + one, "backup.md")


def test_what_the_page_about_crontabs_says_of_time_is_what_holds() -> None:
    """How long a command has after its timeout, when a retry comes, and what is not missed yet."""
    page = " ".join(documents()["docs/crontab.md"].split())
    (grace_s,) = re.findall(r"\| `timeout` \|[^|]* then TERM, and KILL (\d+) s later", page)
    (default,) = (
        one.default for one in msgspec.structs.fields(ExecutorConfig) if one.name == "term_grace_ms"
    )
    assert int(grace_s) * 1000 == default
    assert "`term_grace_ms` in the executor's configuration sets the time" in page
    (percent,) = re.findall(r"is `backoff` plus up to (\d+) %", page)
    rests_ms = [backoff_ms(Retry(backoff_ms=10_000), 1, f"a@x#{n}") for n in range(1_000)]
    most_ms = 10_000 + 100 * int(percent)
    assert 10_000 <= min(rests_ms) < max(rests_ms) <= most_ms
    assert max(rests_ms) > most_ms - 50, "it says no more than there is"
    live_s = re.findall(r"is not missed while it is at most (\d+) s old", page)
    assert live_s == [f"{FAILOVER_MS // 1000}"]


def test_the_folder_that_documents_keep_a_cell_in_is_no_part_of_the_repository() -> None:
    assert any("--data cell" in text for text in documents().values())
    assert "/cell/" in (ROOT / ".gitignore").read_text().splitlines()


def test_tests_that_documents_name_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", documents()["docs/attacks.md"])
    assert len(named) > 80
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in files().get(file, "")
    ]
    assert missing == []


def test_constants_in_designs_exist() -> None:
    texts = "\n".join(text for name, text in files().items() if name.endswith(".py"))
    missing = [
        f"{document}: {name}"
        for document, text in documents().items()
        for name in re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", text)
        if document.endswith("DESIGN.md") and name not in texts
    ]
    assert missing == []


def test_the_bounds_of_state_name_all_its_fields() -> None:
    text = documents()["cron/state/DESIGN.md"].partition("| field | bound |")[2].partition("##")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    fields = {*State.__struct_fields__, *vars(State())}
    assert fields - named - {"history", "restored"} == set(), "history and restored: their parts"
    assert {name for name in named if "." not in name} - fields == set()
