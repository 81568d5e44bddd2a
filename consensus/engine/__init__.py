"""PySyncObj behind ReplicatedLog; the only place that imports it."""

from __future__ import annotations
