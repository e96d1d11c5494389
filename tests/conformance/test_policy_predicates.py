"""K82 to K86: globs, the truth table, paths, equality and regexes, each table loaded as one bundle."""

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.policy import (
    ALLOW,
    ASK,
    DENY,
    bundle,
    each_blocks,
    governed,
    load,
    row_args,
    row_rule,
    rows_that_match,
    rule,
    short,
    submit_text,
)

CONTRACT = Path(__file__).resolve().parents[2] / "docs" / "contract.md"
_ROW = re.compile(r"\| (?:`(?P<pattern>[^`]*)`) \| (?:`(?P<text>[^`]*)`[^|]*|\(empty\)) \| (?P<holds>yes|no) ")
GLOBS_OF_THE_TABLE = 29
NO_GLOBS = ("[abc", "a\\", "[]", "[!]", "[z-a]")
MEBIBYTE = 1024 * 1024
IN_TIME_SECONDS = 10.0


# ---------------------------------------------------------------- globs


def glob_table() -> Iterator[tuple[str, str, bool]]:
    """The rows of the contract's table: pattern, string, whether it matches."""
    for line in CONTRACT.read_text().partition("\nGlobs match the whole string")[2].splitlines():
        # Cells of one line share their bars.
        for found in _ROW.finditer(line.replace(" | | ", " | | | ")):
            yield found["pattern"], found["text"] or "", found["holds"] == "yes"


@pytest.mark.parametrize("member", ["target", "targets"])
async def test_k82_every_row_of_the_glob_table_decides_as_it_says(kernel: Kernel, member: str) -> None:
    table = list(glob_table())
    assert len(table) == GLOBS_OF_THE_TABLE

    def when(pattern: str) -> dict[str, Any]:
        return {"target": pattern} if member == "target" else {"targets": ["never", pattern]}

    rules = [row_rule(number, ALLOW, when=when(pattern)) for number, (pattern, _, _) in enumerate(table)]
    lease = await (await governed(kernel, *rules)).start()

    matches = await rows_that_match(lease, [(text, "{}") for _, text, _ in table])

    assert [(*row[:2], found) for row, found in zip(table, matches, strict=True)] == table


async def test_k82_what_is_no_glob_is_not_loadable(kernel: Kernel) -> None:
    agent = await kernel.agent()

    for pattern in NO_GLOBS:
        for when in ({"target": pattern}, {"targets": ["x", pattern]}):
            answer = await kernel.post(f"/v0/policies/{agent.id}", {"bundle": bundle(rule("r", ALLOW, when=when))})
            field = "rules[0].when.target" if "target" in when else "rules[0].when.targets[1]"
            assert details(answer, 400, "validation_error") == {"line": 1, "field": field}, pattern


# ---------------------------------------------------------------- the truth table

# Columns: present and a match, present and none, null, missing, wrong type. A cell: the args, and whether a rule that
# allows and one that does anything else match. What a column lacks in the contract is left out.
Cell = tuple[str, bool, bool]
M, NOT = True, False


def _cells(match: str, no_match: str, others: str, *, wrong: str) -> list[Cell]:
    """A row in short: each of null, missing and wrong type as letters `M` and `-` for both kinds of rule."""
    found = [(f'{{"x":{match}}}', M, M), (f'{{"x":{no_match}}}', NOT, NOT)]
    for args, letters in zip(('{"x":null}', "{}", f'{{"x":{wrong}}}'), others.split(), strict=True):
        found.append((args, letters[0] == "M", letters[1] == "M"))
    return found


