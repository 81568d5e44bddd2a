"""Several files at once: what each is, and what they cannot all declare."""

from __future__ import annotations

from cron.crontab.reader import read_together


def read(*files):
    content = [(name, text.encode()) for name, text in files]
    return read_together(content, system=False, zone="UTC", tenant="default")


def problems(*files):
    return [problem for _, reading in read(*files) for problem in reading.problems]


def test_files_are_read_in_their_order_each_in_its_form():
    job_file = '[[job]]\nname = "b"\nschedule = "@daily"\ncommand = "true"\n'
    readings = read(("tab", "#: name=a\n@daily true\n"), ("jobs.toml", job_file))
    assert [(name, [job.name for job in one.jobs]) for name, one in readings] == [
        ("tab", ["default/a"]),
        ("jobs.toml", ["default/b"]),
    ]
    assert [one.problems for _, one in readings] == [[], []]


def test_a_file_given_twice_is_refused_and_read_once():
    text = "@daily true\n@hourly true\n"
    (problem,) = problems(("tab", text), ("tab", text))
    assert (problem.file, problem.message) == ("tab", "file is given twice")
    assert problem.hint
    assert not problem.is_warning
    assert [len(one.jobs) for _, one in read(("tab", text), ("tab", text))] == [2, 0]


def test_jobs_that_stand_in_two_files_are_all_named_with_both_places():
    one = "#: name=a\n@daily true\n@hourly echo\n#: name=c\n@daily c\n"
    other = "\n@hourly echo\n#: name=b\n@daily b\n#: name=a\n@daily true\n"
    found = problems(("one", one), ("other", other))
    assert [(problem.file, problem.line, problem.column) for problem in found] == [
        ("other", 2, 1),
        ("other", 6, 1),
    ]
    assert found[1].message == "job default/a stands in one, line 2 as well"
    assert all("another name" in problem.hint for problem in found)
    assert not any(problem.is_warning for problem in found)


def test_more_clashes_than_are_listed_are_counted():
    text = "@daily true\n" * 130
    assert (
        problems(("one", text), ("other", text))[-1].message
        == "130 errors; the first 100 are shown"
    )


def test_the_errors_of_each_file_are_kept():
    found = problems(("one", "61 * * * * x\n"), ("other", "* 24 * * * x\n"))
    assert [problem.file for problem in found] == ["one", "other"]
