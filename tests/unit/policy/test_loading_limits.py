"""Loading is bounded: what would be slow is refused, and any text at all is loaded or refused in time."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel.domain.errors import BundleInvalid
from kernel.domain.policy import limits, load_bundle

HEAD = "default_action: deny\nrules:\n"


def refusal(text: str) -> BundleInvalid:
    with pytest.raises(BundleInvalid) as refused:
        load_bundle(text)
    return refused.value


def test_a_bundle_of_the_largest_size_is_loaded_in_time():
    started = time.process_time()
    rules = "".join(f"- {{id: r{n}, priority: {n}, then: {{decision: deny}}}}\n" for n in range(limits.RULES_MAX))
    head = HEAD + rules
    load_bundle(head + "#" * (limits.BUNDLE_BYTES_MAX - len(head)))
    assert time.process_time() - started < 5


def many(count: int, part: str) -> str:
    rules = "".join(
        f"- {{id: r{n}, priority: {n}, when: {part.replace('%', str(n))}, then: {{decision: deny}}}}\n"
        for n in range(count)
    )
    return HEAD + rules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (many(limits.RULES_MAX + 1, "{}"), "more than 1000 rules"),
        (many(1, f"{{targets: [{'a, ' * (limits.GLOBS_MAX + 1)}]}}"), "more than 2000 globs"),
        (many(2, f"{{targets: [{'a, ' * (limits.GLOBS_MAX // 2 + 1)}]}}"), "more than 2000 globs"),
        (many(5, "{target: '" + "?" * 2000 + "'}"), "around"),
        (many(limits.REGEXES_MAX + 1, "{arguments: {x: {regex: a}}}"), "more than 256 regexes"),
        (many(1, f"{{agent_ids: [{'a, ' * limits.NODES_MAX}]}}"), "more than 50000 values"),
        (many(7, "{arguments: {" + ", ".join(f"{c}: {{gt: 1, lt: 2}}" for c in range(400)) + "}}"), "operators on"),
    ],
    ids=["rules", "globs of one rule", "globs", "wild characters", "regexes", "values", "operators"],
)
def test_what_would_be_slow_is_refused(text: str, said: str):
    started = time.process_time()
    assert said in refusal(text).reason
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "text",
    ["[" * limits.BUNDLE_BYTES_MAX, "- " * 100_000, "? " * 100_000, "a: 1\n" * 50_000, "!" * 200_000, "\n" * 200_000],
    ids=["brackets", "dashes", "question marks", "keys", "tags", "blank lines"],
)
def test_a_hostile_text_is_refused_in_time(text: str):
    started = time.process_time()
    refusal(text)
    assert time.process_time() - started < 5


PIECES = st.sampled_from(
    [
        "rules:",
        "- id: a",
        "then:",
        "{",
        "}",
        "[",
        "]",
        ": ",
        "\n",
        "  ",
        "deny",
        "'",
        '"',
        "&a ",
        "*a",
        "!t ",
        "|",
        ">",
        "#",
        "%",
        "\t",
    ]
)


@given(st.text(max_size=60) | st.lists(PIECES, max_size=25).map("".join))
@example("a: !<x")
@example("- |9\n")
@example("%YAML 99.9999999999999999999\n---\n")
@example('"\\x')
@example("\ufeffrules: []")
def test_any_text_is_loaded_or_refused_with_a_line_of_it(text: str):
    refused = _refused(text)
    assert refused is None or 1 <= refused.line <= len(text.splitlines()) + 2


def _refused(text: str) -> BundleInvalid | None:
    try:
        load_bundle(text)
    except BundleInvalid as error:
        return error
    return None
