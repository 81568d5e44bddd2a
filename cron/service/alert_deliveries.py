"""What became of the messages about alerts: the tasks that tell each channel of them.

A delivery tells of all that its rule found within a second, or gathered within a minute. It has the
number of the first of these alerts. So the delivery of an alert is the newest one of its rule that
begins with it or with an alert before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from cron.api.alerts import DeliveryView
from cron.launch_state import ACTIVE, LaunchState
from cron.notes import sentence
from cron.service.replica import Replica
from cron.service.task_views import open_row, view_of
from cron.state import alerts as a
from cron.state.alerts import AlertState, Outgoing
from cron.state.state import State
from cron.state.tasks import TaskRecord

FIRING: Final = "firing"
RESOLVED: Final = "resolved"
LOOKED_AT_MAX: Final = 10_000
"""Messages among which the oldest is sought that was not delivered: a millisecond or so."""


class Deliveries:
    """The deliveries of a State's alerts. `shows_detail`: whether the caller may see what a mail
    server says, which has addresses in it."""

    def __init__(self, replica: Replica, now_ms: int, *, shows_detail: bool) -> None:
        self._replica = replica
        self._alerts: AlertState = replica.state.alerts
        self._now_ms = now_ms
        self._shows_detail = shows_detail
        self._found: dict[tuple[str, str, str], dict[int, TaskRecord]] = {}

    def of(self, rule: str, number: int, subject: str, state: str) -> list[DeliveryView]:
        """Return what became of an alert's message to each channel of its rule; those that are
        forgotten, a day after their end, are left out. `state` is FIRING or RESOLVED."""
        known = self._alerts.rule(rule)
        found: list[DeliveryView] = []
        for channel in dict.fromkeys(known.to) if known is not None else ():
            out = self._alerts.outgoing.get(rule, {}).get(channel)
            if out is not None and _is_gathered(out, number, subject, state):
                found.append(DeliveryView(channel=channel, state="gathered"))
                continue
            task = self._tasks_of(rule, channel, state).get(number)
            if task is not None:
                found.append(self._view(channel, task))
        return found

    def _tasks_of(self, rule: str, channel: str, state: str) -> dict[int, TaskRecord]:
        """Return the task that tells a channel of each alert of a rule, by the alert's number."""
        key = (rule, channel, state)
        if key not in self._found:
            queue, last = self._replica.state.queues.get(a.QUEUE), None
            tasks = queue.tasks if queue is not None else {}
            found = self._found[key] = {}
            for number in self._in_order(rule, state) if tasks else ():
                last = tasks.get(f"{number}-{state}-{channel}") or last
                if last is not None:
                    found[number] = last
        return self._found[key]

    def _in_order(self, rule: str, state: str) -> Iterator[int]:
        """Yield the numbers of a rule's alerts in the order in which they were told."""
        closed = [one.number for one in self._alerts.closed if one.rule == rule]
        if state == RESOLVED:
            yield from closed
        else:
            still = (one.number for one in self._alerts.open.get(rule, {}).values())
            yield from sorted((*closed, *still))

    def _view(self, channel: str, task: TaskRecord) -> DeliveryView:
        state, detail = self._state_of(task)
        shown = detail if self._shows_detail else ""
        return DeliveryView(channel=channel, state=state, task=task.name, detail=shown)

    def _state_of(self, task: TaskRecord) -> tuple[str, str]:
        """Return the state of a delivery in one word, and what is to be said about it."""
        cell = self._replica.state
        if task.state is LaunchState.SUCCEEDED:
            return "sent", ""
        if task.is_over:
            record = cell.by_number.get(task.job) if task.job else None
            letters = record.dead.values() if record is not None else ()
            said = [sentence(letter.note, letter.detail) for letter in letters]
            return "failed", said[-1] if said and said[-1] else task.reason.label
        row = open_row(cell, task)
        if row is not None and row.state in ACTIVE:
            return "sending", ""
        view = view_of(cell, task, self._now_ms)
        leads = self._replica.leader.epoch is not None
        if leads and not self._replica.intake.serves(view.handler):
            return "waiting", f"no executor serves {view.handler}"
        return ("failing" if row is not None and row.tries else "waiting"), view.reason


def _is_gathered(out: Outgoing, number: int, subject: str, state: str) -> bool:
    """Return whether an alert is to be told with the next message of its rule to a channel."""
    if state == RESOLVED:
        return out.resolved is not None and subject in out.resolved.subjects
    return out.firing is not None and out.firing.number <= number


def failed_deliveries(state: State) -> int:
    """Return how many messages were given up, as long as the queue of them is there."""
    queue = state.queues.get(a.QUEUE)
    return queue.failed if queue is not None else 0


def oldest_delivery_ms(state: State) -> int:
    """Return when the oldest message came that was not delivered or given up, of the newest
    LOOKED_AT_MAX; 0 if there is none."""
    queue = state.queues.get(a.QUEUE)
    if queue is None or not queue.waiting + queue.running:
        return 0
    newest = islice(reversed(queue.tasks.values()), LOOKED_AT_MAX)
    return min((task.submitted_ms for task in newest if not task.is_over), default=0)
