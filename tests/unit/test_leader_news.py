"""What executors report, as commands: facts about open, lost, unknown attempts (R4, R7, R8, R9)."""

from __future__ import annotations

import msgspec
import pytest

from cron.leader.news import Digested, digest_facts
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.launch import LaunchState, Reason
from launcher.names import AttemptName, LaunchName
from launcher.pool.events import Fact, Fate
from tests.unit.state_rig import T0, StateRig, job, said, with_job

KEY = (1, T0 + 60, 0)


def named(attempt: int = 1, second: int = 60, job: str = "default/backup") -> AttemptName:
    return AttemptName(LaunchName(job, T0 + second), attempt)


def begun() -> StateRig:
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    return rig


def digested(rig: StateRig, *facts: Fact, executor: int = 1) -> Digested:
    into = Digested()
    digest_facts(rig.state, rig.state.executors.get(executor), list(facts), into)
    return into


def commit(rig: StateRig, into: Digested) -> list[int]:
    """Append what the facts mean; all verdicts."""
    return [item for result in rig.append(*into.commands()).results for item in result.items]


def test_accepted_is_log_point_2() -> None:
    rig = begun()
    into = digested(rig, Fact(named(), Fate.ACCEPTED, started_ms=7))
    assert into.commands() == [c.Launched((c.LaunchedItem(KEY, 1, 7),))]
    commit(rig, into)
    assert digested(rig, Fact(named(), Fate.ACCEPTED, started_ms=7)).commands() == []


def test_accepted_and_ended_in_one_report_make_one_entry() -> None:  # design 3
    rig = begun()
    facts = [Fact(named(), Fate.ENDED, started_ms=7), Fact(named(), Fate.ACCEPTED, started_ms=7)]
    assert commit(rig, digested(rig, *facts)) == [Verdict.ACCEPTED, Verdict.ACCEPTED]
    assert rig.rows[0].state is LaunchState.SUCCEEDED


@pytest.mark.parametrize(
    ("reason", "exit_code", "state"),
    [
        (Reason.NONE, 0, LaunchState.SUCCEEDED),
        (Reason.NONE, 1, LaunchState.FAILED),
        (Reason.TIMEOUT, 143, LaunchState.FAILED),
        (Reason.TIMEOUT, 0, LaunchState.FAILED),
        (Reason.USER, 0, LaunchState.FAILED),
        (Reason.KILLED, 143, LaunchState.CANCELLED),
        (Reason.REPLACED, 0, LaunchState.CANCELLED),
    ],
)
def test_an_end_is_what_its_reason_and_exit_code_say(
    reason: Reason, exit_code: int, state: LaunchState
) -> None:
    rig = begun()
    fact = Fact(named(), Fate.ENDED, reason, exit_code, 1, 2)
    assert commit(rig, digested(rig, fact)) == [Verdict.ACCEPTED]
    assert (rig.rows[0].state, rig.rows[0].reason) == (state, reason)


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED])
def test_what_never_ran_is_due_again(fate: Fate) -> None:  # R7
    rig = begun()
    assert commit(rig, digested(rig, Fact(named(), fate))) == [Verdict.ACCEPTED]
    assert (rig.row(60).state, said(rig.row(60))) == (LaunchState.DUE, fate.name.lower())


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED])
def test_an_executor_that_contradicts_itself_proves_nothing(fate: Fate) -> None:  # fail closed
    rig = begun()
    rig.launched(60)
    commit(rig, digested(rig, Fact(named(), fate)))
    assert rig.rows[0].state is LaunchState.LOST


def test_what_an_executor_died_over_is_lost() -> None:  # R4
    rig = begun()
    commit(rig, digested(rig, Fact(named(), Fate.INTERRUPTED)))
    assert (rig.rows[0].state, said(rig.rows[0])) == (LaunchState.LOST, "its executor died")


def test_an_unknown_start_is_fenced_and_concludes_nothing() -> None:
    rig = begun()
    into = digested(rig, Fact(named(), Fate.UNKNOWN))
    assert into.commands() == []
    assert into.fences == [named()]


def test_what_runs_though_it_is_cancelled_is_killed_again() -> None:  # R8
    rig = begun()
    rig.cancel(60)
    assert digested(rig, Fact(named(), Fate.ACCEPTED)).kills == [(named(), Reason.KILLED)]


def test_another_executor_or_ledger_proves_nothing() -> None:  # R4
    rig = begun()
    rig.join("e1", "l2")
    for fate in Fate:
        into = digested(rig, Fact(named(), fate), executor=2)
        assert into.commands() == []
        assert (into.fences, into.kills) == ([], [])


