"""The examples of this subject are read without a word, and show what they should."""

from __future__ import annotations

from pathlib import Path

from cron.crontab.reader import read_file
from cron.job import Overlap

ROOT = Path(__file__).parents[2]


def read(name):
    reading = read_file(name, (ROOT / name).read_bytes())
    assert reading.problems == []
    return reading.jobs


def test_the_example_crontab_shows_something_within_seconds_and_each_option():
    jobs = {job.name: job for job in read("examples/crontab")}
    assert sum(job.schedule.every_s in (2, 5) for job in jobs.values()) >= 4
    assert any("?" in job.schedule.text for job in jobs.values())
    assert any(job.overlap is Overlap.FORBID for job in jobs.values())
    assert any(job.work.timeout_ms for job in jobs.values())
    assert any(job.work.stdin for job in jobs.values())
    assert jobs["demo/new-york"].schedule.zone == "America/New_York"


def test_the_example_job_file_declares_other_jobs_with_the_same_options():
    jobs = {job.name: job for job in read("examples/jobs.toml")}
    assert {job.schedule.zone for job in jobs.values()} == {"UTC", "Europe/Berlin"}
    assert any(job.work.stdin for job in jobs.values())
    assert not jobs.keys() & {job.name for job in read("examples/crontab")}
