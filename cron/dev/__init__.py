"""A whole cell on one machine: supervisor of three replicas and their executors."""

from __future__ import annotations
