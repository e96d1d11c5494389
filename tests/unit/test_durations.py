"""Durations as bundles and configuration spell them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("2m", 120.0),
        ("720h", 2_592_000.0),
        ("1h30m", 5400.0),
        ("1m1m", 120.0),
        ("0.1s0.1s0.1s", 0.3),
    ],
)
def test_a_duration_means_its_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "-1s", "+1s", "1 s", "1d", "1S", "1m30", ".5s", "1.s", "1e3", "inf", "nan", "٣s", "1s\n", "1" * 16],
)
def test_any_other_text_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.25, "250ms"), (1.5, "1500ms"), (90, "90s"), (120, "2m"), (86400, "24h")]
)
def test_a_duration_is_told_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@given(milliseconds=st.integers(0, 10**12))
def test_what_is_told_means_the_same(milliseconds: int) -> None:
    assert parse_duration(duration_text(milliseconds / 1000)) == milliseconds / 1000
