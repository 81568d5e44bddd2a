"""Files of jobs that follow others: what is refused before anything is changed, and in which order
sources are put and removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cron.api.jobs import ApplyRequest, SourceFile
from cron.crontab.reader import read_together
from cron.errors import Conflict, CrontabError
from cron.job import Job
from cron.service.catalog import in_order, read_declared
from cron.service.following import check_removal, followers_first, removed_first
from cron.state.state import JobRecord
from tests.unit.state_rig import StateRig, job

EVERY = "0 3 * * *  true\n"


def tab(**follows: str) -> bytes:
    """A crontab of jobs by name, each with its options."""
    return "".join(f"#: name={name} {said}\n{EVERY}" for name, said in follows.items()).encode()


def ordered(
    records: list[JobRecord], *files: tuple[str, bytes], prune: bool = False, **fields: Any
) -> list[str]:
    sources = [SourceFile(*file) for file in files]
    request = ApplyRequest(files=sources, prune=prune, **fields)
    declared, _ = read_declared(request, "UTC")
    return [one.source for one in in_order(declared, records, request)]


def problems_of(call: Callable[[], object]) -> list[str]:
    with pytest.raises(CrontabError) as caught:
        call()
    return [str(problem) for problem in caught.value.problems]


def with_jobs(*jobs: Job) -> StateRig:
    rig = StateRig()
    rig.put(*jobs)
    return rig


def after(name: str, *names: str) -> Job:
    return job(name, after=tuple(f"default/{one}" for one in names))


def test_names_without_a_tenant_are_of_the_job_s_own() -> None:
    content = tab(**{"billing/b": "after=a,default/c after-any=night/d"})
    ((_, reading),) = read_together([("f", content)], system=False, zone="UTC", tenant="acme")
    (found,) = reading.jobs
    assert found.after == ("billing/a", "default/c")
    assert found.after_any == ("night/d",)


def test_a_job_file_names_them_in_a_list() -> None:
    written = '[[job]]\nname = "{}"\nschedule = "@daily"\ncommand = "true"\nafter = {}\n'
    content = (written.format("b", '["a", "billing/c"]') + written.format("d", 3)).encode()
    ((_, reading),) = read_together([("f.toml", content)], system=False, zone="UTC", tenant="acme")
    assert [one.after for one in reading.jobs] == [("acme/a", "billing/c"), ()]
    assert "after is not a list of jobs" in str(reading.problems[0])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("after=a,", "after '' is not a job's name"),
        ("after=a:b", "is not a job's name"),
        ("after=" + ",".join(f"a{n}" for n in range(21)), "after names more than 20 jobs"),
        ("after=a,a", "it follows acme/a twice"),
        ("after=a after-any=acme/a", "it follows acme/a twice"),
        ("after=x", "jobs wait for each other: acme/x follows acme/x"),
    ],
)
def test_lint_refuses_what_cannot_be_followed(said: str, told: str) -> None:
    files = [("f", tab(x=said))]
    ((_, reading),) = read_together(files, system=False, zone="UTC", tenant="acme")
    assert told in str(reading.problems[0])


def test_a_cycle_across_files_is_named() -> None:
    files = [("f", tab(x="after=y")), ("g", tab(y="after-any=z", z="after=x"))]
    (_, first), (_, second) = read_together(files, system=False, zone="UTC", tenant="default")
    assert not first.problems
    assert "y follows z follows x follows y" in str(second.problems[0])


def test_a_job_that_follows_none_that_there_is_is_refused_with_its_line() -> None:
    (told,) = problems_of(lambda: ordered([], ("f", tab(x="", y="after=z"))))
    assert told.startswith("f line 4, column 1: job y follows z, which does not exist")


def test_a_cycle_across_applies_is_refused_with_its_names() -> None:
    rig = with_jobs(job("a"), after("b", "a"))
    records = [*rig.state.jobs.values()]
    (told,) = problems_of(lambda: ordered(records, ("crontab", tab(a="after=b"))))
    assert "a follows b follows a" in told


def test_a_file_that_drops_a_followed_job_is_refused() -> None:
    rig = with_jobs(job("a"), job("c"))
    rig.put(after("b", "a"), source="other")
    records = [*rig.state.jobs.values()]
    (told,) = problems_of(lambda: ordered(records, ("crontab", tab(c="")), prune=True))
    assert "job a would be removed, and b follows it" in told
    both = [("crontab", tab(c="")), ("other", tab(b=""))]
    assert ordered(records, *both, prune=True) == ["other", "crontab"]


def test_sources_are_put_in_the_order_in_which_their_jobs_need_each_other() -> None:
    files = [("one", tab(a="after=b")), ("two", tab(b="after=c")), ("three", tab(c=""))]
    assert ordered([], *files) == ["three", "two", "one"]


def test_sources_that_need_each_other_are_refused() -> None:
    files = [("one", tab(a="after=b", d="")), ("two", tab(b="", c="after=d"))]
    with pytest.raises(Conflict, match="sources one, two have jobs that follow each other's"):
        ordered([], *files)
    assert ordered([], *files, source="both") == ["both"]


def test_who_may_not_see_a_job_cannot_follow_it() -> None:
    rig = StateRig()
    rig.put(Job("billing/a", job().schedule, job().work))
    records = [*rig.state.jobs.values()]
    files = ("f", tab(x="after=billing/a"))
    assert ordered(records, files, reads=["default/*", "billing/*"]) == ["f"]
    (told,) = problems_of(lambda: ordered(records, files, reads=["default/*"]))
    assert "which does not exist or is not yours to see" in told


def test_a_followed_job_is_removed_only_with_its_followers() -> None:
    rig = with_jobs(job("a"), after("b", "a"), after("c", "b"))
    names = ["default/a", "default/b", "default/c"]
    check_removal(rig.state, names)
    with pytest.raises(Conflict, match="b follows a; nothing was removed"):
        check_removal(rig.state, names[:1])
    assert followers_first(rig.state, names) == names[::-1]
    by_source = {"one": names[:2], "two": names[2:]}
    assert removed_first(rig.state, by_source) == ("two", names[2:])
