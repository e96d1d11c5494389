"""What holds for every JSON text: spelled at random from a known value, or damaged at random."""

import json
from random import Random
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel.domain.canonical import Plain, args_hash, canonical_bytes, record_bytes
from kernel.domain.errors import Invalid
from kernel.domain.json_values import read_exactly, read_fast, read_object, read_value


class Literal(NamedTuple):
    """A number as it is written."""

    text: str


class Members(NamedTuple):
    """An object as it is written: in order, and perhaps with duplicates."""

    pairs: list[tuple[str, "Node"]]


Node = None | bool | str | Literal | list["Node"] | Members

CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    '<>&\u2028\u2029\x00\x1f\x7f/\\"-0,[]{}:é\uff5e😀'
)
TEXTS = st.text(CHARACTERS, max_size=8)
# Few names, so that objects have duplicates.
NAMES = st.sampled_from(["a", "b", "error", "", "é", "\uff5e", "😀", "<", "\u2028"]) | TEXTS
LITERALS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?", fullmatch=True, alphabet="-+.eE0123456789"
)
ODD_LITERALS = st.sampled_from(["-0", "0", "-0.0", "1", "1.0", "1E0", "18446744073709551616", "9" * 308, "1" * 309])
NUMBERS = (LITERALS | ODD_LITERALS).map(Literal)
SCALARS = st.none() | st.booleans() | TEXTS | NUMBERS


