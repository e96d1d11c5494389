"""Cases C5, P1, P2 and P3: a rule judges what is hashed, recorded and shown, and the dry run judges as the door does.

The tables themselves are conformance K82 to K86, and `tests/unit/policy` has them for every operator.
"""

import ast
import json
import time
from pathlib import Path
from typing import Any

import pytest

from kernel.cli import main
from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.policy import ALLOW, DENY, bundle, governed, load, rule, short, submit_text
from tests.tidy.sources import ROOT

MEBIBYTE = 1024 * 1024
IN_TIME_SECONDS = 10.0
EXIT_CODES = {"proceed": 0, "denied": 1}
Vector = tuple[str, str, str]
"""Target, args as JSON text, and the rule that decides."""


async def same_verdicts(kernel: Kernel, text: str, vectors: list[Vector], folder: Path, capsys: Any) -> None:
    """Make each call by the door and by `stepwell policy test`: both are decided by the rule that the vector names."""
    path = folder / "bundle.json"
    path.write_text(text, "utf-8")
    agent = await kernel.agent()
    await load(agent, text)
    lease = await agent.start()
    for target, args, wanted in vectors:
        decision = accepted(await submit_text(lease, args, target=target))
        assert decision["rule_id"] == wanted, (target, args, decision)
        code = main(["policy", "test", str(path), "--target", target, "--args", args, "--agent", agent.id])
        said = capsys.readouterr().out
        assert code == EXIT_CODES[decision["decision"]], (target, args, said)
        # The rules that do not match come first, each on a line of its own, and the one that decides last.
        assert f"  {wanted}: " in said
        assert "does not match" not in said.partition(f"  {wanted}: ")[2]


# ---------------------------------------------------------------- C5

PAYS = bundle(
    rule("large", DENY, when={"target": "pay", "arguments": {"amount": {"gt": 100}}}, priority=0),
    rule("forbidden", DENY, when={"target": "wipe"}, priority=1),
    default=ALLOW,
)


@pytest.mark.parametrize(
    ("sent", "used", "rule_id"),
    [
        ('{"amount":1,"amount":9999}', '{"amount":9999}', "large"),
        ('{"amount":9999,"amount":1}', '{"amount":1}', "default"),
        ('{"amount":1,"am\\u006funt":9999}', '{"amount":9999}', "large"),
        ('{"am\\u006funt":9999,"amount":1}', '{"amount":1}', "default"),
        ('{"to":{"x":1,"x":2},"amount":100.0,"amount":100.5}', '{"to":{"x":2},"amount":100.5}', "large"),
    ],
)
async def test_c5_policy_judges_the_value_that_is_hashed_recorded_and_replayed(
    kernel: Kernel, sent: str, used: str, rule_id: str
) -> None:
    """Dropped: that duplicates are refused. By section 1 of the contract the last is the value, for every purpose."""
    agent = await kernel.agent()
    await load(agent, PAYS)
    first, second = await agent.start(), await agent.start()

    decision = accepted(await submit_text(first, sent, target="pay"))
    plain = accepted(await submit_text(second, used, target="pay"))

    assert short(decision) == short(plain)
    assert decision["rule_id"] == rule_id
    steps = [
        await kernel.step(lease.execution_id, each["step_id"]) for lease, each in ((first, decision), (second, plain))
    ]
    assert [step["args"] for step in steps] == [json.loads(used)] * 2
    assert steps[0]["args_hash"] == steps[1]["args_hash"]


@pytest.mark.parametrize(
    ("targets", "rule_id"),
    [(("look", "wipe"), "forbidden"), (("wipe", "look"), "default")],
)
async def test_c5_policy_judges_the_target_that_is_recorded(
    kernel: Kernel, targets: tuple[str, str], rule_id: str
) -> None:
    agent = await kernel.agent()
    await load(agent, PAYS)
    lease = await agent.start()
    for second in ('"target"', '"t\\u0061rget"'):
        body = f'{{"kind":"tool_call","target":"{targets[0]}",{second}:"{targets[1]}","args":{{}}}}'

        decision = accepted(await lease.request("/steps", body.encode()))

        assert decision["rule_id"] == rule_id
        assert (await kernel.step(lease.execution_id, decision["step_id"]))["target"] == targets[1]


# ---------------------------------------------------------------- P1

