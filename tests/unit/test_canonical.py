"""The canonical form and the hash of arguments, against the vectors of the contract and one rule at a time."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernel.domain.canonical import args_hash, canonical_bytes, record_bytes
from kernel.domain.errors import Invalid
from kernel.domain.json_values import read_value

ROOT = Path(__file__).parents[2]
STEPS: list[dict[str, Any]] = json.loads((ROOT / "tests/golden/vectors.json").read_text("utf-8"))["identity"]["steps"]


def canonical(text: str) -> str:
    return read_value(text.encode()).canonical.decode()


def hashed(text: str) -> str:
    return args_hash(read_value(text.encode()).canonical)


@pytest.mark.parametrize("vector", STEPS, ids=lambda vector: vector["step_id"][:8])
def test_every_vector_has_its_canonical_form_and_hash(vector: dict[str, Any]) -> None:
    assert canonical(vector["args"]) == vector["canonical"]
    assert hashed(vector["args"]) == vector["args_hash"]


def test_the_golden_file_holds_exactly_the_hashes_of_the_contract() -> None:
    contract = (ROOT / "docs/contract.md").read_text("utf-8")
    section = contract[contract.index("## 6. ") : contract.index("## 7. ")]
    held = {vector[name] for vector in STEPS for name in ("args_hash", "step_id")}
    assert held == set(re.findall(r"\b[0-9a-f]{64}\b", section))


# Case C1: what differs on the wire never shares a hash.
DISTINCT = [
    '{"n":9007199254740992}',
    '{"n":9007199254740993}',
    '{"n":18446744073709551615}',
    '{"n":18446744073709551616}',
    '{"n":18446744073709551617}',
    '{"n":-9223372036854775809}',
    '{"n":1}',
    '{"n":1.0}',
    '{"n":1.00}',
    '{"n":1e0}',
    '{"n":1E0}',
    '{"n":1e+0}',
    '{"n":-0}',
    '{"n":0}',
    '{"n":-0.0}',
    '{"n":0.0}',
    '{"n":true}',
    '{"n":"1"}',
    '{"n":1e21}',
    '{"n":1000000000000000000000}',
    '{"n":[1]}',
    '{"n":null}',
    '{"n":""}',
    '{"n":[]}',
    '{"n":{}}',
    "{}",
    "null",
    '{"t":"café"}',
    '{"t":"cafe\u0301"}',
]


def test_values_that_differ_on_the_wire_never_share_a_hash() -> None:
    assert len({hashed(text) for text in DISTINCT}) == len(DISTINCT)


@pytest.mark.parametrize("text", DISTINCT)
def test_a_compact_value_in_order_is_its_own_canonical_and_record_form(text: str) -> None:
    value = read_value(text.encode())
    assert value.canonical == text.encode()
    assert value.raw == text.encode()


def test_a_hundred_digits_are_kept_digit_for_digit() -> None:
    digits = "1234567890" * 10
    assert canonical(f'{{"n":{digits},"m":-{digits}}}') == f'{{"m":-{digits},"n":{digits}}}'


def test_a_number_that_no_binary64_holds_has_no_hash() -> None:
    with pytest.raises(Invalid) as refused:
        hashed('{"n":1e400}')
    assert refused.value.path == "n"


def test_white_space_order_and_escape_spelling_do_not_count() -> None:
    spelled = '\r\n{ "b" : [ 1 , 2.50 ] ,\t"\\u0061" : "\\u00e9\\ud83d\\ude00\\/\\u0041" } '
    assert canonical(spelled) == canonical('{"a":"é😀/A","b":[1,2.50]}') == '{"a":"é😀/A","b":[1,2.50]}'


def test_names_are_sorted_by_their_utf8_bytes() -> None:
    names = ["", "\x00", "B", "a", "a\x00", "aa", "b", "\x7f", "é", "\u07ff", "\u0800", "\uffff", "\U00010000", "😀"]
    assert sorted(names, key=lambda name: name.encode()) != sorted(names, key=lambda name: name.encode("utf-16-be"))
    tree: dict[str, Any] = dict.fromkeys(reversed(names), 0)
    written: dict[str, int] = json.loads(canonical_bytes(tree))
    assert list(written) == sorted(names, key=lambda name: name.encode())
    assert list(json.loads(record_bytes(tree))) == list(reversed(names))


def test_every_character_is_spelled_in_one_way() -> None:
    short = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r", 0x22: '\\"', 0x5C: "\\\\"}
    named = {code: f"\\u{code:04x}" for code in (*range(0x20), 0x3C, 0x3E, 0x26, 0x2028, 0x2029)} | short
    for code in [*range(0x300), *range(0x2000, 0x2100), 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]:
        expected = named.get(code, chr(code))
        assert canonical(json.dumps([chr(code)])) == f'["{expected}"]'
        assert canonical(json.dumps({chr(code): 1})) == f'{{"{expected}":1}}'


def test_an_escape_that_only_looks_like_one_stays_text() -> None:
    assert canonical(r'"\\u003c \\ud800 <"') == r'"\\u003c \\ud800 \u003c"'


def test_the_record_form_escapes_nothing_that_json_does_not_require() -> None:
    sent = '{"z":"<b>&\u2028/\x7f","a":"\\u0000"}'
    assert read_value(sent.encode()).raw == sent.encode()


@pytest.mark.parametrize("write", [canonical_bytes, record_bytes])
def test_a_tree_is_written_whatever_its_depth(write: Any) -> None:
    # Given trees far deeper than any stack
    depth = 100_000
    in_lists: Any = 1
    in_dicts: Any = []
    for _ in range(depth):
        in_lists = [in_lists, True]
        in_dicts = {"a": in_dicts}
    # Then they are written as any other
    assert write(in_lists) == b"[" * depth + b"1" + b",true]" * depth
    assert write(in_dicts) == b'{"a":' * depth + b"[]" + b"}" * depth


def test_a_deep_tree_is_written_as_a_shallow_one_is() -> None:
    # Given one value, alone and under a hundred thousand lists
    inner: Any = {"z": [1, msgspec.Raw(b"-0"), {}, None], "é<": {"b": "\u2028", "a": ""}, "a": []}
    deep: Any = inner
    for _ in range(100_000):
        deep = [deep]
    # Then both ways of writing it agree
    assert canonical_bytes(deep).strip(b"[]") == canonical_bytes(inner)
    assert record_bytes(deep).strip(b"[]") == record_bytes(inner)
