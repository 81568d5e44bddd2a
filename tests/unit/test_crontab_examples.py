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


def test_the_example_crontab_has_a_job_that_is_tried_again():
    (job,) = (job for job in read("examples/crontab") if job.retry.tries > 1)
    assert (job.collection, job.retry.fatal_codes, job.work.priority) == ("nightly", (2,), 7)


def test_the_example_of_handlers_names_those_that_the_example_worker_has():
    served = (ROOT / "examples/handlers/tasks.py").read_text()
    jobs = read("examples/shop.toml")
    for job in jobs:
        assert f'@handler("{job.work.handler}"' in served
    assert any(job.where and job.work.cpu_milli and job.work.memory_bytes for job in jobs)
    assert any(job.retry.tries > 1 and job.work.payload.startswith(b"{") for job in jobs)


def test_the_example_job_file_declares_other_jobs_with_the_same_options():
    jobs = {job.name: job for job in read("examples/jobs.toml")}
    assert {job.schedule.zone for job in jobs.values()} == {"UTC", "Europe/Berlin"}
    assert any(job.work.stdin for job in jobs.values())
    assert not jobs.keys() & {job.name for job in read("examples/crontab")}
