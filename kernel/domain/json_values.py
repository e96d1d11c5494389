"""Reading JSON that a client sent, or that was stored: every value is checked whole before any of it is used.

A fast reader takes nearly every text. What it cannot read without loss goes to an exact reader, which gives the same
tree, knows the path of a fault, and needs no stack. Nothing here knows a route or a field name.
"""

import enum
import json
import math
import re
from itertools import accumulate
from typing import Final, TypeAlias

import msgspec

from kernel.domain.canonical import Plain, canonical_bytes, record_bytes
from kernel.domain.errors import Invalid

MAX_DEPTH = 512
PATH_CHARS_MAX = 256

_NOT_JSON = "not valid JSON"
_NOT_UTF8 = "not valid UTF-8"
_NOT_FINITE = "the number is outside the range of a binary64"
_NOT_A_NUMBER = "NaN and Infinity are not JSON"
_LONE_SURROGATE = "the string has a lone surrogate"
_TOO_DEEP = f"nested deeper than {MAX_DEPTH}"


class Value(msgspec.Struct, frozen=True):
    """A checked JSON value and its place in the body.

    `plain` is a str, bool, None, list, dict, an int, or a `msgspec.Raw` with the literal of any other number.
    """

    plain: Plain
    path: str = ""

    @property
    def raw(self) -> bytes:
        """The record form: literals and order as sent, duplicates resolved. Written anew at each access."""
        return record_bytes(self.plain)

    @property
    def canonical(self) -> bytes:
        """The canonical JSON. Written anew at each access."""
        return canonical_bytes(self.plain)


class Document(msgspec.Struct, frozen=True):
    """A request body: the value as a whole, and its members by name in the order in which they were sent."""

    value: Value
    fields: dict[str, Value]

    def canonical_without(self, *names: str) -> bytes:
        """Return the canonical JSON of the body less the members of these names."""
        return canonical_bytes({name: field.plain for name, field in self.fields.items() if name not in names})


def read_object(body: bytes, *, lenient: frozenset[str] = frozenset()) -> Document:
    """Read a request body that must be one JSON object, or raise `Invalid` with the path of the first fault.

    In the members that `lenient` names (`error`, or `settle[].error` inside an array of objects) an escaped lone
    surrogate becomes U+FFFD; everywhere else it is a fault.
    """
    tree = _read(body, lenient)
    if not isinstance(tree, dict):
        raise Invalid("the body must be a JSON object")
    return Document(value=Value(tree), fields={name: Value(member, name) for name, member in tree.items()})


def read_value(raw: bytes) -> Value:
    """Read one JSON value of any type by the same rules."""
    return Value(_read(raw, frozenset()))


def members(value: Value) -> dict[str, Value]:
    """Return the members of an object by name, or raise `Invalid`."""
    if not isinstance(value.plain, dict):
        raise Invalid("must be an object", path=value.path)
    prefix = value.path + "." if value.path else ""
    return {name: Value(member, prefix + name) for name, member in value.plain.items()}


def items(value: Value) -> list[Value]:
    """Return the items of an array, or raise `Invalid`."""
    if not isinstance(value.plain, list):
        raise Invalid("must be an array", path=value.path)
    return [Value(item, f"{value.path}[{index}]") for index, item in enumerate(value.plain)]


def error_record(value: Value) -> bytes:
    """Return the record form of a step's error: an object as sent, anything else as the `message` of one."""
    error = value.plain
    if isinstance(error, dict):
        return record_bytes(error)
    return record_bytes({"message": error if isinstance(error, str) else canonical_bytes(error).decode()})


def _read(body: bytes, lenient: frozenset[str]) -> Plain:
    try:
        return read_fast(body)
    except (msgspec.DecodeError, _NeedsCare, RecursionError):
        return read_exactly(body, lenient)


# --- The fast reader


class _NeedsCare(Exception):
    """The fast reader would lose something, or cannot tell whether the text is within the limits."""


def _literal(text: str) -> msgspec.Raw:
    if math.isinf(float(text)):
        raise _NeedsCare
    return msgspec.Raw(text)


_DECODER: Final[msgspec.json.Decoder[Plain]] = msgspec.json.Decoder(float_hook=_literal)  # pyright: ignore[reportAssignmentType] - an untyped decoder gives exactly these types

# `-0` where it can be a number; the tree has the int 0 for it. The pattern begins with one character alone and looks at
# all else from there, which the search is several times faster for.
_NEGATIVE_ZERO = re.compile(rb"-(?<![^\s\[,:]-)(?=0(?:[\s\],}]|\Z))")

