"""Messages that nobody sends: no connected executor serves the handler of their channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from cron.alert_rules import Channel, ChannelKind
from cron.errors import Problem
from cron.job import Job
from cron.service.alert_deliveries import LOOKED_AT_MAX
from cron.service.placing import some_of
from cron.service.replica import Replica
from cron.state import alerts as a
from cron.state.deliveries import MAIL, WEBHOOK
from cron.state.state import State
from cron.state.tasking import handler_of

WAY_OUT: Final = "write targets = ... into the configuration of an executor (docs/alerts.md)"
HANDLERS: Final = {
    ChannelKind.MAIL: MAIL,
    ChannelKind.WEBHOOK: WEBHOOK,
    ChannelKind.HEARTBEAT: WEBHOOK,
}


def notes(replica: Replica, channels: Sequence[Channel], *, shows_cell: bool = True) -> list[str]:
    """Return notes about what no connected executor sends: messages to these channels, and the
    mails of MAILTO. Only the leader knows. `shows_cell`: the caller may know how many wait."""
    if replica.leader.epoch is None:
        return []
    alerts, waiting = replica.state.alerts, _waiting(replica.state)
    handlers = {HANDLERS[one.kind] for one in channels} | waiting.keys()
    if alerts.mailing:
        handlers.add(MAIL)
    found = []
    for handler in sorted(handlers):
        if replica.intake.serves(handler):
            continue
        said = ""
        if shows_cell and waiting[handler]:
            what = "mail" if handler == MAIL else "message"
            said = f"; {_number(waiting[handler], f'{what} waits', f'{what}s wait')}"
        if shows_cell and handler == MAIL and alerts.mailing:
            said += f"; {_number(len(alerts.mailing), 'job has', 'jobs have')} MAILTO"
        found.append(f"no executor serves {handler}, so nobody is told yet{said}: {WAY_OUT}")
    return found


def warnings(replica: Replica, jobs: Iterable[Job], source: str) -> list[Problem]:
    """Return a warning if jobs have MAILTO, and no connected executor serves mail."""
    names = [job.name for job in jobs if job.alerts is not None and job.alerts.mail_to]
    if not names or replica.leader.epoch is None or replica.intake.serves(MAIL):
        return []
    waits = _waiting(replica.state)[MAIL]
    now = f"; {_number(waits, 'mail waits', 'mails wait')}" if waits else ""
    has = _number(len(names), "job has", "jobs have")
    text = f"{has} MAILTO, and no executor serves mail: {some_of(names)}{now}"
    return [Problem(source, 0, 0, text, WAY_OUT, is_warning=True)]


def _waiting(state: State) -> Counter[str]:
    """Return how many messages are not sent yet, by their handler: of the newest LOOKED_AT_MAX, and
    more mails do not wait."""
    queue = state.queues.get(a.QUEUE)
    if queue is None or not queue.waiting + queue.running:
        return Counter()
    newest = islice(reversed(queue.tasks.values()), LOOKED_AT_MAX)
    return Counter(handler_of(task, queue) for task in newest if not task.is_over)


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
