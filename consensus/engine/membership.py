"""The members of a cell: which disk represents each id, according to the log. Pure.

A *disk* is identified by the token that was drawn when it was created. An id's *incarnation* is
the number of the disk that represents it, counted from 1. Ids are added, one at a time, and never
removed.

- A cell is founded once: a candidate with an empty log needs the vote of every id, and its first
  entry, Found, names all disks. So an empty disk with an old id (S17) cannot found a cell:
  another id would have to vote for a token that its log does not name.
- Replace opens the next incarnation of an id: as soon as it is appended, the old disk neither votes
  nor counts. Admit binds the incarnation to the first disk that asks. Join lets the disk vote and
  count, once it has everything that was committed when it was admitted. It may be the last to
  receive its Join, so an admitted disk grants votes; a candidate counts the vote only if its own
  log has the Join.
- Add opens the first incarnation of a new id, and the rest is as after a Replace. The *electors*
  are the ids of whose votes a majority is needed. An added id becomes an elector with its first
  Join: before that, the cell needs neither its votes nor its answers.

Each of these is a change of one voter and follows Raft's rules (thesis 4.1, 4.2): a replica uses
the newest change in its own log, committed or not; the leader appends a change only when the
previous change, and an entry of its own term, are committed.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from consensus.engine.network.wire import Goodbye, Hello, Welcome

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

REPLACED: Final = "replaced"
"""The disk was replaced by a newer incarnation of its id; it must never take part again."""
TAKEN: Final = "taken"
"""The id's incarnation has a disk already; `replica replace` makes a new one."""
UNKNOWN: Final = "unknown"
"""The disk does not represent its id, and was not created to join."""
WAIT: Final = "wait"
"""The replica that refuses cannot decide yet."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """The disk that represents an id: token 0 until a disk is admitted; it votes once it joined.

    `raft` and `about` replace configured addresses, "" for the configured ones: the address that
    peers dial, and a text of the log's user. `past` are the tokens of the disks that represented
    the id before: such a disk may not know that it did. `is_new`: the id was added, and none of its
    disks has voted yet, so it is no elector.
    """

    number: Number
    token: Number
    votes: bool
    raft: str = ""
    about: str = ""
    past: tuple[Number, ...] = ()
    is_new: bool = False


Members = dict[str, Member]
"""Members by id; empty before the cell is founded."""


class Found(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=1):
    """The first entry of a cell: the token of each id's disk, sorted by id."""

    tokens: list[tuple[str, Number]]


class Replace(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=2):
    """The id's next incarnation is open; its old disk is excluded."""

    replica: str
    number: Number
    raft: str
    about: str


class Admit(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=3):
    """The id's open incarnation is this disk."""

    replica: str
    number: Number
    token: Number


class Join(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=4):
    """The id's incarnation votes and counts from here on."""

    replica: str
    number: Number


class Add(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=5):
    """The cell has one more id; its first incarnation is open."""

    replica: str


Change = Found | Replace | Admit | Join | Add

_encoder = msgspec.msgpack.Encoder()
_changes: msgspec.msgpack.Decoder[Change] = msgspec.msgpack.Decoder(Change)
_members: msgspec.msgpack.Decoder[Members] = msgspec.msgpack.Decoder(Members)


def encode_change(change: Change) -> bytes:
    """Return the bytes of an entry."""
    return _encoder.encode(change)


def decode_change(entry: bytes) -> Change:
    """Return the change in an entry. Raises msgspec.DecodeError if there is none."""
    return _changes.decode(entry)


def encode_members(members: Members) -> bytes:
    """Return the bytes of `members`, the same for equal ones."""
    return _encoder.encode(dict(sorted(members.items())))


def decode_members(content: bytes) -> Members:
    """Return the members in `content`. Raises msgspec.DecodeError if there are none."""
    return _members.decode(content)


