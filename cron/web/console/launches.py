"""The page of one launch: its story, its attempts with both log points, its parts, its output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from cron.api import table as t
from cron.api.dead import DeadQuery
from cron.api.jobs import JobsRequest
from cron.api.launches import (
    LaunchView,
    OutputQuery,
    OutputView,
    ShowRequest,
    StoryLine,
    WhyRequest,
)
from cron.errors import UnknownLaunch
from cron.limits import ATTEMPTS_MAX
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest, count_of
from cron.web.console.texts import end_of, shown_output
from launcher.protocol.names import TASK_MARK, BadName, parse_launch_name

OUTPUT_BYTES: Final = 48 << 10
OUTPUT_HTML_MAX: Final = 38_000
"""Of the 100 KB of a page; a quotation mark takes five bytes there."""
ATTEMPTS_SHOWN: Final = 50
PARTS_SHOWN: Final = 100
STORY_SHOWN: Final = 200
_REDRIVE: Final = re.compile(r",? and `raftcron dead redrive [^`]*` launches it again")
"""What a verdict tells to type; the page has a button for it."""
_LOG_POINTS: Final = (
    (re.compile(r"log point 1 committed at index (\d+)"), r"begun (entry \1 of the log)"),
    (re.compile(r"log point 2 committed at index (\d+): it was started"),
     r"known to be started (entry \1 of the log)"),
    (re.compile(r"; recorded at index (\d+)"), r" (entry \1 of the log)"),
)  # fmt: skip
"""What the story says in words of the cell's own."""


async def show(asked: PageRequest, name: str) -> Page:
    """Return the page.

    Raises:
        UnknownLaunch: there is none of that name.
    """
    try:
        launch = parse_launch_name(name)
    except BadName as error:
        raise UnknownLaunch(f"there is no launch {name[:300]!r}", str(error)) from error
    attempts = await asked.ask(t.SHOW, ShowRequest(launch=str(launch)))
    latest = attempts[-1]
    attempt = count_of(asked.query.get("attempt", ""), 0, ATTEMPTS_MAX)
    part = count_of(asked.query.get("part", ""), 1, ATTEMPTS_MAX)
    why = await asked.maybe(t.WHY, WhyRequest(job=launch.job, at_s=launch.scheduled_s))
    is_dead = False
    if not latest.is_open:
        dead = await asked.maybe(t.DEAD, DeadQuery(launch=str(launch)))
        is_dead = not isinstance(dead, Missing) and bool(dead.letters)
    # A backfill may make due again what the schedule of a job made, and what did not succeed.
    is_scheduled = ":" not in str(launch).partition("@")[0] and "+" not in str(launch)
    values: dict[str, Any] = {
        "launch": str(launch),
        "job_name": launch.job,
        "latest": latest,
        "is_dead": is_dead,
        "can_backfill": is_scheduled and latest.state in ("skipped", "lost", "failed"),
        "from": _second(launch.scheduled_s),
        "to": _second(launch.scheduled_s + 1),
        "attempts": attempts[::-1][:ATTEMPTS_SHOWN],
        "hidden": max(0, len(attempts) - ATTEMPTS_SHOWN),
        "parts": latest.parts[:PARTS_SHOWN],
        "parts_hidden": max(0, len(latest.parts) - PARTS_SHOWN),
        "verdict": "" if isinstance(why, Missing) else _REDRIVE.sub("", why.verdict),
        "fatal": await _is_fatal(asked, latest, launch.job),
        "why": why,
        "story": [] if isinstance(why, Missing) else _story(why.story),
        "story_hidden": 0 if isinstance(why, Missing) else max(0, len(why.story) - STORY_SHOWN),
        "output": await _output(asked, latest, attempt, part),
        "attempt": attempt,
        "part": part,
    }
    return Page("launch.html", str(launch), values)


def _story(lines: Sequence[StoryLine]) -> list[StoryLine]:
    """Return the newest lines of a story, in words for people."""
    told = []
    for line in lines[-STORY_SHOWN:]:
        text = line.text
        for found, said in _LOG_POINTS:
            text = found.sub(said, text)
        told.append(StoryLine(line.at_ms, text))
    return told


async def _is_fatal(asked: PageRequest, latest: LaunchView, job: str) -> bool:
    """Return whether a launch failed with an exit code after which its job is not tried again."""
    if latest.state != "failed" or latest.exit_code is None or TASK_MARK in job:
        return False
    views = await asked.maybe(t.JOBS, JobsRequest(pattern=job))
    if isinstance(views, Missing) or not views:
        return False
    return latest.exit_code in views[0].needs.fatal_codes


def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def _output(
    asked: PageRequest, latest: LaunchView, attempt: int, part: int
) -> dict[str, Any] | Missing:
    """Return the end of what an attempt printed."""
    if not latest.attempt:
        return Missing("it has not begun")
    query = OutputQuery(
        launch=latest.launch, attempt=attempt, part=part, tail=True, limit=OUTPUT_BYTES
    )
    found: OutputView | Missing = await asked.maybe(t.OUTPUT, query)
    if isinstance(found, Missing):
        return found
    whole = shown_output(found.content)
    text = end_of(whole, OUTPUT_HTML_MAX)
    left_out = len(whole[: len(whole) - len(text)].encode(errors="replace"))
    return {
        "text": text,
        "offset": found.offset + left_out,
        "size": found.size,
        "dropped": found.dropped,
        "note": found.note,
        "ended": found.ended,
        "store": found.store,
    }
