"""What the parser accepts, every other reader of a schedule accepts: declaring, lint and next.

Each kind of field is gone through with all its ranges and with steps that fit and steps that do
not; lists and whole expressions are drawn. What the fields mean is compared with the slow oracle.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from cron.calendar import zones
from cron.calendar.expression import parse
from cron.calendar.fields import DAY_OF_WEEK, KINDS
from cron.calendar.schedule import check
from cron.crontab.reader import read_crontab
from cron.errors import ScheduleError
from cron.job import Schedule
from cron.main import cli
from tests.drawn import nightly_but
from tests.model.oracle import MONTHS, WEEKDAYS, Spec

PLACES = range(len(KINDS))
NAMES = {3: MONTHS, 4: WEEKDAYS}


@pytest.fixture(autouse=True)
def _pinned():
    zones.pin()


def steps(place):
    high = KINDS[place].highest
    return sorted({1, 2, 3, 5, 7, high // 2, high - 1, high, high + 1, 99} - {0})


def parts(place):
    """Yield all single values and ranges, bare and with steps, and names where there are some."""
    low, high = KINDS[place].lowest, KINDS[place].highest
    yield "*"
    yield from (f"*/{step}" for step in range(1, high + 3))
    for a in range(low, high + 1):
        yield str(a)
        if KINDS[place] is not DAY_OF_WEEK:
            yield from (f"{a}/{step}" for step in steps(place))
        for b in range(low, high + 1):
            yield f"{a}-{b}"
            # A third of the long fields is enough for steps; their edges are in it.
            if high < 20 or a in (low, low + 1, high // 2, high) or b in (high - 1, high):
                yield from (f"{a}-{b}/{step}" for step in steps(place))
    names = NAMES.get(place, [])
    yield from names
    for a, b in itertools.product(names, repeat=2):
        yield f"{a}-{b}"
        yield f"{a.title()}-{b.upper()}/2"


def in_place(place, part):
    fields = ["*"] * len(KINDS)
    fields[place] = part
    return " ".join(fields)


def values(field):
    return {value for value in range(61) if field.mask >> value & 1}


@pytest.mark.parametrize(
    "place", nightly_but(PLACES, PLACES[3:].__contains__, lambda place: KINDS[place].name)
)
def test_every_value_range_and_step_may_be_declared_and_means_what_it_says(place):
    texts = [in_place(place, part) for part in dict.fromkeys(parts(place))]
    for text in texts:
        expression = parse(text)
        assert values(expression.fields[place]) == Spec(text).sets[place], text
        check(expression.schedule("UTC"))
    reading = read_crontab("".join(f"{t} true\n" for t in texts).encode(), file="tab")
    assert reading.errors == []
    assert [job.schedule.text for job in reading.jobs] == texts


@pytest.mark.parametrize("place", PLACES, ids=[kind.name for kind in KINDS])
def test_whatever_a_question_mark_may_become_may_be_declared(place):
    low, high = KINDS[place].lowest, KINDS[place].any_highest
    for form in ("?", "?/2", "?/5", f"?({low}-{high})", f"?({low}-{high})/3", f"?/{high}"):
        for option in parse(in_place(place, form)).fields[place].options:
            check(Schedule("", in_place(place, option.text)))


def accepted_by_parser(text):
    try:
        parse(text)
    except ScheduleError:
        return False
    return True


def accepted_by_command(*arguments):
    return CliRunner().invoke(cli, list(arguments)).exit_code == 0


def drawn_part(place):
    low, high = KINDS[place].lowest, KINDS[place].highest
    number = st.integers(low, high)
    step = st.one_of(st.just(""), st.sampled_from(steps(place)).map(lambda n: f"/{n}"))
    return st.one_of(
        step.map(lambda s: f"*{s}"),
        number.map(str),
        st.builds(lambda a, b, s: f"{min(a, b)}-{max(a, b)}{s}", number, number, step),
        st.builds(lambda a, s: f"{a}{s}", number, step),
        st.just(f"{low}-{high}"),
    )


def drawn_field(place):
    several = st.lists(drawn_part(place), min_size=1, max_size=4).map(",".join)
    return st.one_of(st.just("*"), several, several, st.sampled_from(["?", "?/3"]))


EXPRESSIONS = st.tuples(*map(drawn_field, PLACES)).map(" ".join)


@given(EXPRESSIONS)
@example("*,5 1,* *,* 1-12,* 0-7,*")
@example("* * 1-31 * 0-6")
@example("* * 30,* 2 *")
@example("0 0 31 2 1")
@example("0 0 30 2 */2")
@example("* * * * 2-7/3,0-7/7")
def test_lists_of_all_fields_are_accepted_by_all_or_by_none(text):
    expected = accepted_by_parser(text)
    reading = read_crontab(f"{text} true\n".encode(), file="tab")
    assert (reading.errors == []) is expected, reading.errors
    if expected:
        (job,) = reading.jobs
        assert job.schedule.text == text


FULL = [
    "*/1 * * * *", "* */1 * * *", "* * */1 * *", "* * * */1 *", "* * * * */1", "0-59 * * * *",
    "* 0-23 * * *", "* * 1-31 * *", "* * * 1-12 *", "* * * jan-dec *", "* * * * 0-6",
    "* * * * 1-7", "* * * * 0-7", "* * * * sun-sat", "* * * * 0-6/1", "0-59/1 0-23/1 * * *",
    "0/1 * * * *", "* 5-1 * * *", "0 0 31 2 1", "0 0 1-31 2 0-6",
]  # fmt: skip
REFUSED = ["0 0 30 2 *", "60 * * * *", "* 5- * * *", "* * * * 1/2", "*/0 * * * *", "1,,2 * * * *"]


@given(st.one_of(EXPRESSIONS, st.sampled_from([*FULL, *REFUSED])))
def test_lint_and_next_agree_on_what_is_a_schedule(text):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tab"
        path.write_text(f"{text} true\n", encoding="utf-8")
        found = {
            "parse": accepted_by_parser(text),
            "lint": accepted_by_command("lint", str(path)),
            "next of a file": accepted_by_command("next", str(path)),
            "next": accepted_by_command("next", text),
        }
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("text", [*FULL, *REFUSED])
def test_full_ranges_and_steps_of_one_are_schedules(text):
    assert accepted_by_parser(text) is (text in FULL)
    assert (read_crontab(f"{text} true\n".encode(), file="tab").errors == []) is (text in FULL)