# An integer needs this many digits to be infinite as a binary64. Of every 150th byte such a run covers at least two
# neighbours, so that looking at those clears most texts.
_LONG_DIGITS = 309
_SAMPLE_BYTES = 150
_NEIGHBOURING_DIGITS = re.compile(rb"[0-9]{2}")
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN = b"0" * _LONG_DIGITS

_ESCAPED = re.compile(rb'\\[\\"]')
_STRUCTURE = b"[]{}"
_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
# As signed bytes: +1 for an opening bracket, -1 for a closing one.
_DEPTH_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


def read_fast(body: bytes) -> Plain:
    """Return the tree of a text, or raise for one that only the exact reader may accept or blame."""
    if b"-" in body and _NEGATIVE_ZERO.search(body):
        raise _NeedsCare
    if len(body) >= _LONG_DIGITS and _has_long_integer(body):
        raise _NeedsCare
    if len(body) > MAX_DEPTH and _has_many_containers(body) and _is_too_deep(body):
        raise _NeedsCare
    return _DECODER.decode(body)


def _has_long_integer(body: bytes) -> bool:
    """Whether a text holds a run of digits, in a number or not, that is long enough for an infinite integer."""
    if not _NEIGHBOURING_DIGITS.search(body[::_SAMPLE_BYTES]):
        return False
    return _LONG_RUN in body.translate(_DIGITS_ALIKE)


def _has_many_containers(body: bytes) -> bool:
    """Whether a text has more opening brackets than may be open at once. Counting them all would take longer."""
    count = 0
    for bracket in (b"[", b"{"):
        at = body.find(bracket)
        while at >= 0:
            count += 1
            if count > MAX_DEPTH:
                return True
            at = body.find(bracket, at + 1)
    return False


def _is_too_deep(body: bytes) -> bool:
    """Whether a text has more containers open at once than allowed; for text that is no JSON the answer is free.

    It is known before the decoder recurses, so that no text can reach the end of a thread's native stack.
    """
    unescaped = _ESCAPED.sub(b"", body) if b"\\" in body else body
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    steps = outside_strings.translate(_DEPTH_STEPS, _NO_STRUCTURE)
    return any(map(MAX_DEPTH.__lt__, accumulate(memoryview(steps).cast("b"))))


# --- The exact reader


class _Missing(enum.Enum):
    MISSING = 0


_MISSING: Final = _Missing.MISSING
_Container: TypeAlias = "list[Plain] | dict[str, Plain]"
_Slot: TypeAlias = "Plain | _Missing"

_SPACES = " \t\n\r"
_SPACE = rf"[{_SPACES}]*+"
_STRING = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+"
_WORD = r"true|false|null|NaN|-?+Infinity"
# Opening brackets, a scalar, closing brackets, a separator: each may be absent, so every text is a row of these, and
# the first thing that is none of them matches as nothing.
_OPENERS = rf"(?:[\[{{]{_SPACE}){{1,64}}+"
_CLOSERS = rf"(?:[]}}]{_SPACE}){{1,64}}+"
_TOKENS = re.compile(rf"{_SPACE}({_OPENERS})?+(?:({_STRING}|{_NUMBER}|{_WORD}){_SPACE})?+({_CLOSERS})?+([,:])?+")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRINGS = json.JSONDecoder()


def read_exactly(body: bytes, lenient: frozenset[str] = frozenset()) -> Plain:
    """Return the tree of any text that the rules allow, else raise `Invalid` with the path of its first fault."""
    reading = _Reading(lenient)
    try:
        text = body.decode()
        fault = None
    except UnicodeDecodeError as error:
        # The text before the fault is read for the path alone.
        text = body[: error.start].decode()
        fault = Invalid(_NOT_UTF8)
    try:
        tree = reading.read(text)
    except Invalid as error:
        if fault is None or error.reason != _NOT_JSON:
            fault = error
    else:
        if fault is None:
            return tree
    raise Invalid(fault.reason, path=reading.path())