GLOBS = bundle(
    rule("shell", DENY, when={"target": "shell.*"}, priority=0),
    rule("files", DENY, when={"target": "fs.*"}, priority=1),
    rule("braces", DENY, when={"target": "{a,b}"}, priority=2),
    rule("star", DENY, when={"target": "lit\\*eral"}, priority=3),
    rule("any-slash", DENY, when={"target": "open/**/x"}, priority=4),
    rule("empty", DENY, when={"target": ""}, priority=5),
    rule("removes", DENY, when={"arguments": {"cmd": {"contains": "rm -rf"}}}, priority=6),
    rule("removes-by-regex", DENY, when={"arguments": {"cmd": {"regex": r"(?is)rm\s+-rf"}}}, priority=7),
    default=ALLOW,
)
TRIED_GLOBS: list[Vector] = [
    ("shell.run", "{}", "shell"),
    ("shell.run/../x", "{}", "shell"),
    ("shell.a\nb", "{}", "shell"),
    ("shell", "{}", "default"),
    ("Shell.run", "{}", "default"),
    ("fs", "{}", "default"),
    ("fs.read", "{}", "files"),
    ("fs.read.x", "{}", "files"),
    ("fs/read", "{}", "default"),
    ("fs.", "{}", "files"),
    ("a", "{}", "default"),
    ("{a,b}", "{}", "braces"),
    ("lit*eral", "{}", "star"),
    ("litXeral", "{}", "default"),
    ("open/a/b/x", "{}", "any-slash"),
    ("", "{}", "empty"),
    ("run", '{"cmd":"rm -rf tmp"}', "removes"),
    ("run", '{"cmd":"rm -rf /"}', "removes"),
    ("run", '{"cmd":"cd /\\nrm -rf .\\n"}', "removes"),
    ("run", '{"cmd":"rm -rf "}', "removes"),
    ("run", '{"cmd":"RM -RF /"}', "removes-by-regex"),
    ("run", '{"cmd":"rm  \\n-rf /"}', "removes-by-regex"),
    ("run", '{"cmd":["rm -rf /"]}', "removes"),
    ("run", '{"cmd":"rm -r -f /"}', "default"),
]