def change_members(members: Members, change: Change) -> Members:
    """Return the members after `change`; the same ones if it does not apply any more."""
    match change:
        case Found(tokens):
            if members:
                return members
            return {name: Member(1, token, votes=True) for name, token in tokens}
        case Replace(replica, number, raft, about):
            old = members.get(replica)
            if old is None or number != old.number + 1:
                return members
            past = (*old.past, old.token) if old.token else old.past
            new = Member(number, 0, votes=False, raft=raft or old.raft, about=about or old.about)
            new = msgspec.structs.replace(new, past=past, is_new=old.is_new)
        case Admit(replica, number, token):
            old = members.get(replica)
            if old is None or number != old.number or old.token or token in old.past:
                return members
            new = msgspec.structs.replace(old, token=token)
        case Join(replica, number):
            old = members.get(replica)
            if old is None or number != old.number or not old.token or old.votes:
                return members
            new = msgspec.structs.replace(old, votes=True, is_new=False)
        case Add(replica):
            if not members or replica in members:
                return members
            new = Member(1, 0, votes=False, is_new=True)
    return {**members, replica: new}


def judge_life(life: int, members: Members, caller: Hello | Welcome) -> Goodbye | None:
    """Return why a replica of the life `life` refuses `caller`, whose log began with another state;
    None if it does not. Entries of two lives are unrelated, whatever their terms and indexes are.

    This alone never excludes a disk for good: the operator decides which life continues.
    """
    if caller.life == life:
        return None
    if not caller.life and not caller.number:
        return None  # its log is empty, or its token decides
    if not life and not members:
        return None  # our log is empty
    member = members.get(caller.sender)
    return Goodbye(
        WAIT,
        member.number if member is not None else 0,
        f"the disk of {caller.sender} is of another life of this cell, from before or after a"
        " restore; only one may go on: empty the data directory of the other",
    )


def judge(members: Members, caller: Hello | Welcome) -> Goodbye | None:
    """Return why a replica with these members in its log refuses `caller`; None if it accepts it.

    Only a token that this very log names as an old one is called replaced, which ends a disk for
    good: a number alone may come from a change that was cut off, or from a cell that is no more.
    """
    member = members.get(caller.sender)
    if member is None:
        return _judge_stranger(members, caller)
    if member.token == caller.token:
        return None
    name, number = caller.sender, member.number
    if caller.token in member.past:
        return Goodbye(REPLACED, number, f"{name} was replaced: it is at incarnation {number} now")
    if caller.number > number:
        return Goodbye(WAIT, number, f"{name} is at incarnation {number} here, as far as is known")
    if not caller.joins:
        return Goodbye(
            UNKNOWN,
            number,
            f"{name} is known with another disk; while the cell has a leader, `raftcron replica"
            f" replace {name}` opens the way for a new one, which starts with --join",
        )
    if member.token:
        return Goodbye(
            TAKEN,
            number,
            f"incarnation {number} of {name} has a disk already; if that is lost, run"
            f" `raftcron replica replace {name}` while the cell has a leader",
        )
    if member.is_new and (unknown := sorted(members.keys() - set(caller.peers))):
        text = f"{name} is to join this cell, but its `peers` lacks {', '.join(unknown)}"
        return Goodbye(WAIT, number, text)
    return None


def _judge_stranger(members: Members, caller: Hello | Welcome) -> Goodbye | None:
    """Return why a caller is refused whose id is none of `members`; None if it is accepted."""
    name = caller.sender
    if not members:
        if caller.number or not caller.joins:
            return None
        return Goodbye(WAIT, 0, "no incarnation is known here yet")
    here = f"{name} is no replica of this cell, which has {', '.join(sorted(members))}"
    way = f"`raftcron cell grow {name}` adds it"
    if caller.number or caller.joins:
        return Goodbye(WAIT, 0, f"{here}; {way}")
    return Goodbye(UNKNOWN, 0, f"{here}; {way}, and it starts with --join")