TRUTH: list[tuple[str, Any, list[Cell]]] = [
    ("equals", "a", _cells('"a"', '"b"', "-- -- --", wrong="1")),
    ("one_of", ["a", "b"], _cells('"b"', '"c"', "-- -- --", wrong='["a"]')),
    ("not_equals", "a", _cells('"b"', '"a"', "-M -M -M", wrong="1")),
    ("not_one_of", ["a", "b"], _cells('"c"', '"b"', "-M -M -M", wrong='{"a":"b"}')),
    ("equals", None, [('{"x":null}', M, M), ("{}", NOT, NOT), ('{"x":"null"}', NOT, NOT)]),
    ("not_equals", None, [('{"x":null}', NOT, NOT), ("{}", NOT, M), ('{"x":0}', NOT, M)]),
    ("one_of", ["a", None], [('{"x":null}', M, M)]),
    ("not_one_of", ["a", None], [('{"x":null}', NOT, NOT)]),
    ("contains", "ul", _cells('"full"', '"empty"', "MM -- MM", wrong='["ul"]')),
    ("contains", "1.50", [('{"x":{"a": 1.50}}', M, M), ('{"x":1.5}', NOT, NOT)]),
    ("regex", "^[n[]", _cells('"no"', '"a no"', "MM -- MM", wrong="[1]")),
    ("regex", '^{"a":1}$', [('{"x":{ "a" : 1 }}', M, M)]),
    ("exists", True, [('{"x":"a"}', M, M), ('{"x":null}', M, M), ("{}", NOT, NOT), ('{"x":[]}', M, M)]),
    ("exists", False, [('{"x":"a"}', NOT, NOT), ('{"x":null}', NOT, NOT), ("{}", M, M), ('{"x":[]}', NOT, NOT)]),
    ("gt", 5, _cells("5.01", "5", "-M -- -M", wrong='"9"')),
    ("gte", 5, _cells("5.0", "4.99", "-M -- -M", wrong="true")),
    ("lt", 5, _cells("4", "5", "-M -- -M", wrong="[1]")),
    ("lte", 5, _cells("5e0", "6", "-M -- -M", wrong="{}")),
]
ROWS = [(operator, operand, *cell) for operator, operand, cells in TRUTH for cell in cells]


def truth_rules(decision: str) -> list[dict[str, Any]]:
    return [
        row_rule(number, decision, arguments={"x": {operator: operand}})
        for number, (operator, operand, *_) in enumerate(ROWS)
    ]


@pytest.mark.parametrize("decision", [ALLOW, DENY])
async def test_k83_every_cell_of_the_truth_table_where_a_rule_allows_or_denies(kernel: Kernel, decision: str) -> None:
    lease = await (await governed(kernel, *truth_rules(decision), default=DENY if decision == ALLOW else ALLOW)).start()

    found = await rows_that_match(lease, [("tool", args) for _, _, args, _, _ in ROWS])

    wanted = [is_allowed if decision == ALLOW else is_denied for *_, is_allowed, is_denied in ROWS]
    assert [row for row, is_match, want in zip(ROWS, found, wanted, strict=True) if is_match != want] == []


async def test_k83_every_cell_of_the_truth_table_where_a_rule_asks_for_an_approval(kernel: Kernel) -> None:
    agent = await governed(kernel, *truth_rules(ASK), default=ALLOW)
    lease = await agent.start()

    for number, (operator, operand, args, _, is_match) in enumerate(ROWS):
        if not is_match:
            decision = accepted(await submit_text(lease, row_args(number, args)))
            assert short(decision) == ("proceed", "default", None), (operator, operand, args)
    failed = await each_blocks(agent, [(number, row[2]) for number, row in enumerate(ROWS) if row[4]])

    assert [ROWS[number] for number in failed] == []


# ---------------------------------------------------------------- paths and equality

PATHS = [
    ("a.b", '{"a":{"b":1}}', True),
    ("a.b", '{"a.b":1}', True),
    ("a.b", '{"a.b":1,"a":{"b":2}}', True),
    ("a.b", '{"a.b":2,"a":{"b":1}}', False),
    ("a.b", '{"a.b":null,"a":{"b":1}}', False),
    ("items.1.n", '{"items":[{"n":0},{"n":1}]}', True),
    ("items.0.n", '{"items":[{"n":0},{"n":1}]}', False),
    ("items.2.n", '{"items":[{"n":0},{"n":1}]}', False),
    ("items.-1.n", '{"items":[{"n":0},{"n":1}]}', False),
    ("items.1", '{"items":{"1":1}}', True),
    ("A", '{"a":1}', False),
    ("a.b", '{"a":"b"}', False),
    ("x", '{"x":2,"x":1}', True),
    ("x", '{"x":1,"x":2}', False),
    ("x", '{"x":2,"\\u0078":1}', True),
    ("a.b", '{"a":{"b":1,"b":2}}', False),
    ("a.b", '{"a":{"b":1},"a":{}}', False),
]


