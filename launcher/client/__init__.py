"""The library for programs that hand over tasks: `from raftcron import Client` (see DESIGN.md)."""
