"""`docs/cli.md`: every command of raftcron with its help, as click prints it.

`python -m tests.style.cli_page` writes the page; `test_cli_page.py` compares it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Final

import click

import cron.main  # noqa: F401 - adds the commands that start processes
from cron.cli.app import WithOthers, cli, load_command
from tests.style.tree import ROOT

PAGE: Final = ROOT / "docs" / "cli.md"
WIDTH: Final = 96
HEAD: Final = """\
# The commands

This page is generated from the commands' own help: `python -m tests.style.cli_page` writes it.
Every command that asks the cell also takes `--server`, `--tls`, `--timeout` and `-o` of `raftcron`.
They may stand before or after the command's name, and are not repeated below.
"""


def page() -> str:
    """Return the whole page."""
    context = _context(cli, "raftcron", None)
    sections = [f"## {title}\n\n```\n{text}\n```\n" for title, text in _helps(cli, context)]
    return "\n".join((HEAD, *sections))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    """Return the context of a command as a terminal of `WIDTH` columns has it."""
    names = ["-h", "--help"]
    return click.Context(
        command, parent, info_name=name, terminal_width=WIDTH, help_option_names=names
    )


def _helps(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the title and the help of a command and of all below it, in their order."""
    lines = _without_shared(command).get_help(context).splitlines()
    yield context.command_path, "\n".join(line.rstrip() for line in lines).strip()
    if isinstance(command, WithOthers):
        for name, module in command.others.items():
            other = load_command(module, name)
            yield from _helps(other, _context(other, f"{command.name} {name}", context.parent))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _helps(found, _context(found, name, context))


def _without_shared(command: click.Command) -> click.Command:
    """Return a command without the options that `raftcron` itself has."""
    if command is cli:
        return command
    shared = {option for one in cli.params for option in one.opts} - {"--version"}
    alone = copy.copy(command)
    alone.params = [one for one in command.params if not shared.intersection(one.opts)]
    return alone


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
