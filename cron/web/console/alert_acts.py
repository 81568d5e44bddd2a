"""Acts on alerts: mute, end a mute, test a channel."""

from __future__ import annotations

from typing import Final

from cron.api import table as t
from cron.api.alerts import AlertsQuery, MuteRequest, TestAlertRequest, UnmuteRequest
from cron.api.checks import named_pattern
from cron.errors import InvalidInput
from cron.web.console.page_request import Missing, PageRequest
from cron.web.console.plans import (
    BY,
    Act,
    Plan,
    kept,
    names_in,
    numbers_in,
    plan_of,
    until,
    until_ms,
)

_MUTE_FIELDS: Final = ("pattern", "hours", "reason")


def _mute_request(asked: PageRequest) -> MuteRequest:
    ends_ms = until_ms(asked)
    if not ends_ms:
        raise InvalidInput("a mute has an end", "say for how many hours")
    form = asked.form
    return MuteRequest(
        pattern=named_pattern(form.get("pattern", "").strip()),
        until_ms=ends_ms,
        reason=form.get("reason", ""),
        by=BY,
    )


async def _muting(asked: PageRequest) -> Plan:
    request = _mute_request(asked)
    firing = await asked.maybe(t.ALERTS, AlertsQuery(jobs=request.pattern, limit=1))
    notes = [f"Reason: {request.reason}"] if request.reason else ["No reason is given."]
    if not isinstance(firing, Missing):
        notes.append(f"{firing.firing_count:,} of their alerts fire now.")
    return Plan(
        title="Mute alerts",
        text=f"Nobody is told of alerts of these {until(request.until_ms, '')}. Alerts that still "
        "fire then are told.",
        button="Mute",
        items=[request.pattern],
        count=1,
        notes=notes,
        fields=kept(asked, *_MUTE_FIELDS),
    )


async def _mute(asked: PageRequest) -> tuple[int, str]:
    await asked.ask(t.MUTE_ALERTS, _mute_request(asked))
    return 1, ""


async def _unmuting(asked: PageRequest) -> Plan:
    text = "People are told again of the alerts that these mutes cover."
    return plan_of(asked, "mute", "End mutes", text, "End them", label="mute")


async def _unmute(asked: PageRequest) -> tuple[int, str]:
    request = UnmuteRequest(numbers=numbers_in(asked, "mute"), by=BY)
    report = await asked.ask(t.UNMUTE_ALERTS, request)
    return len(report.mutes), ""


async def _testing(asked: PageRequest) -> Plan:
    text = "The channel gets a message that says that it is a test."
    return plan_of(asked, "channel", "Test a channel", text, "Send a test")


async def _test(asked: PageRequest) -> tuple[int, str]:
    request = TestAlertRequest(channel=names_in(asked, "channel")[0], by=BY)
    await asked.ask(t.TEST_ALERT, request)
    return 1, ""


ACTS: Final = {
    "mute": Act(_muting, _mute, t.MUTE_ALERTS, ("mute was set", "mutes were set")),
    "unmute": Act(_unmuting, _unmute, t.UNMUTE_ALERTS, ("mute was ended", "mutes were ended")),
    "test-alert": Act(_testing, _test, t.TEST_ALERT, ("test is on its way", "tests were sent")),
}
