"""What is not loadable is refused with its line and field; what is loadable means what YAML 1.2 says."""

import json

import pytest

from kernel.domain.errors import BundleInvalid
from kernel.domain.policy import limits, load_bundle
from tests.unit.policy.bundles import call, is_matched, judged

RULE = "- {id: r, then: {decision: deny}}\n"
HEAD = "default_action: deny\nrules:\n"


def refusal(text: str) -> BundleInvalid:
    with pytest.raises(BundleInvalid) as refused:
        load_bundle(text)
    assert refused.value.reason
    return refused.value


def rule(part: str) -> str:
    """A bundle with a second rule that goes on with these lines after its id, from line 5 on."""
    return f"{HEAD}- {{id: first, then: {{decision: allow}}}}\n- id: second\n{part}"


def when(part: str) -> str:
    return rule(f"  priority: 1\n  then: {{decision: deny}}\n  when:\n    {part}\n")


def then(part: str) -> str:
    return rule(f"  priority: 1\n  then:\n    decision: deny\n    {part}\n")


SYNTAX = [
    ("", 1, ""),
    ("# nothing\n", 2, ""),
    ("rules: [\n", 2, "rules"),
    ("rules:\n- id: 'a\n", 3, "rules[0]"),
    ("rules: []\n\tx: 1\n", 2, "rules"),
    ("rules: []\ndefault_action: a: b\n", 2, "default_action"),
    ("rules: []\n---\nrules: []\n", 2, "rules"),
    ("rules: []\n...\n---\n", 3, "rules"),
    ("%YAML 1.1\n---\nrules: []\n", 2, ""),
    ("%TAG ! x:\n---\nrules: []\n", 2, ""),
    ("default_action: &a deny\n", 1, "default_action"),
    ("x: &a deny\n", 1, "x"),
    ("&k default_action: deny\n", 1, ""),
    ("rules:\n- *a\n", 2, "rules[0]"),
    ("&root\nrules: []\n", 1, ""),
    ("rules: !!seq []\n", 1, "rules"),
    ("rules: []\ndefault_action: !x deny\n", 2, "default_action"),
    ("rules: []\ndefault_action: ! deny\n", 2, "default_action"),
    ("rules: []\n\nrules: []\n", 3, "rules"),
    ('rules: []\n"rules": []\n', 2, "rules"),
    ("rules:\n- id: r\n  then: {decision: deny,\n    decision: allow}\n", 4, "rules[0].then.decision"),
    ("? [a]\n: b\n", 1, ""),
    ("? {a: b}\n: c\n", 1, ""),
    ("- a\n", 1, ""),
    ("just text\n", 1, ""),
    ("null\n", 1, ""),
    ("rules: []\ndefault_action: \x01\n", 2, ""),
    ('rules: []\ndefault_action: "\\UFFFFFFFF"\n', 2, ""),
    ('rules: []\ndefault_action: "\\ud800"\n', 2, "default_action"),
    ("rules: []\ndefault_action: \ud800\n", 2, ""),
    ("rules: []\n#" + "x" * limits.BUNDLE_BYTES_MAX, 1, ""),
    ("[" * 1000, 1, "[0]" * limits.NESTING_MAX),
    ("{x: " * 1000, 1, ".".join("x" * limits.NESTING_MAX)),
]
TOP = [
    ("rule: []\n", 1, "rule"),
    ("default_action: maybe\n", 1, "default_action"),
    ("default_action: require_approval\n", 1, "default_action"),
    ("default_action:\n", 1, "default_action"),
    ("default_action: [deny]\n", 1, "default_action"),
    ("default_action: deny\nrules: {}\n", 2, "rules"),
    ("rules: null\n", 1, "rules"),
    ("rules:\n- text\n", 2, "rules[0]"),
    ("rules: []\nversion: 1\n", 2, "version"),
]
RULES = [
    ("rules:\n- then: {decision: deny}\n", 2, "rules[0]"),
    ("rules:\n- id: r\n", 2, "rules[0]"),
    ("rules:\n- id: 1\n  then: {decision: deny}\n", 2, "rules[0].id"),
    ("rules:\n- id: ''\n  then: {decision: deny}\n", 2, "rules[0].id"),
    ("rules:\n- id:\n  then: {decision: deny}\n", 2, "rules[0].id"),
    (f"rules:\n- id: {'x' * 257}\n  then: {{decision: deny}}\n", 2, "rules[0].id"),
    (HEAD + RULE + "- id: r\n  priority: 1\n  then: {decision: deny}\n", 4, "rules[1].id"),
    (HEAD + RULE + "-\n  id: s\n  then: {decision: deny}\n", 5, "rules[1]"),
    (HEAD + RULE + "- id: s\n  then: {decision: deny}\n  priority: 0\n", 6, "rules[1].priority"),
    (rule("  prio: 1\n"), 5, "rules[1].prio"),
    (rule("  priority: -1\n  then: {decision: deny}\n"), 5, "rules[1].priority"),
    (rule("  priority: 1.0\n  then: {decision: deny}\n"), 5, "rules[1].priority"),
    (rule("  priority: '1'\n  then: {decision: deny}\n"), 5, "rules[1].priority"),
    (rule("  priority: true\n  then: {decision: deny}\n"), 5, "rules[1].priority"),
    (rule("  priority: [1]\n  then: {decision: deny}\n"), 5, "rules[1].priority"),
    (rule(f"  priority: {2**53 + 1}\n  then: {{decision: deny}}\n"), 5, "rules[1].priority"),
    (rule("  then: deny\n"), 5, "rules[1].then"),
    (rule("  then: {}\n"), 5, "rules[1].then"),
    (rule("  then:\n    reason: x\n"), 6, "rules[1].then"),
    (rule("  then: {decision: Deny}\n"), 5, "rules[1].then.decision"),
    (rule("  then:\n    decision: deny\n    reasons: x\n"), 7, "rules[1].then.reasons"),
    (rule("  when:\n  then: {decision: deny}\n"), 5, "rules[1].when"),
]
# The part stands on line 8 in both.
WHEN = [
    ("targt: x", "targt"),
    ("target: [x]", "target"),
    ("target: 42", "target"),
    ("target: '[abc'", "target"),
    ("target: 'a\\'", "target"),
    ("target: '[]'", "target"),
    ("target: '[!]'", "target"),
    ("target: '[z-a]'", "target"),
    ("targets: x", "targets"),
    ("targets: []", "targets"),
    ("targets: [a, '[']", "targets[1]"),
    ("agent_id: 1", "agent_id"),
    ("agent_ids: []", "agent_ids"),
    ("agent_ids: [a, true]", "agent_ids[1]"),
    ("step_kind: tool", "step_kind"),
    ("step_kind: [local]", "step_kind"),
    ("arguments: []", "arguments"),
    ("arguments: {}", "arguments"),
    ("arguments: {x: {}}", "arguments.x"),
    ("arguments: {x: 1}", "arguments.x"),
    ("arguments: {x: {eq: 1}}", "arguments.x.eq"),
    ("arguments: {a.b: {gt: '1'}}", "arguments.a.b.gt"),
    ("arguments: {path: {gt: many}}", "arguments.path.gt"),
    ("arguments: {x: {lt: null}}", "arguments.x.lt"),
    ("arguments: {x: {gte: true}}", "arguments.x.gte"),
    ("arguments: {x: {lte: [1]}}", "arguments.x.lte"),
    ("arguments: {x: {lte: .inf}}", "arguments.x.lte"),
    ("arguments: {x: {gt: 1e400}}", "arguments.x.gt"),
    ("arguments: {x: {gt: 0." + "1" * 2000 + "}}", "arguments.x.gt"),
    ("arguments: {x: {equals: .nan}}", "arguments.x.equals"),
    ("arguments: {x: {equals: [1, -.inf]}}", "arguments.x.equals[1]"),
    ("arguments: {x: {equals: {a: 1e999}}}", "arguments.x.equals.a"),
    ("arguments: {x: {equals: 0x" + "f" * 300 + "}}", "arguments.x.equals"),
    ("arguments: {x: {one_of: []}}", "arguments.x.one_of"),
    ("arguments: {x: {one_of: a}}", "arguments.x.one_of"),
    ("arguments: {x: {not_one_of: []}}", "arguments.x.not_one_of"),
    ("arguments: {x: {not_one_of: {a: b}}}", "arguments.x.not_one_of"),
    ("arguments: {x: {contains: 1}}", "arguments.x.contains"),
    ("arguments: {x: {contains: [a]}}", "arguments.x.contains"),
    ("arguments: {x: {exists: 'true'}}", "arguments.x.exists"),
    ("arguments: {x: {exists: yes}}", "arguments.x.exists"),
    ("arguments: {x: {regex: 1}}", "arguments.x.regex"),
    ("arguments: {x: {regex: '(?=a)'}}", "arguments.x.regex"),
    ("arguments: {x: {regex: '(?<=a)b'}}", "arguments.x.regex"),
    ("arguments: {x: {regex: '(a)\\1'}}", "arguments.x.regex"),
    ("arguments: {x: {regex: '('}}", "arguments.x.regex"),
    ("arguments: {x: {regex: 'a{10000}'}}", "arguments.x.regex"),
    ("arguments: {x: {regex: '((a{30}){30}){30}'}}", "arguments.x.regex"),
    ("arguments: {x: {regex: '[^a]{500}'}}", "arguments.x.regex"),
    ("arguments: {x: {regex: '\\pL{100}'}}", "arguments.x.regex"),
    ("arguments: {x: {regex: " + "a" * 4097 + "}}", "arguments.x.regex"),
    ("arguments:\n     ? " + "x" * 1025 + "\n     : {exists: true}", "arguments." + "x" * 1025),
]
THEN = [
    ("reason: 1", "reason"),
    ("reason: " + "x" * 4097, "reason"),
    ("approval_config: {}\n    rate_limit: {}", "rate_limit"),
    ("approval_config: [a]", "approval_config"),
    ("approval_config: {approver: [a]}", "approval_config.approver"),
    ("approval_config: {approvers: []}", "approval_config.approvers"),
    ("approval_config: {approvers: a}", "approval_config.approvers"),
    ("approval_config: {approvers: [a, '']}", "approval_config.approvers[1]"),
    ("approval_config: {approvers: [" + "a, " * 65 + "]}", "approval_config.approvers"),
    ("approval_config: {timeout: soon}", "approval_config.timeout"),
    ("approval_config: {timeout: 0}", "approval_config.timeout"),
    ("approval_config: {timeout: -1s}", "approval_config.timeout"),
    ("approval_config: {timeout: 1:30}", "approval_config.timeout"),
    ("approval_config: {timeout: 367d}", "approval_config.timeout"),
    ("approval_config: {timeout: 9000h}", "approval_config.timeout"),
    ("approval_config: {timeout: [1s]}", "approval_config.timeout"),
    ("approval_config: {message: null}", "approval_config.message"),
    ("approval_config: {separate_requester: yes}", "approval_config.separate_requester"),
    ("rate_limit: 5", "rate_limit"),
    ("rate_limit: {window: 1s}", "rate_limit"),
    ("rate_limit: {max_calls: 1}", "rate_limit"),
    ("rate_limit: {max_calls: 0, window: 1s}", "rate_limit.max_calls"),
    ("rate_limit: {max_calls: -1, window: 1s}", "rate_limit.max_calls"),
    ("rate_limit: {max_calls: 1.5, window: 1s}", "rate_limit.max_calls"),
    ("rate_limit: {max_calls: 1, window: 0s}", "rate_limit.window"),
    ("rate_limit: {max_calls: 1, window: 1s, per: agent}", "rate_limit.per"),
    ("rate_limit: {max_calls: 1, window: 1s, per_what: tenant}", "rate_limit.per_what"),
    ("rate_limit: {max_calls: 1, window: 1s, on_limiter_error: fail}", "rate_limit.on_limiter_error"),
    ("token_budget: {}", "token_budget"),
    ("token_budget: {max_total_tokens: 0}", "token_budget.max_total_tokens"),
    ("token_budget: {max_total_tokens: 1e3}", "token_budget.max_total_tokens"),
    ("token_budget: {max_tokens: 1}", "token_budget.max_tokens"),
]


