"""What every importer says of a job: the file, the line and the construct of what is left."""

from __future__ import annotations

from typing import Final

from cron.crontab.imported import Found, Imported, Place, Treatment, exported, keys, program

KEYS: Final = {
    **keys(Treatment.CARRIED, "command", "Run"),
    **keys(Treatment.IRRELEVANT, "text for people", "Description"),
    **keys(Treatment.NOTED, "no job has a nice value", "Nice"),
    **keys(Treatment.LEAVES_OUT, "no job has a root directory", "Root"),
}


def said(*names: str) -> tuple[bool, list[str]]:
    imported = Imported()
    lines = enumerate(names, 1)
    found = [Found(name, f"{name}=x", Place("a.service", line)) for line, name in lines]
    return imported.note_keys("a", KEYS, found), list(map(str, imported.left))


def test_keys_that_are_carried_or_irrelevant_are_not_noted() -> None:
    assert said("Run", "Description") == (True, [])


def test_a_key_that_is_left_is_noted_with_its_file_and_line() -> None:
    notes = ["a.service:2: a: not carried over: Nice=x: no job has a nice value"]
    assert said("Run", "Nice") == (True, notes)


def test_a_key_that_is_not_known_is_noted() -> None:
    notes = ["a.service:1: a: not carried over: Runn=x: this key is not known"]
    assert said("Runn") == (True, notes)


def test_a_key_whose_loss_changes_the_job_leaves_it_out() -> None:
    notes = ["a.service:2: a: left out: Root=x: no job has a root directory"]
    assert said("Run", "Root") == (False, notes)


def test_a_job_that_is_not_valid_here_is_left_out_with_its_place() -> None:
    imported = Imported()
    imported.add("a", {"name": "a", "schedule": "61 * * * *", "command": "x"}, Place("f", 7))
    assert imported.tables == []
    assert str(imported.left[0]).startswith("f:7: a: left out: minute 61")


def test_a_program_that_is_called_like_a_command_of_the_shell_is_the_program() -> None:
    assert program(["echo", "'a\\nb'"]) == "exec echo 'a\\nb'"
    assert program(["A=b", "c"]) == "exec A=b c"
    assert program(["/bin/echo", "a"]) == "/bin/echo a"


def test_variables_that_mean_something_in_a_job_file_are_exported_by_the_command() -> None:
    assert exported({"MAILTO": "a b", "A": "1", "SHELL": "/bin/false"}) == (
        ["export MAILTO='a b'", "export SHELL=/bin/false"], {"A": "1"},
    )  # fmt: skip
