"""Waits between deliveries, and the wish an agent may utter about them."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.retry import (
    JITTER_PERMILLE_MAX,
    RETRY_AFTER_MS_MAX,
    parse_retry_after,
    retry_wait_ms,
)

NOW_SECONDS = 1_760_000_000


def plain_wait(tries: int) -> int:
    return retry_wait_ms(tries=tries, base_ms=1000, max_ms=30_000, jitter_permille=0, retry_after_ms=0)


def test_waits_double_up_to_their_limit() -> None:
    assert [plain_wait(tries) for tries in range(1, 8)] == [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]


def test_a_target_that_stays_away_for_years_still_has_a_wait() -> None:
    assert plain_wait(1_000_000) == 30_000


def test_jitter_lengthens_the_wait_by_a_quarter_at_most() -> None:
    longest = retry_wait_ms(tries=2, base_ms=1000, max_ms=30_000, jitter_permille=JITTER_PERMILLE_MAX, retry_after_ms=0)

    assert longest == 2500


@pytest.mark.parametrize(
    ("retry_after_ms", "wait_ms"),
    [(0, 1000), (900, 1000), (3000, 3000), (RETRY_AFTER_MS_MAX, 60_000), (600_000, 60_000)],
)
def test_a_wish_raises_the_wait_up_to_a_minute(retry_after_ms: int, wait_ms: int) -> None:
    found = retry_wait_ms(tries=1, base_ms=1000, max_ms=30_000, jitter_permille=0, retry_after_ms=retry_after_ms)

    assert found == wait_ms


@given(
    tries=st.integers(1, 200),
    base_ms=st.integers(1, 60_000),
    max_ms=st.integers(1, 600_000),
    jitter_permille=st.integers(0, JITTER_PERMILLE_MAX),
    retry_after_ms=st.integers(0, 10**9),
)
def test_a_wait_is_never_shorter_than_asked_and_never_beyond_its_bounds(
    tries: int, base_ms: int, max_ms: int, jitter_permille: int, retry_after_ms: int
) -> None:
    wait_ms = retry_wait_ms(
        tries=tries, base_ms=base_ms, max_ms=max_ms, jitter_permille=jitter_permille, retry_after_ms=retry_after_ms
    )

    assert wait_ms >= min(base_ms, max_ms)
    assert wait_ms >= min(retry_after_ms, RETRY_AFTER_MS_MAX)
    assert wait_ms <= max(max_ms * 1.25, RETRY_AFTER_MS_MAX)


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        ("3", 3000),
        (" 3\t", 3000),
        ("0", 0),
        ("0" * 40 + "3", 3000),
        ("60", 60_000),
        ("600", 60_000),
        ("3600", 60_000),
        ("9" * 5000, 60_000),
        ("-3", 0),
        ("1.5", 0),
        ("٣", 0),
        ("", 0),
        ("soon", 0),
        ("Thu, 99 Jan 1970 00:00:00 GMT", 0),
        ("Thu, 01 Jan 99999999 00:00:00 GMT", 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
    ],
)
def test_a_wish_is_read_or_counts_as_none(value: str, wait_ms: int) -> None:
    assert parse_retry_after(value, NOW_SECONDS) == wait_ms


@pytest.mark.parametrize(("seconds", "wait_ms"), [(5, 5000), (59, 59_000), (3600, 60_000), (-5, 0)])
def test_a_wish_may_be_a_date(seconds: int, wait_ms: int) -> None:
    moment = datetime.fromtimestamp(NOW_SECONDS, UTC) + timedelta(seconds=seconds)

    assert parse_retry_after(format_datetime(moment, usegmt=True), NOW_SECONDS) == wait_ms


def test_a_date_without_a_zone_is_utc() -> None:
    moment = datetime.fromtimestamp(NOW_SECONDS, UTC) + timedelta(seconds=7)

    assert parse_retry_after(moment.strftime("%a, %d %b %Y %H:%M:%S"), NOW_SECONDS) == 7000


@given(st.text(max_size=60))
def test_no_header_value_breaks_the_reader(value: str) -> None:
    assert 0 <= parse_retry_after(value, NOW_SECONDS) <= RETRY_AFTER_MS_MAX
