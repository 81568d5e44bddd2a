"""What pages for people ask beside the calls of other modules: jobs page by page, and how many
launches ended in each minute."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api.checks import FullJob, Payloads, Tenant, Within, bound, line
from cron.api.jobs import JobView
from cron.api.rpc import Request, View
from cron.errors import InvalidInput

JOB_STATES: Final = ("paused", "running", "dead", "held")
OUTCOMES_SHOWN: Final = 50
MINUTES_MAX: Final = 1_440
_TEXT_CHARS_MAX: Final = 200


class JobPageQuery(Request, frozen=True, kw_only=True):
    """Which jobs to show: those that fit all that is named, by name; "" names nothing.

    `text` is a part of the job's name, in any case of letters. `state` is paused, running, dead (it
    has dead letters) or held (its schedule cannot be read). `after` is the last job of the page
    before.
    """

    text: Annotated[str, line("text", _TEXT_CHARS_MAX)] = ""
    tenant: Tenant = ""
    source: Annotated[str, line("source", 255)] = ""
    state: str = ""
    after: FullJob = ""
    limit: Annotated[int, bound(1, 200, "limit")] = 25
    within: Within = []
    payloads: Payloads = []

    def check(self) -> None:
        """Refuse a state that is none."""
        if self.state and self.state not in JOB_STATES:
            raise InvalidInput(f"state {self.state[:40]!r} is not one of {', '.join(JOB_STATES)}")


class JobEntry(View, frozen=True, kw_only=True):
    """A job, and the states of its newest attempts and skipped instants, in the order in which they
    ended; OUTCOMES_SHOWN at most. A run of skipped instants counts as one."""

    job: JobView
    outcomes: list[str] = []


class JobPage(View, frozen=True, kw_only=True):
    """A page of jobs. `total` is how many fit; `next` is the `after` of the next page, "" for the
    last one. `tenants` and `sources` are the names to choose from, the first hundred. `is_reading`:
    the replica still reads history, so outcomes may lack their oldest."""

    jobs: list[JobEntry] = []
    total: int = 0
    next: str = ""
    tenants: list[str] = []
    sources: list[str] = []
    is_reading: bool = False


class ActivityQuery(Request, frozen=True, kw_only=True):
    """For how many minutes to tell what ended."""

    minutes: Annotated[int, bound(1, MINUTES_MAX, "minutes")] = 120


class MinuteView(View, frozen=True):
    """How many launches ended in the minute that begins at `at_s`, by state. A run of skipped
    instants counts as its instants."""

    at_s: int
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0
    cancelled: int = 0


class TermView(View, frozen=True):
    """A leader's term, from the moment at which the leader began to act."""

    term: int
    replica: str
    at_ms: int


class ActivityReport(View, frozen=True, kw_only=True):
    """The minutes in which launches ended, the oldest first; others are left out. Before `since_ms`
    nothing is counted: the replica was not there, or history is too long to be counted anew.

    `due` launches wait now, and `running` ones have begun. `terms` are the newest leaders' terms,
    the oldest first. `crowd` has, for each of the next 60 minutes from that of `now_ms` on, how
    many launches fall due in it by the jobs' schedules; empty while that is not known, and where
    there are too many schedules. `crowd_day` has the same of the next 24 hours, as far as known.
    """

    minutes: list[MinuteView] = []
    since_ms: int = 0
    now_ms: int = 0
    due: int = 0
    running: int = 0
    jobs: int = 0
    dead: int = 0
    terms: list[TermView] = []
    crowd: list[int] = []
    crowd_day: list[int] = []