def test_another_attempt_says_nothing_of_this_one() -> None:
    rig = begun()
    rig.refused(60)
    rig.begin(60, attempt=2)
    assert digested(rig, Fact(named(1), Fate.ENDED)).commands() == []
    assert digested(rig, Fact(named(1), Fate.ENDED)).acks == [named(1)]


def test_late_news_is_recorded_before_it_is_acknowledged() -> None:  # R9
    rig = begun()
    rig.lost(60)
    rig.answer(c.ExecutorLeft(1))
    into = digested(rig, Fact(named(), Fate.ENDED))
    assert into.acks == []
    assert commit(rig, into) == [Verdict.AMENDED]
    again = digested(rig, Fact(named(), Fate.ENDED))
    assert (again.commands(), again.acks) == ([], [named()])


@pytest.mark.parametrize("source", [("e2", "l1"), ("e1", "l2"), ("e2", "l2")])
def test_nobody_but_its_executor_and_ledger_amend_a_lost_attempt(source: tuple[str, str]) -> None:
    """Any executor could say that a lost launch of another had succeeded."""
    rig = begun()
    rig.lost(60)
    for fate in Fate:
        into = Digested()
        digest_facts(rig.state, None, [Fact(named(), fate)], into, source)
        assert (into.commands(), into.foreign) == ([], [named()])
    into = Digested()
    digest_facts(rig.state, None, [Fact(named(), Fate.ENDED)], into, ("e1", "l1"))
    assert (commit(rig, into), into.foreign) == ([Verdict.AMENDED], [])


def test_of_several_parts_each_is_amended_by_its_own_executor() -> None:
    rig = StateRig()
    rig.put(job(parts=2))
    rig.join()
    rig.join("e2", "l2")
    rig.to(60).account(60)
    revision = rig.state.by_number[1].revision
    begin = c.BeginItem(KEY, 1, revision, 1, rig.at_ms + 1_000, (2,))
    assert rig.item(c.Begin.of((begin,))) is Verdict.ACCEPTED
    for part in (1, 2):
        rig.append(c.Lost((c.LostItem(KEY, 1, 0, "silent", part),)))
    second = msgspec.structs.replace(named(), part=2)
    for name, source in ((named(), ("e2", "l2")), (second, ("e1", "l1"))):
        into = Digested()
        digest_facts(rig.state, None, [Fact(name, Fate.ENDED)], into, source)
        assert (into.commands(), into.foreign) == ([], [name])
    into = Digested()
    digest_facts(rig.state, None, [Fact(second, Fate.ENDED)], into, ("e2", "l2"))
    assert commit(rig, into) == [Verdict.AMENDED]


def test_an_open_attempt_of_another_executor_is_foreign() -> None:
    rig = begun()
    rig.join("e2", "l2")
    into = digested(rig, Fact(named(), Fate.ENDED), executor=2)
    assert (into.commands(), into.foreign) == ([], [named()])


def test_what_nobody_knows_is_acknowledged_unless_it_runs() -> None:
    rig = begun()
    stranger = named(job="default/stranger")
    assert digested(rig, Fact(stranger, Fate.ENDED)).acks == [stranger]
    assert digested(rig, Fact(stranger, Fate.ACCEPTED)).acks == []


def test_a_part_is_spoken_of_by_the_executor_that_has_it_and_no_other() -> None:
    rig = StateRig()
    rig.put(job(parts=2))
    for number in (1, 2):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60).account(60)
    rig.begin(60, others=(2,))
    first, second = (AttemptName(named().launch, 1, part) for part in (1, 2))
    into = digested(rig, Fact(second, Fate.ACCEPTED, started_ms=7), executor=2)
    assert into.commands() == [c.Launched((c.LaunchedItem(KEY, 1, 7, 2),))]
    for stranger in (1, 9):
        into = digested(rig, Fact(second, Fate.ENDED), executor=stranger)
        assert (into.commands(), into.acks) == ([], [second])
    facts = (Fact(first, Fate.ENDED, exit_code=3), Fact(second, Fate.ENDED))
    into = digested(rig, facts[0])
    assert [(item.part, item.exit_code) for item in into.finished] == [(1, 3)]
    commit(rig, into)
    assert digested(rig, facts[0]).acks == [first], "it is over"
    commit(rig, digested(rig, facts[1], executor=2))
    assert rig.rows[0].state is LaunchState.FAILED
