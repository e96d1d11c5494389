"""Bodies that stand outside of their entry: how they are cut and joined, and which ones."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.errors import InvariantBroken
from kernel.domain.spilling import (
    COARSE_BYTES,
    ENTRY_BODIES_BYTES_MAX,
    FINE_BYTES,
    FINE_UP_TO,
    SHARED_BYTES_MIN,
    cut,
    joined,
    places_to_spill,
    spilled_as,
)

MIB = 1024 * 1024
sizes = st.one_of(
    st.integers(0, 4 * FINE_BYTES),
    st.builds(lambda at, by: max(0, at + by), st.sampled_from([FINE_BYTES, FINE_UP_TO, 2 * MIB]), st.integers(-2, 2)),
    st.integers(0, 3 * MIB),
)


def text_of(size: int, *, seed: int = 1, characters: str = "") -> bytes:
    """A text of at most so many bytes of which no two pieces are equal."""
    digits = "".join(hashlib.sha256(b"%d.%d" % (seed, at)).hexdigest() for at in range(size // 64 + 1))
    spelled = digits.translate(
        {ord(digit): other for digit, other in zip("0123456789abcdef", characters, strict=False)}
    )
    return spelled.encode()[:size].decode(errors="ignore").encode()


WIDE = "é世🙂"
"""Characters of two, three and four bytes."""


@given(sizes)
def test_pieces_and_rest_are_the_text_and_no_piece_is_empty(size: int) -> None:
    text = text_of(size)

    pieces, rest = cut(text, is_shared=True)

    assert b"".join((*pieces, rest.encode())) == text
    assert {len(piece) for piece in pieces} <= {FINE_BYTES, COARSE_BYTES}
    assert len(rest) < (FINE_BYTES if size < FINE_UP_TO else COARSE_BYTES)


@given(sizes, st.booleans())
def test_no_character_is_cut(size: int, is_shared: bool) -> None:
    text = text_of(size, characters=WIDE)

    pieces, rest = cut(text, is_shared=is_shared)

    assert "".join((*(piece.decode() for piece in pieces), rest)).encode() == text
    assert len(rest.encode()) < (FINE_BYTES if size < FINE_UP_TO else COARSE_BYTES) + len("🙂".encode())


@given(sizes)
def test_a_text_that_nothing_begins_with_has_coarse_pieces_and_no_rest(size: int) -> None:
    text = text_of(size)

    pieces, rest = cut(text, is_shared=False)

    assert (b"".join(pieces), rest) == (text, "")
    assert all(len(piece) == COARSE_BYTES for piece in pieces[:-1])
    assert all(0 < len(piece) <= COARSE_BYTES for piece in pieces)


@given(sizes, st.text(max_size=3 * FINE_BYTES).map(str.encode))
def test_what_goes_on_has_the_same_pieces_before(size: int, more: bytes) -> None:
    text = text_of(size, characters=WIDE)

    pieces, _ = cut(text, is_shared=True)
    longer, _ = cut(text + more, is_shared=True)

    assert longer[: len(pieces)] == pieces


@given(sizes, st.booleans())
def test_what_was_cut_is_joined_to_the_same(size: int, is_shared: bool) -> None:
    text = text_of(size)
    pieces, rest = cut(text, is_shared=is_shared)

    assert joined(spilled_as(text, range(1, len(pieces) + 1), rest), pieces) == text


@pytest.mark.parametrize("change", ["order", "missing", "byte", "rest"])
def test_pieces_that_are_others_are_noticed(change: str) -> None:
    text = text_of(5 * FINE_BYTES + 7)
    pieces, rest = cut(text, is_shared=True)
    spilled = spilled_as(text, range(5), rest)
    match change:
        case "order":
            pieces.reverse()
        case "missing":
            pieces.pop()
        case "byte":
            pieces[2] = pieces[2][:-1] + bytes([pieces[2][-1] ^ 1])
        case _:
            spilled = spilled_as(text, range(5), rest[:-1] + "x")
            assert spilled.rest != rest

    with pytest.raises(InvariantBroken):
        joined(spilled, pieces)


def test_a_text_of_32_mib_has_some_hundreds_of_pieces() -> None:
    shared, _ = cut(bytes(32 * MIB), is_shared=True)
    apart, _ = cut(bytes(32 * MIB), is_shared=False)

    assert len(shared) == FINE_UP_TO // FINE_BYTES + 31 * MIB // COARSE_BYTES
    assert len(apart) == 32 * MIB // COARSE_BYTES


@given(
    st.dictionaries(st.sampled_from(["args", *(f"settle.{n}" for n in range(6))]), st.integers(0, MIB)),
    st.booleans(),
)
def test_an_entry_keeps_what_fits_and_spills_the_largest_first(bodies: dict[str, int], is_shared: bool) -> None:
    places = places_to_spill(bodies, shared=("args",) if is_shared else ())

    assert len(set(places)) == len(places)
    kept = {place: size for place, size in bodies.items() if place not in places}
    assert sum(kept.values()) <= ENTRY_BODIES_BYTES_MAX
    for_room = [place for place in places if not (is_shared and place == "args" and bodies["args"] >= SHARED_BYTES_MIN)]
    if for_room:
        smallest = min(bodies[place] for place in for_room)
        assert all(size <= smallest for size in kept.values())
        # Without the last of them there would have been no room.
        assert sum(kept.values()) + smallest > ENTRY_BODIES_BYTES_MAX
    assert ("args" in places) >= (is_shared and bodies.get("args", 0) >= SHARED_BYTES_MIN)


def test_small_bodies_stay_where_they_are() -> None:
    assert places_to_spill({"args": SHARED_BYTES_MIN - 1}, shared=("args",)) == []
    assert places_to_spill({"args": SHARED_BYTES_MIN}, shared=("args",)) == ["args"]
    assert places_to_spill({"args": ENTRY_BODIES_BYTES_MAX}) == []


def test_what_is_shared_makes_no_room_twice() -> None:
    sizes = {"args": 2 * ENTRY_BODIES_BYTES_MAX, "settle.0": 300_000, "settle.1": 200_000}

    assert places_to_spill(sizes, shared=("args",)) == ["args", "settle.0"]
