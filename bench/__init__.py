"""What it costs: questions with a number for an answer, measured on real processes."""

from __future__ import annotations