@pytest.mark.parametrize(("text", "line", "field"), SYNTAX + TOP + RULES)
def test_a_bundle_that_is_not_loadable_is_refused_with_line_and_field(text: str, line: int, field: str):
    found = refusal(text)
    assert (found.line, found.field) == (line, field)


@pytest.mark.parametrize(("part", "field"), WHEN)
def test_a_wrong_condition_is_refused_with_line_and_field(part: str, field: str):
    found = refusal(when(part))
    assert found.field == f"rules[1].when.{field}"[:256]
    assert found.line in ((8,) if "\n" not in part else (9, 10))


@pytest.mark.parametrize(("part", "field"), THEN)
def test_a_wrong_consequence_is_refused_with_line_and_field(part: str, field: str):
    found = refusal(then(part))
    assert found.field == f"rules[1].then.{field}"
    assert found.line == 8 + part.count("\n")


def test_every_part_that_is_refused_stands_where_a_right_one_loads():
    load_bundle(when("target: x"))
    load_bundle(then("reason: x"))


def test_the_reason_says_what_to_do():
    assert "known here are default_action, rules" in refusal("rule: []\n").reason
    assert "allow, deny, require_approval" in refusal(rule("  then: {decision: no}")).reason
    assert "the first is on line 1" in refusal("rules: []\nrules: []\n").reason
    assert "invalid perl operator" in refusal(when("arguments: {x: {regex: '(?=a)'}}")).reason


