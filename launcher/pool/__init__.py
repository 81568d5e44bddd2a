"""The executors as the leader sees them: sessions, leases, dispatch."""

from __future__ import annotations
