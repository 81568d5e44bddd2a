"""Launches: how they are triggered by hand and killed."""

from __future__ import annotations

from cron.api.launches import KillRequest, LaunchView, TriggerRequest
from cron.api.pattern import unknown_job
from cron.errors import NotNow, UnknownLaunch
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.service.questions import Questions
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.launch import Reason
from launcher.names import LaunchName, parse_launch_name


class Launches:
    """Changes of single launches, on the leader."""

    def __init__(self, leader: Leader, applier: StateApplier, questions: Questions) -> None:
        self._leader = leader
        self._applier = applier
        self._questions = questions

    async def trigger(self, request: TriggerRequest) -> LaunchView:
        """Launch a job by hand, once for each request id.

        Raises:
            UnknownJob: there is no such job. LimitExceeded: no more launches of it may wait.
        """
        job = request.job

        def build(state: State, _now_ms: int) -> list[c.Command]:
            # A request that was accepted before is answered again, whatever waits by now.
            record = state.jobs.get(job) if request.request_id not in state.requests else None
            if record is not None and record.job is not None:
                self._leader.indexes.queues.admission.admit(job, record.job)
            return [c.Trigger(job, request.request_id, request.by)]

        _, results = await self._leader.submit(build)
        result = results[0]
        if result.verdict is Verdict.UNKNOWN_JOB:
            raise unknown_job(job)
        name = str(LaunchName(job, result.scheduled_s, result.number))
        return (await self._questions.show(name))[-1]

    async def kill(self, request: KillRequest) -> LaunchView:
        """Cancel a launch; its kill is sent once that is committed (rule R8).

        Raises:
            UnknownLaunch: there is no such launch. NotNow: it is over.
        """
        name = parse_launch_name(request.launch)
        key = self._applier.state.key_of(name)
        if key is None:
            raise UnknownLaunch(f"launch {name} does not exist", "`raftcron history` lists them")
        command = c.Cancel((c.CancelItem(key, Reason.KILLED, request.by),))
        _, results = await self._leader.append(command)
        views = await self._questions.show(request.launch)
        if results[0].items[0] == Verdict.NOT_OPEN:
            raise NotNow(f"launch {name} is over: {views[-1].state}", "nothing is left to kill")
        return views[-1]
