"""What holds for every glob, every number, every value and every order of rules."""

import json
from decimal import Decimal, localcontext
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.json_values import read_value
from kernel.domain.policy import load_bundle
from kernel.domain.policy.equality import equality, one_of
from kernel.domain.policy.evaluation import Call, evaluate
from kernel.domain.policy.globs import any_glob, compile_glob
from kernel.domain.policy.numbers import compare, number_of

ALPHABET = "ab-]é"
CLASSES = st.tuples(
    st.sampled_from(["", "!", "^"]), st.lists(st.sampled_from(["a", "b", "é", "a-b", r"\-", r"\]"]), min_size=1)
)
TOKENS = st.one_of(
    st.just("*"),
    st.just("?"),
    st.sampled_from(ALPHABET),
    st.sampled_from([r"\*", r"\?", r"\[", r"\\"]),
    CLASSES.map(lambda found: f"[{found[0]}{''.join(found[1])}]"),
)
TEXTS = st.text(ALPHABET + "*?[\\", max_size=12)


def fits(token: str, character: str) -> bool:
    """Whether a token that is no star takes a character, by reading the token anew."""
    if token == "?":
        return True
    if token[0] != "[":
        return token[-1] == character
    inner = token[1:-1]
    is_negated = inner[0] in "!^"
    inner = inner[is_negated:]
    taken = set("ab") if "a-b" in inner else set()
    taken |= set(inner.replace("a-b", "").replace("\\", ""))
    return (character in taken) is not is_negated


def naive(tokens: list[str], text: str) -> bool:
    """Match by the definition: every way of sharing the text out is tried, a row of them at a time."""
    reached = {0}
    for token in tokens:
        if token == "*":
            reached = {end for start in reached for end in range(start, len(text) + 1)}
        else:
            reached = {start + 1 for start in reached if start < len(text) and fits(token, text[start])}
    return len(text) in reached


@given(st.lists(TOKENS, max_size=9), TEXTS)
def test_a_glob_matches_what_its_definition_says(tokens: list[str], text: str):
    assert compile_glob("".join(tokens)).matches(text) is naive(tokens, text)


@given(st.lists(st.text("ab*?", max_size=5), max_size=4), st.text("ab", max_size=6))
def test_any_of_several_globs_is_what_each_of_them_says(patterns: list[str], text: str):
    globs = [compile_glob(pattern) for pattern in patterns]
    assert any_glob(globs)(text) is any(glob.matches(text) for glob in globs)


@given(TEXTS)
def test_an_escaped_text_matches_itself_alone(text: str):
    glob = compile_glob("".join(f"\\{character}" for character in text))
    assert glob.matches(text)
    assert not glob.matches(text + "a")


LITERALS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True, alphabet="0123456789-+.eE"
)


@given(LITERALS, LITERALS)
def test_numbers_compare_as_fractions_do(left: str, right: str):
    wanted = (Fraction(left) > Fraction(right)) - (Fraction(left) < Fraction(right))
    assert compare(number_of(left), number_of(right)) == wanted
    assert (number_of(left) == number_of(right)) is (wanted == 0)


@given(LITERALS, st.integers(-30, 30))
def test_a_number_equals_its_other_spellings(literal: str, shift: int):
    with localcontext() as context:
        # No literal has as many digits: nothing is rounded.
        context.prec = 200
        spelled = f"{Decimal(literal).scaleb(shift):f}e{-shift}"
    assert number_of(spelled) == number_of(literal)
    assert number_of(literal.replace("e", "E")) == number_of(literal)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(["", "a", "1", "true"])
    | st.integers(-2, 2)
    | st.sampled_from([1.0, 0.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def tree(value: object):
    return read_value(json.dumps(value).encode()).plain


def spend(steps: int) -> None:
    assert steps > 0


def tagged(value: object) -> object:
    """Return what Python compares as JSON does: a boolean is no number, and 1 is 1.0."""
    if isinstance(value, list):
        return ["list", *(tagged(item) for item in value)]
    if isinstance(value, dict):
        return {name: tagged(member) for name, member in value.items()}
    return (type(value).__name__.replace("float", "int"), value)


@given(VALUES)
def test_equality_is_reflexive(value: object):
    assert equality(tree(value))(tree(value), spend)
    assert one_of([None, tree(value)])(tree(value), spend)


@given(VALUES, VALUES)
def test_equality_is_symmetric_and_what_json_types_say(left: object, right: object):
    found = equality(tree(left))(tree(right), spend)
    assert found is equality(tree(right))(tree(left), spend)
    assert found is (tagged(left) == tagged(right))


@given(st.lists(VALUES, min_size=1, max_size=5), VALUES)
def test_one_of_is_any_of_them(operands: list[object], value: object):
    trees = [tree(operand) for operand in operands]
    assert one_of(trees)(tree(value), spend) is any(equality(operand)(tree(value), spend) for operand in trees)


RULES = st.lists(
    st.fixed_dictionaries(
        {
            "priority": st.integers(0, 1000),
            "target": st.sampled_from(["a", "b", "*", "a*", "?"]),
            "decision": st.sampled_from(["allow", "deny", "require_approval"]),
        }
    ),
    max_size=8,
    unique_by=lambda rule: rule["priority"],
)


@given(RULES, st.sampled_from(["a", "b", "ab", ""]), st.integers(0, 2**32))
def test_the_lowest_rule_that_matches_decides_in_any_order(rules: list[dict[str, object]], target: str, seed: int):
    written = [
        {
            "id": f"r{r['priority']}",
            "priority": r["priority"],
            "when": {"target": r["target"]},
            "then": {"decision": r["decision"]},
        }
        for r in rules
    ]
    Random(seed).shuffle(written)
    found = evaluate(
        load_bundle(json.dumps({"rules": written})), Call("x", "tool_call", target), version=1, no_policy="deny"
    )
    matching = [rule for rule in rules if compile_glob(str(rule["target"])).matches(target)]
    first = min(matching, key=lambda rule: int(str(rule["priority"])), default=None)
    assert found.rule_id == ("default" if first is None else f"r{first['priority']}")
    assert found.decision == ("deny" if first is None else first["decision"])
