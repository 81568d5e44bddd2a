"""Targets: places outside raftcron that launches are handed to; see `DESIGN.md`."""
