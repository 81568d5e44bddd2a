"""The console: pages for people on the HTTP port of every replica."""

from __future__ import annotations
