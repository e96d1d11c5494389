"""The commands around policies: what they say, and with what code they end."""

from pathlib import Path

import pytest

from kernel.cli import main

BUNDLE = """\
default_action: deny
rules:
- {id: other, priority: 0, when: {target: other}, then: {decision: deny}}
- id: big
  priority: 1
  when: {target: pay, arguments: {amount: {gt: 100}}}
  then: {decision: require_approval, approval_config: {approvers: [ann], timeout: 1h, separate_requester: true}}
- {id: small, priority: 2, when: {target: pay}, then: {decision: allow, rate_limit: {max_calls: 2, window: 1m}}}
- {id: model, priority: 3, when: {agent_id: a}, then: {decision: allow, token_budget: {max_total_tokens: 9}}}
- {id: stop, priority: 4, when: {target: stop}, then: {decision: deny, reason: never}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.yaml"
    path.write_text(BUNDLE, encoding="utf-8")
    return path


def test_a_bundle_that_loads_is_listed_in_its_order(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["policy", "check", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "5 rules" in lines[0]
    assert lines[1:] == [
        "  0: other: deny",
        "  1: big: require_approval",
        "  2: small: allow",
        "  3: model: allow",
        "  4: stop: deny",
        "  otherwise: deny",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["--target", "pay", "--args", '{"amount":1}'],
            0,
            ["big: does not match, arguments.amount.gt", "small: matches", "2 calls in 60 s", "allowed"],
        ),
        (
            ["--target", "pay", "--args", '{"amount":101}'],
            3,
            ["other: does not match, target", "big: matches", "by ann, but never", "needs an approval"],
        ),
        (["--target", "stop"], 1, ["stop: matches in every part", "denied: never"]),
        (["--kind", "llm_call", "--agent", "a"], 0, ["model: matches", "used 9 tokens"]),
        (["--target", "x"], 1, ["default: no rule matches, so default_action", "denied: policy_denied"]),
        (["--kind", "local"], 0, ["local: no rule matches", "allowed"]),
    ],
)
def test_a_call_is_judged_and_explained(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: list[str]
):
    assert main(["policy", "test", str(file), *arguments]) == code
    out = capsys.readouterr().out
    places = [out.find(text) for text in said]
    assert -1 not in places, out
    assert places == sorted(places)


def test_anybody_may_approve_where_no_approver_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "b.yaml"
    path.write_text("rules: [{id: r, then: {decision: require_approval}}]", encoding="utf-8")
    assert main(["policy", "test", str(path)]) == 3
    assert "whoever may decide approvals, within 900 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "within 900 s, or what STEPWELL_APPROVAL_TIMEOUT of the server says\n"),
        (", approval_config: {approvers: [a]}", "within 900 s, or what STEPWELL_APPROVAL_TIMEOUT of the server says\n"),
        (", approval_config: {timeout: 15m}", "within 900 s\n"),
    ],
)
def test_a_time_that_no_rule_names_is_told_as_the_servers_to_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, said: str
):
    path = tmp_path / "b.yaml"
    path.write_text(f"rules: [{{id: r, then: {{decision: require_approval{config}}}}}]", encoding="utf-8")
    assert main(["policy", "test", str(path)]) == 3
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"rules:\n- id: r\n  then: {decision: no}\n", "line 3: rules[0].then.decision: unknown word"),
        (b"rules: []\n\xff", "line 2: not UTF-8"),
        (b"", "line 1: the bundle is empty"),
    ],
)
def test_a_wrong_bundle_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: bytes, said: str
):
    path = tmp_path / "b.yaml"
    path.write_bytes(raw)
    for command in ("check", "test"):
        assert main(["policy", command, str(path)]) == 2
        found = capsys.readouterr()
        assert found.out == ""
        assert found.err.startswith(f"stepwell: {path}, {said}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--args", "{"], "--args: not valid JSON; quote"),
        (["--args", '{"a":[1e400]}'], "--args at a[0]: the number"),
        (["--target", "\udcff"], "not UTF-8"),
        (["--args", "\udcff"], "not UTF-8"),
    ],
)
def test_what_is_no_call_is_refused(file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str):
    assert main(["policy", "test", str(file), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["policy", "check", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml cannot be read: No such file" in capsys.readouterr().err


def test_the_exit_codes_are_in_the_help(capsys: pytest.CaptureFixture[str]):
    for command in ("check", "test"):
        with pytest.raises(SystemExit):
            main(["policy", command, "--help"])
        assert "exit codes: 0" in capsys.readouterr().out
