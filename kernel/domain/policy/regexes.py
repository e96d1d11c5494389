"""Regexes that users write, compiled by RE2: it never backtracks, and its memory and programs are bounded.

The binding itself is called, not the imitation of Python's `re` around it: that one takes twice the time of a search,
and keeps the patterns of all tenants in one cache of the process.
"""

from typing import Any, cast

import msgspec
import re2  # pyright: ignore[reportMissingTypeStubs] - the package is untyped

from kernel.domain.errors import Invalid
from kernel.domain.policy.limits import REGEX_CHARS_MAX, REGEX_MEMORY_BYTES_MAX, REGEX_PROGRAM_MAX

_BINDING = cast("Any", re2)._re2.RE2
_ANYWHERE = _BINDING.Anchor.UNANCHORED
_NOWHERE = -1


class Regex(msgspec.Struct, frozen=True):
    """A compiled regex; `program` is its size in instructions."""

    match: Any
    program: int

    def is_in(self, text: bytes) -> bool:
        """Whether it matches anywhere in UTF-8 text."""
        return self.match(_ANYWHERE, text, 0, len(text))[0][0] != _NOWHERE


def compile_regex(pattern: str) -> Regex:
    """Compile a regex, or raise Invalid saying why it cannot be had."""
    if len(pattern) > REGEX_CHARS_MAX:
        raise Invalid(f"the regex is longer than {REGEX_CHARS_MAX} characters")
    compiled = _BINDING(pattern.encode(), _options())
    if not compiled.ok():
        raise Invalid(f"RE2 refuses the regex: {compiled.error().decode(errors='replace')}")
    program, reverse = compiled.ProgramSize(), compiled.ReverseProgramSize()
    # The program that runs backwards finds where a match begins; its size is -1 where there is no room for it.
    if reverse < 0 or max(program, reverse) > REGEX_PROGRAM_MAX:
        raise Invalid(f"the regex is too large: {program} instructions, and {REGEX_PROGRAM_MAX} are allowed")
    return Regex(compiled.Match, max(program, reverse))


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES_MAX
    # Without captures RE2 keeps to its automaton, which is many times faster.
    options.never_capture = True
    options.log_errors = False
    return options
