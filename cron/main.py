"""Entry point of the command raftcron."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
