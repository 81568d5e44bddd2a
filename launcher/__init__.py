"""A name and a piece of work in, at most one start out."""

from __future__ import annotations
