"""Typed equality, exact numbers, paths, and texts that are searched."""

import json
import time
from random import Random

import pytest

from kernel.domain.json_values import read_value
from kernel.domain.policy import load_bundle
from kernel.domain.policy.arguments import MISSING, Arguments, path_of
from kernel.domain.policy.limits import REGEX_SUBJECT_BYTES_MAX, WORK_MAX
from kernel.domain.policy.numbers import compare, number_of
from tests.unit.policy.bundles import call, holds, is_matched, judged, one_rule

BIG = 2**53


@pytest.mark.parametrize(
    ("operand", "value", "is_equal"),
    [
        ("1", "1.0", True),
        ("1", "1e0", True),
        ("1", "1E-0", True),
        ("100", "1e2", True),
        ("0", "-0", True),
        ("0", "0e999999999999999999999", True),
        ("-1.50", "-15e-1", True),
        ("1", "-1", False),
        (str(BIG + 1), str(BIG), False),
        (str(BIG + 1), f"{BIG + 1}.000", True),
        ("0.1", "0.1000000000000000055", False),
        ("1e300", "1" + "0" * 300, True),
        ("1e-400", "0", False),
        ("1e-400", "0.1e-399", True),
        ("1", '"1"', False),
        ("true", '"true"', False),
        ("true", "true", True),
        ("false", "0", False),
        ("false", "null", False),
        ('"a"', '"A"', False),
        ('"é"', '"\\u00e9"', True),
        ('"\\ud83d\\ude00"', '"😀"', True),
        ("[]", "{}", False),
        ("[1,[2]]", "[1.0,[2e0]]", True),
        ("[1,2]", "[2,1]", False),
        ("[1]", "[1,1]", False),
        ('{"a":{"b":[null,1]},"c":""}', '{"c":"","a":{"b":[null,1.0]}}', True),
        ('{"a":1}', '{"a":1,"b":1}', False),
        ('{"a":1}', '{"b":1}', False),
        ('{"1":1}', '{"1":1}', True),
    ],
)
def test_equality_is_typed_deep_and_exact(operand: str, value: str, is_equal: bool):
    operators = {"equals": operand, "one_of": f"[[0],{operand}]", "not_equals": operand, "not_one_of": f"[{operand}]"}
    for operator, written in operators.items():
        when = f'{{"arguments": {{"x": {{"{operator}": {written}}}}}}}'
        rule = f'{{"id": "rule", "when": {when}, "then": {{"decision": "deny"}}}}'
        bundle = load_bundle(f'{{"default_action": "allow", "rules": [{rule}]}}')
        assert is_matched(bundle, call(args=f'{{"x":{value}}}')) is (is_equal ^ operator.startswith("not"))


@pytest.mark.parametrize(
    ("operand", "value", "is_greater"),
    [
        ("0", "1e-999999999999999999999", True),
        ("0", "-1e-999999999999999999999", False),
        ("1e-400", "1e-401", False),
        ("1e-401", "1e-400", True),
        (str(BIG), str(BIG + 1), True),
        ("-2", "-1.5", True),
        ("-1.5", "-2", False),
        ("-1", "0", True),
        ("0", "-0.0", False),
        ("9.99", "10", True),
        ("0.123", "0.1234", True),
    ],
)
def test_numbers_are_ordered_exactly(operand: str, value: str, is_greater: bool):
    text = f"rules: [{{id: rule, when: {{arguments: {{x: {{gt: {operand}}}}}}}, then: {{decision: deny}}}}]"
    assert is_matched(load_bundle(text), call(args=f'{{"x":{value}}}')) is is_greater


def test_an_exponent_is_never_written_out():
    started = time.process_time()
    near_zero = "1e-" + "9" * 200_000
    assert compare(number_of(near_zero), number_of("1e-999999999")) < 0
    assert compare(number_of("-" + near_zero), number_of("0")) < 0
    assert holds({"gt": 0}, f'{{"x":{near_zero}}}')
    assert not holds({"equals": 0}, f'{{"x":{near_zero}}}')
    assert time.process_time() - started < 1