async def test_k84_a_path_leads_to_its_place_and_of_duplicates_the_last_is_judged(kernel: Kernel) -> None:
    rules = [row_rule(at, ALLOW, arguments={path: {"equals": 1}}) for at, (path, _, _) in enumerate(PATHS)]
    lease = await (await governed(kernel, *rules)).start()

    found = await rows_that_match(lease, [("tool", args) for _, args, _ in PATHS])

    assert [(*row[:2], is_match) for row, is_match in zip(PATHS, found, strict=True)] == PATHS


@pytest.mark.parametrize("args", ["null", "1", '"x"', "true"])
async def test_k84_args_that_are_no_container_have_no_paths(kernel: Kernel, args: str) -> None:
    there, missing = {"arguments": {"x": {"exists": True}}}, {"arguments": {"x": {"exists": False}}}
    agent = await governed(kernel, rule("there", DENY, when=there), rule("missing", ALLOW, when=missing, priority=1))

    decision = accepted(await submit_text(await agent.start(), args))

    assert short(decision) == ("proceed", "missing", None)


async def test_k84_a_path_may_begin_in_a_list(kernel: Kernel) -> None:
    agent = await governed(kernel, rule("r", ALLOW, when={"arguments": {"1.a": {"equals": "b"}}}))
    lease = await agent.start()

    assert short(accepted(await submit_text(lease, '[0,{"a":"b"}]'))) == ("proceed", "r", None)
    assert short(accepted(await submit_text(lease, '[{"a":"b"},0]')))[:2] == ("denied", "default")


# Operands and values as JSON texts.
EQUALITY = [
    ('"1"', "1", False),
    ("1", '"1"', False),
    ("1", "1.0", True),
    ("1.0", "1e0", True),
    ("100", "1e2", True),
    ("9007199254740993", "9007199254740992", False),
    ("9007199254740992", "9007199254740993", False),
    ("9007199254740993", "9007199254740993.0", True),
    ("0.1", "0.1000000000000000055511151231257827", False),
    ("0", "-0.0", True),
    ("true", '"true"', False),
    ('"true"', "true", False),
    ("true", "1", False),
    ("0", "false", False),
    ("null", "false", False),
    ('"é"', '"\\u00e9"', True),
    ('"é"', '"e\\u0301"', False),
    ("[]", "{}", False),
    ("[1,2]", "[2,1]", False),
    ("[1,[2.0]]", "[1.0,[2]]", True),
    ('{"a":{"b":[null,1]},"c":""}', '{"c":"","a":{"b":[null,1.0]}}', True),
    ('{"a":{"x":1,"y":{"p":1,"q":[{"r":1,"s":2}]}}}', '{"a":{"y":{"q":[{"s":2,"r":1}],"p":1},"x":1}}', True),
    ('{"a":{"x":1,"y":2}}', '{"a":{"x":2,"y":1}}', False),
    ('{"a":1}', '{"a":1,"b":null}', False),
]


@pytest.mark.parametrize(("operator", "is_negated"), [("equals", False), ("one_of", False), ("not_equals", True)])
async def test_k85_equality_is_typed_deep_and_exact(kernel: Kernel, operator: str, is_negated: bool) -> None:
    rules = [
        f'{{"id":"row-{at}","priority":{at},"then":{{"decision":"deny"}},"when":{{"arguments":{{'
        f'"row":{{"equals":{at}}},"x":{{"{operator}":{f"[[0],{operand}]" if operator == "one_of" else operand}}}}}}}}}'
        for at, (operand, _, _) in enumerate(EQUALITY)
    ]
    agent = await kernel.agent()
    await load(agent, f'{{"default_action":"allow","rules":[{",".join(rules)}]}}')
    lease = await agent.start()

    found = await rows_that_match(lease, [("tool", f'{{"x":{value}}}') for _, value, _ in EQUALITY])

    equal = [is_match is not is_negated for is_match in found]
    assert [(*row[:2], is_equal) for row, is_equal in zip(EQUALITY, equal, strict=True)] == EQUALITY


