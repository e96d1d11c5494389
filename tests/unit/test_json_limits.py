"""How deep and how costly client JSON may be: case C7, exactly at the limit and at its worst."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from kernel.domain.canonical import record_bytes
from kernel.domain.errors import Invalid
from kernel.domain.json_values import (
    MAX_DEPTH,
    PATH_CHARS_MAX,
    Document,
    read_exactly,
    read_fast,
    read_object,
    read_value,
)

LENIENT = frozenset({"error", "settle[].error"})


def lenient_document(body: str) -> Document:
    return read_object(body.encode(), lenient=LENIENT)


def refusal(body: str | bytes) -> Invalid:
    with pytest.raises(Invalid) as refused:
        read_object(body.encode() if isinstance(body, str) else body, lenient=LENIENT)
    return refused.value


def nested(depth: int, opener: str = "[", closer: str = "]", inner: str = "") -> str:
    return '{"args":' + opener * (depth - 1) + inner + closer * (depth - 1) + "}"


SHAPES = [("[", "]", ""), ('{"a":', "}", "1"), (' \t[ "x[{\\"[", ', "\n]", "-0")]


@pytest.mark.parametrize(("opener", "closer", "inner"), SHAPES, ids=["arrays", "objects", "mixed"])
def test_exactly_512_open_containers_are_allowed(opener: str, closer: str, inner: str) -> None:
    document = read_object(nested(MAX_DEPTH, opener, closer, inner).encode())
    assert read_value(document.value.raw) == document.value
    assert read_value(document.value.canonical) == document.value
    fault = refusal(nested(MAX_DEPTH + 1, opener, closer, inner))
    assert fault.reason == "nested deeper than 512"
    assert fault.path.startswith("args")
    assert len(fault.path) <= PATH_CHARS_MAX


def test_containers_side_by_side_and_brackets_in_strings_are_not_depth() -> None:
    side_by_side = json.dumps({"args": [[[], {"a": '[{\\"]['}] for _ in range(MAX_DEPTH)]}).encode()
    assert json.loads(read_object(side_by_side).value.raw) == json.loads(side_by_side)
    too_deep = side_by_side[:-1] + b',"b":' + nested(MAX_DEPTH).encode() + b"}"
    assert refusal(too_deep).path.startswith("b.args")


def test_depth_is_judged_alike_from_deep_within_a_stack() -> None:
    # Given a caller who has used up most of the interpreter's stack
    def called_from_depth(frames: int, call: Callable[[], Any]) -> Any:
        return call() if frames == 0 else called_from_depth(frames - 1, call)

    def read_and_write() -> tuple[bytes, bytes]:
        value = read_object(nested(MAX_DEPTH, '{"b":2,"a":', "}", "1").encode()).value
        return value.raw, value.canonical

    frame, used = sys._getframe(), 0
    while frame.f_back:
        frame, used = frame.f_back, used + 1
    frames = sys.getrecursionlimit() - used - 100

    # Then 512 are read and written as from anywhere else, and 513 are refused as from anywhere else
    assert called_from_depth(frames, read_and_write) == read_and_write()
    assert called_from_depth(frames, lambda: refusal(nested(MAX_DEPTH + 1))).reason == "nested deeper than 512"


ORDINARY = {
    "brackets in strings": json.dumps([{"text": 'a \\ [[[ \\" {{{ \n'} for _ in range(MAX_DEPTH)]),
    "many containers": json.dumps([[[], {}] for _ in range(MAX_DEPTH)]),
    "the deepest allowed": "[[]," + "[" * (MAX_DEPTH - 1) + "]" * MAX_DEPTH,
    "dates and ids": '["2026-01-02", "a-0b", "0199aaaa-0000-7000-8000-0000000000ff", -0.5, -10, "-0", "2-0, 3-0 "]',
    "long digits": f'["{"1" * 308}", -{"9" * 308}, {",".join(["1234567"] * 500)}]',
    "escaped pairs": json.dumps(["😀"] * 10),
}


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_text_is_left_to_the_fast_reader(text: str) -> None:
    assert record_bytes(read_fast(text.encode())) == record_bytes(read_exactly(text.encode()))


MIB = 1 << 20
WORST: dict[str, str] = {
    "open brackets": "[" * MIB,
    "open objects": '{"":' * (MIB // 4),
    "numbers": "[" + "1," * (MIB // 2) + "1]",
    "negative zeros": "[" + "-0," * (MIB // 3) + "-0]",
    "floats": "[" + "1.5," * (MIB // 4) + "1]",
    "empty arrays": "[" + "[]," * (MIB // 3) + "-0]",
    "duplicates": "{" + '"a":1,' * (MIB // 6) + '"a":-0}',
    "100,000 names": "{" + ",".join(f'"name{i}":{i}' for i in range(100_000)) + "}",
    "surrogates": '["' + "\\ud800" * (MIB // 6) + '"]',
    "surrogate strings": "[" + '"\\ud800",' * (MIB // 9) + "1]",
    "names of a lenient place": '{"x":' * 500 + "[" + '{"error":1},' * (MIB // 12) + "-0]" + "}" * 500,
    "quotes": '["' + '","' * (MIB // 3),
    "backslashes": '"' + "\\" * MIB,
    "an unending string": '["' + "a" * MIB,
    "one integer": "1" * MIB,
    "one fraction": "0." + "1" * MIB,
    "one exponent": "1e" + "9" * MIB,
    "white space": " " * MIB,
    "deep blocks": "[" + ("[" * 500 + "]" * 500 + ",") * (MIB // 1001) + "NaN]",
}


@pytest.mark.parametrize("text", WORST.values(), ids=WORST)
def test_the_worst_mebibyte_takes_linear_time(text: str) -> None:
    # Seconds are of this thread alone and far above what is measured; anything quadratic takes many minutes.
    started = time.thread_time()
    with contextlib.suppress(Invalid):
        field = lenient_document(f'{{"error":{text}}}').fields["error"]
        assert len(field.raw) == len(field.canonical)
    assert time.thread_time() - started < 10


def test_too_deep_is_refused_in_milliseconds() -> None:
    for text in ("[" * 4 * MIB, '{"a":' * MIB, nested(100_000), nested(MAX_DEPTH + 1)):
        started = time.thread_time()
        assert refusal(text if text.startswith('{"args"') else f'{{"args":{text}').reason == "nested deeper than 512"
        assert time.thread_time() - started < 0.5
