"""Every act of the console: on which page it is, what somebody fills in, what the cell is asked.

`test_console_acts.py` sends these forms, and `tests/browser/test_acts.py` clicks through them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cron.api.alerts import MutesReport, MuteView, TestAlertReport
from cron.api.dead import DeadOutcome
from cron.api.executors import ExecutorsReport, ExecutorView
from cron.api.gates import GatesReport, GateView
from cron.api.groups import GroupsPage, TaskGroupView
from cron.api.jobs import ApplyReport, JobChange, PauseReport
from cron.api.launches import BackfillReport
from cron.api.limits import LimitView
from cron.api.tasks import TasksReport, TaskView
from cron.web.console.texts import instant
from tests.unit.api_rig import NOON_S, FakeBackend, launch
from tests.unit.test_console_pages import full, job
from tests.unit.web_rig import WALL_MS

LAUNCH = "acme/mail@2026-11-20T15:00:00Z"
LAUNCH_PAGE = f"/launches/{LAUNCH}"
TASK = "acme/mail:k"
GROUP = TaskGroupView(group="acme/import", state="open", waiting=2, running=1, done=3)


class Case(NamedTuple):
    """An act. `labels` are filled in: True is ticked. `opened` is what folds up its form.

    `call` is the call that makes the change, `asks` some fields of its request. The page that
    follows says `said`.
    """

    page: str
    button: str
    title: str
    shown: str
    confirm: str
    call: str
    asks: dict[str, Any]
    said: str
    labels: dict[str, Any] = {}  # noqa: RUF012 - of a tuple, never changed
    opened: str = ""
    answers: dict[str, Any] = {}  # noqa: RUF012


CASES: dict[str, Case] = {
    "pause": Case(
        "/jobs", "Pause …", "Pause jobs", "acme/mail", "Pause", "pause",
        {"pattern": "acme/mail"}, "1 job was paused.",
        labels={"choose acme/mail": True}, answers={"pause": PauseReport(changed=["acme/mail"])},
    ),
    "resume": Case(
        "/jobs/acme/mail", "Resume …", "Resume jobs", "acme/mail", "Resume", "resume",
        {"pattern": "acme/mail"}, "1 job was resumed.",
        answers={"resume": PauseReport(changed=["acme/mail"]), "jobs": [job(paused=True)]},
    ),
    "rollback": Case(
        "/jobs/acme/mail", "go back to revision 3", "Go back to a revision", "schedule will change",
        "Go back", "roll_back", {"job": "acme/mail", "revision": 3}, "1 job is what it was.",
        answers={
            "roll_back": ApplyReport(
                changes=[JobChange(action="changed", job="acme/mail", what=["schedule"])]
            )
        },
    ),
    "trigger": Case(
        "/jobs/acme/mail", "Launch now …", "Launch now", "acme/mail", "Launch", "trigger",
        {"job": "acme/mail"}, "1 job was launched.",
        answers={"trigger": launch(launch=f"{LAUNCH}+t1")},
    ),
    "backfill": Case(
        "/jobs/acme/mail", "Show the plan …", "Backfill", LAUNCH, "Backfill", "backfill",
        {"from_s": NOON_S - 3_600, "to_s": NOON_S + 3_600}, "1 launch is due again.",
        labels={"From, UTC": "2026-11-20T14:00", "To, UTC, exclusive": "2026-11-20T16:00"},
        opened="Backfill: launch again what was skipped, lost or failed",
        answers={"backfill": BackfillReport(launches=[LAUNCH])},
    ),
    "kill": Case(
        LAUNCH_PAGE, "Stop it …", "Stop a launch", LAUNCH, "Stop it", "kill",
        {"launch": LAUNCH}, "1 launch is being stopped.",
        answers={"kill": launch(), "show": [launch(launch=LAUNCH, is_open=True, state="launched")]},
    ),
    "redrive": Case(
        LAUNCH_PAGE, "Launch it again …", "Launch again", LAUNCH, "Launch again", "redrive",
        {"is_dry_run": False}, "1 launch is due again.",
        answers={
            "redrive": DeadOutcome(launches=[LAUNCH]),
            "show": [launch(launch=LAUNCH, state="failed")],
        },
    ),
    "drop": Case(
        "/dead", "Forget …", "Forget", LAUNCH, "Forget", "drop_dead",
        {"is_dry_run": False}, "1 dead letter was forgotten.",
        labels={"choose default/backup@2026-11-20T15:00:00Z": True},
        answers={"drop_dead": DeadOutcome(launches=[LAUNCH])},
    ),
    "close-gate": Case(
        "/queues", "Show the plan …", "Close a gate", "jobs acme/*", "Close the gate", "close_gate",
        {"jobs": "acme/*", "reason": "the disk is full", "action": "drop", "priority": -1},
        "1 gate was closed.",
        labels={"Jobs, such as acme/*": "acme/*", "Reason": "the disk is full",
                "Does": "drop: it is skipped"},
        opened="Close a gate: hold something back",
        answers={"close_gate": GateView(number=8)},
    ),
    "open-gate": Case(
        "/queues", "Open …", "Open gates", "gate 7", "Open", "open_gates",
        {"numbers": [7]}, "1 gate was opened.", labels={"choose gate 7": True},
        answers={"open_gates": GatesReport(gates=[GateView(number=7)])},
    ),
    "limit": Case(
        "/queues", "Show the plan …", "Set limits", "tenant acme in pool mail", "Set", "set_limit",
        {"tenant": "acme", "pool": "mail", "concurrent": 5, "rate_milli": 2_500, "weight": None},
        "1 scope has new limits.",
        labels={"Tenant, * for each": "acme", "At once": "5", "Starts per second": "2.5",
                "Pool: a handler, or command": "mail"},
        opened="Set a limit",
        answers={"set_limit": LimitView(tenant="acme", pool="mail")},
    ),
    "unlimit": Case(
        "/queues", "remove the limits of each tenant in pool mail", "Remove limits",
        "each tenant in pool mail", "Remove", "remove_limit", {"tenant": "*", "pool": "mail"},
        "1 scope has no limits of its own now.", answers={"remove_limit": LimitView()},
    ),
    "drain": Case(
        "/executors", "drain e1", "Drain an executor", "e1", "Drain", "drain",
        {"executor": "e1", "is_over": False}, "1 executor gets no more work.",
        answers={"drain": ExecutorView(id="e1")},
    ),
    "undrain": Case(
        "/executors", "end the drain of e2", "Give an executor work again", "e2", "End the drain",
        "drain", {"executor": "e2", "is_over": True}, "1 executor gets work again.",
        answers={"drain": ExecutorView(id="e1")},
    ),
    "cancel": Case(
        "/tasks", "Cancel …", "Cancel tasks", TASK, "Cancel them", "cancel",
        {"names": [TASK], "is_dry_run": False}, "1 task was cancelled.",
        labels={f"choose {TASK}": True},
        answers={"cancel": TasksReport(count=1, tasks=[TaskView(task=TASK)])},
    ),
    "hurry": Case(
        f"/tasks/{TASK}", "Run now …", "Run tasks now", TASK, "Run them now", "run_now",
        {"names": [TASK]}, "1 task is due now.", answers={"run_now": TasksReport(count=1)},
    ),
    "reschedule": Case(
        f"/tasks/{TASK}", "Show the plan …", "Reschedule a task",
        f"Due: {instant((NOON_S + 86_400) * 1000)} UTC.", "Reschedule", "reschedule",
        {"name": TASK, "at_ms": (NOON_S + 86_400) * 1000, "priority": 2, "revision": 12},
        "1 task was rescheduled.",
        labels={"Due, UTC": "2026-11-21T15:00", "Priority, 0 to 9": "2"},
        opened="Reschedule: another time or priority",
        answers={"reschedule": TaskView(task=TASK)},
    ),
    "close-group": Case(
        "/groups/acme/import", "Close it …", "Close a group", "acme/import", "Close it",
        "close_group", {"name": "acme/import"}, "1 group was closed.",
        answers={"close_group": GROUP},
    ),
    "cancel-group": Case(
        "/groups/acme/import", "Cancel its tasks …", "Cancel a group", TASK, "Cancel them",
        "cancel_group", {"name": "acme/import", "is_dry_run": False}, "1 task was cancelled.",
        answers={"cancel_group": TasksReport(count=1, tasks=[TaskView(task=TASK)])},
    ),
    "mute": Case(
        "/alerts", "Show the plan …", "Mute alerts", "2 of their alerts fire now.", "Mute",
        "mute_alerts", {"pattern": "acme/*", "until_ms": WALL_MS + 7_200_000, "reason": "we move"},
        "1 mute was set.",
        labels={"Jobs, such as acme/*": "acme/*", "Hours": "2", "Reason": "we move"},
        opened="Mute: tell nobody for a while", answers={"mute_alerts": MuteView(number=5)},
    ),
    "unmute": Case(
        "/alerts", "End …", "End mutes", "mute 4", "End them", "unmute_alerts", {"numbers": [4]},
        "1 mute was ended.", labels={"choose mute 4": True},
        answers={"unmute_alerts": MutesReport(mutes=[MuteView(number=4)])},
    ),
    "test-alert": Case(
        "/alerts", "test ops", "Test a channel", "ops", "Send a test", "test_alert",
        {"channel": "ops"}, "1 test is on its way.",
        answers={"test_alert": TestAlertReport(task="raftcron/alerts:5-test-ops")},
    ),
}  # fmt: skip


def cell_for(case: Case) -> FakeBackend:
    """A cell in which an act can be done."""
    of = full("mail")
    known = of.answers["executors"].executors
    drained = ExecutorView(id="e2", role="connected", drained_by="ada", drained_ms=1)
    of.answers["executors"] = ExecutorsReport(executors=[*known, drained])
    of.answers |= {"get_group": GROUP, "list_groups": GroupsPage(groups=[GROUP])}
    of.answers |= case.answers
    return of
