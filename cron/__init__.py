"""The daemon: crontabs and schedules, the replicated state, the leader, API, CLI and console."""

from __future__ import annotations
