"""Hours of faults on real processes: `python -m tests.soak.engine --rounds 100 --seed 1`."""

from __future__ import annotations
