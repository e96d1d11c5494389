"""Reading the text of a bundle: YAML 1.2 without anchors, tags and duplicate keys, every value with its line.

The parser's events are taken one by one, so that a limit ends the reading where it is passed. What a scalar means is
decided here, by the core schema alone. Nothing in this module knows what a rule is.
"""

import re
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StreamMark, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.reader import ReaderError

from kernel.domain.canonical import Plain
from kernel.domain.errors import BundleInvalid
from kernel.domain.policy.limits import BUNDLE_BYTES_MAX, NESTING_MAX, NODES_MAX, NUMBER_CHARS_MAX

FIELD_CHARS_MAX = 256

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DECIMAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_OTHER_INTEGER = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class Scalar(msgspec.Struct, frozen=True):
    """Text, and whether it stands without quotes, where it may mean a number, a boolean or null."""

    line: int
    text: str
    is_plain: bool


class Items(msgspec.Struct, frozen=True):
    """A list."""

    line: int
    items: tuple["Place", ...]


class Members(msgspec.Struct, frozen=True):
    """A mapping: values by key, in order. Every key is text, whatever it would mean as a value."""

    line: int
    values: dict[str, "Place"]
    key_lines: dict[str, int]


class Place(msgspec.Struct, frozen=True):
    """A value of the document and the name of the field that it stands in."""

    field: str
    node: Scalar | Items | Members

    def refuse(self, reason: str, *, line: int | None = None) -> NoReturn:
        """Raise that the value is wrong."""
        raise BundleInvalid(reason, line=line or self.node.line, field=self.field[:FIELD_CHARS_MAX])

    @property
    def plain(self) -> Plain:
        """The JSON value, with number literals kept; raises BundleInvalid where there is none."""
        node = self.node
        if isinstance(node, Items):
            return [item.plain for item in node.items]
        if isinstance(node, Members):
            return {name: value.plain for name, value in node.values.items()}
        if not node.is_plain:
            return node.text
        return _WORDS[node.text] if node.text in _WORDS else self._number_or_text(node.text)

    def _number_or_text(self, text: str) -> Plain:
        if _DECIMAL.fullmatch(text):
            if len(text) > NUMBER_CHARS_MAX:
                self.refuse(f"the number is longer than {NUMBER_CHARS_MAX} characters")
            if float(text) in (float("inf"), float("-inf")):
                self.refuse("the number is outside the range of a binary64")
            return msgspec.Raw(text)
        if _OTHER_INTEGER.fullmatch(text):
            number = int(text[2:], 8 if text[1] == "o" else 16)
            if number.bit_length() > NUMBER_CHARS_MAX:
                self.refuse("the number is outside the range of a binary64")
            return number
        if _NOT_FINITE.fullmatch(text):
            self.refuse("not a JSON value: infinities and NaN cannot be sent, so nothing would equal them")
        return text


