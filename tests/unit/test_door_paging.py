"""Query values of lists, and where a page ends."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.errors import Invalid
from kernel.door import paging
from schemas.http import rfc3339

MICROS_MAX = 253_402_300_799_999_999


@pytest.mark.parametrize(
    ("query", "limit"),
    [({}, 50), ({"limit": "1"}, 1), ({"limit": "200"}, 200), ({"limit": "201"}, 200), ({"limit": "9" * 9999}, 200)],
)
def test_a_limit_is_clamped_to_the_maximum(query: dict[str, str], limit: int) -> None:
    assert paging.limit_of(query, default=50, maximum=200) == limit


@pytest.mark.parametrize("text", ["0", "x", "-1", "1.0", "+1", " 1", "1 ", "²", "\u0661", "1e3", "0" * 5000])
def test_a_limit_that_is_no_integer_from_one_on_is_invalid(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        paging.limit_of({"limit": text}, default=50, maximum=200)
    assert refused.value.path == "limit"


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("5", 5.0), ("2.5", 2.5), ("25", 25.0), ("25.0", 25.0)])
def test_a_wait_is_a_number_of_seconds(text: str, seconds: float) -> None:
    assert paging.seconds_of({"wait": text}, "wait", maximum=25.0) == seconds


@pytest.mark.parametrize(
    "text", ["26", "25.1", "-1", "x", "1.", ".5", "nan", "inf", "1e1", "9" * 400, "1.2.3", "\u0663"]
)
def test_any_other_wait_is_invalid(text: str) -> None:
    with pytest.raises(Invalid):
        paging.seconds_of({"wait": text}, "wait", maximum=25.0)


@given(st.integers(min_value=0, max_value=MICROS_MAX))
def test_a_time_of_an_answer_reads_back_as_the_same_microsecond(at: int) -> None:
    assert paging.time_of({"t": rfc3339(at)}, "t") == at


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"),
        ("2026-01-02t03:04:05.5z", "2026-01-02T03:04:05.500000+00:00"),
        ("2026-01-02T03:04:05.123456789+02:00", "2026-01-02T01:04:05.123456+00:00"),
    ],
)
def test_every_spelling_of_rfc_3339_is_read(text: str, iso: str) -> None:
    expected = datetime.fromisoformat(iso) - datetime(1970, 1, 1, tzinfo=UTC)
    assert paging.time_of({"t": text}, "t") == expected.total_seconds() * 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026-01-02",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04Z",
        "20260102T030405Z",
        "2026-W01-1T03:04:05Z",
        "2026-02-30T03:04:05Z",
        "2026-01-02T25:04:05Z",
        "2026-01-02T03:04:05 00:00",
        "1760000000",
        "0001-01-01T00:00:00+23:59:59",
    ],
)
def test_any_other_time_is_invalid(text: str) -> None:
    with pytest.raises(Invalid):
        paging.time_of({"t": text}, "t")


def test_the_ends_of_the_calendar_are_no_fault_of_the_kernel() -> None:
    assert paging.time_of({"t": "0001-01-01T00:00:00+23:00"}, "t") < 0
    assert paging.time_of({}, "t") == 0


@pytest.mark.parametrize(
    ("weights", "is_first", "count"),
    [([], True, 0), ([5], True, 1), ([11], True, 1), ([11], False, 0), ([5, 5], True, 2), ([5, 5, 1], True, 2)],
)
def test_a_page_ends_before_its_room_does_but_has_one_item(weights: list[int], is_first: bool, count: int) -> None:
    assert paging.fitting(weights, 10, is_first=is_first) == count
