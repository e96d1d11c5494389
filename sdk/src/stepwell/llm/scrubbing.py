"""What must not be kept is taken out of a call before it is recorded: out of its request, and out of its answer."""

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

Scrub = Callable[[str], str]
"""Returns a text without what must not be kept. It has to return the same for the same text, always: the arguments of a
step are what the step is found by.
"""

SCRUBBED = "[scrubbed]"


def scrubbing(patterns: Iterable[str], *, replacement: str = SCRUBBED) -> Scrub:
    """Return a function that replaces what any of the regular expressions finds.

    Raises ValueError for one that is none, or that finds the empty text.
    """
    compiled: list[re.Pattern[str]] = []
    for pattern in patterns:
        try:
            found = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        if found.search("") is not None:
            raise ValueError(f"{pattern!r} finds the empty text")
        compiled.append(found)

    def scrub(text: str) -> str:
        for each in compiled:
            text = each.sub(lambda _: replacement, text)
        return text

    return scrub


def scrubbed(value: Any, scrub: Scrub) -> Any:
    """Return a JSON value with every text in it scrubbed. Names of members stay what they are."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {name: scrubbed(each, scrub) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [scrubbed(each, scrub) for each in cast("list[Any]", value)]
    return value
