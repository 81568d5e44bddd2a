"""Which executor a launch goes to: what is free where, and whom a launch fits."""

from __future__ import annotations