class _Reading:
    """One pass over a text: the containers that are open, and for each object the name that waits for its value."""

    def __init__(self, lenient: frozenset[str]) -> None:
        self._boxes: list[_Container] = []
        self._names: list[str | None] = []
        self._lenient_places = {_place(pattern) for pattern in lenient}
        # The number of open containers around the lenient member that is being read, 0 outside of one.
        self._lenient_depth = 0

    def path(self) -> str:
        """Return where the pass stands, such as `args.items[3].price`."""
        steps: list[str] = []
        for box, name in zip(self._boxes, self._names, strict=True):
            if isinstance(box, list):
                steps.append(f"[{len(box)}]")
            elif name is not None:
                steps.append(f".{name}")
        return "".join(steps).removeprefix(".")[:PATH_CHARS_MAX]

    def read(self, text: str) -> Plain:
        """Return the tree of a whole text, or raise `Invalid` without a path."""
        value: _Slot = _MISSING
        for match in _TOKENS.finditer(text):
            openers, scalar, closers, separator = match.groups()
            if openers:
                self._enter(openers, value)
            if scalar:
                if value is not _MISSING:
                    raise Invalid(_NOT_JSON)
                value = int(scalar) if scalar.isdigit() and len(scalar) < _LONG_DIGITS else self._scalar(scalar)
            if closers:
                value = self._leave(closers, value)
            if separator == ",":
                self._attach(value)
                value = _MISSING
            elif separator:
                self._name(value)
                value = _MISSING
            elif match.end() == match.start() < len(text):
                raise Invalid(_NOT_JSON)
        if value is _MISSING or self._boxes:
            raise Invalid(_NOT_JSON)
        return value

    def _enter(self, openers: str, value: _Slot) -> None:
        """Open containers, the first where no value stands yet; one in place of a name is found when it is closed."""
        if value is not _MISSING:
            raise Invalid(_NOT_JSON)
        boxes, names = self._boxes, self._names
        for opener in openers:
            if opener in _SPACES:
                continue
            if len(boxes) == MAX_DEPTH:
                raise Invalid(_TOO_DEEP)
            boxes.append([] if opener == "[" else {})
            names.append(None)

    def _scalar(self, text: str) -> Plain:
        if text[0] == '"':
            return text[1:-1] if "\\" not in text else self._unescaped(text)
        if text in _WORDS:
            return _WORDS[text]
        if text[-1] in "Ny":
            raise Invalid(_NOT_A_NUMBER)
        return _number(text)

    def _unescaped(self, text: str) -> str:
        string: str = _STRINGS.raw_decode(text)[0]
        if not _SURROGATE.search(string):
            return string
        if not self._lenient_depth:
            raise Invalid(_LONE_SURROGATE)
        return _SURROGATE.sub("\ufffd", string)

    def _leave(self, closers: str, value: _Slot) -> _Slot:
        """Close containers, each of which then is the value of the one around it, and return the last."""
        boxes, names = self._boxes, self._names
        for closer in closers:
            if closer in _SPACES:
                continue
            if not boxes:
                raise Invalid(_NOT_JSON)
            box = boxes[-1]
            if value is not _MISSING or box or names[-1] is not None:
                self._attach(value)
            if (closer == "]") is not isinstance(box, list):
                raise Invalid(_NOT_JSON)
            value = box
            boxes.pop()
            names.pop()
        return value

    def _attach(self, value: _Slot) -> None:
        """Put a finished value where it belongs: at the end of the array, or under the name that waits for it."""
        if value is _MISSING or not self._boxes:
            raise Invalid(_NOT_JSON)
        box, name = self._boxes[-1], self._names[-1]
        if isinstance(box, list):
            box.append(value)
        elif name is None:
            raise Invalid(_NOT_JSON)
        else:
            # The last of duplicates wins, in the place of the first.
            box[name] = value
            self._names[-1] = None
        if len(self._boxes) == self._lenient_depth:
            self._lenient_depth = 0

    def _name(self, value: _Slot) -> None:
        """Take the string before a colon as the name of the member to come."""
        if not self._boxes or isinstance(self._boxes[-1], list) or self._names[-1] is not None:
            raise Invalid(_NOT_JSON)
        if not isinstance(value, str):
            raise Invalid(_NOT_JSON)
        self._names[-1] = value
        depth = len(self._names)
        if not self._lenient_depth and depth <= _PLACE_STEPS_MAX and tuple(self._names) in self._lenient_places:
            self._lenient_depth = depth


# Patterns of lenient members name places near the top; nothing deeper is compared.
_PLACE_STEPS_MAX = 8


def _place(pattern: str) -> tuple[str | None, ...]:
    """Return a pattern as the names of the containers on the way, None for an array: `a[].b` is (a, None, b)."""
    return tuple(None if step == "[]" else step for step in pattern.replace("[]", ".[]").split("."))


def _number(literal: str) -> int | msgspec.Raw:
    is_integer = literal.removeprefix("-").isdigit()
    if (not is_integer or len(literal) >= _LONG_DIGITS) and math.isinf(float(literal)):
        raise Invalid(_NOT_FINITE)
    if is_integer and literal != "-0":
        return int(literal)
    return msgspec.Raw(literal)
