"""The daemon: what a user means by a schedule, the replicated state, the leader, the faces."""

from __future__ import annotations
