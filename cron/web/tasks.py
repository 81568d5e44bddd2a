"""The answer to a program that hands over one task: its verdict is that of the request."""

from __future__ import annotations

from urllib.parse import quote

from cron.api.rpc import encode
from cron.api.status import error_of
from cron.api.tasks import SubmitReport
from cron.web.problems import RETRY_AFTER_S, Answer, refused
from cron.web.requests import JSON


def answer_of_one(report: SubmitReport) -> Answer:
    """Return 201 for a new task, 200 for one that was there, or the problem."""
    (verdict,) = report.tasks
    if verdict.error is None:
        headers = {"content-type": JSON, "location": f"/v1/tasks/{quote(verdict.task, safe='/:')}"}
        return Answer(201 if verdict.is_new else 200, headers, encode(verdict))
    error = verdict.error
    answer = refused(error_of(error.code, error.message, error.hint))
    if verdict.retry_after_ms:
        answer.headers["retry-after"] = str(max(RETRY_AFTER_S, -(-verdict.retry_after_ms // 1000)))
    return answer
