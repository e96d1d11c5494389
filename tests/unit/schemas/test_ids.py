"""Ids: made from data, read in either case, written in one."""

import re
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import (
    AGENT_ID,
    RANDOM_BYTES,
    STEP_ID,
    TENANT_ID,
    new_uuid7,
    parse_uuid,
    uuid7_from,
    uuid7_ms,
    uuid_bytes,
    uuid_text,
)

TIMES = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)
CANONICAL = "0199aaaa-0000-7000-8000-0000000000ff"


@given(TIMES, RANDOM)
def test_a_made_id_is_a_uuid_of_version_7_that_carries_its_time(unix_ms: int, random: bytes) -> None:
    made = uuid7_from(unix_ms, random)
    read = uuid.UUID(made)
    assert (read.version, read.variant) == (7, uuid.RFC_4122)
    assert uuid7_ms(made) == unix_ms
    assert made == str(read) == parse_uuid(made)


def test_the_same_data_makes_the_same_id() -> None:
    random = bytes.fromhex("0123456789abcdef0123")
    assert uuid7_from(0x0199AAAA0000, random) == "0199aaaa-0000-7012-8567-89abcdef0123"


@given(TIMES, RANDOM)
def test_74_random_bits_are_kept(unix_ms: int, random: bytes) -> None:
    made = uuid.UUID(uuid7_from(unix_ms, random)).int
    given = int.from_bytes(random, "big")
    assert made >> 64 & 0xFFF == given >> 68
    assert made & (1 << 62) - 1 == given & (1 << 62) - 1


@given(TIMES, TIMES, RANDOM, RANDOM)
def test_ids_sort_by_their_time(first_ms: int, second_ms: int, first_random: bytes, second_random: bytes) -> None:
    first, second = uuid7_from(first_ms, first_random), uuid7_from(second_ms, second_random)
    if first_ms != second_ms:
        assert (first < second) == (first_ms < second_ms)


def test_a_new_id_carries_the_time_of_now_and_is_never_made_twice() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_uuid7() for _ in range(100)]
    after = time.time_ns() // 1_000_000
    assert all(before <= uuid7_ms(each) <= after for each in made)
    assert len(set(made)) == 100


@pytest.mark.parametrize("text", [CANONICAL, CANONICAL.upper(), "0199AAAA-0000-7000-8000-0000000000fF"])
def test_a_dashed_uuid_is_read_in_either_case(text: str) -> None:
    assert parse_uuid(text) == CANONICAL


@pytest.mark.parametrize(
    "text",
    [
        "",
        CANONICAL.replace("-", ""),
        "{" + CANONICAL + "}",
        "urn:uuid:" + CANONICAL,
        CANONICAL[:-1],
        CANONICAL + "0",
        " " + CANONICAL,
        CANONICAL + "\n",
        CANONICAL.replace("f", "g"),
        "0199aaa-a0000-7000-8000-0000000000ff",
        CANONICAL.replace("0", "\uff10"),
        CANONICAL.replace("-", "\u2010"),
    ],
)
def test_every_other_spelling_is_none(text: str) -> None:
    assert parse_uuid(text) is None


@given(st.uuids())
def test_bytes_and_text_of_an_id_are_one(value: uuid.UUID) -> None:
    assert uuid_bytes(str(value)) == value.bytes
    assert uuid_text(value.bytes) == str(value)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (AGENT_ID, "a"),
        (AGENT_ID, "Z0._:-" + "x" * 122),
        (TENANT_ID, "default"),
        (TENANT_ID, "A_b-9" + "x" * 59),
        (STEP_ID, "0123456789abcdef" * 4),
    ],
)
def test_names_of_the_allowed_characters_and_length_match(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.fullmatch(text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (AGENT_ID, ""),
        (AGENT_ID, "x" * 129),
        (AGENT_ID, "a b"),
        (AGENT_ID, "a\n"),
        (AGENT_ID, "a/b"),
        (AGENT_ID, "é"),
        (AGENT_ID, "\u0661"),
        (TENANT_ID, ""),
        (TENANT_ID, "x" * 65),
        (TENANT_ID, "a.b"),
        (TENANT_ID, "a*"),
        (TENANT_ID, "a>"),
        (TENANT_ID, "a\0"),
        (TENANT_ID, "a\n"),
        (STEP_ID, "0" * 63),
        (STEP_ID, "0" * 65),
        (STEP_ID, "A" * 64),
        (STEP_ID, "g" * 64),
        (STEP_ID, "0" * 64 + "\n"),
    ],
)
def test_every_other_name_does_not_match(pattern: re.Pattern[str], text: str) -> None:
    assert not pattern.fullmatch(text)
