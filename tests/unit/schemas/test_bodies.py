"""Bodies in the record: inline up to a bound, by reference above it; usage adds up."""

from hypothesis import given

from schemas.bodies import INLINE_BYTES_MAX, Body, Usage, body_of
from tests.unit.schemas.strategies import values_of

TOKEN_COUNTS = ("input_tokens", "output_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")


def text_of(size_bytes: int) -> bytes:
    return b'"' + b"x" * (size_bytes - 2) + b'"'


def test_the_bound_is_8_kib() -> None:
    assert INLINE_BYTES_MAX == 8192


def test_a_body_of_exactly_the_bound_is_inline() -> None:
    json = text_of(8192)
    assert body_of(json, seq=7, place="args") == Body(json=json, seq=7, place="args", size_bytes=8192)


def test_a_body_of_one_byte_more_stays_in_its_entry() -> None:
    assert body_of(text_of(8193), seq=7, place="settle.2") == Body(json=b"", seq=7, place="settle.2", size_bytes=8193)


def test_the_bound_counts_bytes_and_not_characters() -> None:
    json = ('"' + "é" * 4096 + '"').encode()
    assert len(json.decode()) < INLINE_BYTES_MAX < len(json)
    assert body_of(json, seq=1, place="input").json == b""


def test_an_inline_body_names_its_entry_too() -> None:
    assert body_of(b"null", seq=3, place="input") == Body(json=b"null", seq=3, place="input", size_bytes=4)


@given(values_of(Usage), values_of(Usage))
def test_usage_adds_up_count_by_count(first: Usage, second: Usage) -> None:
    total = first + second
    for name in TOKEN_COUNTS:
        assert getattr(total, name) == getattr(first, name) + getattr(second, name)
    assert Usage.__struct_fields__ == TOKEN_COUNTS


def test_unknown_counts_are_zero_and_add_nothing() -> None:
    usage = Usage(input_tokens=3, output_tokens=4, total_tokens=7, cached_tokens=1, reasoning_tokens=2)
    assert usage + Usage() == usage