ARGS = '{"a.b":1,"a":{"b":2,"c":[{"d":3},null],"":4,"0":5},"list":[[6]],"n":null,"s":"text"}'


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b", 1),
        ("a.c.0.d", 3),
        ("a.c.00.d", 3),
        ("a.c.1", None),
        ("a.", 4),
        ("a.0", 5),
        ("list.0.0", 6),
        ("n", None),
        ("s", "text"),
        ("a.c.2", MISSING),
        ("a.c.-1", MISSING),
        ("a.c.+0", MISSING),
        ("a.c.\u0660", MISSING),
        ("a.c.0000000000", MISSING),
        ("a.c.d", MISSING),
        ("s.0", MISSING),
        ("n.x", MISSING),
        ("", MISSING),
        ("A.b", MISSING),
    ],
)
def test_a_path_leads_to_its_place(path: str, value: object):
    assert Arguments(read_value(ARGS.encode()).plain).at(path_of(path)) == value


def test_a_path_may_begin_in_a_list():
    assert Arguments(read_value(b'[{"a":1}]').plain).at(path_of("0.a")) == 1


@pytest.mark.parametrize("args", ["null", "1", '"x"', "true"])
def test_args_that_are_no_container_have_no_paths(args: str):
    assert Arguments(read_value(args.encode()).plain).at(path_of("x")) is MISSING


def test_of_duplicate_members_the_last_is_judged():
    assert holds({"gt": 100}, '{"x":1,"\\u0078":9999}')
    assert not holds({"gt": 100}, '{"x":9999,"x":1}')


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("rm", "please rm -rf", True),
        ("^rm$", "rm\nx", False),
        ("(?m)^rm$", "x\nrm", True),
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        ("^.$", "é", True),
        ("(?i)RM", "rm", True),
        ("^ok$", "ok\n", False),
        ("(a)(b)", "ab", True),
    ],
)
def test_a_regex_is_unanchored_and_a_dot_is_no_newline(pattern: str, text: str, is_match: bool):
    assert holds({"regex": pattern}, json.dumps({"x": text})) is is_match


def test_a_regex_subject_above_the_limit_is_undetermined():
    at_the_limit = '{"x":"' + "é" * (REGEX_SUBJECT_BYTES_MAX // 2) + '"}'
    above = '{"x":"a' + "é" * (REGEX_SUBJECT_BYTES_MAX // 2) + '"}'
    for decision in ("deny", "require_approval"):
        assert not holds({"regex": "z"}, at_the_limit, decision=decision)
        assert holds({"regex": "z"}, above, decision=decision)
    assert holds({"regex": "é"}, at_the_limit, decision="allow")
    assert not holds({"regex": "é"}, above, decision="allow")
    assert holds({"contains": "aé"}, above, decision="allow")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){20}c", "(x+x+)+y", "(a?){50}z", "(a|b)*a(a|b){100}c"])
def test_a_hostile_regex_on_a_megabyte_is_answered_in_time(pattern: str):
    # Without a pattern of its own, so that RE2 cannot remember its states.
    text = "".join(Random(1).choices("ab", k=REGEX_SUBJECT_BYTES_MAX - 1)) + "!"
    started = time.process_time()
    assert not holds({"regex": pattern}, f'{{"x":"{text}"}}')
    assert time.process_time() - started < 5


def test_all_that_one_verdict_may_cost_is_bounded():
    rules = [
        f'{{"id": "r{index}", "priority": {index}, "when": {{"arguments": {{"x": {{"regex": "z{{100}}{index}"}}}}}},'
        ' "then": {"decision": "deny"}}'
        for index in range(200)
    ]
    bundle = load_bundle(f'{{"default_action": "allow", "rules": [{",".join(rules)}]}}')
    small = judged(bundle, call(args='{"x":"' + "z" * 50 + '"}'))
    large = judged(bundle, call(args='{"x":"' + "y" * (REGEX_SUBJECT_BYTES_MAX - 1) + '"}'))
    assert small.decision == "allow"
    assert large.decision == "deny"
    assert int(large.rule_id[1:]) > WORK_MAX // (REGEX_SUBJECT_BYTES_MAX * 200)


def test_a_rule_sees_the_literal_of_a_long_number():
    assert holds({"lt": 1}, '{"x":0.' + "9" * 5000 + "}")
    assert is_matched(one_rule({"arguments": {"x": {"equals": [1]}}}), call(args='{"x":[1.' + "0" * 5000 + "]}"))
