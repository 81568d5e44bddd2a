"""Which connected executors may run the jobs of a file, for the warnings of `apply`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cron.errors import Problem
from cron.job import COMMAND, Job
from cron.scheduler.places import Need
from cron.service.replica import Replica
from launcher.pool.session import Session
from launcher.protocol.names import short_job_name

NEEDS_MAX: Final = 100
"""Different needs of the jobs of one file that are looked at: each costs a look at all
executors."""
NAMES_SHOWN: Final = 3


def sessions_for(replica: Replica, need: Need) -> Iterator[Session]:
    """Yield the connected executors that may run launches with a need, as far as labels, work pools
    and grants say."""
    queues, executors, pool = replica.leader.queues, replica.state.executors, replica.leader.pool
    for number in queues.places.fit(need).groups if queues is not None else ():
        record = executors.get(number)
        session = pool.view(record.executor) if record is not None else None
        if session is not None:
            yield session


def some_of(names: Sequence[str], most: int = NAMES_SHOWN) -> str:
    """Return the first `most` of some jobs, and how many more there are."""
    shown = ", ".join(map(short_job_name, sorted(names)[:most]))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{shown}{more}"


def account_warnings(replica: Replica, jobs: Iterable[Job], source: str) -> list[Problem]:
    """Return which jobs no connected executor that they may run on would start, because none
    runs commands as their user: one warning for each user. Of an executor that does not say it
    nothing is said."""
    by_user: dict[str, dict[Need, list[str]]] = {}
    count = 0
    for job in jobs:
        if job.pool != COMMAND:
            continue
        needs, need = by_user.setdefault(job.work.user, {}), Need(job.pool, job.where)
        if need not in needs:
            count += 1
        if need in needs or count <= NEEDS_MAX:
            needs.setdefault(need, []).append(job.name)
    found: list[Problem] = []
    for user, needs in sorted(by_user.items()):
        names: list[str] = []
        for need, mine in needs.items():
            known = [one.greeting.accounts for one in sessions_for(replica, need)]
            if known and all(one is not None and not one.runs(user) for one in known):
                names += mine
        if names:
            found.append(_account_warning(user, names, source))
    return found


def _account_warning(user: str, names: Sequence[str], source: str) -> Problem:
    count = "1 job" if len(names) == 1 else f"{len(names)} jobs"
    which = f"runs commands as user {user}" if user else "runs commands that name no user"
    hint = "run an executor as that user, or as root with the user in `users` of executor.toml"
    if not user:
        hint = (
            "give the jobs a user= that is in `users` of executor.toml, list root there, or run "
            "the executor as another user"
        )
    text = f"{count} cannot run, since no executor that they fit {which}: {some_of(names)}"
    return Problem(source, 0, 0, text, hint, is_warning=True)