# --- What plain scalars mean


def equals(operand: str, value: str) -> bool:
    """Whether an operand, as YAML spells it, equals a value, as JSON does."""
    head = "default_action: allow\nrules:\n- id: rule\n  then: {decision: deny}\n  when:\n    arguments:\n      x:\n"
    return is_matched(load_bundle(f"{head}        equals: {operand}\n"), call(args=f'{{"x":{value}}}'))


NOT_CONVERTED = (
    "yes",
    "no",
    "on",
    "off",
    "y",
    "n",
    "1:30",
    "2026-01-02",
    "2026-01-02T03:04:05Z",
    "1_000",
    "0b1",
    "1e",
    "0o9",
)
NOT_YAML_EITHER = ("-0x1", "<<", "=", "NO", "nUll", "0x", "1.2.3", ".")


@pytest.mark.parametrize("word", NOT_CONVERTED + NOT_YAML_EITHER)
def test_what_only_yaml_1_1_converts_is_a_string(word: str):
    assert equals(word, json.dumps(word))


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("", "null"),
        ("~", "null"),
        ("Null", "null"),
        ("True", "true"),
        ("FALSE", "false"),
        ("0o17", "15"),
        ("0xFf", "255"),
        ("+12", "12"),
        ("012", "12"),
        ("-.5", "-0.5"),
        ("5.", "5"),
        ("1E3", "1000"),
        ("'12'", '"12"'),
        ('"null"', '"null"'),
        ('"\\ud83d\\ude00\\/"', '"😀/"'),
        ("|\n          a\n          b", '"a\\nb\\n"'),
        ("{1: 2, true: x, null: y}", '{"1":2,"true":"x","null":"y"}'),
        ("- a\n        - 1.0", '["a",1]'),
    ],
)
def test_a_scalar_means_what_the_core_schema_says(word: str, value: str):
    assert equals(word if not word.startswith("- ") else "\n        " + word, value)


def test_json_is_loaded_too_however_it_is_laid_out():
    bundle = {
        "default_action": "allow",
        "rules": [{"id": "rule", "when": {"target": "t/é"}, "then": {"decision": "deny"}}],
    }
    for indent in (None, 2, "\t"):
        for is_ascii in (True, False):
            loaded = load_bundle(json.dumps(bundle, indent=indent, ensure_ascii=is_ascii))
            assert is_matched(loaded, call("t/é"))


def test_one_document_may_be_marked_as_such():
    assert load_bundle("---\nrules: []\n...\n# the end\n").default_action == "deny"


def test_a_bundle_without_rules_is_its_default_action():
    for text in ("rules: []", "{}", "default_action: deny"):
        assert judged(load_bundle(text), call()).decision == "deny"
    assert judged(load_bundle("default_action: allow"), call()).decision == "allow"