# ---------------------------------------------------------------- regexes

REGEXES = [
    ("rm", "please rm -rf", True),
    ("^rm", "please rm -rf", False),
    ("a.b", "a\nb", False),
    ("(?s)a.b", "a\nb", True),
    ("a.b", "a/b", True),
    ("^b$", "a\nb", False),
    ("(?m)^b$", "a\nb", True),
    ("^ok$", "ok\n", False),
    ("(?i)RM", "rm", True),
    ("^.$", "é", True),
    ("", "", True),
]
REFUSED_BY_RE2 = ("(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", "(a)\\1", "(?P=x)", "(", "[b-a]", "a**", "(?>a)")
# Patterns on which engines that backtrack take for ever.
HOSTILE = ("(a+)+$", "(a|aa)+$", "(a|b|ab)*c", "(.*)(.*)(.*)(.*)[^ab!]$")


async def test_k86_a_regex_is_unanchored_and_its_dot_is_no_newline(kernel: Kernel) -> None:
    rules = [row_rule(at, ALLOW, arguments={"x": {"regex": regex}}) for at, (regex, _, _) in enumerate(REGEXES)]
    lease = await (await governed(kernel, *rules)).start()

    found = await rows_that_match(lease, [("tool", json.dumps({"x": text})) for _, text, _ in REGEXES])

    assert [(*row[:2], is_match) for row, is_match in zip(REGEXES, found, strict=True)] == REGEXES


async def test_k86_what_re2_refuses_is_not_loadable(kernel: Kernel) -> None:
    agent = await kernel.agent()

    for pattern in REFUSED_BY_RE2:
        text = bundle(rule("r", ALLOW, when={"arguments": {"x": {"regex": pattern}}}))
        answer = await kernel.post(f"/v0/policies/{agent.id}", {"bundle": text})
        wanted = {"line": 1, "field": "rules[0].when.arguments.x.regex"}
        assert details(answer, 400, "validation_error") == wanted, pattern


async def test_k86_a_hostile_pattern_on_a_mebibyte_is_answered_in_time(kernel: Kernel) -> None:
    rules = [row_rule(at, DENY, arguments={"x": {"regex": pattern}}) for at, pattern in enumerate(HOSTILE)]
    lease = await (await governed(kernel, *rules, default=ALLOW)).start()
    subject = "".join(random.Random(86).choices("ab", k=MEBIBYTE - 1)) + "!"

    for number, pattern in enumerate(HOSTILE):
        started_at = time.monotonic()
        decision = accepted(await submit_text(lease, f'{{"row":{number},"x":"{subject}"}}'))
        assert short(decision) == ("proceed", "default", None), pattern
        assert time.monotonic() - started_at < IN_TIME_SECONDS, pattern


async def test_k83_a_subject_above_a_mebibyte_is_undetermined(kernel: Kernel) -> None:
    fits, above = f'{{"x":"{"é" * (MEBIBYTE // 2)}"}}', f'{{"x":"a{"é" * (MEBIBYTE // 2)}"}}'

    def lines(decision: str, pattern: str) -> dict[str, Any]:
        return rule("r", decision, when={"arguments": {"x": {"regex": pattern}}})

    for decision, pattern, wanted in ((ALLOW, "é", ("r", "default")), (DENY, "z", ("default", "r"))):
        agent = await governed(kernel, lines(decision, pattern), default=DENY if decision == ALLOW else ALLOW)
        lease = await agent.start()
        found = [accepted(await submit_text(lease, args))["rule_id"] for args in (fits, above)]
        assert tuple(found) == wanted, decision
    asking = await governed(kernel, lines(ASK, "z"), default=ALLOW)
    lease = await asking.start()
    assert [accepted(await submit_text(lease, args))["decision"] for args in (fits, above)] == ["proceed", "blocked"]
