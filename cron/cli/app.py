"""The command raftcron: its groups of commands, loaded when they are used, and how it ends.

A module of commands is imported only when one of its commands runs, so that `raftcron --help` and
`raftcron next` start within a fraction of a second.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

import click

from cron.cli import exits, render
from cron.cli.options import cell_options
from cron.errors import CronError, InvalidInput, OutcomeUnknown

NEVER_GUESSED: Final = frozenset(
    {
        *("restore", "remove", "kill", "dead", "backfill", "trigger"),
        *("drop", "redrive", "replace", "cancel", "run-now", "revoke", "rollback"),
    }
)
"""Commands that end, launch or replace something: a slip of the fingers must not lead to them."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _guess(said: str, names: Iterable[str]) -> str:
    """Return `: did you mean drain?` for a misspelt name; "" if no harmless name is like it."""
    import difflib

    harmless = [name for name in names if name not in NEVER_GUESSED]
    near = difflib.get_close_matches(said, harmless, n=2, cutoff=0.7)
    return f": did you mean {' or '.join(near)}?" if near else ""


class Group(click.Group):
    """A group of commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; a usage error suggests names that are like it."""
        said = args[0]
        if said[:1].isalnum() and self.get_command(ctx, said) is None:
            guess = _guess(said, self.list_commands(ctx))
            raise click.UsageError(f"there is no command {said[:40]!r}{guess}", ctx)
        return super().resolve_command(ctx, args)


class WithOthers(click.Command):
    """A command that is no group, and others beside it, which its first word names.

    `others` are their names and modules. With `takes_word`, any other first word is an argument of
    the command itself, otherwise it is a usage error.
    """

    def __init__(
        self, *args: Any, others: Mapping[str, str], takes_word: bool = False, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.others = others
        self._takes_word = takes_word

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the command that is meant."""
        first = args[0] if args else ""
        if first in self.others:
            other = load_command(self.others[first], first)
            return other.make_context(f"{info_name} {first}", args[1:], parent, **extra)
        if first and not first.startswith("-") and not self._takes_word:
            guess = _guess(first, self.others) or f"; there are {', '.join(self.others)}"
            ctx = click.Context(self, parent=parent, info_name=info_name)
            raise click.UsageError(f"{self.name} has no {first[:40]!r}{guess}", ctx)
        return super().make_context(info_name, args, parent, **extra)


def load_command(module: str, name: str) -> click.Command:
    """Return the command `name` of a module, imported now."""
    command: click.Command = getattr(importlib.import_module(module), f"{name}_command")
    return command


COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "apply": ("cron.cli.crontabs", "Apply crontabs and job files, all or none."),
    "lint": ("cron.cli.crontabs", "Check crontabs and job files without a cluster."),
    "import": (
        "cron.cli.importing",
        "Read jobs of dkron, Kubernetes, systemd or cron.",
    ),
    "next": ("cron.cli.next", "Show when an expression, a file or a job is due next."),
    "jobs": ("cron.cli.jobs", "List, show, export, compare, roll back and remove jobs."),
    "pause": ("cron.cli.jobs", "Stop launching jobs until they are resumed."),
    "resume": ("cron.cli.jobs", "Launch paused jobs again."),
    "history": ("cron.cli.launches", "List launches, newest first."),
    "show": ("cron.cli.launches", "Show all details of a launch."),
    "why": ("cron.cli.launches", "Explain why a job did or did not run at a time."),
    "logs": ("cron.cli.logs", "Print the output of a launch."),
    "trigger": ("cron.cli.acts", "Launch a job now."),
    "backfill": ("cron.cli.acts", "Launch a job's skipped, lost or failed instants again."),
    "kill": ("cron.cli.acts", "Cancel a launch."),
    "task": ("cron.cli.tasks", "Submit, list, cancel and reschedule tasks of programs."),
    "relay": ("cron.cli.carrying", "Carry tasks from an outbox in a database."),
    "intake": ("cron.cli.carrying", "Turn messages of an SQS queue into tasks."),
    "dead": ("cron.cli.dead", "List, redrive or drop dead letters."),
    "group": ("cron.cli.groups", "Show, close and cancel groups of tasks."),
    "queue": ("cron.cli.queues", "Show what waits where, and declare queues of tasks."),
    "limit": ("cron.cli.limits", "Limit the launches of tenants and handlers."),
    "gate": ("cron.cli.gates", "Hold back or skip launches until a gate is opened."),
    "alerts": ("cron.cli.alerts", "Tell people when something is wrong: rules, what fires."),
    "calendar": ("cron.cli.calendars", "Keep days on which jobs do not run, or run alone."),
    "executors": ("cron.cli.executors", "List the executors: slots, labels, handlers."),
    "status": ("cron.cli.cell", "Show the replicas and executors."),
    "cell": ("cron.cli.replica", "Add a replica to the cell."),
    "clock": ("cron.cli.cell", "Set the cell's time back after a wrong clock moved it ahead."),
    "snapshot": ("cron.cli.snapshots", "Save, list and verify snapshots of the cell's state."),
    "audit": ("cron.cli.cell", "Check that every instant has exactly one row in history."),
    "role": ("cron.cli.access", "Grant and revoke roles."),
    "token": ("cron.cli.access", "Create, list and revoke tokens for programs."),
    "changes": ("cron.cli.access", "List what people changed, and who did it."),
    "config": ("cron.cli.config", "Check configuration files before they are used."),
    "certs": ("cron.cli.certs", "Create, show and revoke the certificates of a cell."),
}
"""Each command with its module and the line that the list of commands shows."""


class Commands(Group):
    """A group that imports its commands late and ends with the exit codes of `cron.cli.exits`."""

    late: dict[str, tuple[str, str]] = COMMANDS
    """The commands; `cron.main` adds those that start processes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in their order."""
        return list(self.late)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now; None for an unknown one."""
        if cmd_name not in self.late:
            return None
        module, summary = self.late[cmd_name]
        command = load_command(module, cmd_name)
        command.short_help = summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.late.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error is printed and becomes its exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except CronError as failure:
            render.error(failure)
            ctx.exit(exits.exit_code(failure))
        except UnicodeError as failure:
            # Arguments are bytes to the system; what is sent and printed is text.
            render.error(InvalidInput(f"text is not UTF-8: {failure}", "write it in UTF-8"))
            ctx.exit(exits.USAGE)
        except KeyboardInterrupt:
            ctx.exit(exits.INTERRUPTED)
        except BrokenPipeError:
            # `raftcron history | head`: the rest is not wanted, and Python must not try at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(exits.PIPE_CLOSED)
        except OSError as failure:
            if failure.errno not in _NO_ROOM or failure.filename is not None:
                raise
            # `raftcron history >FILE` on a full disk; Python must not try again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            hint = "make room for it; the command itself may be done: check before you repeat it"
            unwritten = f"the output cannot be written: {os.strerror(failure.errno).lower()}"
            lost = OutcomeUnknown(unwritten, hint)
            render.error(lost)
            ctx.exit(exits.exit_code(lost))
        return result


def become(module: str, *arguments: str) -> NoReturn:
    """Turn into the daemon that a command starts: whoever signals the command signals the
    daemon."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits.epilog(),
)
@click.version_option(None, "--version", package_name="raftcron", message="%(prog)s %(version)s")
@cell_options
def cli() -> None:
    """Replicated cron: jobs keep running when machines fail.

    Three replicas agree on every launch before and after it happens. Try it with `raftcron dev`.
    """
