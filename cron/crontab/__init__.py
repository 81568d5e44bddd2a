"""Text to jobs: crontab lines, options, job files; every error with file, line and column."""

from __future__ import annotations
