"""What a traced server asked of the system, read from `strace -f -y`, and the proof that it flushed before it spoke.

The tracer holds a thread at both ends of a call while it writes its line, so what it wrote first happened first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

TRACED = "openat,open,write,writev,pwrite64,fsync,fdatasync,sync_file_range,close,sendto,sendmsg"
"""sync_file_range is looked at and proves nothing: it leaves out the size of the file and the disk's own memory."""
TEXT_BYTES_MAX = 8 * 1024 * 1024
"""So much of what is written is in the trace, as tracers cut texts off: more than one message may have."""

_FILE_WRITES = frozenset({"write", "pwrite64"})
_SOCKET_WRITES = frozenset({"write", "writev", "sendto", "sendmsg"})
_FLUSHES = frozenset({"fsync", "fdatasync"})
_OPENS = frozenset({"open", "openat"})
_NEVER = 2**62

_BEGUN = re.compile(r"^(?P<thread>\d+) +(?P<name>\w+)\((?P<text>.*)$")
_RESUMED = re.compile(r"^(?P<thread>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<text>.*)$")
_UNFINISHED = " <unfinished ...>"
_RESULT = re.compile(r"\) += (?P<result>-?\d+)(?:<[^>]*>)?[^\"]*$")
_DESCRIPTOR = re.compile(r"^(?P<number>\d+)<(?P<path>[^>]*)>")
_ASKED_BYTES = re.compile(r"\", (?P<bytes>\d+)(?:, \d+)?\) += -?\d+[^\"]*$")
_NEXT_PIECE = re.compile(r"\", iov_len=\d+\}, \{iov_base=\"")
"""Between two pieces of one write: an acknowledgement may begin in one and end in the next."""
_SYNC_FLAGS = re.compile(r"\bO_D?SYNC\b")
_ACKNOWLEDGEMENT = re.compile(r'\{\\"stream\\":\\"(?P<stream>[^"\\]+)\\", ?\\"seq\\":(?P<seq>\d+)')

Place = tuple[str, int]
"""Stream and sequence of an entry."""


class SystemCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `begun` and `ended` are lines of the trace; a call that never came back ends never."""

    name: str
    begun: int
    ended: int
    descriptor: int
    path: str
    text: str
    """Arguments and result as the tracer spells them."""
    result: int


class Refuted(msgspec.Struct, frozen=True):
    """An acknowledgement that left too early, and why it is thought so."""

    place: Place
    reason: str


def read_calls(trace: str) -> list[SystemCall]:
    """Return all calls in the order in which they began, each half of an interrupted line put together."""
    calls: dict[int, SystemCall] = {}
    waiting: dict[str, tuple[int, str, str]] = {}
    for number, line in enumerate(trace.splitlines()):
        begun, resumed = _BEGUN.match(line), _RESUMED.match(line)
        if begun is not None:
            started, name, text = number, begun["name"], begun["text"]
            if text.endswith(_UNFINISHED):
                waiting[begun["thread"]] = (number, name, text.removesuffix(_UNFINISHED))
                calls[number] = _call(name, number, _NEVER, text)
                continue
        elif resumed is not None and resumed["thread"] in waiting:
            started, name, text = waiting.pop(resumed["thread"])
            text += resumed["text"]
        else:
            continue
        calls[started] = _call(name, started, number, text)
    return [calls[number] for number in sorted(calls)]


def acknowledgements(calls: Sequence[SystemCall]) -> Iterator[tuple[Place, SystemCall]]:
    """Yield every acknowledgement of a publish that was written to a socket, with the call that wrote it."""
    for call in calls:
        if call.name in _SOCKET_WRITES and call.path.startswith("socket:"):
            for found in _ACKNOWLEDGEMENT.finditer(_NEXT_PIECE.sub("", call.text)):
                yield (found["stream"], int(found["seq"])), call


def refuted(calls: Sequence[SystemCall], appended: Mapping[Place, str]) -> list[Refuted]:
    """Return the acknowledgements for which it is not proved that the entry was on the disk before they were sent.

    `appended` are the ids of the entries by their places. An entry without an acknowledgement in the trace is refuted
    as well: what was not seen is not proved.
    """
    synchronous = _synchronous_writes(calls)
    findings = [Refuted(place, "no acknowledgement was seen") for place in appended]
    seen: dict[Place, Refuted | None] = {}
    for place, answer in acknowledgements(calls):
        reason = _why_not_proved(calls, synchronous, place, appended.get(place), answer)
        seen[place] = Refuted(place, reason) if reason else seen.get(place)
    return [each for each in findings if each.place not in seen] + [each for each in seen.values() if each is not None]


def _why_not_proved(
    calls: Sequence[SystemCall], synchronous: set[int], place: Place, entry_id: str | None, answer: SystemCall
) -> str:
    if entry_id is None:
        return "nobody sent what was acknowledged"
    folder = f"/streams/{place[0]}/msgs/"
    writes = [
        call
        for call in calls
        if call.name in _FILE_WRITES and folder in call.path and entry_id in call.text and _is_whole(call)
    ]
    if not any(call.ended < answer.begun for call in writes):
        return "the entry was not written before"
    if any(call.begun in synchronous and call.ended < answer.begun for call in writes):
        return ""
    if any(_is_flushed(calls, write, answer) for write in writes):
        return ""
    return "the entry was written and not flushed before"


def _is_flushed(calls: Sequence[SystemCall], write: SystemCall, answer: SystemCall) -> bool:
    return any(
        call.name in _FLUSHES
        and call.path == write.path
        and call.result == 0
        and write.ended < call.begun
        and call.ended < answer.begun
        for call in calls
    )


def _synchronous_writes(calls: Sequence[SystemCall]) -> set[int]:
    """Return where the writes begin that come back only when the disk has the data, by how their file was opened."""
    synchronous: set[int] = set()
    is_synchronous: dict[int, bool] = {}
    for call in calls:
        if call.name in _OPENS:
            is_synchronous[call.result] = _SYNC_FLAGS.search(call.text) is not None
        elif call.name == "close":
            is_synchronous.pop(call.descriptor, None)
        elif is_synchronous.get(call.descriptor, False):
            synchronous.add(call.begun)
    return synchronous


def _is_whole(call: SystemCall) -> bool:
    asked = _ASKED_BYTES.search(call.text)
    return asked is not None and int(asked["bytes"]) == call.result


def _call(name: str, begun: int, ended: int, text: str) -> SystemCall:
    descriptor = _DESCRIPTOR.match(text)
    result = _RESULT.search(text)
    return SystemCall(
        name=name,
        begun=begun,
        ended=ended,
        descriptor=-1 if descriptor is None else int(descriptor["number"]),
        path="" if descriptor is None else descriptor["path"],
        text=text,
        result=-1 if result is None else int(result["result"]),
    )
