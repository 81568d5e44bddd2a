"""Snapshots and segments of history as verified files, on disks and in object storage."""

from __future__ import annotations