def containers(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.lists(nodes, max_size=4) | st.lists(st.tuples(NAMES, nodes), max_size=5).map(Members)


NODES: st.SearchStrategy[Node] = st.recursive(SCALARS, containers, max_leaves=12)
SEEDS = st.integers(0, 2**32)


def spelled(node: Node, random: Random) -> str:
    """Write a node as one of the many texts that mean it."""
    match node:
        case Literal(text):
            body = text
        case str():
            body = '"' + "".join(spelled_character(character, random) for character in node) + '"'
        case list():
            body = "[" + ",".join(spelled(item, random) for item in node) + space(random) + "]"
        case Members(pairs):
            body = "{" + ",".join(f"{spelled(k, random)}:{spelled(v, random)}" for k, v in pairs) + space(random) + "}"
        case _:
            body = json.dumps(node)
    return space(random) + body + space(random)


def space(random: Random) -> str:
    return "".join(random.choices(" \t\r\n", k=random.choice([0, 0, 0, 1, 2])))


def spelled_character(character: str, random: Random) -> str:
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    units = character.encode("utf-16-be")
    code = "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))
    ways = [code, code.upper().replace("\\U", "\\u")]
    if character in short:
        ways.append(short[character])
    if character not in '"\\' and character >= " ":
        ways += [character] * 4
    return random.choice(ways)


def expected(node: Node, *, is_canonical: bool) -> str:
    """Write a node by the words of the contract, one rule after the other."""
    match node:
        case Literal(text):
            return text
        case str():
            written = json.dumps(node, ensure_ascii=False)
            marks = "<>&\u2028\u2029" if is_canonical else ""
            return "".join(f"\\u{ord(c):04x}" if c in marks else c for c in written)
        case list():
            return "[" + ",".join(expected(item, is_canonical=is_canonical) for item in node) + "]"
        case Members(pairs):
            last = dict(pairs)
            names = sorted(last, key=lambda name: name.encode()) if is_canonical else list(last)
            members = (
                (expected(n, is_canonical=is_canonical), expected(last[n], is_canonical=is_canonical)) for n in names
            )
            return "{" + ",".join(f"{name}:{value}" for name, value in members) + "}"
        case _:
            return json.dumps(node)


def shuffled(node: Node, random: Random) -> Node:
    """Return the same value with the members of its objects in another order and without duplicates."""
    match node:
        case Members(pairs):
            members = [(name, shuffled(value, random)) for name, value in dict(pairs).items()]
            return Members(random.sample(members, len(members)))
        case list():
            return [shuffled(item, random) for item in node]
        case _:
            return node


@given(NODES, SEEDS)
def test_both_forms_are_what_the_contract_says(node: Node, seed: int) -> None:
    value = read_value(spelled(node, Random(seed)).encode())
    assert value.canonical.decode() == expected(node, is_canonical=True)
    assert value.raw.decode() == expected(node, is_canonical=False)


@given(NODES, SEEDS, SEEDS)
def test_order_space_and_escapes_never_change_the_canonical_form(node: Node, seed: int, other: int) -> None:
    first = read_value(spelled(node, Random(seed)).encode())
    second = read_value(spelled(shuffled(node, Random(other)), Random(other)).encode())
    assert first.canonical == second.canonical
    assert args_hash(first.canonical) == args_hash(second.canonical)


@given(NUMBERS, NUMBERS)
@example(Literal("1"), Literal("1.0"))
@example(Literal("1e0"), Literal("1E0"))
@example(Literal("0"), Literal("-0"))
def test_two_literals_share_a_canonical_form_only_if_they_are_one(one: Literal, other: Literal) -> None:
    forms = {read_value(f'{{"n":[{literal.text}]}}'.encode()).canonical for literal in (one, other)}
    assert (len(forms) == 1) is (one == other)


@given(NODES, NODES)
def test_two_values_share_a_canonical_form_only_if_they_are_equal(one: Node, other: Node) -> None:
    first, second = (read_value(spelled(node, Random(0)).encode()) for node in (one, other))
    assert (first.canonical == second.canonical) is (same(first.plain, second.plain))


def same(one: Plain, other: Plain) -> bool:
    """Whether two trees are one value; unlike `==` this keeps true from 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(NODES, SEEDS)
def test_the_record_form_is_read_as_what_was_sent(node: Node, seed: int) -> None:
    sent = read_value(spelled(node, Random(seed)).encode())
    again = read_value(sent.raw)
    assert same(again.plain, sent.plain)
    assert again.raw == sent.raw
    assert again.canonical == sent.canonical
    assert read_value(sent.canonical).canonical == sent.canonical


@given(NODES, SEEDS)
def test_both_readers_give_one_tree(node: Node, seed: int) -> None:
    body = spelled(node, Random(seed)).encode()
    assert agree(body)


def agree(body: bytes) -> bool:
    """Whether the fast reader takes nothing that the exact one refuses, and refuses nothing by itself."""
    try:
        fast = read_fast(body)
    except msgspec.DecodeError:
        # The fast reader found a fault in the text, so the exact one must name it.
        with pytest.raises(Invalid):
            read_exactly(body)
        return True
    except Exception as care:  # noqa: BLE001 - the reader's private word for "not by me" is no part of its interface
        return type(care).__name__ == "_NeedsCare"
    exact = read_exactly(body)
    return (
        same(fast, exact)
        and record_bytes(fast) == record_bytes(exact)
        and canonical_bytes(fast) == canonical_bytes(exact)
    )


TOKENS = [
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    '"',
    "\\",
    "\\u",
    "\\ud83d",
    "\\ude00",
    "\\n",
    "1",
    "0",
    "-",
    ".",
    "e",
    "E",
    "+",
    " ",
    "\n",
]
TOKENS += [
    "true",
    "false",
    "null",
    "NaN",
    "Infinity",
    "-0",
    "1e400",
    "9" * 309,
    '"a"',
    '"a":',
    "{}",
    "[]",
    "\ufeff",
    "é",
    "\x00",
    "\x1f",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_both_readers_agree_on_rows_of_tokens(text: str) -> None:
    assert agree(text.encode())


@given(NODES, SEEDS, st.lists(st.tuples(SEEDS, st.binary(max_size=2), st.integers(0, 2)), min_size=1, max_size=3))
def test_both_readers_agree_on_damaged_text(node: Node, seed: int, damages: list[tuple[int, bytes, int]]) -> None:
    body = spelled(node, Random(seed)).encode()
    for place, inserted, removed in damages:
        at = place % (len(body) + 1)
        body = body[:at] + inserted + body[at + removed :]
    assert agree(body)


UNITS = st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\uD800", "\\udfff", "a", "\\\\", "\\u0041", "é"]), max_size=6)


@given(UNITS.map("".join), NODES, SEEDS)
def test_lone_surrogates_are_replaced_in_errors_and_refused_elsewhere(text: str, node: Node, seed: int) -> None:
    # Given a string of escapes, and what it is with every half pair replaced
    decoded: str = json.loads(f'"{text}"')
    replaced = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in decoded)
    other = spelled(node, Random(seed))
    # Then an error has the replaced one, as text and as name
    body = f'{{"x":{other},"error":{{"{text}":["{text}"]}},"settle":[{{"error":"{text}"}}]}}'.encode()
    document = read_object(body, lenient=frozenset({"error", "settle[].error"}))
    assert document.fields["error"].plain == {replaced: [replaced]}
    assert document.fields["settle"].plain == [{"error": replaced}]
    assert same(document.fields["x"].plain, read_value(other.encode()).plain)
    # And without leave it is refused, unless no half is left alone
    if replaced == decoded:
        assert same(read_object(body).value.plain, document.value.plain)
    else:
        with pytest.raises(Invalid, match="lone surrogate"):
            read_object(body)
