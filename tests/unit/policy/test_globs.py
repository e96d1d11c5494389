"""Globs: the table of the contract, and what is no glob."""

import time

import pytest

from kernel.domain.errors import Invalid
from kernel.domain.policy.globs import any_glob, compile_glob
from kernel.domain.policy.limits import GLOB_CHARS_MAX
from tests.unit.policy.bundles import call, is_matched, one_rule

TABLE = [
    ("*", "openai/gpt-4o", True),
    ("*", "", True),
    ("openai/*", "openai/o/x.y", True),
    ("openai/*", "openai", False),
    ("gpt-?", "gpt-4", True),
    ("gpt-?", "gpt-40", False),
    ("a?c", "a/c", True),
    ("*.read", "fs.read", True),
    ("fs.*", "fs.", True),
    ("{a,b}", "a", False),
    ("fs.*", "fs", False),
    ("web_search", "Web_search", False),
    ("web_search", "web_search ", False),
    ("v[0-9]", "v7", True),
    ("v[0-9]", "v10", False),
    ("v[!0-9]", "vx", True),
    ("v[!0-9]", "v7", False),
    ("v[^0-9]", "vx", True),
    (r"[a\-z]", "-", True),
    ("{a,b}", "{a,b}", True),
    (r"[a\-z]", "m", False),
    ("[a-]x", "-x", True),
    (r"a\*b", "a*b", True),
    (r"a\*b", "axb", False),
    ("**", "x/y", True),
    ("a*b*c", "aXbYbZc", True),
    ("?", "é", True),
    ("x]", "x]", True),
    ("{*}", "{x}", True),
]
MORE = [
    ("", "", True),
    ("", "x", False),
    ("?", "", False),
    ("?", "😀", True),
    ("?", "e\u0301", False),
    ("*", "a\nb\0", True),
    ("a?b", "a\nb", True),
    ("*.read", ".read", True),
    ("a*a", "a", False),
    ("a*a", "aa", True),
    ("a*b*a", "aba", True),
    ("ab*ba", "aba", False),
    ("[-a]", "-", True),
    ("[a-c-]", "-", True),
    ("[a-cb-e]", "e", True),
    ("[a-cb-e]", "f", False),
    ("[!a-cx]", "b", False),
    ("[!a-cx]", "\U0010ffff", True),
    ("[!\0-a]", "\0", False),
    ("[!a]", "", False),
    ("[*]", "*", True),
    ("[[]", "[", True),
    (r"[\]]", "]", True),
    (r"[\]-a]", "_", True),
    (r"\a", "a", True),
    (r"\\", "\\", True),
    ("[\u0430-\u044f]", "\u0436", True),
    ("[😀-😂]", "😁", True),
    ("?*?", "a", False),
    ("?*?", "ab", True),
    ("*?b*", "xxb", True),
    ("*?b*", "b", False),
    ("a*[0-9]?c*z", "a__1_c__z", True),
    ("a*[0-9]?c*z", "a__1__c_z", False),
    ("[ab]*", "b", True),
    ("[ab]*", "c", False),
    ("*[ab]", "xa", True),
    ("*[ab]", "ax", False),
]
MALFORMED = ["[abc", "a\\", "[]", "[!]", "[^]", "[z-a]", "[", "[!", "[\\", "[a-", "[a\\", "*[", "[]a]", "x[a-\\"]


@pytest.mark.parametrize(("pattern", "text", "is_match"), TABLE + MORE)
def test_a_glob_matches_what_the_table_says(pattern: str, text: str, is_match: bool):
    assert compile_glob(pattern).matches(text) is is_match


@pytest.mark.parametrize(("pattern", "text", "is_match"), TABLE + MORE)
def test_a_glob_in_a_bundle_matches_alike(pattern: str, text: str, is_match: bool):
    assert is_matched(one_rule({"target": pattern}), call(text)) is is_match
    assert is_matched(one_rule({"targets": ["nothing", pattern]}), call(text)) is is_match


@pytest.mark.parametrize("pattern", MALFORMED)
def test_a_malformed_glob_is_refused(pattern: str):
    with pytest.raises(Invalid, match="glob"):
        compile_glob(pattern)


def test_a_glob_that_is_too_long_is_refused():
    compile_glob("a" * GLOB_CHARS_MAX)
    with pytest.raises(Invalid, match="longer than"):
        compile_glob("a" * (GLOB_CHARS_MAX + 1))


def test_any_of_several_globs_is_enough():
    matches = any_glob([compile_glob("a*"), compile_glob("*z")])
    assert matches("ab")
    assert matches("yz")
    assert not matches("ba")


@pytest.mark.parametrize("pattern", ["*a" * 200 + "*c", "*?a" * 150 + "*c", "*[ab]a?" * 100 + "*c", "?" * 512 + "*b"])
def test_a_hostile_glob_takes_time_in_proportion_to_the_text(pattern: str):
    matches = compile_glob(pattern).matches
    started = time.process_time()
    for _ in range(20):
        assert not matches("a" * 1024)
    # A search that tries everything again would need more steps than there is time in the universe.
    assert time.process_time() - started < 1
