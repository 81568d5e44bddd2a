"""What a form changes: each act shows its plan first, and is done when the plan is confirmed.

A plan is made from the form's fields alone, and its own form has the same fields again. So nothing
is kept between the two, and any replica can take the second.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from cron.access import may, scopes_for
from cron.api.admission import Caller
from cron.web.console import alert_acts, job_acts, launch_acts, queue_acts, task_acts
from cron.web.console.plans import Act

SHOWN_MAX: Final = 200
"""Items that a plan lists."""
ACTS: Final[dict[str, Act]] = {
    **job_acts.ACTS,
    **launch_acts.ACTS,
    **queue_acts.ACTS,
    **task_acts.ACTS,
    **alert_acts.ACTS,
}


def may_act(caller: Caller | None, act: str, *scopes: str) -> bool:
    """Return whether a caller's roles permit an act in all of these scopes; without any, in some
    scope. The leader decides again when it is done."""
    rpc = ACTS[act].rpc
    if caller is None or caller.kind not in rpc.roles:
        return False
    if not scopes:
        return bool(scopes_for(caller.subject, rpc.action))
    return all(may(caller.subject, rpc.action, one) for one in scopes)


def with_done(path: str, act: str, count: int) -> str:
    """Return the address of a page that says what an act has done."""
    parts = urlsplit(path)
    query = [(name, one) for name, one in parse_qsl(parts.query) if name not in ("done", "count")]
    return f"{parts.path}?{urlencode([*query, ('done', act), ('count', str(count))])}"


def said_done(query: dict[str, str]) -> str:
    """Return what a page says of an act that led to it, "" for none: fixed words and a number."""
    act, count = ACTS.get(query.get("done", "")), query.get("count", "")
    if act is None or not (count.isascii() and count.isdecimal()) or len(count) > 6:
        return ""
    return f"{int(count):,} {act.done[int(count) != 1]}."
