"""Every bundle on the page about policies is what the page says it is."""

import re
from pathlib import Path

import pytest

from kernel.domain.errors import BundleInvalid
from kernel.domain.policy import limits, load_bundle
from tests.unit.policy.bundles import call, judged

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```yaml( wrong)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RIGHT = [text for mark, text in BLOCKS if not mark]
WRONG = [text for mark, text in BLOCKS if mark]


def test_the_page_has_bundles_of_both_kinds():
    assert len(RIGHT) >= 4
    assert len(WRONG) >= 5
    assert PAGE.count("```yaml") == len(BLOCKS)


@pytest.mark.parametrize("text", RIGHT)
def test_a_bundle_on_the_page_is_loaded(text: str):
    assert load_bundle(text).rules


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_bundle_on_the_page_is_refused_where_it_says(text: str):
    said = re.search(r"# line (\d+), ([^:]+): ", text)
    assert said is not None
    with pytest.raises(BundleInvalid) as refused:
        load_bundle(text)
    assert (str(refused.value.line), refused.value.field) == said.groups()


def test_the_first_bundle_decides_as_the_page_tells():
    bundle = load_bundle(RIGHT[0])
    assert judged(bundle, call("shell.run")).reason == "shell_is_never_allowed"
    assert judged(bundle, call("pay", '{"amount":250}')).decision == "require_approval"
    assert judged(bundle, call("pay", '{"amount":100.0}')).rule_id == "small-payments"
    assert judged(bundle, call("pay")).rule_id == "default"
    assert judged(bundle, call("fs.read", '{"path":"/srv/data/../x"}')).rule_id == "default"
    assert judged(bundle, call("openai/o/x", kind="llm_call")).token_budget_max == 200_000


def test_an_argument_that_is_left_out_is_denied_as_the_page_advises():
    bundle = next(load_bundle(text) for text in RIGHT if "no-amount" in text)
    assert [judged(bundle, call("pay", args)).decision for args in ("{}", '{"amount":101}', '{"amount":1}')] == [
        "deny",
        "deny",
        "allow",
    ]


def test_the_page_names_the_limits_as_they_are():
    for limit in (
        limits.RULES_MAX,
        limits.NODES_MAX,
        limits.PREDICATES_MAX,
        limits.GLOBS_MAX,
        limits.GLOB_CHARS_MAX,
        limits.GLOB_WILD_CHARS_MAX,
        limits.REGEX_CHARS_MAX,
        limits.REGEX_PROGRAM_MAX,
        limits.TEXT_CHARS_MAX,
        limits.NUMBER_CHARS_MAX,
    ):
        assert f"{limit:,}" in PAGE
    for limit in (limits.NESTING_MAX, limits.REGEXES_MAX, limits.NAME_CHARS_MAX, limits.APPROVERS_MAX):
        assert f" {limit}" in PAGE
