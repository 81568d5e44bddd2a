"""What a replica keeps on its own disk beside the log: snapshots, and segments of history."""

from __future__ import annotations
