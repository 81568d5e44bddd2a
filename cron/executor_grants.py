"""What the cell grants to executors: labels, work pools and users. Pure.

An executor says of itself which labels it has, which handlers its workers serve, and as whom it may
run commands. Until the first grant of the cell that counts. From then on, for good, an executor has
what was granted to its id, and what it claims beside that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from cron.job import COMMAND
from cron.where import HOST_LABEL
from launcher.protocol.limits import LABEL_CHARS_MAX
from launcher.protocol.reports import GroupOffer

ANY: Final = "*"
ID_RULE: Final = r"[A-Za-z0-9_*?][A-Za-z0-9_.*?-]{0,99}"
"""An executor's id, or a pattern of ids."""
POOL_RULE: Final = r"[A-Za-z0-9_*?][A-Za-z0-9_.*?-]{0,99}"
"""A work pool: `command`, a handler or a pattern of handlers."""
LABEL_RULE: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}|\*"
"""The name of a label; `*` stands for all that an executor claims."""
GRANT_CHARS_MAX: Final = 2_000
"""Characters of all labels, pools and users of one grant."""
PATTERNS_MAX: Final = 100
"""Grants for patterns of ids: each is compared with each executor."""
_WILD: Final = frozenset("*?")
_ID: Final = re.compile(ID_RULE, re.ASCII)
_POOL: Final = re.compile(POOL_RULE, re.ASCII)
_LABEL: Final = re.compile(LABEL_RULE, re.ASCII)


class ExecutorGrant(msgspec.Struct, frozen=True, array_like=True):
    """What executors of an id, or of a pattern of ids, get, from whom and since when.

    A label with the value `*` has the value that the executor claims, and the label `*` stands for
    all that it claims. `pools` may be patterns, `*` among `users` is every user.
    """

    executor: str
    labels: tuple[tuple[str, str], ...] = ()
    pools: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    by: str = ""
    since_ms: int = 0

    @property
    def is_pattern(self) -> bool:
        """Whether it is for several ids."""
        return is_pattern(self.executor)

    def has_pool(self, pool: str) -> bool:
        """Return whether an executor may serve a work pool."""
        return any(fnmatchcase(pool, one) for one in self.pools)


def is_pattern(executor: str) -> bool:
    """Return whether a text stands for several ids."""
    return not _WILD.isdisjoint(executor)


def problem_of(grant: ExecutorGrant) -> str:
    """Return what is wrong with a grant, "" if nothing is. Users are checked elsewhere."""
    if not _ID.fullmatch(grant.executor):
        return f"{grant.executor[:80]!r} is not an executor's id, or a pattern of ids"
    for name, value in grant.labels:
        is_whole = name != ANY or not value
        is_text = value.isprintable() and len(value) <= LABEL_CHARS_MAX
        if not (_LABEL.fullmatch(name) and is_text and is_whole):
            return f"label {name[:80]!r} with value {value[:80]!r} is none of an executor"
    if len(dict(grant.labels)) != len(grant.labels):
        return "a label is there twice"
    wrong = next((one for one in grant.pools if not _POOL.fullmatch(one)), None)
    if wrong is not None:
        return f"pool {wrong[:80]!r} is not a work pool, or a pattern of them"
    size = sum(map(len, (*map("".join, grant.labels), *grant.pools, *grant.users)))
    most = GRANT_CHARS_MAX
    return f"the grant has {size:,} characters, at most {most:,} fit" if size > most else ""


class Granted(msgspec.Struct, frozen=True):
    """What an executor has, of what it claims and beside that.

    `users` are those that commands run as there, None for any. `refused` is what it claims and was
    not granted, as people read it; `withheld` are the work pools among that.
    """

    labels: dict[str, str]
    offers: tuple[GroupOffer, ...]
    has_commands: bool = True
    users: tuple[str, ...] | None = None
    refused: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()


class ExecutorGrants:
    """All grants of the cell, of one revision. Without any, where there never were, all that
    executors claim counts."""

    def __init__(self, grants: Mapping[str, ExecutorGrant], *, are_needed: bool) -> None:
        self._grants = grants
        self._are_needed = are_needed
        found = (one for one in grants.values() if one.is_pattern)
        self._patterns = sorted(found, key=lambda one: (-len(one.executor), one.executor))

    def of(self, executor: str) -> ExecutorGrant | None:
        """Return the grant of an id: its own, else that of the longest pattern that matches; None
        where it claims what it wants."""
        if not self._are_needed:
            return None
        mine = self._grants.get(executor)
        if mine is not None:
            return mine
        matching = (one for one in self._patterns if fnmatchcase(executor, one.executor))
        return next(matching, ExecutorGrant(executor))

    def granted(
        self, executor: str, labels: Mapping[str, str], host: str, offers: Iterable[GroupOffer]
    ) -> Granted:
        """Return what an executor has that claims these labels and this host, and offers this. The
        host is a label like the others; a group of workers is cut to the handlers granted."""
        grant, claimed = self.of(executor), {**labels, HOST_LABEL: host}
        if grant is None:
            return Granted(claimed, tuple(offers))
        kept, withheld = list[GroupOffer](), list[str]()
        has_commands = grant.has_pool(COMMAND)
        for offer in offers:
            handlers = tuple(filter(grant.has_pool, offer.handlers))
            withheld += [one for one in offer.handlers if one not in handlers]
            if handlers or not offer.handlers:
                kept.append(msgspec.structs.replace(offer, handlers=handlers))
        named = dict(grant.labels)
        given = dict(claimed) if named.pop(ANY, None) is not None else {}
        for name, value in named.items():
            if value != ANY:
                given[name] = value
            elif name in claimed:
                given[name] = claimed[name]
        wrong = [(name, one) for name, one in claimed.items() if given.get(name) != one]
        refused = [f"label {name}={one}" if one else f"label {name}" for name, one in wrong]
        refused += [f"handler {one}" for one in withheld]
        if not has_commands:
            refused.append("commands")
            withheld.append(COMMAND)
        users = None if ANY in grant.users else grant.users
        return Granted(
            given, tuple(kept), has_commands, users, tuple(refused), tuple(sorted({*withheld}))
        )
