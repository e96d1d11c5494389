"""Bodies that stand outside of their entry: which ones, how their text is cut, and how it is put together again."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from kernel.domain.errors import InvariantBroken
from schemas.bodies import Spilled

SHARED_BYTES_MIN = 16 * 1024
"""From here on the arguments of an LLM call are cut, as the next call will likely begin with the same."""
ENTRY_BODIES_BYTES_MAX = 384 * 1024
"""What the bodies of one entry may take in it; with all else an entry stays below 512 KiB."""
FINE_BYTES, FINE_UP_TO = 4 * 1024, 1024 * 1024
COARSE_BYTES = 64 * 1024
"""Pieces of a shared text are fine where conversations grow; all others are coarse."""


def places_to_spill(sizes: Mapping[str, int], *, shared: Collection[str] = ()) -> list[str]:
    """Return the places whose bodies are to stand elsewhere: shared ones from a size on, then the largest until the
    rest fits into an entry.
    """
    spilled = [place for place in shared if sizes.get(place, 0) >= SHARED_BYTES_MIN]
    left = sum(size for place, size in sizes.items() if place not in spilled)
    for place, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        if left <= ENTRY_BODIES_BYTES_MAX:
            break
        if place not in spilled:
            spilled.append(place)
            left -= size
    return spilled


def cut(text: bytes, *, is_shared: bool) -> tuple[list[bytes], str]:
    """Return the pieces of a JSON text and the rest, which stands in the entry.

    Where a shared text is cut depends on nothing but what stands before, and no character is cut. A conversation that
    is sent again with one message more is cut as before, so its pieces are the same; its rest, which will be another,
    is shorter than a piece. A text that nothing else begins with leaves no rest.
    """
    pieces: list[bytes] = []
    at = 0
    for end in _ends(len(text), fine_up_to=FINE_UP_TO if is_shared else 0):
        while end < len(text) and _continues(text[end]):
            end -= 1
        pieces.append(text[at:end])
        at = end
    rest = text[at:]
    if is_shared or not rest:
        return pieces, rest.decode()
    return [*pieces, rest], ""


def spilled_as(text: bytes, pieces: Sequence[int], rest: str) -> Spilled:
    """Return where the text of a body is, its pieces having been stored at these sequences."""
    return Spilled(size_bytes=len(text), sha256=hashlib.sha256(text).digest(), pieces=tuple(pieces), rest=rest)


def joined(spilled: Spilled, pieces: Sequence[bytes]) -> bytes:
    """Return the text of a body. Raises InvariantBroken where it is not the one that was stored."""
    text = b"".join((*pieces, spilled.rest.encode()))
    if len(text) != spilled.size_bytes or hashlib.sha256(text).digest() != spilled.sha256:
        raise InvariantBroken("the pieces of a body are not those that were stored")
    return text


def _continues(byte: int) -> bool:
    """Whether a byte of UTF-8 continues a character."""
    return byte & 0b1100_0000 == 0b1000_0000


def _ends(size: int, *, fine_up_to: int) -> Iterator[int]:
    """Return where a text of this size is cut, but for the character that may stand there."""
    yield from range(FINE_BYTES, min(size, fine_up_to) + 1, FINE_BYTES)
    yield from range(fine_up_to + COARSE_BYTES, size + 1, COARSE_BYTES)
