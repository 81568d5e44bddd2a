"""Groups of commands that suggest a name for a misspelt one, and never one that does harm."""

from __future__ import annotations

from typing import Final

import click

NEVER_GUESSED: Final = frozenset(
    {
        *("restore", "remove", "kill", "dead", "backfill", "trigger"),
        *("drop", "redrive", "replace"),
    }
)
"""Commands that end, launch or replace something: a slip of the fingers must not lead to them."""


class Group(click.Group):
    """A group of commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; a usage error suggests names that are like it."""
        said = args[0]
        if said[:1].isalnum() and self.get_command(ctx, said) is None:
            import difflib

            harmless = [name for name in self.list_commands(ctx) if name not in NEVER_GUESSED]
            near = difflib.get_close_matches(said, harmless, n=2, cutoff=0.7)
            guess = f": did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"there is no command {said[:40]!r}{guess}", ctx)
        return super().resolve_command(ctx, args)
