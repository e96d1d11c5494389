"""One break of the code, as data."""

import msgspec

EXIT_FAILED = 1
"""How pytest ends when tests ran and one of them failed."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A break, and the tests of which at least one must fail where it is applied.

    `old` stands exactly once in the file. Tests are node ids as pytest takes them. `promise` is what is broken: a
    guarantee (G1 to G9) or a decision of the design (D1 to D8).
    """

    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    exit_code: int = EXIT_FAILED
    """Another one only where the break cannot but end pytest in another way."""


def fault_of(mutant: Mutant, text: str) -> str:
    """Return why the break cannot be applied to this text, the empty string where it can."""
    count = text.count(mutant.old)
    if count != 1:
        return f"its old text stands {count} times in {mutant.file}, not once"
    return "it changes nothing" if mutant.old == mutant.new else ""


def broken(mutant: Mutant, text: str) -> str:
    """Return the text with the break in it."""
    return text.replace(mutant.old, mutant.new)