async def test_p1_globs_cross_every_character_and_the_dry_run_judges_alike(
    kernel: Kernel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dropped: globs on arguments. The contract has `contains` and `regex` there, which see every character too."""
    await same_verdicts(kernel, GLOBS, TRIED_GLOBS, tmp_path, capsys)


async def test_p1_a_malformed_glob_fails_the_load_and_no_call(
    kernel: Kernel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = await governed(kernel, rule("old", ALLOW))
    lease = await agent.start()
    for pattern in ("[", "[abc", "a\\", "[z-a]"):
        text = bundle(rule("new", DENY, when={"target": pattern}))
        answer = await kernel.post(f"/v0/policies/{agent.id}", {"bundle": text})
        assert details(answer, 400, "validation_error") == {"line": 1, "field": "rules[0].when.target"}, pattern
        path = tmp_path / "bundle.json"
        path.write_text(text, "utf-8")
        assert main(["policy", "check", str(path)]) == 2
        assert "line 1: rules[0].when.target" in capsys.readouterr().err
        assert (await lease.decide("tool"))["rule_id"] == "old"


# ---------------------------------------------------------------- P2

REGIONS = bundle(
    rule("outside", DENY, when={"arguments": {"region": {"not_one_of": ["eu"]}}}, priority=0),
    rule("deep", DENY, when={"arguments": {"where.region": {"not_equals": "eu"}}}, priority=1),
    default=ALLOW,
)
TRIED_REGIONS: list[Vector] = [
    ("t", '{"region":"eu","where":{"region":"eu"}}', "default"),
    ("t", "{}", "outside"),
    ("t", "null", "outside"),
    ("t", '{"region":null}', "outside"),
    ("t", '{"region":["eu"]}', "outside"),
    ("t", '{"region":7}', "outside"),
    ("t", '{"region":"EU"}', "outside"),
    ("t", '["eu"]', "outside"),
    ("t", '"eu"', "outside"),
    # The parent is left out, is null, is text, is a list, or is a list that an index leads into.
    ("t", '{"region":"eu"}', "deep"),
    ("t", '{"region":"eu","where":null}', "deep"),
    ("t", '{"region":"eu","where":"eu"}', "deep"),
    ("t", '{"region":"eu","where":["eu"]}', "deep"),
    ("t", '{"region":"eu","where":[{"region":"eu"}]}', "deep"),
    ("t", '{"region":"eu","where":{"region":["eu"]}}', "deep"),
    # A member of that very name comes before the way through its parts.
    ("t", '{"region":"eu","where.region":"eu"}', "default"),
]
PATHS = bundle(
    rule("tmp", ALLOW, when={"arguments": {"path": {"regex": "^/tmp/"}}}, priority=0),
    rule("second", ALLOW, when={"arguments": {"paths.1": {"regex": "^/tmp/"}}}, priority=1),
    rule("not-root", ALLOW, when={"arguments": {"user": {"not_equals": "root"}}}, priority=2),
)
TRIED_PATHS: list[Vector] = [
    ("t", '{"path":"/tmp/x"}', "tmp"),
    ("t", '{"paths":["/x","/tmp/y"]}', "second"),
    ("t", '{"user":"ann"}', "not-root"),
    *[
        ("t", args, "default")
        for args in (
            *("{}", "null", '"/tmp/x"', '["/tmp/x"]'),
            *('{"path":null}', '{"path":["/tmp/x"]}', '{"path":{"path":"/tmp/x"}}', '{"path":"/x\\n/tmp/y"}'),
            *('{"paths":["/tmp/x"]}', '{"paths":{"0":"/tmp/x"}}', '{"paths":"/tmp/x"}'),
            *('{"user":"root"}', '{"user":null}', '{"user":["ann"]}', '{"user":1}'),
        )
    ],
]


@pytest.mark.parametrize(
    ("text", "vectors"), [(REGIONS, TRIED_REGIONS), (PATHS, TRIED_PATHS)], ids=["deny rules", "allow rules"]
)
async def test_p2_leaving_an_argument_out_escapes_no_negated_deny_rule_and_meets_no_allow_rule(
    kernel: Kernel, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, vectors: list[Vector]
) -> None:
    """Dropped: that every operator of a deny rule fires on what is missing. By the truth table of section 8 a claim
    about some value (`equals`, `one_of`, `contains`, `regex`, `gt`) holds of no missing one in either kind of rule; who
    wants that denied adds a rule with `exists: false`, as `docs/policy.md` says.
    """
    await same_verdicts(kernel, text, vectors, tmp_path, capsys)


async def test_p2_a_denial_names_the_rule_and_its_reason(kernel: Kernel) -> None:
    agent = await governed(kernel, rule("named", DENY, reason="only_in_eu"), default=ALLOW)
    lease = await agent.start()

    decision = await lease.decide("t")

    assert short(decision) == ("denied", "named", "only_in_eu")
    denied = await kernel.wait_for_event(lease.execution_id, "step.denied")
    assert denied["payload"]["error"] == {"reason": "only_in_eu", "rule_id": "named"}


# ---------------------------------------------------------------- P3

WRONG_REGEXES = (
    "(?=a)",
    "(?<!a)b",
    "(a)\\1",
    "a{10000}",
    "((a{100}){100}){100}",
    "[a-z]{1000}[0-9]{1000}(",
    "a" * 5000,
)
LINES = (
    "default_action: deny\nrules:\n- id: new\n  when:\n    arguments:\n      cmd: {{regex: {0}}}\n"
    "  then: {{decision: allow}}\n"
)


async def test_p3_what_re2_does_not_take_is_refused_with_its_line_and_the_old_policy_decides(kernel: Kernel) -> None:
    agent = await governed(kernel, rule("old", ALLOW))
    lease = await agent.start()
    for pattern in WRONG_REGEXES:
        text = LINES.format(json.dumps(pattern))

        answer = await kernel.post(f"/v0/policies/{agent.id}", {"bundle": text})

        wanted = {"line": 6, "field": "rules[0].when.arguments.cmd.regex"}
        assert details(answer, 400, "validation_error") == wanted, pattern[:40]
        assert (await lease.decide("tool"))["rule_id"] == "old"


async def test_p3_a_pattern_is_searched_for_and_its_ends_are_those_of_the_text(
    kernel: Kernel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = bundle(
        rule("whole", ALLOW, when={"arguments": {"cmd": {"regex": "^ok$"}}}, priority=0),
        rule("part", DENY, when={"arguments": {"cmd": {"regex": "rm"}}}, priority=1),
    )
    vectors: list[Vector] = [
        ("t", '{"cmd":"ok"}', "whole"),
        ("t", '{"cmd":"ok\\nrm"}', "part"),
        ("t", '{"cmd":"ok\\n"}', "default"),
        ("t", '{"cmd":"please rm it"}', "part"),
        ("t", '{"cmd":"okay"}', "default"),
    ]
    await same_verdicts(kernel, text, vectors, tmp_path, capsys)


async def test_p3_hostile_patterns_on_a_mebibyte_hold_up_neither_their_call_nor_another(kernel: Kernel) -> None:
    hostile = ("(a+)+$", "((a|aa)+)+$", "(a|b|ab)*c", "(.*)(.*)(.*)[^a]$")
    rules = [
        rule(f"hostile-{at}", DENY, when={"arguments": {"x": {"regex": pattern}}}, priority=at)
        for at, pattern in enumerate(hostile)
    ]
    lease = await (await governed(kernel, *rules, default=ALLOW)).start()
    beside: Lease = await (await governed(kernel, rule("open", ALLOW))).start()
    started_at = time.monotonic()

    decision = accepted(await submit_text(lease, json.dumps({"x": "a" * (MEBIBYTE - 10) + "!b"})))

    assert decision["rule_id"] == "hostile-3"
    assert (await beside.decide("t"))["rule_id"] == "open"
    assert time.monotonic() - started_at < IN_TIME_SECONDS


def test_p3_no_code_of_policy_uses_the_engine_that_backtracks_on_what_a_user_wrote() -> None:
    """Python's `re` is imported by the reader of documents alone, whose patterns are its own constants."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "kernel" / "domain" / "policy").glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
        froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if "re" in imported | froms:
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_of_re(node.func)]
            found[path.name] = [type(argument).__name__ for call in calls for argument in call.args[:1]]
    assert set(found) == {"document.py"}
    assert set(found["document.py"]) <= {"Constant"}


def _is_of_re(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"
