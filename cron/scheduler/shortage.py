"""Why a launch finds no executor, as people get to read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from cron.job import COMMAND
from cron.scheduler.places import Need, Places, SlotGroup
from cron.where import BadWhere, Term, parse_where

SEEN_MAX: Final = 8
"""Values of a label that are named; of more it is said how many there are."""
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


def why_not(places: Places, need: Need, parts: int = 1, each: str = "") -> str:
    """Return why a launch of `parts`, or of one on `each`, cannot be placed now; empty if it can.

    One pass over all executors: for questions, not for every launch that waits.
    """
    terms: list[Term] = []
    for option, text in (("where", need.where), ("each", each)):
        try:
            terms += parse_where(text).terms
        except BadWhere as error:
            return f"its {option} cannot be read: {error}"
    if not places.views:
        return "no executor that may get work is connected"
    serving = [view.by_pool.get(need.pool) for view in places.views.values()]
    groups = [group for group in serving if group is not None]
    if not groups:
        return f"no executor {_serves(need.pool, 1)}{_withheld(places, need.pool)}"
    fitting = [group for group in groups if all(term.holds(_labels(group)) for term in terms)]
    if not fitting:
        return _label_missing(need.pool, groups, terms)
    lets = [group for group in fitting if group.view.place.runs_as(need.user)]
    if not lets:
        none = _none_of(len(fitting), f"that match{_s(len(fitting), 'es')}")
        return f"{none} is granted user {need.user}: `raftcron executor grant` grants users"
    fitting = [group for group in lets if not group.view.place.refuses(need)]
    if not fitting:
        return _refused(need.user, len(lets))
    if each:
        return _each_missing(need, fitting)
    if need.has_secrets and not any(group.view.place.knows_secrets for group in fitting):
        none = _none_of(len(fitting), f"that match{_s(len(fitting), 'es')}")
        way_out = "set secrets or secret_command in the configuration of one"
        return f"it names secrets: {none} can read any; {way_out}"
    if not any(group.view.fits(need) for group in fitting):
        return _size_missing(need, fitting)
    return _room_missing(need, fitting, parts)


def _withheld(places: Places, pool: str) -> str:
    count = sum(pool in view.place.withheld for view in places.views.values())
    if not count:
        return ""
    what = "1 would, which is" if count == 1 else f"{count} would, which are"
    return f"; {what} not granted that: `raftcron executor grant` grants pools"


def _refused(user: str, count: int) -> str:
    none = _none_of(count, f"that match{_s(count, 'es')}")
    if user:
        way_out = "list the user in `users` of the configuration of one that runs as root"
        return f"{none} runs commands as user {user}: {way_out}"
    way_out = "they run as root, and `users` of their configuration does not list root"
    return f"{none} runs commands that name no user: {way_out}"


def _label_missing(pool: str, groups: Sequence[SlotGroup], terms: Sequence[Term]) -> str:
    none = _none_of(len(groups), f"that {_serves(pool, len(groups))}")
    unmet = [term for term in terms if not any(term.holds(_labels(group)) for group in groups)]
    if not unmet:
        return f"{none} fits all of {','.join(map(str, terms))} together"
    label = unmet[0].label
    seen = sorted({_labels(group)[label] for group in groups if label in _labels(group)})
    if not seen:
        return f"{none} fits {unmet[0]} (there is no label {label})"
    shown = ", ".join(f"{label}={value}" for value in seen[:SEEN_MAX])
    more = f" and {len(seen) - SEEN_MAX} more" if len(seen) > SEEN_MAX else ""
    return f"{none} fits {unmet[0]} (there: {shown}{more})"


def _size_missing(need: Need, groups: Sequence[SlotGroup]) -> str:
    """What is asked for that not one of the executors that match has, if they were all idle."""
    none = _none_of(len(groups), f"that match{_s(len(groups), 'es')}")
    cpus = [group.view.place.cpu_milli for group in groups]
    if all(0 < cpu < need.cpu_milli for cpu in cpus):
        return f"it asks for {_cpu(need.cpu_milli)}: {none} has more than {_cpu(max(cpus))}"
    memories = [group.view.place.memory_bytes for group in groups]
    asked, most = _memory(need.memory_bytes), _memory(max(memories))
    if all(0 < memory < need.memory_bytes for memory in memories):
        return f"it asks for {asked}: {none} has more than {most}"
    return f"it asks for {_cpu(need.cpu_milli)} and {asked}: {none} has both"


def _room_missing(need: Need, groups: Sequence[SlotGroup], parts: int) -> str:
    count = len(groups)
    missing = Counter(_lacks(group, need) for group in groups)
    with_room = missing.pop("", 0)
    if with_room >= parts:
        return ""
    if count < parts:
        return f"it runs on {parts} executors at once, and only {count} match{_s(count, 'es')}"
    reasons = _listed(missing)
    if parts > 1:
        return (
            f"it runs on {parts} executors at once, and {with_room} of the {count} that match "
            f"{'has' if with_room == 1 else 'have'} room: {reasons}"
        )
    if count == 1:
        return f"the only executor that matches is full: {reasons}"
    return f"all of the {count} executors that match are full: {reasons}"


def _each_missing(need: Need, groups: Sequence[SlotGroup]) -> str:
    missing = Counter(_lacks(group, need) for group in groups)
    with_room = missing.pop("", 0)
    if not missing:
        return ""
    return (
        f"it runs on each of {len(groups)} executors at once, and {with_room} of them "
        f"{'has' if with_room == 1 else 'have'} room: {_listed(missing)}"
    )


def _lacks(group: SlotGroup, need: Need) -> str:
    """What an executor that matches lacks; empty if there is room."""
    if need.has_secrets and not group.view.place.knows_secrets:
        return "without secrets"
    if not group.view.fits(need):
        return "too small for it"
    if group.used >= group.limit:
        return "without a free slot"
    if group.view.is_cordoned:
        return "kept free for a launch that needs much"
    if group.view.is_short(Need(cpu_milli=need.cpu_milli)):
        return "without enough free cpu"
    return "without enough free memory" if group.view.is_short(need) else ""


# ---- words


def _labels(group: SlotGroup) -> dict[str, str]:
    return group.view.place.labels


def _listed(missing: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(missing.items()))


def _none_of(count: int, which: str) -> str:
    if count == 1:
        return f"not even the only executor {which}"
    return f"none of the {count} executors {which}"


def _serves(pool: str, count: int) -> str:
    if pool == COMMAND:
        return f"run{_s(count, 's')} commands"
    return f"serve{_s(count, 's')} handler {pool}"


def _s(count: int, ending: str) -> str:
    return ending if count == 1 else ""


def _cpu(cpu_milli: int) -> str:
    return f"{cpu_milli / 1000:g} CPU{'' if cpu_milli == 1000 else 's'}"


def _memory(memory_bytes: int) -> str:
    if memory_bytes >= _GIB:
        return f"{memory_bytes / _GIB:.4g} GiB of memory"
    return f"{memory_bytes / _MIB:.4g} MiB of memory"