def read_document(text: str) -> Place:
    """Return the one document of a text; raises BundleInvalid where it is not that, with the line and field reached."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise BundleInvalid("the text has a lone surrogate", line=line, field="") from None
    if size_bytes > BUNDLE_BYTES_MAX:
        raise BundleInvalid(f"the bundle is larger than {BUNDLE_BYTES_MAX} bytes", line=1, field="")
    return _Reading(text).document()


class _Reading:
    """One pass over the parser's events."""

    def __init__(self, text: str) -> None:
        self._text = text
        parser = YAML(typ="safe", pure=True)
        self._events: Iterator[Any] = iter(parser.parse(text))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - the package is untyped there
        self._line = 1
        self._field = ""
        self._depth = 0
        self._nodes = 0

    def document(self) -> Place:
        self._next()
        start = self._next()
        if isinstance(start, StreamEndEvent):
            self._refuse("the bundle is empty; without any bundle there is no policy")
        if start.version is not None or start.tags:
            self._refuse("directives (lines that begin with %) are not allowed; leave them out")
        root = self._place(self._next(), "")
        self._next()
        if isinstance(self._next(), DocumentStartEvent):
            self._refuse("a second document begins here; a bundle is one")
        return root

    def _refuse(self, reason: str) -> NoReturn:
        raise BundleInvalid(reason, line=self._line, field=self._field[:FIELD_CHARS_MAX])

    def _next(self) -> Any:
        """Return the next event, with the line it begins on noted."""
        try:
            event: Event = next(self._events)
        except ReaderError as error:
            self._line = self._text.count("\n", 0, cast("int", error.position)) + 1  # pyright: ignore[reportUnknownMemberType] - untyped there
            self._refuse("a character that YAML does not allow; write it as an escape in double quotes")
        except MarkedYAMLError as error:
            mark = cast("StreamMark | None", error.problem_mark)  # pyright: ignore[reportUnknownMemberType] - untyped there
            self._line = self._line if mark is None else mark.line + 1
            self._refuse(f"not YAML: {error.problem}")  # pyright: ignore[reportUnknownMemberType] - untyped there
        except (YAMLError, ValueError, OverflowError):
            # An escape beyond the last code point ends the parser with an error of Python's own.
            self._refuse("not YAML that can be read from here on")
        mark = cast("StreamMark", event.start_mark)  # pyright: ignore[reportUnknownMemberType] - untyped there
        self._line = mark.line + 1
        return event

    def _place(self, event: Any, field: str) -> Place:
        """Return the value that an event begins. The recursion is bounded by the nesting that is allowed."""
        self._field = field
        self._nodes += 1
        if self._nodes > NODES_MAX:
            self._refuse(f"the bundle has more than {NODES_MAX} values")
        self._refuse_reuse(event)
        if isinstance(event, ScalarEvent):
            return Place(field, self._scalar(event))
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._refuse(f"nested deeper than {NESTING_MAX}")
        node = self._items(field) if isinstance(event, SequenceStartEvent) else self._members(field)
        self._depth -= 1
        return Place(field, node)

    def _refuse_reuse(self, event: NodeEvent) -> None:
        if isinstance(event, AliasEvent) or event.anchor is not None:  # pyright: ignore[reportUnknownMemberType] - untyped there
            self._refuse("anchors and aliases (& and *) are not allowed; write the value out, or put it in quotes")
        if cast("str | None", getattr(event, "tag", None)) is not None:
            self._refuse("tags (!) are not allowed; leave it out, or put the value in quotes")

    def _scalar(self, event: ScalarEvent) -> Scalar:
        text = cast("str", event.value)  # pyright: ignore[reportUnknownMemberType] - untyped there
        try:
            text.encode()
        except UnicodeEncodeError:
            text = self._paired(text)
        return Scalar(self._line, text, event.style is None)  # pyright: ignore[reportUnknownMemberType] - untyped there

    def _paired(self, text: str) -> str:
        """Join surrogates that were escaped one by one, as JSON does."""
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._refuse("the string has a lone surrogate")

    def _items(self, field: str) -> Items:
        line = self._line
        items: list[Place] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            items.append(self._place(event, f"{field}[{len(items)}]"))
        return Items(line, tuple(items))

    def _members(self, field: str) -> Members:
        line = self._line
        values: dict[str, Place] = {}
        key_lines: dict[str, int] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            self._field = field
            if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
                self._refuse("a key is a list or a mapping; keys are text")
            self._refuse_reuse(event)
            key = self._scalar(event).text
            inner = f"{field}.{key}" if field else key
            if key in values:
                self._field = inner
                self._refuse(f"the key stands there a second time; the first is on line {key_lines[key]}")
            key_lines[key] = self._line
            value = self._next()
            if isinstance(value, ScalarEvent) and not value.value:  # pyright: ignore[reportUnknownMemberType] - untyped there
                # The parser places what is not there on a later line.
                self._line = key_lines[key]
            values[key] = self._place(value, inner)
        return Members(line, values, key_lines)
